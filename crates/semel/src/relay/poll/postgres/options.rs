//! Options for opening an outbox in PostgreSQL.

use std::sync::Arc;

use crate::fault::Hook;
use crate::relay::outbox_reader::{OutboxReaderError, Rebase};
use crate::relay::poll::PolledOutbox;
use crate::relay::postgres::leased_session::LeasedSession;
use crate::relay::postgres::statement::Edit;
use crate::relay::postgres::{Outbox, rebase};
use crate::relay::reader_options::{ReaderOptions, reader_options};
use crate::store::postgres::PostgresOptions;

/// An outbox in PostgreSQL. Cheap to clone. Create the tables with [`outbox::schema`](crate::outbox::schema). The URL has
/// the form of a [`PostgresStore`](crate::store::postgres) URL.
pub type PostgresOutbox = PolledOutbox<PostgresTables>;

/// The outbox tables in PostgreSQL.
#[derive(Clone)]
pub struct PostgresTables(pub(super) Arc<Outbox>);

/// Options for opening an outbox. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct PostgresOutboxOptions {
    postgres: PostgresOptions,
    options: ReaderOptions,
    edit: Hook<Edit>,
}

reader_options!(PostgresOutboxOptions, options);

impl PostgresOutboxOptions {
    /// Plants a bug in the statements. Tests check that it is caught.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn edit_sql(mut self, edit: fn(&str) -> String) -> Self {
        self.edit = edit.into();
        self
    }

    /// Connects once, to check the server and the tables.
    pub async fn open(self) -> Result<PostgresOutbox, OutboxReaderError> {
        let outbox = Arc::new(Outbox::new(self.postgres, self.options, self.edit)?);
        LeasedSession::open(&outbox, "").await?.close().await;
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
        Ok(PostgresOutboxOptions { postgres, options: ReaderOptions::default(), edit: Hook::default() })
    }

    /// Accepts these tables as the right ones from now on: after a restore from a dump, an upgrade, or a move to
    /// another cluster. Running relays are fenced.
    pub async fn rebase(url: &str, choice: Rebase) -> Result<(), OutboxReaderError> {
        rebase(url, choice).await
    }
}
