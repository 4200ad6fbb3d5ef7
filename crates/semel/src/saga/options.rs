//! The bounds of a process that runs sagas.

use std::time::Duration;

/// Bounds of a process that runs sagas.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct SagaOptions {
    /// Sagas at work at once. More wait in the journal.
    pub running_max: usize,
    /// The worker's lease: a process that died is noticed after it. At least twice the longest timeout of a step, and
    /// raised to that where it is less.
    pub lease: Duration,
    /// What must be left of the lease after a call's timeout.
    pub lease_margin: Duration,
    /// How often the journal is asked for what is due.
    pub poll_interval: Duration,
    /// How long one request to the journal may take.
    pub journal_timeout: Duration,
    /// How often ended sagas are swept.
    pub sweep_interval: Duration,
    /// How long a caller of `once` waits for the end.
    pub wait: Duration,
}

impl Default for SagaOptions {
    fn default() -> Self {
        Self {
            running_max: 1_000,
            lease: Duration::from_secs(30),
            lease_margin: Duration::from_secs(2),
            poll_interval: Duration::from_secs(1),
            journal_timeout: Duration::from_secs(5),
            sweep_interval: Duration::from_secs(60),
            wait: Duration::from_secs(30),
        }
    }
}
