//! Where messages go that cannot be delivered.

use std::time::Duration;

use semel::inbox::consumer::{DeadLetter, DeadLetters, Due, HandlerError as NotKept, NoDeadLetters};
use semel::inbox::dead_letter::DeadLetterStore;
use semel::inbox::{dialect, migrate};

use super::args::Poison;
use crate::failure::Failed;

/// How often what was dropped long ago is forgotten.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Nowhere, so that its key waits; or beside the marks, where `semel inbox` finds them.
pub(super) enum Graves {
    Stop,
    Park(DeadLetterStore),
}

/// What was asked for; else parked where the store has tables.
pub(super) fn choice(asked: Option<Poison>, store_url: &str) -> Result<Poison, Failed> {
    match (asked, dialect(store_url)) {
        (Some(Poison::Stop), _) | (None, Err(_)) => Ok(Poison::Stop),
        (_, Ok(_)) => Ok(Poison::Park),
        (Some(Poison::Park), Err(_)) => Err(Failed::usage(
            "--poison park keeps messages in tables of the store, and this store has none; use sqlite:PATH, postgres://… \
             or mysql://…, or say --poison stop",
        )),
    }
}

impl Graves {
    pub(super) async fn open(choice: Poison, store_url: &str) -> Result<Self, Failed> {
        match choice {
            Poison::Stop => Ok(Self::Stop),
            Poison::Park => {
                migrate(store_url).await?;
                Ok(Self::Park(DeadLetterStore::open(store_url).await?))
            }
        }
    }

    /// Forgets what was dropped longer ago than the window, for as long as the process lives.
    pub(super) fn tidied(self, consumer: &str, window: Duration) -> Self {
        if let Self::Park(tables) = &self {
            let (tables, consumer) = (tables.clone(), consumer.to_owned());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(PRUNE_EVERY).await;
                    if let Err(error) = tables.forget_dropped(&consumer, window).await {
                        tracing::warn!(%error, "old letters were not forgotten; trying again later");
                    }
                }
            });
        }
        self
    }
}

impl DeadLetters for Graves {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), NotKept> {
        match self {
            Self::Stop => NoDeadLetters.dead_letter(consumer, message).await,
            Self::Park(tables) => tables.dead_letter(consumer, message).await,
        }
    }

    async fn due(&self, consumer: &str, most: usize, lease: Duration) -> Result<Vec<Due>, NotKept> {
        match self {
            Self::Stop => NoDeadLetters.due(consumer, most, lease).await,
            Self::Park(tables) => tables.due(consumer, most, lease).await,
        }
    }

    async fn handled(&self, letter: i64) -> Result<(), NotKept> {
        match self {
            Self::Stop => NoDeadLetters.handled(letter).await,
            Self::Park(tables) => tables.handled(letter).await,
        }
    }

    async fn failed(&self, letter: i64, error: &str, tries: u32) -> Result<(), NotKept> {
        match self {
            Self::Stop => NoDeadLetters.failed(letter, error, tries).await,
            Self::Park(tables) => tables.failed(letter, error, tries).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parked_where_there_are_tables_for_them() {
        assert_eq!(choice(None, "sqlite:a.db").unwrap(), Poison::Park);
        assert_eq!(choice(Some(Poison::Stop), "sqlite:a.db").unwrap(), Poison::Stop);
        assert_eq!(choice(None, "memory:").unwrap(), Poison::Stop);
        assert_eq!(choice(None, "redis://h").unwrap(), Poison::Stop);
        assert!(choice(Some(Poison::Park), "redis://h").is_err());
    }
}
