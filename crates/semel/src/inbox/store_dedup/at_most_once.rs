//! Mark, then effect.

use std::sync::Arc;

use super::guard_result::{not_recorded, refused};
use super::{Dedup, Work, WorkAttempt, done};
use crate::crash;
use crate::inbox::consumer::{Handler, HandlerError, Message};
use crate::store::Store;

/// At most once, and **a crash between mark and effect loses the effect**: the message is marked as handled first, and
/// whatever happens then, it is not handled again.
///
/// Also lost is the effect of a message whose mark the store recorded without saying so in time, and of one whose work
/// failed: the latter is poison, told once to the consumer's [dead letters](crate::inbox::consumer::DeadLetters). Nobody
/// tries it again, not even from there. While they are away, or where there are none, its key waits; when the process ends
/// before it is buried, whoever gets the message finds it done, and its failure is in this process's log and nowhere else.
/// Work that takes longer than the consumer's [farewell](crate::inbox::consumer::ConsumerOptions::drain_timeout) is lost as in a
/// crash.
#[derive(Debug)]
pub struct AtMostOnce<S, W> {
    marks: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> AtMostOnce<S, W> {
    pub(super) fn new(marks: Dedup<S>, work: W) -> Self {
        Self { marks, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.marks.intent(message);
        let key = intent.key().clone();
        let marked = self.marks.guarded.run(intent, fingerprint, |_| async { done() }).await;
        match marked.map_err(refused)? {
            answer if answer.replayed => {
                self.marks.found(message);
                return Ok(());
            }
            answer if !answer.stored => return Err(not_recorded()),
            _ => {}
        }
        crash::point(crash::AFTER_MARK);
        let ran = self.work.run(WorkAttempt { message: message.clone(), key, attempt: Some(1) }).await;
        ran.map_err(|error| {
            HandlerError::permanent(format!("{error}; it is marked as handled, and is not tried again"))
        })
    }
}

impl<S: Store, W: Work> Handler for AtMostOnce<S, W> {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        for message in messages {
            self.one(message).await?;
        }
        Ok(())
    }

    /// One: a second call for what failed among others would find it marked, and nobody would hear of it.
    fn batch_max(&self) -> usize {
        1
    }

    /// It is marked, and a second call would say that it was handled.
    fn gives_up_at_once(&self) -> bool {
        true
    }
}
