/// A hook: the value that a test has set, if any.
#[derive(Clone, Debug)]
pub(crate) struct Hook<T>(Option<T>);

impl<T> Hook<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> From<T> for Hook<T> {
    fn from(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Default for Hook<T> {
    fn default() -> Self {
        Self(None)
    }
}
