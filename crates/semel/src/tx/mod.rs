//! *Once* inside the caller's own transaction: intent, rows and outcome are one commit.
//!
//! The strongest mode: before the commit nothing has happened, after it everything has, and there is no moment in
//! between. No lease, nothing uncertain, no second fsync. The guide, with what each isolation level does, is
//! `docs/transactions.md`.
//!
//! | module | what |
//! |---|---|
//! | `once` | [`once_tx`], [`Once`]: the work, unless it was committed before |
//! | `undo` | [`undo_once_tx`], [`UndoOnce`]: undo a step once, and refuse it for ever: the barrier of a participant |
//! | `phases` | [`Phases`]: recovery points: atomic phases around remote calls |
//! | `command` | [`Command`]: requests with an expected version: retry, conflict and mismatch kept apart |
//! | [`sqlite`] | the tables in the application's own SQLite file, and a reader for them |
//! | [`driver`] | the seam to the caller's transaction: one statement, rows back |
//! | [`ledger`] | double-entry postings, each once |
//! | [`mod@reference`] | a provider's reference for the result, under one intent only |
//! | [`upsert`] | work that is idempotent by itself |
//! | `claim` | the claim inside the caller's transaction: lock, read, decide, write |
//! | `wait_queue` | one waiter per intent and process; the others wait in memory |
//! | `mysql`, `lock_wait` | MySQL and MariaDB only: their claim, and lock wait timeouts |
//! | `error` | [`TxError`]: why a transaction got no answer |
//! | `stored_value` | how an answer is stored: an outcome, or a value as JSON |

mod claim;
mod command;
pub mod driver;
mod error;
pub mod ledger;
mod lock_wait;
#[cfg(feature = "mysql")]
mod mysql;
mod once;
mod phases;
pub mod reference;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod stored_value;
mod undo;
pub mod upsert;
mod wait_queue;

pub use command::{Advanced, Applied, Command, CommandError, CommandOnce, Transition};
pub use error::TxError;
pub use once::{Once, TxReply, WAIT, once_tx};
pub use phases::{LEASE, PHASE_BYTES_MAX, PHASES_MAX, PhaseRun, Phases, PhasesError, Started};
pub use stored_value::Remember;
pub use undo::{UndoOnce, UndoneAs, undo_once_tx};

#[cfg(all(doctest, feature = "sqlite", feature = "sqlx-postgres"))]
#[doc = include_str!("../../../../docs/transactions.md")]
struct Guide;
