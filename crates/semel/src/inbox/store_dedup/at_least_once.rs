//! At least once: effect, then mark.

use std::pin::pin;
use std::sync::Arc;

use super::guard_result::{mismatch, not_recorded, refused};
use super::{Dedup, Work, WorkAttempt, done};
use crate::crash;
use crate::inbox::consumer::{Handler, HandlerError, Message};
use crate::intent::fingerprint::Comparison;
use crate::observe::Phase;
use crate::store::Store;

/// At least once: **a crash between effect and mark repeats the effect**. The message is marked after its work is done;
/// until then every delivery is handled.
///
/// Nothing is claimed: two consumers that have the message at once, as during a rebalance, both run the work. After an
/// error the work is run again.
#[derive(Debug)]
pub struct AtLeastOnce<S, W> {
    dedup: Dedup<S>,
    work: Arc<W>,
}

impl<S: Store, W: Work> AtLeastOnce<S, W> {
    pub(super) fn new(dedup: Dedup<S>, work: W) -> Self {
        Self { dedup, work: Arc::new(work) }
    }

    async fn one(&self, message: &Message) -> Result<(), HandlerError> {
        let (intent, fingerprint) = self.dedup.intent(message);
        let guarded = &self.dedup.guarded;
        let found = guarded.ask(Phase::Read, pin!(guarded.guard().store().get_cached(intent.id()))).await;
        if let Some(record) = found.map_err(HandlerError::transient)? {
            if fingerprint.compare(&record.head.fingerprint) == Comparison::Different {
                return Err(mismatch());
            }
            // Also done if an operator decided it.
            if record.head.state.replayed_as().is_some() {
                self.dedup.found(message);
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

    /// One: each message is marked by itself, and a failure concerns one message.
    fn batch_max(&self) -> usize {
        1
    }
}
