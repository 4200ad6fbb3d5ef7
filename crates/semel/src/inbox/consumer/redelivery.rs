//! Redelivery: dead letters that an operator wants handled again, mixed in with messages of the source.

use std::time::Duration;

use tokio::time::Instant;

use super::handler::{DeadLetters, Due, Handler, HandlerError};
use super::message::Message;
use super::run::{Consumer, while_renewing};
use crate::crash;
use crate::source::{Receipt, Source};
use crate::timeout::bounded;

/// Most dead letters in flight at once.
const DEAD_LETTERS_MAX: usize = 50;

/// When to look for dead letters next, and how many were taken.
#[derive(Default)]
pub(super) struct Redelivery {
    due: Option<Instant>,
    taken: u64,
}

impl Redelivery {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A receipt that no source gives: these count down from the maximum.
    fn receipt(&mut self) -> Receipt {
        self.taken += 1;
        Receipt(u64::MAX - self.taken)
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Leases dead letters to redeliver, when it is time to look. If this process dies, the lease expires and another
    /// consumer takes them.
    pub(super) async fn take_dead_letters(&mut self) {
        let now = Instant::now();
        if self.redelivery.due.is_some_and(|due| due > now) {
            return;
        }
        self.redelivery.due = Some(now + self.options.dead_letter_poll_interval);
        let had = self.scheduler.dead_letters();
        let room = DEAD_LETTERS_MAX.saturating_sub(had.len());
        if room == 0 {
            return;
        }
        // Longer than one attempt, so that no other consumer handles them meanwhile.
        let lease = self.options.handle_timeout * 2;
        let (in_flight, limit) = (self.in_flight(), self.options.handle_timeout);
        let query = self.dead.due(&self.name, room, lease);
        match within(&mut self.source, &mut self.renew_at, &in_flight, limit, query).await {
            Ok(due) => {
                for dead_letter in due.into_iter().filter(|dead_letter| !had.contains(&dead_letter.number)) {
                    self.take_dead_letter(dead_letter).await;
                }
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    consumer = self.name,
                    "failed to look for dead letters to redeliver; will retry"
                );
            }
        }
    }

    async fn take_dead_letter(&mut self, Due { number, identity, mut delivery }: Due) {
        let identity = identity.map_or_else(|| self.identify(&delivery), Ok);
        match identity {
            Ok(identity) => {
                let receipt = self.redelivery.receipt();
                delivery.receipt = receipt;
                self.scheduler.add_dead_letter(receipt, Message::new(identity, delivery), number);
            }
            Err(missing) => self.dead_letter_failed(number, &missing.to_string()).await,
        }
    }

    /// The message was handled. If deleting the dead letter fails, it is redelivered and its mark is found.
    pub(super) async fn dead_letter_handled(&mut self, dead_letter: i64) {
        crash::point(crash::BEFORE_LETTER_GOES);
        let (in_flight, limit) = (self.in_flight(), self.options.handle_timeout);
        let gone = self.dead.handled(dead_letter);
        match within(&mut self.source, &mut self.renew_at, &in_flight, limit, gone).await {
            Ok(()) => {
                tracing::info!(
                    letter = dead_letter,
                    consumer = self.name,
                    "a redelivered dead letter was handled"
                );
                self.observe(|metrics| metrics.dead_letter(true));
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    letter = dead_letter,
                    consumer = self.name,
                    "a dead letter was handled but not deleted; it will be deleted when it is next redelivered"
                );
            }
        }
        // Look again at once: the next dead letter of its key may be due.
        self.redelivery.due = None;
    }

    /// The message failed again.
    pub(super) async fn dead_letter_failed(&mut self, dead_letter: i64, error: &str) {
        tracing::warn!(
            error,
            letter = dead_letter,
            consumer = self.name,
            "a redelivered dead letter failed again; it stays for an operator to decide"
        );
        self.observe(|metrics| metrics.dead_letter(false));
        let (in_flight, limit) = (self.in_flight(), self.options.handle_timeout);
        let record = self.dead.failed(dead_letter, error, 1);
        if let Err(not) = within(&mut self.source, &mut self.renew_at, &in_flight, limit, record).await {
            tracing::warn!(
                %not,
                letter = dead_letter,
                consumer = self.name,
                "failed to record the failure of a dead letter; it will be redelivered once more"
            );
        }
        self.redelivery.due = None;
    }
}

/// Runs `work` with a timeout, and renews the source's leases meanwhile.
pub(super) async fn within<S: Source, T>(
    source: &mut S,
    renew_at: &mut Instant,
    in_flight: &[Receipt],
    limit: Duration,
    work: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    let late = || HandlerError::transient(format!("timed out after {limit:?}"));
    let mut work = std::pin::pin!(bounded(limit, work, late));
    match while_renewing(source, renew_at, in_flight, work.as_mut()).await {
        Ok(done) => done,
        Err(error) => {
            // The next call of the source reports it again. `work` is not at fault, and not aborted.
            tracing::warn!(%error, "failed to renew message leases; messages may be redelivered");
            work.await
        }
    }
}
