//! Finding out about an uncertain intent.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::operation::Guarded;
use crate::intent::identity::IntentId;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{StoreTime, millis};
use crate::intent::state::Ruling;
use crate::observe::{Phase, RecoveryStatus};
use crate::store::{Decide, Decided, ErrorKind, Existing, Record, Store};

/// What a lookup found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It happened; this is what callers get from now on.
    Applied(Outcome),
    /// It did not happen, and will not any more: the same key may run again.
    NotApplied,
    /// Still unknown: held.
    Unknown,
}

/// Asks whoever knows (your database, the provider) whether an uncertain intent happened.
///
/// Implemented for closures from a [`Record`] to a future of [`Found`]. It only reads, and may be asked
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

/// What asking came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookedUp {
    /// It happened, and that is recorded now.
    Applied,
    /// It did not happen, and that is recorded now.
    NotApplied,
    /// The owner came back, or somebody else decided: what they recorded stands.
    Overtaken,
    /// Nothing is recorded.
    Held(Held),
}

/// Why an uncertain intent stays what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// Nobody can be asked.
    NoLookup,
    /// It is too early to believe "not found"; ask again after this long.
    Settling(Duration),
    /// The lookup did not know, panicked or took too long.
    Unknown,
    /// The store did not take the answer.
    NotRecorded,
}

impl Held {
    /// When a lookup will be allowed to ask; `None` where there is none, or it did not know.
    pub(super) fn settles_in(self) -> Option<Duration> {
        match self {
            Self::Settling(settles_in) => Some(settles_in),
            Self::NoLookup | Self::Unknown | Self::NotRecorded => None,
        }
    }
}

/// The one place where an intent of unknown fate is found out about: for a caller who runs into it, and for the
/// loop that looks for such intents.
impl<S: Store> Guarded<S> {
    /// How long until a lookup may be believed. "Not found" too early is no answer: the call may still be on its
    /// way.
    pub(crate) fn settles_in(&self, record: &Record, now: StoreTime) -> Option<Duration> {
        let waited_ms = now.since_ms(record.since(now));
        let left_ms = millis(self.of.policy.settle).saturating_sub(waited_ms);
        (left_ms > 0).then(|| Duration::from_millis(left_ms))
    }

    /// Whether its owner lives in this very process, lease or no lease: then there is nothing to find out.
    pub(crate) fn is_worked_on(&self, id: &IntentId) -> bool {
        self.of.guard.inner.waiters.is_worked_on(id)
    }

    pub(crate) async fn look_up(&self, existing: Existing) -> LookedUp {
        let Some(lookup) = &self.of.lookup else { return LookedUp::Held(Held::NoLookup) };
        if let Some(settles_in) = self.settles_in(&existing.record, existing.now) {
            return LookedUp::Held(Held::Settling(settles_in));
        }
        let record = Arc::unwrap_or_clone(existing.record);
        // What the lookup is told and what its answer is recorded about is the same record, by its epoch.
        let (id, seen) = (record.intent.id(), record.head.epoch);
        let asked = AssertUnwindSafe(async { lookup.look_up(record).await }).catch_unwind();
        let found = match tokio::time::timeout(self.of.guard.inner.limits.lookup_timeout, asked).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => {
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    ?id,
                    "the lookup panicked or took too long"
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
                return LookedUp::Held(Held::Unknown);
            }
        };
        let (by, why) = ("lookup".to_owned(), "found out by the operation's lookup".to_owned());
        let retention = self.of.policy.retention;
        let mut decide = Decide { seen, ruling, outcome, retention, by, why };
        let decided = loop {
            let request = pin!(self.of.guard.inner.store.decide(id, decide.clone()));
            match self.ask(Phase::Decide, request).await {
                // That it happened is worth more than what it came to.
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
                tracing::warn!(operation = self.of.operation.as_str(), ?id, %error, "a lookup's answer could not be recorded");
                LookedUp::Held(Held::NotRecorded)
            }
        }
    }
}
