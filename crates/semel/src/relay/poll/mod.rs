//! Polling: reads the outbox table with a cursor that loses no late commit and waits for no open transaction.
//!
//! | module | what it decides |
//! |---|---|
//! | `outbox` | an outbox in one of the databases, and what a database brings |
//! | `reader` | the reader: when to renew the lease, which batch is next, when the stored state is read again |
//! | `admin` | operator commands: list, find, retry, skip, check |
//! | `postgres`, `mysql`, `sqlite` | the statements, rows and connection of one database |

mod admin;
#[cfg(feature = "mysql")]
pub mod mysql;
mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
mod reader;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use outbox::PolledOutbox;
pub use reader::PollReader;
