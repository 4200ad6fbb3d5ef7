use std::fmt;
use std::marker::PhantomData;

/// Always empty.
pub(crate) struct Hook<T>(PhantomData<fn() -> T>);

impl<T> Hook<T> {
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        None
    }
}

impl<T> From<T> for Hook<T> {
    fn from(_: T) -> Self {
        Self::default()
    }
}

impl<T> Clone for Hook<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> Default for Hook<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> fmt::Debug for Hook<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
