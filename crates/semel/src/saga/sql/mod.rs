//! The journal in a SQL database: PostgreSQL, MySQL and MariaDB, or SQLite.
//!
//! | file | what it decides |
//! |---|---|
//! | `tables` | creating the tables, and their versions |
//! | `coalesce` | combines what many sagas write into transactions |
//! | `batch` | one such transaction |
//! | `operations`, `statements` | what is done in one transaction, over any driver, and its SQL |
//! | `figures` | how many sagas there are, and whether those that were taken can be read |
//! | `row` | between the tables and the types |

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::entry::NewEntry;
use super::journal::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, Journal, Loaded, MayRead, NewSaga, SagaChange,
    SagaChanged, SagaFigures, SagaFilter, SagaNumber, SagaRecord, SagaStarted, Signal, Signalled, TakenSaga,
    check_size,
};
use super::protect::may_read_plain;
#[cfg(feature = "fault-injection")]
use super::state::RowDecider;
use super::state::{SagaRow, WorkerId, step};
use crate::database::{Database, TxOperation};
use crate::fault::Hook;
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::StoreError;
use crate::store::queue::answer_lost;
use crate::tx::driver::Dialect;

use self::batch::{Answer, Request};
#[cfg(feature = "fault-injection")]
use self::coalesce::Planted;
use self::coalesce::{Coalescer, LANES};

mod batch;
mod coalesce;
mod figures;
mod operations;
mod row;
mod statements;
mod tables;

#[cfg(all(feature = "saga-test", feature = "sqlite"))]
pub(super) use operations::run_on_sqlite;
pub(crate) use tables::TABLES;
pub use tables::{VERSION, contract, dialect, migrate, plan_migration, schema};

/// Transactions at the same time. On SQLite they share commits instead.
const SESSIONS: usize = 8;

/// A journal in a SQL database. Cheap to clone; clones share its sessions.
#[derive(Clone)]
pub struct SqlJournal {
    database: Arc<Database>,
    /// The lease has a session of its own: it is renewed however busy the others are.
    lease: Arc<Database>,
    /// Atomic steps.
    steps: Arc<Database>,
    /// Starts and changes of many sagas share transactions.
    coalescer: Arc<Coalescer>,
}

impl fmt::Debug for SqlJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlJournal").field("location", &self.database.location()).finish_non_exhaustive()
    }
}

impl SqlJournal {
    /// Opens the journal in a database: `postgres://…`, `mysql://…` or `sqlite:PATH`.
    ///
    /// # Errors
    /// If the database cannot be reached, or its tables are missing or of another version. `semel migrate --saga`, or
    /// [`migrate`], creates or upgrades them.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let database = Arc::new(Database::new(TABLES, url, SESSIONS)?);
        // On SQLite all is written by one thread: a second one would only make it wait.
        let lanes = match TABLES.dialect(url)? {
            Dialect::Sqlite => Arc::clone(&database),
            Dialect::Postgres | Dialect::Mysql => Arc::new(Database::new(TABLES, url, LANES)?),
        };
        let coalescer = Arc::new(Coalescer::new(lanes, Arc::clone(&database), Hook::default()));
        let (lease, steps) = (Arc::new(Database::new(TABLES, url, 1)?), Arc::clone(&database));
        let journal = Self { database, lease, steps, coalescer };
        let version = journal.run(|tx| Box::pin(operations::version(tx))).await?;
        let checked = TABLES.check(TABLES.dialect(url)?, version, &journal.database.location());
        checked.map_err(crate::migration::wrong)?;
        Ok(journal)
    }

    /// Runs the atomic steps of a journal on PostgreSQL over a pool of `sqlx`: they get
    /// [`StepTx::sqlx_postgres`](super::StepTx::sqlx_postgres) in place of `postgres`. Everything else stays on the
    /// journal's own sessions.
    ///
    /// The pool has to be of the journal's database, and its connections have to find the journal's tables. A step has the
    /// same limits as on the journal's sessions (`?statement_timeout=`, a minute between two statements, READ COMMITTED);
    /// nothing of this outlasts its transaction. It waits for a connection as long as the journal waits for its own
    /// (`?connect_timeout=`), and is then tried again: do not hold a connection of a small pool while you wait for a saga.
    ///
    /// ```no_run
    /// use semel::saga::sql::SqlJournal;
    /// use semel::saga::{StepError, StepResult, StepTx};
    ///
    /// async fn create(tx: &mut StepTx<'_>, sku: &str) -> StepResult<i64> {
    ///     let tx = tx.sqlx_postgres().ok_or_else(|| StepError::refused("not over sqlx"))?;
    ///     let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id");
    ///     Ok(insert.bind(sku).fetch_one(tx).await?)
    /// }
    ///
    /// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "postgres://app@db/shop";
    /// let pool = sqlx::PgPool::connect(url).await?;
    /// let journal = SqlJournal::open(url).await?.steps_over(pool).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the pool is of another database, or finds other tables: what a step writes there would not be in one commit with
    /// its journal. If one of them does not answer, or the journal is not on PostgreSQL.
    #[cfg(feature = "sqlx-postgres")]
    pub async fn steps_over(mut self, pool: sqlx::PgPool) -> Result<Self, StoreError> {
        let over_pool = self.database.over(pool.clone(), None)?;
        let ours = self.run(|tx| Box::pin(operations::place(tx))).await?;
        let theirs = over_pool.run(|tx| Box::pin(operations::place(tx))).await?;
        let Some(table) = ours.table.filter(|_| ours == theirs) else {
            let what = match theirs.table {
                None => "does not find the table semel_saga",
                Some(_) => "is of another database, server or schema than the journal",
            };
            return Err(crate::migration::wrong(format!(
                "the pool for atomic steps {what} (its database is {:?}, the journal's {:?}); open it with the journal's \
                 URL and search_path, or make a step on another database keyed and use once_tx there",
                theirs.database, ours.database
            )));
        };
        self.steps = Arc::new(self.database.over(pool, Some(("semel_saga", table)))?);
        Ok(self)
    }

    /// Decides with another function than [`step`]: a planted bug, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn deciding_with(self, decide: RowDecider) -> Self {
        self.planted(Planted { decide: Some(decide), ..Planted::default() })
    }

    /// One change that fails takes those along that share its transaction: a planted bug, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn failing_together(self) -> Self {
        self.planted(Planted { fails_together: true, ..Planted::default() })
    }

    /// Answers those that share a transaction in another order: a planted bug, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn answering_by_position(self) -> Self {
        self.planted(Planted { answers_by_position: true, ..Planted::default() })
    }

    #[cfg(feature = "fault-injection")]
    fn planted(mut self, planted: Planted) -> Self {
        self.coalescer = Arc::new(self.coalescer.planted(planted));
        self
    }

    fn run<T: Send + 'static>(&self, operation: impl TxOperation<T>) -> Answering<'_, T> {
        Box::pin(self.database.run(operation))
    }
}

