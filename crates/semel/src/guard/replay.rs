//! Replay: the answer of an earlier run.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use super::answer::{Answer, GuardError};
use super::operation::Guarded;
use super::rebuild::Kept;
use crate::intent::identity::Intent;
use crate::intent::outcome::{Body, Outcome, Verdict};
use crate::store::{ErrorKind, Existing, Fate, Store, StoreError};

impl<S: Store> Guarded<S> {
    /// The answer for a caller whose claim found a recorded outcome.
    pub(super) async fn replay(&self, existing: Existing) -> Result<Answer, GuardError> {
        self.of.metrics.replay();
        let record = existing.record;
        let verdict = record.head.state.replayed_as().unwrap_or(Verdict::Completed);
        // Decided without an outcome, or the store lost it: done, body not kept. Never run again.
        let outcome = record.outcome.clone().unwrap_or_else(Outcome::unknown);
        self.replay_stored(&record.intent, verdict, outcome).await
    }

    /// The answer for a stored outcome; rebuilds it where only a reference is stored.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(crate) fn replay_stored<'a>(
        &'a self,
        intent: &'a Intent,
        verdict: Verdict,
        outcome: Outcome,
    ) -> impl Future<Output = Result<Answer, GuardError>> + Send + 'a {
        async move {
            let reference = match &outcome.body {
                Body::Kept(_) | Body::NotKept => return Ok(Answer::replay(verdict, outcome)),
                Body::Sealed(_) => {
                    let message = "the outcome is compressed or encrypted, and this store was opened without \
                                   Protected; open it with the same protection as the process that wrote it";
                    let error = StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message);
                    return Err(GuardError::StoreUnavailable(error));
                }
                Body::Reference(reference) => String::from_utf8_lossy(reference).into_owned(),
            };
            let kept = Kept { intent: intent.clone(), code: outcome.code, reference };
            // Boxed: otherwise every call's future would be larger for what few need.
            match Box::pin(self.rebuild(kept)).await {
                Ok(outcome) => Ok(Answer::replay(verdict, outcome)),
                Err(why) => {
                    tracing::error!(
                        operation = self.of.operation.as_str(),
                        intent = super::shown(intent),
                        why,
                        "a stored answer could not be rebuilt; the caller gets an error and may retry"
                    );
                    Err(GuardError::NotRebuilt { why })
                }
            }
        }
    }

    /// Rebuilds an outcome from its reference, or says why that failed.
    async fn rebuild(&self, kept: Kept) -> Result<Outcome, String> {
        let Some(rebuild) = &self.of.rebuild else {
            return Err("only a reference is stored, and the operation has no Rebuild for it".into());
        };
        let rebuilding = AssertUnwindSafe(async { rebuild.rebuild(kept).await }).catch_unwind();
        match tokio::time::timeout(self.of.guard.inner.limits.lookup_timeout, rebuilding).await {
            Ok(Ok(rebuilt)) => rebuilt.map_err(|error| error.to_string()),
            Ok(Err(_)) => Err("Rebuild::rebuild panicked".into()),
            Err(_) => Err("Rebuild::rebuild timed out".into()),
        }
    }
}
