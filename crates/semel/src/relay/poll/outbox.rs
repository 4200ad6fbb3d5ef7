//! An outbox that is polled, and what a database has to bring for it.

use std::future::Future;

use super::admin::{AdminCommand, FromRow};
use super::reader::Leased;
use crate::relay::listing::MissingPrivilege;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::reader_options::ReaderOptions;
use crate::tx::driver::Value;

/// An outbox in one of the databases. Cheap to clone. Create the tables with
/// [`outbox::schema`](crate::outbox::schema).
#[derive(Clone, Debug)]
pub struct PolledOutbox<D> {
    pub(super) database: D,
}

/// A database that an outbox can be in.
pub trait PollDatabase: Clone + Send + Sync + 'static {
    /// A reader's connection.
    type Leased: Leased;

    /// Whether each partition has its own numbers, so that only times compare events of two partitions.
    const NUMBERS_EACH_PARTITION: bool;

    /// The options.
    fn options(&self) -> &ReaderOptions;

    /// Connects a reader, and checks the version and lineage of the tables. Leases nothing yet.
    fn lease(&self, me: &str) -> impl Future<Output = Result<Self::Leased, OutboxReaderError>> + Send;

    /// The statements of a command.
    fn text(command: AdminCommand<'_>) -> String;

    /// Runs such statements on a connection of their own, and returns the rows of all.
    fn ask<T: FromRow>(
        &self,
        text: String,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<T>, OutboxReaderError>> + Send;

    /// The privileges that a relay needs and lacks.
    fn missing_privileges(
        &self,
    ) -> impl Future<Output = Result<Vec<MissingPrivilege>, OutboxReaderError>> + Send;
}
