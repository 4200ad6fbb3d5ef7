//! How long a lease has lasted, by the clocks of this process.
//!
//! Timers stand still while the machine is suspended, but the lease goes on in the store. Without this, a process
//! that wakes up would trust a lease that ended long ago, and send a call after a lookup already said "not applied".

use std::sync::OnceLock;
use std::time::{Duration, Instant as MachineInstant, SystemTime};

use tokio::time::Instant;

use super::operation::Guarded;
use crate::store::Store;

/// The moment at which a lease was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseStart {
    pub(super) at: Instant,
    gained_ms: i64,
}

impl<S: Store> Guarded<S> {
    /// A lease requested now.
    pub(super) fn lease_start(&self) -> LeaseStart {
        LeaseStart { at: Instant::now(), gained_ms: self.gained_ms() }
    }

    /// How long ago the lease was requested: the time that timers counted plus the time asleep.
    pub(super) fn since(&self, start: &LeaseStart) -> Duration {
        let slept_ms = self.gained_ms().saturating_sub(start.gained_ms);
        start.at.elapsed().saturating_add(Duration::from_millis(u64::try_from(slept_ms).unwrap_or(0)))
    }

    /// A protected effect may run twice, so sleep does not matter there, unless it is protected for a while only.
    fn gained_ms(&self) -> i64 {
        let policy = &self.of.policy;
        if policy.effect.may_rerun() && policy.safe_for.is_none() {
            0
        } else {
            self.of.guard.inner.spawner.gained_ms()
        }
    }
}

/// See [`Spawn::gained_ms`](super::Spawn::gained_ms).
pub(super) fn gained_ms() -> i64 {
    static BEGUN: OnceLock<(SystemTime, MachineInstant)> = OnceLock::new();
    let (wall, machine) = BEGUN.get_or_init(|| (SystemTime::now(), MachineInstant::now()));
    let counted = ms(machine.elapsed());
    let passed = match wall.elapsed() {
        Ok(passed) => ms(passed),
        // The wall clock was set back.
        Err(ahead) => -ms(ahead.duration()),
    };
    passed.saturating_sub(counted)
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
