//! Where poison messages go, those that cannot be delivered.

use std::time::Duration;

use semel::inbox::consumer::{DeadLetter, DeadLetters, Due, HandlerError, NoDeadLetters};
use semel::inbox::dead_letter::DeadLetterStore;
use semel::inbox::{dialect, migrate};

use super::args::Poison;
use crate::failure::Failed;

/// How often old dropped dead letters are deleted.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// No dead letters, so that the key of a poison message waits; or the store's tables, where `semel inbox` finds them.
pub(super) enum DeadLetterPolicy {
    Stop,
    Park(DeadLetterStore),
}

/// The policy that was asked for; by default `Park` if the store has SQL tables.
pub(super) fn choice(asked: Option<Poison>, store_url: &str) -> Result<Poison, Failed> {
    match (asked, dialect(store_url)) {
        (Some(Poison::Stop), _) | (None, Err(_)) => Ok(Poison::Stop),
        (_, Ok(_)) => Ok(Poison::Park),
        (Some(Poison::Park), Err(_)) => Err(Failed::usage(
            "--poison park keeps messages in SQL tables, and this store has none; use sqlite:PATH, postgres://… or \
             mysql://…, or --poison stop",
        )),
    }
}

impl DeadLetterPolicy {
    pub(super) async fn open(choice: Poison, store_url: &str) -> Result<Self, Failed> {
        match choice {
            Poison::Stop => Ok(Self::Stop),
            Poison::Park => {
                migrate(store_url).await?;
                Ok(Self::Park(DeadLetterStore::open(store_url).await?))
            }
        }
    }

    /// Starts a task that deletes dead letters dropped longer ago than the window (retention).
    pub(super) fn pruned(self, consumer: &str, window: Duration) -> Self {
        if let Self::Park(tables) = &self {
            let (tables, consumer) = (tables.clone(), consumer.to_owned());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(PRUNE_EVERY).await;
                    if let Err(error) = tables.forget_dropped(&consumer, window).await {
                        tracing::warn!(%error, "could not delete old dropped dead letters; will retry later");
                    }
                }
            });
        }
        self
    }
}

impl DeadLetters for DeadLetterPolicy {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        match self {
            Self::Stop => NoDeadLetters.dead_letter(consumer, message).await,
            Self::Park(tables) => tables.dead_letter(consumer, message).await,
        }
    }

    async fn due(&self, consumer: &str, most: usize, lease: Duration) -> Result<Vec<Due>, HandlerError> {
        match self {
            Self::Stop => NoDeadLetters.due(consumer, most, lease).await,
            Self::Park(tables) => tables.due(consumer, most, lease).await,
        }
    }

    async fn handled(&self, dead_letter: i64) -> Result<(), HandlerError> {
        match self {
            Self::Stop => NoDeadLetters.handled(dead_letter).await,
            Self::Park(tables) => tables.handled(dead_letter).await,
        }
    }

    async fn failed(&self, dead_letter: i64, error: &str, attempts: u32) -> Result<(), HandlerError> {
        match self {
            Self::Stop => NoDeadLetters.failed(dead_letter, error, attempts).await,
            Self::Park(tables) => tables.failed(dead_letter, error, attempts).await,
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
