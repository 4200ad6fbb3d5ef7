//! The transactional outbox: events appended in the caller's own transaction, published if and only if it commits.
//!
//! ```text
//!  begin ─▶ once_tx(intent, …) ─▶ your rows ─▶ append_tx(event) ─▶ commit ─▶ … ─▶ relay ─▶ broker
//! ```
//!
//! An event is a row in a table instead of a message to a broker: a crash between commit and publishing loses nothing,
//! and a rollback publishes nothing. [`append_tx`] writes the row; the [relay](crate::relay) publishes it. Services in
//! other languages insert into `semel_outbox` themselves: the columns are in the [`schema`].
//!
//! **Append last**: after you locked the row that the event is about, just before the commit. Events of a key are
//! published in the order in which they were appended, and only a lock on that row makes this the order of commits. See
//! [`append_tx`].

#[cfg(feature = "_sql")]
mod append;
mod event;
#[cfg(feature = "_sql")]
mod tables;

#[cfg(feature = "_sql")]
pub use append::{APPEND_EVENTS_MAX, AppendError, Appended, Duplicates, append_all_tx, append_tx};
pub use event::{Event, EventError, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, VALUE_BYTES_MAX};
#[cfg(feature = "_sql")]
pub(crate) use tables::TABLES;
#[cfg(feature = "_sql")]
pub use tables::{
    VERSION, contract, dialect, migrate, plan_migration, schema, strict_order, strict_order_schema,
};

#[cfg(feature = "sqlite")]
pub use crate::migration::sqlite_path;
