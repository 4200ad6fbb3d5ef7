//! Hooks of tests: planted bugs, and faults that a real server or disk does not produce on demand.
//!
//! Without the feature `fault-injection` a hook has no size, is always empty, and cannot be set.

#[cfg(not(feature = "fault-injection"))]
mod off;
#[cfg(feature = "fault-injection")]
mod on;

#[cfg(not(feature = "fault-injection"))]
pub(crate) use off::Hook;
#[cfg(feature = "fault-injection")]
pub(crate) use on::Hook;

impl<T: PartialEq> Hook<T> {
    /// Whether a test has set it to this.
    pub(crate) fn is(&self, value: T) -> bool {
        self.get() == Some(&value)
    }
}
