//! MySQL and MariaDB.
//!
//! ```text
//!  callers ──▶ queue ──▶ connections, each takes all waiting requests of one kind ──▶ answers
//!     └──────▶ two more connections (get, list, now, sweep)
//! ```
//!
//! - **One round trip** for a new claim and for a replay, which takes no lock and writes nothing; one for a lone
//!   outcome. Takeovers, renewals, decisions and batches of outcomes take two: their rows are locked first, without
//!   waiting for rows that another transaction has locked, and then decided by the code all stores share.
//! - **The primary key decides races**: of any number of inserts of one id one succeeds, and the others see its row.
//! - **The clock** is the server's.
//! - **Epochs** come from an AUTO_INCREMENT, which MySQL 8 and MariaDB 10.2.4 keep over a restart.
//! - **Durable before acknowledged** if the server flushes each commit: checked when opening, see
//!   [`warnings`](MysqlStore::warnings).
//! - **Inspect it** with the usual tool: `mysql semel -e 'SELECT * FROM semel_intents LIMIT 10'`.
//!
//! | module | what it decides |
//! |---|---|
//! | `claim` | new and finished intents in one packet, takeovers in a second |
//! | `change` | outcomes, renewals, decisions |
//! | `lock` | locks all rows of a batch before anything is decided |
//! | `read`, `list`, `row` | reads and sweeps; pages; from a row to a record |
//! | `session`, `server` | one connection; what all connections share: clock, numbers of operations |
//! | `literal` | values as SQL literals that cannot be injected into |
//! | `schema` | the tables, their version, migrations |
//! | `probe` | the server's version and settings, and whether a commit is on its disk |
//! | `options`, `error` | settings and their URL; what the server's errors mean |

use std::fmt;
use std::sync::Arc;

use self::read::Readers;
use self::server::Server;
use self::session::Session;
use super::Lineage;
use super::coalesce::{Coalescer, Executor, Failure};
use super::command::{Ask, Command, Finishing};
use super::encoding::{MS_MAX, bounded};
use super::memory::check_size;
use super::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::migration::{Goal, MigrationPlan};

mod change;
mod claim;
pub(crate) mod error;
mod list;
pub(crate) mod literal;
mod lock;
pub(crate) mod options;
mod probe;
mod read;
mod row;
pub mod schema;
mod server;
pub(crate) mod session;

pub use options::MysqlOptions;
pub use schema::SQL;

/// A store in a MySQL or MariaDB database. Cheap to clone.
///
/// ```no_run
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel::store::{Store, mysql::MysqlStore};
///
/// let store = MysqlStore::open("mysql://semel@db.internal/semel").await?;
/// for warning in store.warnings() {
///     eprintln!("{warning}");
/// }
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    inner: Arc<Inner>,
}

struct Inner {
    server: Arc<Server>,
    status: probe::ServerStatus,
    lineage: [u8; 16],
    coalescer: Coalescer,
    readers: Readers,
}

