//! The inbox: each message handled once, however often it comes.
//!
//! ```text
//!  message ─▶ begin ─▶ mark (unique per consumer) ─▶ your rows ─▶ commit ─▶ acknowledge
//! ```
//!
//! A broker delivers at least once: after a crash, a rebalance or a lost acknowledgement the same message comes again. The
//! mark is written in the transaction of the effect, so there is no moment in which one is there without the other. It
//! is the consumer's own: another consumer of the same message has another mark.
//!
//! What cannot be handled is kept for people in the same database: [`dead_letter`].
//!
//! Marks are forgotten after the [window](Inbox::window). A message that comes again later than that is handled again, so
//! the window has to be longer than the broker keeps messages.

use std::time::Duration;

pub mod consumer;
pub mod dead_letter;
mod duplicate_count;
#[cfg(feature = "forward")]
pub mod forward;
mod handle;
mod identity;
mod mark;
#[cfg(feature = "kafka")]
pub mod pipeline;
mod prune;
pub mod store_dedup;
#[cfg(feature = "webhook-receiver")]
pub mod webhook;

pub use handle::{Handled, Marked};
pub use identity::{ID_BYTES_MAX, Identity, IdentityError, NAME_BYTES_MAX};

use crate::store::{Migrated, StoreError};
use crate::tx::TxError;
use crate::tx::driver::{Dialect, Tx};
use crate::tx::migrations::Tables;

/// Most messages that are marked by one statement.
pub const BATCH_MESSAGES_MAX: usize = 10_000;

/// How long a mark is kept unless told otherwise: twice as long as Kafka keeps messages by default.
pub const WINDOW: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The version of the tables that this build reads and writes.
pub const VERSION: u32 = 3;

const TABLES: Tables = Tables {
    what: "inbox",
    meta: "semel_inbox_meta",
    last: |_| "semel_inbox_result",
    steps: |dialect| match dialect {
        Dialect::Postgres => &POSTGRES,
        Dialect::Mysql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    },
};

/// The steps of a dialect, one by one and in one piece.
macro_rules! steps {
    ($each:ident, $all:ident, $($file:literal),+) => {
        const $each: [&str; VERSION as usize] = [$(include_str!($file)),+];
        const $all: &str = concat!($(include_str!($file)),+);
    };
}
steps!(POSTGRES, ALL_POSTGRES, "sql/postgres.sql", "sql/postgres_dead.sql", "sql/postgres_thin.sql");
steps!(MYSQL, ALL_MYSQL, "sql/mysql.sql", "sql/mysql_dead.sql", "sql/same_3.sql");
steps!(SQLITE, ALL_SQLITE, "sql/sqlite.sql", "sql/sqlite_dead.sql", "sql/same_3.sql");

/// The tables, for that dialect. Run it once, with your migrations, or let [`migrate`] do it.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => ALL_POSTGRES,
        Dialect::Mysql => ALL_MYSQL,
        Dialect::Sqlite => ALL_SQLITE,
    }
}

/// The inbox's tables in the database a URL names: made if they are not there, otherwise brought to [`VERSION`]. Of
/// several that do so at once, one does it.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// let url = format!("sqlite:{}", dir.path().join("app.db").display());
/// assert_eq!(semel::inbox::migrate(&url).await?.before, 0);
/// assert_eq!(semel::inbox::migrate(&url).await?.before, semel::inbox::VERSION);
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    TABLES.migrate(url).await
}

/// Which kind of database a URL names, if an inbox can be in it.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}

/// The inbox of one consumer: a name under which it remembers what it has handled. Cheap to make and to clone.
#[derive(Clone, Debug)]
#[must_use]
pub struct Inbox {
    consumer: String,
    results: bool,
    window: Duration,
}

impl Inbox {
    /// The inbox of the consumer of that name. All processes of one consumer share the name; two consumers with one name
    /// would each leave out what the other has handled.
    ///
    /// # Errors
    /// When the name is empty, too long, or has control characters.
    pub fn new(consumer: &str) -> Result<Self, IdentityError> {
        let consumer = identity::name("a consumer's name", consumer)?;
        Ok(Self { consumer, results: false, window: WINDOW })
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Keeps what handling a message ended in, and gives it to whoever brings the message again.
    pub fn keep_results(mut self) -> Self {
        self.results = true;
        self
    }

    /// How long marks are kept: [`WINDOW`] unless told otherwise. Longer than the broker keeps messages, or a message may
    /// come again after its mark is forgotten.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Forgets a bite of the marks that are older than the window, in a transaction of its own, and says how many. Call
    /// it again, after the commit, until it says zero. Marks of other consumers are not touched.
    pub async fn prune_tx<X: Tx>(&self, tx: &mut X) -> Result<u64, TxError> {
        Ok(prune::prune(tx, &self.consumer, self.window).await?)
    }

    /// As [`prune_tx`](Inbox::prune_tx), in the transaction that is open on a rusqlite connection.
    #[cfg(feature = "sqlite")]
    pub fn prune_now(&self, connection: &rusqlite::Connection) -> Result<u64, TxError> {
        Ok(prune::prune_now(connection, &self.consumer, self.window)?)
    }
}
