//! Effect, then mark.

use std::pin::pin;
use std::sync::Arc;

use super::guard_result::{mismatch, not_recorded, refused};
use super::{Dedup, Work, WorkAttempt, done};
use crate::crash;
use crate::inbox::consumer::{Handler, HandlerError, Message};
use crate::intent::fingerprint::Comparison;
use crate::intent::state::State;
use crate::observe::Phase;
use crate::store::Store;

/// At least once, and **a crash between effect and mark repeats the effect**: the message is marked when its work is done,
/// and until then it is handled again.
///
/// Two consumers that have the message at once, as in the middle of a rebalance, both run the work: nothing is claimed. An
/// error says that it is to be run again.
#[derive(Debug)]
pub struct AtLeastOnce<S, W> {
    marks: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> AtLeastOnce<S, W> {
    pub(super) fn new(marks: Dedup<S>, work: W) -> Self {
        Self { marks, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.marks.intent(message);
        let guarded = &self.marks.guarded;
        let looked = guarded.ask(Phase::Read, pin!(guarded.guard().store().look(intent.id()))).await;
        if let Some(record) = looked.map_err(HandlerError::transient)? {
            if fingerprint.compare(&record.head.fingerprint) == Comparison::Different {
                return Err(mismatch());
            }
            // Decided by a person is done as well.
            if matches!(record.head.state, State::Completed | State::FailedFinal) {
                self.marks.found(message);
                return Ok(());
            }
        }
        let key = intent.key().clone();
        self.work.run(WorkAttempt { message: message.clone(), key, attempt: None }).await?;
        crash::point(crash::AFTER_HANDLED);
        let answer = guarded.run(intent, fingerprint, |_| async { done() }).await.map_err(refused)?;
        if answer.stored { Ok(()) } else { Err(not_recorded()) }
    }
}

impl<S: Store, W: Work> Handler for AtLeastOnce<S, W> {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        for message in messages {
            self.one(message).await?;
        }
        Ok(())
    }

    /// One: what is done of a batch is marked by itself, and a failure is of one message.
    fn batch_max(&self) -> usize {
        1
    }
}