impl Journal for SqlJournal {
    fn now(&self) -> Answering<'_, StoreTime> {
        self.run(|tx| Box::pin(operations::now(tx)))
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        Box::pin(self.lease.run(move |tx| Box::pin(operations::join(tx, lease_ms))))
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        Box::pin(self.lease.run(move |tx| Box::pin(operations::renew(tx, worker, lease_ms))))
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        Box::pin(self.lease.run(move |tx| Box::pin(operations::leave(tx, worker))))
    }

    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        if let Err(error) = check_size(&saga.input) {
            return Box::pin(std::future::ready(Err(error)));
        }
        Box::pin(async move {
            match self.coalescer.ask(Request::Start(Box::new(saga))).await? {
                Answer::Started(started) => Ok(started),
                Answer::Changed(_) => Err(answer_lost()),
            }
        })
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        if let Err(error) = change.check_sizes() {
            return Box::pin(std::future::ready(Err(error)));
        }
        // Appending an event may wait for a transaction of the application that has used its idempotency key.
        if !change.events.is_empty() {
            return self.run(move |tx| Box::pin(operations::change(tx, number, change, step)));
        }
        Box::pin(async move {
            match self.coalescer.ask(Request::Change(number, Box::new(change))).await? {
                Answer::Changed(changed) => Ok(changed),
                Answer::Started(_) => Err(answer_lost()),
            }
        })
    }

    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd> {
        Box::pin(async move {
            let failed = Arc::new(OnceLock::new());
            let of_step = Arc::clone(&failed);
            let ran = self
                .steps
                .run(move |tx| Box::pin(operations::atomic(tx, number, change, done, work, of_step)))
                .await;
            match (failed.get(), ran) {
                // The step's own error: it was rolled back.
                (Some(error), Err(_)) => Ok(AtomicEnd::Failed(error.clone())),
                (_, ran) => ran,
            }
        })
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        self.run(move |tx| Box::pin(operations::load(tx, number)))
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        self.run(move |tx| Box::pin(operations::look(tx, number)))
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        self.run(move |tx| Box::pin(operations::find(tx, id)))
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        Box::pin(async move {
            let taken = self.take_readable(worker, definitions, limit, Arc::new(may_read_plain)).await?;
            Ok(taken.into_iter().map(|taken| (taken.number, taken.row)).collect())
        })
    }

    fn take_readable<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
        may_read: Arc<MayRead>,
    ) -> Answering<'a, Vec<TakenSaga>> {
        let definitions = definitions.to_vec();
        Box::pin(async move {
            // In a commit of its own: a worker that is ended cannot be renewed any more.
            if let Err(error) = self.database.run(|tx| Box::pin(operations::end_lapsed(tx))).await {
                tracing::warn!(%error, "could not end workers of sagas whose lease is over; trying again");
            }
            let refused = Arc::new(Mutex::new(None));
            let why = Arc::clone(&refused);
            let taken = self
                .database
                .run(move |tx| {
                    Box::pin(figures::take_readable(tx, worker, definitions, limit, may_read, why))
                })
                .await;
            // Rolled back as a whole.
            let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
            refused.map_or(taken, Err)
        })
    }

    fn figures(&self, overdue_ms: u64) -> Answering<'_, Option<SagaFigures>> {
        self.run(move |tx| Box::pin(async move { figures::figures(tx, overdue_ms).await.map(Some) }))
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        self.run(move |tx| Box::pin(operations::owned(tx, worker)))
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        if let Err(error) = check_size(&signal.body) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.run(move |tx| Box::pin(operations::signal(tx, number, signal)))
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        self.run(move |tx| Box::pin(operations::list(tx, filter)))
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        Box::pin(async move {
            let swept = self.database.run(move |tx| Box::pin(operations::sweep(tx, limit))).await?;
            self.database.run(|tx| Box::pin(operations::forget_workers(tx))).await?;
            Ok(swept)
        })
    }
}
