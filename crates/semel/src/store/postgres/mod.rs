//! PostgreSQL: the shared store.
//!
//! ```text
//!  callers ──▶ queue ──▶ a few connections ──▶ one statement over arrays, one commit ──▶ answers
//!     │
//!     └──────▶ readers (get, now; list, sweep): two connections, never behind a batch
//! ```
//!
//! - **Durable before acknowledged**: the settings that decide that (`fsync`, `synchronous_commit`) are checked when
//!   the store is opened; see [`PostgresStore::settings`].
//! - **The clock** is the server's `clock_timestamp()`.
//! - **A lost answer** is [in doubt](super::Fate::InDoubt), and settled by asking again with the same owner.
//! - **No waiting for unrelated locks**: a row or key locked by an open transaction blocks no other request of a batch.
//! - **A replay writes nothing**, not even a transaction id.
//!
//! # The URL
//!
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE&…`. Unknown options are refused.
//!
//! | option | default | means |
//! |---|---|---|
//! | `schema` | the role's `search_path` | where the tables are |
//! | `lanes` | 4 | connections that carry claims and outcomes, 1 to 64 |
//! | `connect_timeout` | `5s` | longest wait for a connection |
//! | `statement_timeout` | `10s` | longest statement |
//! | `prepared` | detected | `false` behind a pooler in transaction mode; `pgbouncer=true` means the same |
//! | `sslmode` | `prefer` | `disable`, `prefer`, `require`, `verify-full` (feature `postgres-tls`) |
//! | `sslrootcert` | the system's | a file of PEM certificates |
//!
//! Also the driver's `application_name`, `target_session_attrs`, `tcp_user_timeout`, `keepalives`,
//! `keepalives_idle`, `keepalives_interval`, `keepalives_retries`, `channel_binding`, `hostaddr` and
//! `load_balance_hosts`.
//!
//! # Inspecting the data
//!
//! `psql -c "SELECT * FROM semel_intents WHERE state = 'uncertain'"`. The tables are described in [`SQL`].
//!
//! | module | what it decides |
//! |---|---|
//! | `execute`, `statement` | batches as statements, and the types of their parameters |
//! | `connect` | how a connection is opened and checked |
//! | `reader`, `row` | reads and the sweep; from a row to a record |
//! | `lock` | advisory locks between claims in batches and in the user's own transactions |
//! | `schema` | the tables, their version, migrations |
//! | `probe` | the server's settings and lineage |
//! | `options`, `tls`, `no_tls`, `error` | settings and their URL; TLS, or none; what the server's errors mean |

use std::fmt;
use std::sync::Arc;

use self::connect::Connections;
use self::execute::Batches;
use self::reader::Reader;
use super::coalesce::Coalescer;
use super::command::{Command, Finishing};
use super::encoding::{MS_MAX, bounded};
use super::memory::check_size;
use super::pager::sequence;
use super::queue::closed;
use super::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, Filter, Finish, Finished, Page, Record, Renewed,
    Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::migration::{Goal, MigrationPlan};
use crate::store;

pub(crate) mod connect;
pub(crate) mod error;
mod execute;
pub(crate) mod lock;
mod options;
mod probe;
mod reader;
mod row;
pub mod schema;
pub(crate) mod statement;
#[cfg(feature = "postgres-tls")]
mod tls;
#[cfg(not(feature = "postgres-tls"))]
#[path = "no_tls.rs"]
mod tls;

pub use options::PostgresOptions;
pub use probe::{PostgresLineage, PostgresSettings};
pub use schema::SQL;

/// A store in a PostgreSQL database. Cheap to clone; its connections are closed with the last clone.
///
/// ```no_run
/// # async fn run() -> Result<(), semel::store::StoreError> {
/// use semel::store::{Store, postgres::PostgresStore};
///
/// let store = PostgresStore::open("postgres://semel@localhost/payments").await?;
/// for warning in &store.settings().warnings {
///     eprintln!("{warning}");
/// }
/// assert!(store.capabilities().shared);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    settings: PostgresSettings,
    lineage: PostgresLineage,
    coalescer: Coalescer,
    // Two, so that a `get` never waits for a `list` over millions of records.
    gets: Reader,
    lists: Reader,
    connections: Arc<Connections>,
    closed: std::sync::atomic::AtomicBool,
}

