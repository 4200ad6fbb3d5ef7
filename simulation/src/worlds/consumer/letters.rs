//! The simulated store of dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::inbox::Identity;
use semel::inbox::consumer::{DeadLetter, DeadLetters, Due, HandlerError};
use semel::source::Delivery;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::plan::Fault;
use super::process::Gate;

/// How long it takes to be asked.
const ASKED: Duration = Duration::from_millis(2);

/// The letters, shared by all consumers.
#[derive(Clone)]
pub(super) struct Letters {
    ledger: Arc<Ledger>,
    kept: Arc<Mutex<BTreeMap<i64, StoredDeadLetter>>>,
    gate: Gate,
}

struct StoredDeadLetter {
    message: usize,
    identity: Option<Identity>,
    delivery: Delivery,
    /// A person wants it handled again.
    wanted: bool,
    leased_until: Option<Instant>,
}

impl Letters {
    pub(super) fn new(ledger: &Arc<Ledger>) -> Self {
        Self { ledger: Arc::clone(ledger), kept: Arc::default(), gate: Gate::default() }
    }

    /// As one process sees it.
    pub(super) fn at(&self, gate: &Gate) -> Self {
        Self { gate: gate.clone(), ..self.clone() }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<i64, StoredDeadLetter>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A person wants all of them handled again.
    pub(super) fn retry_all(&self) {
        let mut kept = self.kept();
        self.ledger.stage.trace(format_args!("{} dead letters are to be handled again", kept.len()));
        for letter in kept.values_mut() {
            letter.wanted = true;
            self.ledger.state().messages[letter.message].letter_retried = true;
            self.ledger.stage.count("dead letters retried", 1);
        }
    }

    /// Whether any waits to be handled again.
    pub(super) fn wanted(&self) -> bool {
        self.kept().values().any(|letter| letter.wanted)
    }

    async fn ask(&self) -> Result<(), HandlerError> {
        tokio::time::sleep(ASKED).await;
        self.gate.open().await;
        let down = self.ledger.faults().find_map(|fault| match fault {
            Fault::LettersDown { hangs, .. } => Some(hangs),
            _ => None,
        });
        match down {
            None => Ok(()),
            Some(hangs) => {
                self.ledger.stage.count("dead letters refused", 1);
                if hangs {
                    std::future::pending::<()>().await;
                }
                Err(HandlerError::transient("dead letters cannot be kept now"))
            }
        }
    }
}

impl DeadLetters for Letters {
    async fn dead_letter(&self, _: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        self.ask().await?;
        let text = std::str::from_utf8(&message.delivery.payload).unwrap_or_default();
        let number: usize = text.parse().unwrap_or(usize::MAX);
        if self.ledger.stage.has("forgets dead letters") {
            return Ok(());
        }
        let mut kept = self.kept();
        let had = kept.values().any(|letter| letter.message == number);
        if !had {
            let next = kept.last_key_value().map_or(1, |(last, _)| last + 1);
            let (identity, delivery) = (message.identity.cloned(), message.delivery.clone());
            let letter =
                StoredDeadLetter { message: number, identity, delivery, wanted: false, leased_until: None };
            kept.insert(next, letter);
        }
        drop(kept);
        // Not the error: it may name a task by its number, which is another each time.
        self.ledger.dead_letter(number, message.attempts);
        Ok(())
    }

    async fn due(&self, _: &str, most: usize, lease: Duration) -> Result<Vec<Due>, HandlerError> {
        self.ask().await?;
        let now = Instant::now();
        let (mut due, mut keys) = (Vec::new(), BTreeSet::new());
        for (number, letter) in self.kept().iter_mut().filter(|(_, letter)| letter.wanted) {
            let first = letter.delivery.key.as_ref().is_none_or(|key| keys.insert(key.clone()));
            let leased = letter.leased_until.is_some_and(|until| until > now);
            if !first || leased || due.len() == most {
                continue;
            }
            letter.leased_until = Some(now + lease);
            let (identity, delivery) = (letter.identity.clone(), letter.delivery.clone());
            due.push(Due { number: *number, identity, delivery });
        }
        Ok(due)
    }

    async fn handled(&self, letter: i64) -> Result<(), HandlerError> {
        self.ask().await?;
        if let Some(letter) = self.kept().remove(&letter) {
            self.ledger.state().messages[letter.message].letter_open = false;
            self.ledger.stage.count("dead letters handled", 1);
        }
        Ok(())
    }

    async fn failed(&self, letter: i64, _: &str, _: u32) -> Result<(), HandlerError> {
        self.ask().await?;
        if let Some(letter) = self.kept().get_mut(&letter) {
            letter.wanted = false;
            letter.leased_until = None;
            self.ledger.stage.count("dead letters failed again", 1);
        }
        Ok(())
    }
}
