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

use crate::migration::{Goal, MigrationPlan, Tables, Upgrade, Versions};
use crate::store::{Migrated, StoreError};
use crate::tx::TxError;
use crate::tx::driver::{Dialect, OpenTx, Tx};

/// Most messages marked by one statement.
pub const BATCH_MESSAGES_MAX: usize = 10_000;

/// Default retention of a mark: twice Kafka's default retention.
pub const WINDOW: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The version of the tables that [`migrate`] leads to. This build also works with the next one.
pub const VERSION: u32 = 3;

pub(crate) const TABLES: Tables = Tables {
    what: "inbox",
    meta: "semel_inbox_meta",
    last: |_| "semel_inbox_result",
    resumable: false,
    migrate: "semel migrate --inbox URL",
    versions: |dialect| match dialect {
        Dialect::Postgres => &POSTGRES,
        Dialect::Mysql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    },
};

/// The versions in a dialect: the first file, and what each later one added.
macro_rules! versions {
    ($name:ident, $first:literal, $($later:literal),*) => {
        const $name: Versions = Versions {
            create: concat!(include_str!($first), $(include_str!($later)),*),
            upgrades: &[$(Upgrade::Expand(include_str!($later))),*],
            oldest: VERSION,
        };
    };
}
const POSTGRES: Versions = Versions {
    create: concat!(
        include_str!("sql/postgres.sql"),
        include_str!("sql/postgres_dead.sql"),
        include_str!("sql/postgres_thin.sql")
    ),
    upgrades: &[
        Upgrade::Expand(include_str!("sql/postgres_dead.sql")),
        Upgrade::Stop(include_str!("sql/postgres_thin.sql")),
    ],
    oldest: VERSION,
};
versions!(MYSQL, "sql/mysql.sql", "sql/mysql_dead.sql", "sql/same_3.sql");
versions!(SQLITE, "sql/sqlite.sql", "sql/sqlite_dead.sql", "sql/same_3.sql");

/// The SQL that creates the tables in that dialect. Run it once, with your migrations, or call [`migrate`].
pub fn schema(dialect: Dialect) -> &'static str {
    (TABLES.versions)(dialect).create
}

/// Creates the inbox's tables in the database at `url`, or migrates them to [`VERSION`]. Safe to call concurrently: one
/// caller does it.
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
    Ok(TABLES.migrate(url, Goal::Expand, "").await?.migrated())
}

/// Like [`migrate`], and removes what only older versions of semel use. Call it when none of them is running any more.
pub async fn contract(url: &str) -> Result<Migrated, StoreError> {
    Ok(TABLES.migrate(url, Goal::Contract, "").await?.migrated())
}

/// What [`migrate`], or with `contract` [`contract`], would do. Changes nothing.
pub async fn plan_migration(url: &str, contract: bool) -> Result<MigrationPlan, StoreError> {
    TABLES.migrate(url, Goal::Plan { contract }, "").await
}

/// The dialect of the database at `url`, if it can hold an inbox.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}

/// The inbox of one consumer: the name under which it marks messages it has handled. Cheap to create and to clone.
#[derive(Clone, Debug)]
#[must_use]
pub struct Inbox {
    consumer: String,
    results: bool,
    window: Duration,
}

impl Inbox {
    /// The inbox of the consumer with that name. All processes of one consumer share the name. Two consumers with one
    /// name would each skip what the other has handled.
    ///
    /// # Errors
    /// If the name is empty, too long, or has control characters.
    pub fn new(consumer: &str) -> Result<Self, IdentityError> {
        let consumer = identity::name("a consumer's name", consumer)?;
        Ok(Self { consumer, results: false, window: WINDOW })
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Stores the result of handling a message, and returns it when the message is delivered again.
    pub fn keep_results(mut self) -> Self {
        self.results = true;
        self
    }

    /// Retention of marks: the dedup window. Default: [`WINDOW`]. Must be longer than the broker's retention, or a
    /// message may be redelivered after its mark was pruned.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Deletes one bounded batch of marks older than the window, and returns how many. Use a transaction of its own,
    /// and repeat after the commit until it returns zero. Marks of other consumers are not touched.
    pub async fn prune_tx<X: Tx>(&self, tx: &mut X) -> Result<u64, TxError> {
        Ok(prune::chunk(&mut OpenTx::new(tx)?, &self.consumer, self.window).await?)
    }
}
