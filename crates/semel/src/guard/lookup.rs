//! Resolving an uncertain intent with the operation's lookup.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Instrument;

use super::answer::GuardError;
use super::operation::Guarded;
use crate::intent::identity::IntentId;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{StoreTime, millis};
use crate::intent::state::Ruling;
use crate::observe::{Phase, RecoveryStatus, names};
use crate::store::{Decide, Decided, ErrorKind, Existing, Record, Store};

/// What a lookup found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It happened; callers get this outcome from now on.
    Applied(Outcome),
    /// It did not happen and no longer can: the same key may run again.
    NotApplied,
    /// Still unknown: the intent stays uncertain.
    Unknown,
}

/// Asks the system that knows (your database, the provider) whether an uncertain intent happened.
///
/// Implemented for closures from a [`Record`] to a future of [`Found`]. It must only read, and may be called
/// several times.
pub trait Lookup: Send + Sync + 'static {
    /// Looks up one intent.
    fn look_up(&self, record: Record) -> Pin<Box<dyn Future<Output = Found> + Send + '_>>;
}

impl<F, Fut> Lookup for F
where
    F: Fn(Record) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Found> + Send + 'static,
{
    fn look_up(&self, record: Record) -> Pin<Box<dyn Future<Output = Found> + Send + '_>> {
        Box::pin(self(record))
    }
}

/// The result of resolving one uncertain intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookedUp {
    /// It happened, and that is recorded now.
    Applied,
    /// It did not happen, and that is recorded now.
    NotApplied,
    /// The owner came back, or another caller decided: what they recorded stands.
    Overtaken,
    /// Nothing is recorded; the intent stays uncertain.
    Unresolved(Unresolved),
}

/// Why an intent stays uncertain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unresolved {
    /// The operation has no lookup.
    NoLookup,
    /// It is too early to trust "not found"; retry after this long.
    Settling(Duration),
    /// The lookup did not know, panicked or timed out.
    Unknown,
    /// The store did not record the answer.
    NotRecorded,
}

impl Unresolved {
    /// When the lookup may run; `None` if there is no lookup, or it did not know.
    fn settles_in(self) -> Option<Duration> {
        match self {
            Self::Settling(settles_in) => Some(settles_in),
            Self::NoLookup | Self::Unknown | Self::NotRecorded => None,
        }
    }
}

/// Uncertain intents are resolved only here: for a caller that meets one, and for the reconcile loop.
impl<S: Store> Guarded<S> {
    /// How long until a lookup may be trusted (settle delay). An early "not found" proves nothing: the call may still
    /// be on its way.
    pub(crate) fn settles_in(&self, record: &Record, now: StoreTime) -> Option<Duration> {
        let waited_ms = now.since_ms(record.since(now));
        let left_ms = millis(self.of.policy.settle).saturating_sub(waited_ms);
        (left_ms > 0).then(|| Duration::from_millis(left_ms))
    }

    /// Whether its owner runs in this process, even if the lease has expired: then there is nothing to look up.
    pub(crate) fn is_worked_on(&self, id: &IntentId) -> bool {
        self.of.guard.inner.waiters.is_worked_on(id)
    }

    /// For a caller that met an uncertain intent: once it is resolved, another claim makes sense. One lookup is made
    /// per call.
    pub(super) async fn look_up_once(
        &self,
        existing: Existing,
        looked_up: &mut bool,
    ) -> Result<(), GuardError> {
        let id = existing.record.intent.id();
        if *looked_up {
            return Err(GuardError::Uncertain { id, settles_in: None });
        }
        let span =
            tracing::info_span!(names::SPAN_LOOKUP, idempotency.operation = self.of.operation.as_str());
        match self.look_up(existing).instrument(span).await {
            LookedUp::Applied | LookedUp::NotApplied | LookedUp::Overtaken => {
                *looked_up = true;
                Ok(())
            }
            LookedUp::Unresolved(why) => Err(GuardError::Uncertain { id, settles_in: why.settles_in() }),
        }
    }

    pub(crate) async fn look_up(&self, existing: Existing) -> LookedUp {
        let Some(lookup) = &self.of.lookup else { return LookedUp::Unresolved(Unresolved::NoLookup) };
        if let Some(settles_in) = self.settles_in(&existing.record, existing.now) {
            return LookedUp::Unresolved(Unresolved::Settling(settles_in));
        }
        let record = Arc::unwrap_or_clone(existing.record);
        // The epoch ties the lookup's answer to the record it was asked about.
        let (id, seen) = (record.intent.id(), record.head.epoch);
        let asked = AssertUnwindSafe(async { lookup.look_up(record).await }).catch_unwind();
        let found = match tokio::time::timeout(self.of.guard.inner.limits.lookup_timeout, asked).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => {
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    ?id,
                    "the lookup panicked or timed out; the intent stays uncertain"
                );
                Found::Unknown
            }
        };
        let (ruling, outcome, status, looked_up) = match found {
            Found::Applied(outcome) => {
                let ruling = Ruling::Applied(Verdict::Completed);
                (ruling, Some(self.kept(outcome)), RecoveryStatus::Applied, LookedUp::Applied)
            }
            Found::NotApplied => (Ruling::NotApplied, None, RecoveryStatus::NotApplied, LookedUp::NotApplied),
            Found::Unknown => {
                self.of.metrics.recovery(RecoveryStatus::Unknown);
                return LookedUp::Unresolved(Unresolved::Unknown);
            }
        };
        let (by, why) = ("lookup".to_owned(), "found out by the operation's lookup".to_owned());
        let retention = self.of.policy.retention;
        let mut decide = Decide { seen, ruling, outcome, retention, by, why };
        let decided = loop {
            let request = pin!(self.of.guard.inner.store.decide(id, decide.clone()));
            match self.ask(Phase::Decide, request).await {
                // That it happened matters more than its outcome: store less of the outcome.
                Err(error) if error.kind() == ErrorKind::TooLarge && decide.outcome.is_some() => {
                    decide.outcome = decide.outcome.and_then(|outcome| outcome.smaller());
                }
                decided => break decided,
            }
        };
        match decided {
            Ok(Decided::Recorded) => {
                self.of.metrics.recovery(status);
                looked_up
            }
            Ok(Decided::Stale | Decided::Refused(_)) => {
                self.of.metrics.recovery(RecoveryStatus::Overtaken);
                LookedUp::Overtaken
            }
            Err(error) => {
                tracing::warn!(
                    operation = self.of.operation.as_str(),
                    ?id,
                    %error,
                    "the store did not record the lookup's answer; the intent stays uncertain"
                );
                LookedUp::Unresolved(Unresolved::NotRecorded)
            }
        }
    }
}
