//! Options for opening an outbox in PostgreSQL.

use std::sync::Arc;

use uuid::Uuid;

use super::PostgresOutboxReader;
use super::leased_session::LeasedSession;
use super::statement::{Edit, Statements};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::PolledOutbox;
use crate::relay::reader_options::{ReaderOptions, reader_options};
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;

/// An outbox in PostgreSQL. Cheap to clone. Create the tables with [`outbox::schema`](crate::outbox::schema). The URL has
/// the form of a [`PostgresStore`](crate::store::postgres) URL.
pub type PostgresOutbox = PolledOutbox<PostgresTables>;

/// The outbox tables in PostgreSQL.
#[derive(Clone)]
pub struct PostgresTables(pub(super) Arc<Outbox>);

pub(in crate::relay) struct Outbox {
    pub(in crate::relay) connections: Connections,
    pub(super) statements: Statements,
    pub(in crate::relay) options: ReaderOptions,
}

impl Outbox {
    pub(in crate::relay) fn new(
        postgres: PostgresOptions,
        options: ReaderOptions,
        edit: Option<Edit>,
    ) -> Result<Self, OutboxReaderError> {
        let connections = Connections::new(postgres).map_err(|error| error.not_applied())?;
        let statements = Statements::new(edit);
        Ok(Self { connections, statements, options })
    }
}

/// Options for opening an outbox. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct PostgresOutboxOptions {
    pub(in crate::relay) postgres: PostgresOptions,
    options: ReaderOptions,
    edit: Option<Edit>,
}

reader_options!(PostgresOutboxOptions, options);

impl PostgresOutboxOptions {
    /// Plants a bug in the statements. Tests check that it is caught.
    #[doc(hidden)]
    pub fn edit_sql(mut self, edit: fn(&str) -> String) -> Self {
        self.edit = Some(edit);
        self
    }

    /// Connects once, to check the server and the tables.
    pub async fn open(self) -> Result<PostgresOutbox, OutboxReaderError> {
        let outbox = Arc::new(Outbox::new(self.postgres, self.options, self.edit)?);
        LeasedSession::open(&outbox, Uuid::nil()).await?.close().await;
        Ok(PostgresOutbox { database: PostgresTables(outbox) })
    }
}

impl PostgresOutbox {
    /// Opens the outbox in the database of this URL.
    pub async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::options(url)?.open().await
    }

    /// Options for opening the outbox in the database of this URL.
    pub fn options(url: &str) -> Result<PostgresOutboxOptions, OutboxReaderError> {
        let postgres = PostgresOptions::from_url(url)?;
        Ok(PostgresOutboxOptions { postgres, options: ReaderOptions::default(), edit: None })
    }

    /// A reader for one relay. Several share the partitions.
    pub fn source(&self) -> PostgresOutboxReader {
        PostgresOutboxReader::new(self.database.0.clone())
    }
}
