//! How old a signature may be: protection against replay.

use std::time::Duration;

use super::verifier::VerifyError;

/// Default of how far a signature's timestamp may be from our clock, in either direction. Stripe and Standard Webhooks
/// recommend it.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance(Duration);

impl Tolerance {
    pub(super) fn of(tolerance: Duration) -> Self {
        Self(tolerance)
    }

    /// Both bounds are inclusive.
    pub(super) fn check(self, signed_at_s: u64, now_s: u64) -> Result<(), VerifyError> {
        if signed_at_s.abs_diff(now_s) <= self.0.as_secs() { Ok(()) } else { Err(VerifyError::Stale) }
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        Self(TOLERANCE)
    }
}
