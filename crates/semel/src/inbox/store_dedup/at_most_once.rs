//! At most once: mark, then effect.

use std::sync::Arc;

use super::guard_result::{not_recorded, refused};
use super::{Dedup, Work, WorkAttempt, done};
use crate::crash;
use crate::inbox::consumer::{Handler, HandlerError, Message, OnBrokenCall};
use crate::store::Store;

/// At most once: **a crash between mark and effect loses the effect**. The message is first marked as handled; whatever
/// happens then, it is not handled again.
///
/// The effect is also lost if the store recorded the mark but did not confirm it in time, or if the work failed. A
/// failed message is a poison message: it goes once to the consumer's [dead
/// letters](crate::inbox::consumer::DeadLetters) and is not tried again, not even from there. While the dead letter
/// store is down, or if there is none, its key waits. If the process ends before the dead letter is written, the next
/// consumer finds the message done, and only this process's log has the failure. Work that takes longer than the
/// consumer's
/// [drain timeout](crate::inbox::consumer::ConsumerOptions::drain_timeout) is lost as in a crash.
#[derive(Debug)]
pub struct AtMostOnce<S, W> {
    dedup: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> AtMostOnce<S, W> {
    pub(super) fn new(dedup: Dedup<S>, work: W) -> Self {
        Self { dedup, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.dedup.intent(message);
        let key = intent.key().clone();
        let marked = self.dedup.guarded.run(intent, fingerprint, |_| async { done() }).await;
        match marked.map_err(refused)? {
            answer if answer.replayed => {
                self.dedup.found(message);
                return Ok(());
            }
            answer if !answer.stored => return Err(not_recorded()),
            _ => {}
        }
        crash::point(crash::AFTER_MARK);
        let ran = self.work.run(WorkAttempt { message: message.clone(), key, attempt: Some(1) }).await;
        ran.map_err(|error| {
            HandlerError::permanent(format!(
                "{error}; the message is already marked as handled and will not be retried"
            ))
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

    /// One: if a batch failed and was retried, its messages would be found marked, and the failure would be lost.
    fn batch_max(&self) -> usize {
        1
    }

    /// The message is marked: a second call would report it as handled.
    fn on_broken_call(&self) -> OnBrokenCall {
        OnBrokenCall::DeadLetter
    }
}
