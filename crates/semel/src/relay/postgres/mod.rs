//! The outbox tables in PostgreSQL, for polling and for reading the log.
//!
//! | module | what it decides |
//! |---|---|
//! | `leased_session` | a relay's connection, its lease and its partitions: heartbeat, rebalance, release |
//! | `partition_group` | which partitions are read together, and where their windows end |
//! | `snapshot` | which transactions had ended, and which of two snapshots is older |
//! | `read`, `prefetch` | how a window is scanned; reads the next chunk meanwhile |
//! | `retry` | retries parked events |
//! | `prune` | retention, and the lag |
//! | `rebase` | accepts tables of another lineage |
//! | `statement` | the statements and the types of their parameters |

use self::statement::{Edit, Statements};
use super::outbox_reader::OutboxReaderError;
use super::reader_options::ReaderOptions;
use crate::fault::Hook;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;
use crate::store::{ErrorKind, Fate, StoreError};

pub(in crate::relay) mod leased_session;
pub(in crate::relay) mod partition_group;
mod prefetch;
mod prune;
pub(in crate::relay) mod read;
mod rebase;
mod retry;
pub(in crate::relay) mod snapshot;
pub(in crate::relay) mod statement;

pub(in crate::relay) use rebase::rebase;

/// How to reach the tables.
pub(in crate::relay) struct Outbox {
    pub(in crate::relay) connections: Connections,
    pub(in crate::relay) statements: Statements,
    pub(in crate::relay) options: ReaderOptions,
}

impl Outbox {
    pub(in crate::relay) fn new(
        postgres: PostgresOptions,
        options: ReaderOptions,
        edit: Hook<Edit>,
    ) -> Result<Self, OutboxReaderError> {
        let connections = Connections::new(postgres).map_err(|error| error.not_applied())?;
        Ok(Self { connections, statements: Statements::new(&edit), options })
    }
}

pub(in crate::relay) fn unreadable(why: &str) -> StoreError {
    let message = format!("cannot read the semel_outbox tables: {why}; inspect them with psql");
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}
