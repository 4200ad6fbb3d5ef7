//! MySQL and MariaDB.
//!
//! ```text
//!  callers ──▶ queue ──▶ connections, each with all that waits of one kind ──▶ answers
//!     └──────▶ two more connections (get, list, now, sweep)
//! ```
//!
//! - **One round trip** for a new claim and for a replay, which takes no lock and writes nothing; one for a
//!   lone outcome. Takeovers, renewals, decisions and batches of outcomes take two: their rows are locked
//!   first, without waiting for any that somebody else holds, and then decided by the code all stores share.
//! - **The primary key arbitrates**: of any number that insert one id one succeeds, and the others see its row.
//! - **The clock** is the server's.
//! - **Epochs** come from an AUTO_INCREMENT, which MySQL 8 and MariaDB 10.2.4 keep over a restart.
//! - **Durable before acknowledged** where the server flushes: looked at when opening, see
//!   [`warnings`](MysqlStore::warnings).
//! - **Look inside** with the ordinary tool: `mysql semel -e 'SELECT * FROM semel_intents LIMIT 10'`.

use std::fmt;
use std::sync::Arc;

use self::error::misconfigured;
use self::read::Readers;
use self::server::Server;
use self::session::Session;
use super::Lineage;
use super::coalesce::{Coalescer, Executor, Failure};
use super::command::{Ask, Command, Finishing};
use super::encoding::{MS_MAX, bounded};
use super::memory::check_size;
use super::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished,
    Migrated, Page, Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;

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

/// Remembers in a MySQL or MariaDB database. Cheap to clone.
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
    standing: probe::ServerStatus,
    lineage: [u8; 16],
    lanes: Coalescer,
    readers: Readers,
}

impl MysqlStore {
    /// Connects to the database a URL names, and makes its tables if they are not there.
    ///
    /// A server that cannot keep the laws (too old, or logging statements) and tables of a newer semel are
    /// refused.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::options().open(url).await
    }

    /// Opens with other bounds than the usual ones.
    pub fn options() -> MysqlOptions {
        MysqlOptions::default()
    }

    async fn open_with(options: MysqlOptions, url: &str) -> Result<Self, StoreError> {
        let (options, dial, name) = options.with_url(url)?;
        let mut session = dial.open().await.map_err(|trouble| trouble.explain(&name, Fate::NotApplied))?;
        let standing = probe::look(&mut session, &name).await?;
        for warning in &standing.warnings {
            tracing::warn!(server = name, "{warning}");
        }
        if options.create {
            schema::bring_up(&mut session, &name).await?;
        } else if schema::version(&mut session, &name).await? == 0 {
            return Err(misconfigured(format!(
                "{name} has none of semel's tables; check the URL, or make them with `semel migrate`"
            )));
        }
        let lineage = schema::lineage(&mut session, &name).await?;
        let (_, queue_wait) = options.queue();
        let server = Arc::new(Server::new(name, dial, options.clock.clone(), standing.packet_bytes));
        let readers = Readers::new(Arc::clone(&server), queue_wait);
        let lanes = Coalescer::start(Arc::clone(&server), Some(session), options.bounds());
        Ok(Self { inner: Arc::new(Inner { server, standing, lineage, lanes, readers }) })
    }

    /// What of the server's settings weakens a promise, as of opening: each says what may happen and what to
    /// set. The same goes to the log.
    pub fn warnings(&self) -> &[String] {
        &self.inner.standing.warnings
    }

    /// Drawn at random when the tables were made: whoever keeps something about this store elsewhere writes
    /// it down, and notices another store behind the same name.
    pub fn lineage(&self) -> [u8; 16] {
        self.inner.lineage
    }

    /// Answers what was asked before, takes nothing more (also from clones), and closes the connections.
    pub async fn close(&self) {
        self.inner.lanes.close().await;
        self.inner.readers.close().await;
    }

    /// Refuses what the server has no room for in one statement, before anything is sent.
    fn check(&self, outcome: Option<&Outcome>) -> Result<(), StoreError> {
        check_size(outcome)?;
        let max = probe::outcome_bytes_max(self.inner.server.packet_bytes);
        match outcome {
            Some(outcome) if outcome.encoded_len() > max => {
                let message = format!(
                    "the outcome has {} bytes, and {} takes {max}; raise its max_allowed_packet",
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
        Capabilities { durable: self.inner.standing.durable, shared: true, same_tx: true }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.inner.readers.now().await
    }

    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        claim.lease_ms = claim.lease_ms.min(MS_MAX);
        self.inner.lanes.ask(claim, Command::Claim).await
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.inner.lanes.ask((ticket, lease_ms.min(MS_MAX)), Command::Renew).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        self.check(finish.outcome.as_ref())?;
        let finishing = Finishing {
            ticket,
            verdict: finish.verdict,
            retention: bounded(finish.retention),
            outcome: finish.outcome.as_ref().map(Outcome::encode),
        };
        self.inner.lanes.ask(finishing, Command::Finish).await
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
        self.inner.lanes.ask((id, decide), Command::Decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.inner.readers.sweep(limit).await
    }

    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        // Asked anew: a database that was restored may be another one.
        self.inner.readers.lineage().await.map(|bytes| Some(Lineage::from_bytes(bytes)))
    }
}

impl Executor for Server {
    type Lane = Session;

    const CLAIMS_MAY_REPEAT: bool = true;

    async fn connect(&self) -> Result<Session, Failure> {
        self.dial.open().await.map_err(|trouble| trouble.failure(&self.name, Fate::NotApplied))
    }

    fn is_open(&self, lane: &Session) -> bool {
        lane.is_open()
    }

    async fn claims(&self, lane: &mut Session, asks: &mut [Ask<Claim, Claimed>]) -> Result<(), Failure> {
        self.readied(lane).await?;
        self.claim_all(lane, asks).await
    }

    async fn finishes(
        &self,
        lane: &mut Session,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> Result<(), Failure> {
        self.readied(lane).await?;
        self.finish_all(lane, asks).await
    }

    async fn renews(
        &self,
        lane: &mut Session,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> Result<(), Failure> {
        self.readied(lane).await?;
        self.renew_all(lane, asks).await
    }

    async fn decides(
        &self,
        lane: &mut Session,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> Result<(), Failure> {
        self.readied(lane).await?;
        self.decide_all(lane, asks).await
    }
}

impl Server {
    async fn readied(&self, lane: &mut Session) -> Result<(), Failure> {
        lane.ready().await.map_err(|trouble| trouble.failure(&self.name, Fate::NotApplied))
    }
}

pub(super) async fn open_url(url: &str, create: bool) -> Result<AnyStore, StoreError> {
    MysqlStore::options().create(create).open(url).await.map(AnyStore::new)
}

pub(super) async fn migrate_url(url: &str) -> Result<Migrated, StoreError> {
    let before = schema::migrate(url).await?;
    Ok(Migrated { before, now: schema::VERSION })
}

pub(super) async fn new_lineage(url: &str) -> Result<Lineage, StoreError> {
    schema::new_lineage(url).await.map(Lineage::from_bytes)
}