impl PostgresStore {
    /// Opens the database a URL names, and creates the tables if they do not exist.
    ///
    /// The store's connections live on the runtime it was opened on.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::options(url)?.open().await
    }

    /// Parses a URL into options, to open with other bounds than the defaults.
    pub fn options(url: &str) -> Result<PostgresOptions, StoreError> {
        PostgresOptions::from_url(url)
    }

    async fn open_with(options: PostgresOptions) -> Result<Self, StoreError> {
        let (bounds, create) = (options.bounds, options.create);
        let connections = Connections::new(options).map_err(|error| error.not_applied())?;
        let connections = Arc::new(connections);
        let opened = async {
            let (session, probe) = connections.session().await?;
            if create {
                schema::migrate(&session.client, Goal::Start).await?;
            } else {
                schema::expect(&session.client).await?;
            }
            let lineage = PostgresLineage::ask(&session.client).await?;
            Ok((probe.settings(session.path), lineage, session))
        };
        let (settings, lineage, session) =
            opened.await.map_err(|error: error::PostgresError| error.not_applied())?;
        for warning in &settings.warnings {
            tracing::warn!(target: "semel", "PostgreSQL: {warning}");
        }
        let batches = Arc::new(Batches::new(Arc::clone(&connections)));
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                lineage,
                coalescer: Coalescer::start(batches, Some(session), bounds),
                gets: Reader::new(Arc::clone(&connections)),
                lists: Reader::new(Arc::clone(&connections)),
                connections,
                closed: false.into(),
            }),
        })
    }

    /// The server's settings when the store was opened, with warnings for the operator.
    pub fn settings(&self) -> &PostgresSettings {
        &self.inner.settings
    }

    /// The identity of the tables and their server when the store was opened.
    pub fn lineage(&self) -> &PostgresLineage {
        &self.inner.lineage
    }

    /// Drains and closes: answers what was asked before, accepts nothing more (also from clones), and closes the
    /// connections.
    pub async fn close(&self) {
        self.inner.closed.store(true, std::sync::atomic::Ordering::SeqCst);
        self.inner.coalescer.close().await;
        self.inner.gets.close().await;
        self.inner.lists.close().await;
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.inner.closed.load(std::sync::atomic::Ordering::SeqCst) { Err(closed()) } else { Ok(()) }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.inner.connections.options)
            .finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.inner.settings.durable, shared: true, same_tx: true }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.check_open()?;
        self.inner.gets.now().await.map_err(|error| error.not_applied())
    }

    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        claim.lease_ms = claim.lease_ms.min(MS_MAX);
        self.inner.coalescer.ask(claim, Command::Claim).await
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.inner.coalescer.ask((ticket, lease_ms.min(MS_MAX)), Command::Renew).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        check_size(finish.outcome.as_ref())?;
        let finishing = Finishing {
            ticket,
            verdict: finish.verdict,
            retention: bounded(finish.retention),
            outcome: finish.outcome.map(|outcome| outcome.encode()),
        };
        self.inner.coalescer.ask(finishing, Command::Finish).await
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.check_open()?;
        self.inner.gets.get(&id).await.map_err(|error| error.not_applied())
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.check_open()?;
        let after = sequence(&filter)?;
        self.inner.lists.list(&filter, after).await.map_err(|error| error.not_applied())
    }

    async fn decide(&self, id: IntentId, mut decide: Decide) -> Result<Decided, StoreError> {
        check_size(decide.outcome.as_ref())?;
        decide.retention = bounded(decide.retention);
        self.inner.coalescer.ask((id, decide), Command::Decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.check_open()?;
        self.inner.lists.sweep(limit).await.map_err(|error| error.explain())
    }

    /// Read anew: after a promotion behind the same name it is another one.
    async fn lineage(&self) -> Result<Option<store::Lineage>, StoreError> {
        self.check_open()?;
        let lineage = self.inner.gets.lineage().await.map_err(|error| error.not_applied())?;
        Ok(Some(lineage.digest()))
    }
}

pub(super) async fn open_url(url: &str, create: bool) -> Result<AnyStore, StoreError> {
    Ok(AnyStore::new(PostgresOptions::from_url(url)?.create(create).open().await?))
}

pub(super) async fn migrate_url(url: &str, goal: Goal) -> Result<MigrationPlan, StoreError> {
    schema::TABLES.migrate(url, goal, "").await
}

pub(super) async fn new_lineage(url: &str) -> Result<super::Lineage, StoreError> {
    let connections = Connections::new(PostgresOptions::from_url(url)?);
    let made = async {
        let (session, _) = connections?.session().await?;
        schema::expect(&session.client).await?;
        schema::one(&session.client, "UPDATE semel_meta SET store = gen_random_uuid() RETURNING store")
            .await?;
        let lineage = PostgresLineage::ask(&session.client).await?;
        session.close().await;
        Ok(lineage.digest())
    };
    // Reported as not applied: another new lineage does no harm.
    made.await.map_err(|error: error::PostgresError| error.not_applied())
}
