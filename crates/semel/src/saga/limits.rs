//! How many calls of one kind of step are under way at once: a kind that hangs does not take all places of the process.
//!
//! A saga whose step finds no room gives its place back and waits in memory; where as many wait already as may be
//! called, it waits in the journal, and sagas with this step are taken now and then only: other processes may have room,
//! and what does not need the step any more (a deadline passed, it was cancelled) goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::run::{Going, Work};
use super::spec::StepSpec;
use crate::backoff::spread;
use crate::intent::policy::millis;
use crate::stop;

/// How long one that found no room to wait stays in the journal.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// Of every kind of step, by name: a name that several sagas declare is one kind.
pub(super) struct StepLimits(HashMap<&'static str, Kind>);

#[derive(Clone)]
struct Kind {
    calls: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// The right to call a step, until it is dropped.
pub(super) struct CallPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl StepLimits {
    /// Where two sagas declare a step of one name, the smaller limit counts.
    pub(super) fn new<'s>(specs: impl Iterator<Item = &'s StepSpec>, running_max: usize) -> Self {
        let mut limits: HashMap<&'static str, usize> = HashMap::new();
        for spec in specs {
            let limit = spec.concurrent_max.map_or(running_max / 2, |max| max as usize);
            let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
            limits.entry(spec.name).and_modify(|known| *known = limit.min(*known)).or_insert(limit);
        }
        let kind = |limit: usize| Kind {
            calls: Arc::new(Semaphore::new(limit)),
            waiting: Arc::new(Semaphore::new(limit)),
        };
        Self(limits.into_iter().map(|(name, limit)| (name, kind(limit))).collect())
    }

    /// The right to call this step now, if there is room. A step that is not declared is not called anyway.
    fn try_enter(&self, step: &str) -> Option<CallPermit> {
        match self.0.get(step) {
            None => Some(CallPermit { _permit: None }),
            Some(kind) => Arc::clone(&kind.calls)
                .try_acquire_owned()
                .ok()
                .map(|permit| CallPermit { _permit: Some(permit) }),
        }
    }

    /// As many wait for one of these steps as may: sagas that need it are better left to others.
    pub(super) fn are_full(&self, steps: &[&'static str]) -> bool {
        let mut kinds = steps.iter().filter_map(|step| self.0.get(step));
        kinds.any(|kind| kind.waiting.available_permits() == 0)
    }
}

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    /// The right to call this step now; `None`: enough of its kind are under way. Ask before the attempt is noted.
    pub(super) fn enter(&mut self, step: &str) -> Option<CallPermit> {
        match self.reserved.take_if(|(of, _)| of == step) {
            Some((_, permit)) => Some(permit),
            None => self.engine.limits.try_enter(step),
        }
    }

    /// Waits until this step may be called, or until something else has to be done first: look at everything again.
    /// Meanwhile the saga has no place of the process. Nothing of it may be under way.
    pub(super) async fn wait_to_enter(&mut self, step: &str) -> Going<()> {
        self.reserved = None;
        self.write().await?;
        let Some(kind) = self.engine.limits.0.get(step).cloned() else { return Ok(()) };
        self.engine.metrics.step_waits(step);
        let Ok(waiting) = kind.waiting.try_acquire_owned() else {
            let until = self.now().plus_ms(millis(spread(PAUSE, 0.2)));
            // Still ours where it goes on here: a signal came in between.
            return self.suspend(None, Some(until)).await.map(drop);
        };
        self.place = None;
        self.engine.woken.notify_one();
        let deadline = self.record.row.deadline.filter(|_| self.may_still_be_undone());
        let until = deadline.map(|at| Instant::now() + Duration::from_millis(at.since_ms(self.now())));
        let passed = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let mut stopping = self.engine.stopping.subscribe();
        let permit = tokio::select! {
            biased;
            // Handed over without a place: a drain waits for all of them.
            () = stop::asked_to_stop(&mut stopping) => return Ok(()),
            permit = kind.calls.acquire_owned() => permit.ok(),
            () = passed => None,
        };
        drop(waiting);
        self.engine.woken.notify_one();
        self.reserved = permit.map(|permit| (step.to_owned(), CallPermit { _permit: Some(permit) }));
        let place = Arc::clone(&self.engine.running).acquire_owned();
        self.place = tokio::select! {
            biased;
            () = stop::asked_to_stop(&mut stopping) => None,
            place = place => place.ok(),
        };
        // It may have waited for long: somebody may have cancelled it.
        self.read_signals().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_counts_and_half_of_the_places_is_the_default() {
        let specs = [
            StepSpec::keyed("a"),
            StepSpec::keyed("b").concurrent_max(3),
            StepSpec::keyed("b").concurrent_max(2),
            StepSpec::opaque("c").concurrent_max(0),
        ];
        for (running_max, of_a) in [(1, 1), (2, 1), (10, 5)] {
            let limits = StepLimits::new(specs.iter(), running_max);
            for (step, room) in [("a", of_a), ("b", 2), ("c", 1)] {
                let held: Vec<_> = std::iter::from_fn(|| limits.try_enter(step)).take(100).collect();
                assert_eq!(held.len(), room, "{step} of {running_max}");
                drop(held);
                assert!(limits.try_enter(step).is_some(), "{step}: given back");
            }
            assert!(limits.try_enter("undeclared").is_some());
        }
    }
}
