//! The inbox (idempotent consumer): each message is handled once, however often it is delivered.
//!
//! ```text
//!  message ─▶ begin ─▶ mark (unique per consumer) ─▶ your rows ─▶ commit ─▶ acknowledge
//! ```
//!
//! A broker delivers at least once: after a crash, a rebalance or a lost ack it redelivers the same message. The inbox
//! writes a mark in the transaction of the effect, so there is never one without the other. A mark belongs to one
//! consumer: another consumer of the same message has another mark.
//!
//! Messages that cannot be handled become dead letters in the same database: [`dead_letter`].
//!
//! Marks are pruned after the dedup [window](Inbox::window). A message redelivered later than that is handled again, so
//! the window has to be longer than the broker's retention.
//!
//! | module | what it decides |
//! |---|---|
//! | `identity` | what makes two messages the same |
//! | `mark` | the statements: mark messages, end a batch, store and recall a result |
//! | `handle`, `tables` | mark first, then the effect, one commit; creating the tables |
//! | `prune` | retention: deletes marks older than the dedup window |
//! | `consumer` | any source with any handler: scheduling, max attempts, backoff, dead letters |
//! | `dead_letter` | poison messages that were given up, and what an operator does with them |
//! | `pipeline` | from Kafka to Kafka, exactly once |
//! | `store_dedup` | dedup without SQL, over any store |
//! | `forward` | messages to an HTTP service in any language |
//! | `webhook` | receives webhooks: verifies, then handles once |
//! | `duplicate_count` | counts the duplicates in a handler's call |

use std::time::Duration;

pub mod consumer;
#[cfg(feature = "_sql")]
pub mod dead_letter;
mod duplicate_count;
#[cfg(feature = "forward")]
pub mod forward;
#[cfg(feature = "_sql")]
mod handle;
mod identity;
#[cfg(feature = "_sql")]
mod mark;
#[cfg(feature = "kafka")]
pub mod pipeline;
#[cfg(feature = "_sql")]
mod prune;
pub mod store_dedup;
#[cfg(feature = "_sql")]
mod tables;
#[cfg(feature = "webhook-receiver")]
pub mod webhook;

#[cfg(feature = "_sql")]
pub use handle::{Handled, Inbox, Marked};
pub use identity::{ID_BYTES_MAX, Identity, IdentityError, NAME_BYTES_MAX};
#[cfg(feature = "_sql")]
pub(crate) use tables::TABLES;
#[cfg(feature = "_sql")]
pub use tables::{VERSION, contract, dialect, migrate, plan_migration, schema};

/// Most messages marked by one statement.
pub const BATCH_MESSAGES_MAX: usize = 10_000;

/// Default retention of a mark: twice Kafka's default retention.
pub const WINDOW: Duration = Duration::from_secs(14 * 24 * 60 * 60);
