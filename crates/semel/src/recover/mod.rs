//! What was left over: uncertain intents are looked up without waiting for a caller, expired records are forgotten.
//!
//! | module | what |
//! |---|---|
//! | [`Reconciler`] | walks uncertain and abandoned intents and asks each operation's [`Lookup`](crate::guard::Lookup) |
//! | [`Report`] | what a run came to: settled, held, and the longest held |
//! | `backoff` | when an intent that nobody knew about is asked about again |
//! | [`Sweeper`] | forgets records whose retention is over, a bounded number a run |
//!
//! Both are loops to spawn, one or several, in one or many processes: every change they make is fenced by the
//! epoch they saw, so running them twice costs questions and changes nothing. Stop them by dropping them; a lookup
//! only reads, and a decision is either recorded or not.

mod backoff;
mod reconcile;
mod report;
mod sweep;

pub use reconcile::{ReconcileLimits, Reconciler};
pub use report::{HeldIntent, Report};
pub use sweep::{SweepLimits, Sweeper, Swept};

use std::time::Duration;

/// Between half and one and a half times `every`, so that many processes do not come at the same moment.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.5 + fastrand::f64())
}
