//! How old a signature may be.

use std::time::Duration;

use super::verifier::VerifyError;

/// How far a signature's time may be from ours, before and after, unless told otherwise: what Stripe and Standard Webhooks
/// recommend.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance(Duration);

impl Tolerance {
    pub(super) fn of(tolerance: Duration) -> Self {
        Self(tolerance)
    }

    /// Both ends are still inside.
    pub(super) fn check(self, signed_at_s: u64, now_s: u64) -> Result<(), VerifyError> {
        if signed_at_s.abs_diff(now_s) <= self.0.as_secs() { Ok(()) } else { Err(VerifyError::Stale) }
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        Self(TOLERANCE)
    }
}
