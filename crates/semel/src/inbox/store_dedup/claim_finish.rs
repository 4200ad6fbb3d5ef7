//! Claim with a lease, effect, finish: the guard's own protocol.

use std::sync::Arc;

use super::guard_result::told;
use super::{Dedup, Work, WorkAttempt, done};
use crate::guard::{Execution, WorkResult};
use crate::inbox::consumer::{Handler, HandlerError, Message};
use crate::intent::outcome::Outcome;
use crate::store::Store;

/// Claimed, then run, then finished, and **a crash in between leaves the effect in doubt**: a keyed one is run again with the
/// same key, an opaque one is told as in doubt and is not run again by itself.
///
/// - **Keyed.** Whoever is called honours [`WorkAttempt::key`]. After a crash the message waits until the lease of whoever had it
///   is over; no two run it while the lease is kept.
/// - **Opaque.** What is in doubt is poison: it goes to the consumer's
///   [dead letters](crate::inbox::consumer::DeadLetters), or holds its key where there are none. A
///   [lookup](Dedup::lookup) or a person (`semel resolve`) finds out; once it is known, the message is done or runs again when it
///   comes. An error is in doubt too unless it says [`not_applied`](HandlerError::not_applied).
///
/// Once claimed the work runs to its end, also when the consumer has stopped waiting for it: bound it yourself, and
/// [drain](crate::Guard::drain) the guard before the process ends.
#[derive(Debug)]
pub struct ClaimFinish<S, W> {
    marks: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> ClaimFinish<S, W> {
    pub(super) fn new(marks: Dedup<S>, work: W) -> Self {
        Self { marks, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.marks.intent(message);
        let id = intent.id();
        let (work, given) = (Arc::clone(&self.work), message.clone());
        let ran = self.marks.guarded.run_with(intent, fingerprint, move |attempt| async move {
            let call = WorkAttempt {
                message: given,
                key: attempt.intent.key().clone(),
                attempt: Some(attempt.number),
            };
            match work.run(call).await {
                Ok(()) => (done(), None),
                Err(failed) => {
                    let ended =
                        if failed.is_not_applied() { WorkResult::NotApplied } else { WorkResult::Unknown };
                    (Execution { ended, outcome: Outcome::new(0, failed.to_string()) }, Some(failed))
                }
            }
        });
        let ran = ran.await;
        // It did not run.
        if matches!(ran, Ok((_, None))) {
            self.marks.found(message);
        }
        told(id, ran)
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
