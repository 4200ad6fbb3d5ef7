//! Claim with a lease, effect, finish: the guard's own protocol.

use std::sync::Arc;

use super::guard_result::handler_result;
use super::{Dedup, Work, WorkAttempt, done};
use crate::guard::{Execution, WorkResult};
use crate::inbox::consumer::{Handler, HandlerError, Message};
use crate::intent::outcome::Outcome;
use crate::store::Store;

/// Claim, run, finish: **a crash in between leaves the effect in doubt**. A keyed effect is run again with the same
/// key; an opaque one is reported as in doubt and never repeated automatically.
///
/// - **Keyed.** The called service honours [`WorkAttempt::key`]. After a crash the message waits until the old lease
///   expires; no two consumers run it while the lease is renewed.
/// - **Opaque.** A message in doubt is a poison message: it goes to the consumer's
///   [dead letters](crate::inbox::consumer::DeadLetters), or blocks its key if there are none. A
///   [lookup](Dedup::lookup) or an operator (`semel resolve`) decides it; then the message is done, or runs again at
///   its next delivery. After an error the effect is in doubt too, unless the error is
///   [`not_applied`](HandlerError::not_applied).
///
/// Once claimed the work runs to its end, even if the consumer has stopped waiting for it. Give it a timeout of its
/// own, and
/// [drain](crate::Guard::drain) the guard before the process ends.
#[derive(Debug)]
pub struct ClaimFinish<S, W> {
    dedup: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> ClaimFinish<S, W> {
    pub(super) fn new(dedup: Dedup<S>, work: W) -> Self {
        Self { dedup, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.dedup.intent(message);
        let id = intent.id();
        let (work, given) = (Arc::clone(&self.work), message.clone());
        let ran = self.dedup.guarded.run_with(intent, fingerprint, move |attempt| async move {
            let call = WorkAttempt {
                message: given,
                key: attempt.intent.key().clone(),
                attempt: Some(attempt.number),
            };
            match work.run(call).await {
                Ok(()) => (done(), None),
                Err(failed) => {
                    let result =
                        if failed.is_not_applied() { WorkResult::NotApplied } else { WorkResult::Unknown };
                    (Execution { result, outcome: Outcome::new(0, failed.to_string()) }, Some(failed))
                }
            }
        });
        let ran = ran.await;
        // The work did not run: a duplicate.
        if matches!(ran, Ok((_, None))) {
            self.dedup.found(message);
        }
        handler_result(id, ran)
    }
}

impl<S: Store, W: Work> Handler for ClaimFinish<S, W> {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        for message in messages {
            self.one(message).await?;
        }
        Ok(())
    }

    /// One: each message is claimed and finished by itself.
    fn batch_max(&self) -> usize {
        1
    }
}
