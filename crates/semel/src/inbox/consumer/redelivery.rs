//! Dead letters that somebody wants handled again, between what the source gives.

use std::time::Duration;

use tokio::time::Instant;

use super::handler::{DeadLetters, Due, Handler, HandlerError};
use super::message::Message;
use super::run::{Consumer, keeping};
use crate::crash;
use crate::source::{Receipt, Source};

/// Most letters that are held at once.
const LETTERS_MAX: usize = 50;

/// When is looked for letters again, and how many there were.
#[derive(Default)]
pub(super) struct Redelivery {
    due: Option<Instant>,
    taken: u64,
}

impl Redelivery {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A receipt that no source gives: they count from the other end.
    fn receipt(&mut self) -> Receipt {
        self.taken += 1;
        Receipt(u64::MAX - self.taken)
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Takes letters that are to be handled again, when it is time to look for them. What becomes of one that is taken
    /// and not told about, because this process dies, is that somebody takes it again.
    pub(super) async fn take_letters(&mut self) {
        let now = Instant::now();
        if self.letters.due.is_some_and(|due| due > now) {
            return;
        }
        self.letters.due = Some(now + self.options.letters_every);
        let had = self.desk.letters();
        let room = LETTERS_MAX.saturating_sub(had.len());
        if room == 0 {
            return;
        }
        // Longer than a try takes: others need not handle what is being handled.
        let lease = self.options.handle_timeout * 2;
        let (held, limit) = (self.held(), self.options.handle_timeout);
        let look = self.dead.due(&self.name, room, lease);
        match within(&mut self.source, &mut self.keep_at, &held, limit, look).await {
            Ok(due) => {
                for letter in due.into_iter().filter(|letter| !had.contains(&letter.number)) {
                    self.take_letter(letter).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, consumer = self.name, "dead letters were not looked for; trying again");
            }
        }
    }

    async fn take_letter(&mut self, Due { number, identity, mut delivery }: Due) {
        let identity = identity.map_or_else(|| self.identify(&delivery), Ok);
        match identity {
            Ok(identity) => {
                let receipt = self.letters.receipt();
                delivery.receipt = receipt;
                self.desk.add_letter(receipt, Message::new(identity, delivery), number);
            }
            Err(unnamed) => self.letter_failed(number, &unnamed.to_string()).await,
        }
    }

    /// Its message was handled. A letter that stays although it was is taken again, and its mark is found.
    pub(super) async fn letter_handled(&mut self, letter: i64) {
        crash::point(crash::BEFORE_LETTER_GOES);
        let (held, limit) = (self.held(), self.options.handle_timeout);
        let gone = self.dead.handled(letter);
        match within(&mut self.source, &mut self.keep_at, &held, limit, gone).await {
            Ok(()) => {
                tracing::info!(letter, consumer = self.name, "a dead letter was handled");
                self.observe(|metrics| metrics.letter(true));
            }
            Err(error) => {
                tracing::warn!(%error, letter, consumer = self.name, "a dead letter was handled and is still there; it goes the next time");
            }
        }
        // The next of its key, if there is one.
        self.letters.due = None;
    }

    /// Its message was not handled.
    pub(super) async fn letter_failed(&mut self, letter: i64, error: &str) {
        tracing::warn!(error, letter, consumer = self.name, "a dead letter failed again");
        self.observe(|metrics| metrics.letter(false));
        let (held, limit) = (self.held(), self.options.handle_timeout);
        let told = self.dead.failed(letter, error, 1);
        if let Err(not) = within(&mut self.source, &mut self.keep_at, &held, limit, told).await {
            tracing::warn!(%not, letter, consumer = self.name, "that was not written down; it is tried once more");
        }
        self.letters.due = None;
    }
}

/// Asks for something within a bound, while the source is kept.
pub(super) async fn within<S: Source, T>(
    source: &mut S,
    keep_at: &mut Instant,
    held: &[Receipt],
    limit: Duration,
    work: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    let mut work = std::pin::pin!(tokio::time::timeout(limit, work));
    let done = match keeping(source, keep_at, held, work.as_mut()).await {
        Ok(done) => done,
        Err(error) => {
            // Told again when it is asked for something. What is asked for here is not its fault, and not broken off.
            tracing::warn!(%error, "messages are not kept any more");
            work.await
        }
    };
    done.unwrap_or_else(|_| Err(HandlerError::transient(format!("it took longer than {limit:?}"))))
}