impl MysqlStore {
    /// Connects to the database a URL names, and creates its tables if they do not exist.
    ///
    /// A server that cannot keep the laws (too old, or with statement-based binary logs) and tables of a newer semel
    /// are refused.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::options().open(url).await
    }

    /// Options with other bounds than the defaults.
    pub fn options() -> MysqlOptions {
        MysqlOptions::default()
    }

    async fn open_with(options: MysqlOptions, url: &str) -> Result<Self, StoreError> {
        let (options, dial, name) = options.with_url(url)?;
        let mut session = dial.open().await.map_err(|error| error.explain(&name, Fate::NotApplied))?;
        let status = probe::check(&mut session, &name).await?;
        for warning in &status.warnings {
            tracing::warn!(server = name, "{warning}");
        }
        if options.create {
            schema::create_or_upgrade(&mut session, &name).await?;
        } else {
            schema::expect(&mut session, &name).await?;
        }
        let lineage = schema::lineage(&mut session, &name).await?;
        let queue_wait = options.bounds.queue_wait;
        let server = Arc::new(Server::new(name, dial, options.clock.clone(), status.packet_bytes));
        let readers = Readers::new(Arc::clone(&server), queue_wait);
        let coalescer = Coalescer::start(Arc::clone(&server), Some(session), options.bounds);
        Ok(Self { inner: Arc::new(Inner { server, status, lineage, coalescer, readers }) })
    }

    /// Server settings that weakened a promise when the store was opened: each says what may happen and what to set.
    /// The same is logged.
    pub fn warnings(&self) -> &[String] {
        &self.inner.status.warnings
    }

    /// A random id, created with the tables. A program that keeps data about this store elsewhere stores it too, and
    /// notices another store behind the same name.
    pub fn lineage(&self) -> [u8; 16] {
        self.inner.lineage
    }

    /// Drains and closes: answers what was asked before, accepts nothing more (also from clones), and closes the
    /// connections.
    pub async fn close(&self) {
        self.inner.coalescer.close().await;
        self.inner.readers.close().await;
    }

    /// Refuses an outcome that does not fit into one statement, before anything is sent.
    fn check(&self, outcome: Option<&Outcome>) -> Result<(), StoreError> {
        check_size(outcome)?;
        let max = probe::outcome_bytes_max(self.inner.server.packet_bytes);
        match outcome {
            Some(outcome) if outcome.encoded_len() > max => {
                let message = format!(
                    "the outcome has {} bytes, and {} accepts {max}; raise its max_allowed_packet",
                    outcome.encoded_len(),
                    self.inner.server.name
                );
                Err(StoreError::new(ErrorKind::TooLarge, Fate::NotApplied, message))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").field("server", &self.inner.server.name).finish_non_exhaustive()
    }
}

impl Store for MysqlStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.inner.status.durable, shared: true, same_tx: true }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.inner.readers.now().await
    }

    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        claim.lease_ms = claim.lease_ms.min(MS_MAX);
        self.inner.coalescer.ask(claim, Command::Claim).await
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.inner.coalescer.ask((ticket, lease_ms.min(MS_MAX)), Command::Renew).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        self.check(finish.outcome.as_ref())?;
        let finishing = Finishing {
            ticket,
            verdict: finish.verdict,
            retention: bounded(finish.retention),
            outcome: finish.outcome.as_ref().map(Outcome::encode),
        };
        self.inner.coalescer.ask(finishing, Command::Finish).await
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.inner.readers.get(id).await
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.inner.readers.list(&filter).await
    }

    async fn decide(&self, id: IntentId, mut decide: Decide) -> Result<Decided, StoreError> {
        self.check(decide.outcome.as_ref())?;
        decide.retention = bounded(decide.retention);
        self.inner.coalescer.ask((id, decide), Command::Decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.inner.readers.sweep(limit).await
    }

    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        // Read anew each time: the database may have been restored.
        self.inner.readers.lineage().await.map(|bytes| Some(Lineage::from_bytes(bytes)))
    }
}

impl Executor for Server {
    type Connection = Session;

    const CLAIMS_MAY_REPEAT: bool = true;

    async fn connect(&self) -> Result<Session, Failure> {
        self.dial.open().await.map_err(|error| error.failure(&self.name, Fate::NotApplied))
    }

    fn is_open(&self, session: &Session) -> bool {
        session.is_open()
    }

    async fn claims(&self, session: &mut Session, asks: &mut [Ask<Claim, Claimed>]) -> Result<(), Failure> {
        self.make_ready(session).await?;
        self.claim_all(session, asks).await
    }

    async fn finishes(
        &self,
        session: &mut Session,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> Result<(), Failure> {
        self.make_ready(session).await?;
        self.finish_all(session, asks).await
    }

    async fn renews(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> Result<(), Failure> {
        self.make_ready(session).await?;
        self.renew_all(session, asks).await
    }

    async fn decides(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> Result<(), Failure> {
        self.make_ready(session).await?;
        self.decide_all(session, asks).await
    }
}

impl Server {
    async fn make_ready(&self, session: &mut Session) -> Result<(), Failure> {
        session.ready().await.map_err(|error| error.failure(&self.name, Fate::NotApplied))
    }
}

pub(super) async fn open_url(url: &str, create: bool) -> Result<AnyStore, StoreError> {
    MysqlStore::options().create(create).open(url).await.map(AnyStore::new)
}

pub(super) async fn migrate_url(url: &str, goal: Goal) -> Result<MigrationPlan, StoreError> {
    schema::TABLES.migrate(url, goal, "").await
}

pub(super) async fn new_lineage(url: &str) -> Result<Lineage, StoreError> {
    schema::new_lineage(url).await.map(Lineage::from_bytes)
}
