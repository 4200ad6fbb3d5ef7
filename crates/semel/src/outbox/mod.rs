//! The outbox: events appended in the caller's own transaction, so that they are told if and only if it commits.
//!
//! ```text
//!  begin ─▶ once_tx(intent, …) ─▶ your rows ─▶ append_tx(event) ─▶ commit ─▶ … ─▶ relay ─▶ broker
//! ```
//!
//! A row in a table instead of a message to a broker: a crash between commit and publishing loses nothing, and a
//! rollback tells nobody. What the relay makes of it is its own matter; what it is given is in [`append_tx`]'s hands.
//! Services in other languages insert into `semel_outbox` themselves: the columns are in the [`schema`].

mod append;
mod event;
mod migrate;

pub use append::{APPEND_EVENTS_MAX, AppendError, Appended, Duplicates, append_all_tx, append_tx};
#[cfg(feature = "sqlite")]
pub use append::{append_all_now, append_now};
pub use event::{Event, EventError, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, VALUE_BYTES_MAX};

#[cfg(feature = "sqlite")]
pub use migrate::sqlite_path;
pub use migrate::{VERSION, dialect, migrate};

use crate::tx::driver::Dialect;

/// The tables, for that dialect. Run it once, with your migrations, or let [`migrate`] do it.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => include_str!("sql/postgres.sql"),
        Dialect::Mysql => include_str!("sql/mysql.sql"),
        Dialect::Sqlite => include_str!("sql/sqlite.sql"),
    }
}
