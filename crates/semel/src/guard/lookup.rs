//! Finding out about an uncertain intent.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::operation::Guarded;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::millis;
use crate::intent::state::Ruling;
use crate::observe::{Phase, RecoveryStatus};
use crate::store::{Decide, Decided, Existing, Record, Store};

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
pub(super) enum LookedUp {
    /// Something was decided, by us or by somebody else in the meantime: claim again.
    Decided,
    /// Held; a lookup may ask again after this long.
    Held(Option<Duration>),
}

impl<S: Store> Guarded<S> {
    pub(super) async fn look_up(&self, existing: Existing) -> LookedUp {
        let Some(lookup) = &self.of.lookup else { return LookedUp::Held(None) };
        let record = Arc::unwrap_or_clone(existing.record);
        // "Not found" too early is no answer: the call may still be on its way.
        let waited_ms = existing.now.since_ms(record.since(existing.now));
        let settle_ms = millis(self.of.policy.settle);
        if waited_ms < settle_ms {
            return LookedUp::Held(Some(Duration::from_millis(settle_ms - waited_ms)));
        }
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
        let (ruling, outcome, status) = match found {
            Found::Applied(outcome) => {
                let outcome = outcome.kept();
                (Ruling::Applied(Verdict::Completed), Some(outcome), RecoveryStatus::Applied)
            }
            Found::NotApplied => (Ruling::NotApplied, None, RecoveryStatus::NotApplied),
            Found::Unknown => {
                self.of.metrics.recovery(RecoveryStatus::Unknown);
                return LookedUp::Held(None);
            }
        };
        let (by, why) = ("lookup".to_owned(), "found out by the operation's lookup".to_owned());
        let retention = self.of.policy.retention;
        let decide = Decide { seen, ruling, outcome, retention, by, why };
        match self.ask(Phase::Decide, pin!(self.of.guard.inner.store.decide(id, decide))).await {
            Ok(Decided::Recorded) => {
                self.of.metrics.recovery(status);
                LookedUp::Decided
            }
            Ok(Decided::Stale | Decided::Refused(_)) => {
                self.of.metrics.recovery(RecoveryStatus::Overtaken);
                LookedUp::Decided
            }
            Err(error) => {
                tracing::warn!(operation = self.of.operation.as_str(), ?id, %error, "a lookup's answer could not be recorded");
                LookedUp::Held(None)
            }
        }
    }
}
