//! How long a lease has lasted, by the clocks of this process.
//!
//! Timers count no time while the machine is suspended, and the lease goes on in the store. A process that wakes up
//! would believe in a lease that ended long ago, and send a call after a lookup was believed that found nothing.

use std::sync::OnceLock;
use std::time::{Duration, Instant as MachineInstant, SystemTime};

use tokio::time::Instant;

use super::operation::Guarded;
use crate::store::Store;

/// A moment at which a lease was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) at: Instant,
    gained_ms: i64,
}

impl<S: Store> Guarded<S> {
    /// This moment.
    pub(super) fn begin(&self) -> Begun {
        Begun { at: Instant::now(), gained_ms: self.gained_ms() }
    }

    /// How long ago that was: what timers have counted, and what was slept.
    pub(super) fn since(&self, begun: &Begun) -> Duration {
        let slept_ms = self.gained_ms().saturating_sub(begun.gained_ms);
        begun.at.elapsed().saturating_add(Duration::from_millis(u64::try_from(slept_ms).unwrap_or(0)))
    }

    /// A protected effect may run twice, so nothing hangs on it there.
    fn gained_ms(&self) -> i64 {
        if self.of.policy.effect.may_rerun() { 0 } else { self.of.guard.inner.spawner.gained_ms() }
    }
}

/// See [`Spawn::gained_ms`](super::Spawn::gained_ms).
pub(super) fn gained_ms() -> i64 {
    static BEGUN: OnceLock<(SystemTime, MachineInstant)> = OnceLock::new();
    let (wall, machine) = BEGUN.get_or_init(|| (SystemTime::now(), MachineInstant::now()));
    let counted = ms(machine.elapsed());
    let passed = match wall.elapsed() {
        Ok(passed) => ms(passed),
        // It was set back.
        Err(ahead) => -ms(ahead.duration()),
    };
    passed.saturating_sub(counted)
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
