//! Background recovery: resolves uncertain intents without waiting for a caller, and deletes expired records.
//!
//! | module | what |
//! |---|---|
//! | `reconcile` | [`Reconciler`]: lists uncertain and abandoned intents and calls their [`Lookup`](crate::guard::Lookup) |
//! | `report` | [`Report`]: the result of a run: settled, still held, and the longest held |
//! | `backoff` | when an intent whose lookup did not know is looked up again |
//! | `sweep` | [`Sweeper`]: deletes records whose retention is over, a bounded number per run |
//!
//! Both are loops to spawn, one or several, in one or many processes: every change they make is fenced by the
//! epoch they read, so a second one costs extra lookups and changes nothing. Stop them by dropping them; a lookup
//! only reads, and a decision is either recorded or not.

mod backoff;
mod reconcile;
mod report;
mod sweep;

pub use reconcile::{ReconcileLimits, Reconciler};
pub use report::{HeldIntent, Report};
pub use sweep::{SweepLimits, Sweeper, Swept};

/// Runs are spread by this share of their interval.
const SPREAD: f64 = 0.5;
