//! Over `rusqlite`: one thread with one connection. Transactions that wait together share a commit, each in a savepoint
//! of its own.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use super::any_tx::{AnyTx, TxOperation, in_tx};
use crate::blocking::ready;
use crate::migration::sqlite_path;
use crate::store::queue::{answer_lost, queue_full};
use crate::store::sqlite::error::{SqliteError, refused};
use crate::store::sqlite::open::{file_id, full_path, spawn};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::DriverError;

/// How long to wait for another writer.
const BUSY: Duration = Duration::from_secs(5);
/// Transactions that wait.
const QUEUE_MAX: usize = 1_000;
/// Transactions in one commit.
const BATCH_MAX: usize = 64;
/// Not what anybody else would write: work on this connection gets a statement of the same text from the same cache,
/// without being asked whether it may.
const SAVEPOINT: &str = "SAVEPOINT semel_tx /* around one of those that share a commit */";
const RELEASE: &str = "RELEASE semel_tx /* around one of those that share a commit */";
/// Statements that stay prepared: semel's own, and those of steps.
const STATEMENTS_MAX: usize = 128;

pub(super) struct Sqlite {
    path: PathBuf,
    /// To the thread; started by the first transaction.
    queue: Mutex<Option<mpsc::Sender<Box<dyn Job>>>>,
}

/// What an operation came to: `Err` is its own error, which rolled back its part and nothing else.
type Ended<T> = Result<T, DriverError>;

/// An operation without its types.
trait Job: Send {
    /// Runs it. `false`: what it wrote has to be rolled back.
    fn run(&mut self, connection: &mut Connection) -> bool;
    /// Answers after the commit.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Operation<T, O> {
    operation: Option<O>,
    ended: Option<Ended<T>>,
    reply: oneshot::Sender<Result<Ended<T>, StoreError>>,
}

impl<T: Send, O: TxOperation<T>> Job for Operation<T, O> {
    fn run(&mut self, connection: &mut Connection) -> bool {
        let Some(operation) = self.operation.take() else { return false };
        let ended = ready(in_tx(&mut AnyTx::Sqlite(connection), operation));
        self.ended.insert(ended).is_ok()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let ended = match (self.ended, committed) {
            // An error of its own: it was rolled back whatever the commit came to.
            (Some(Err(error)), _) => Ok(Err(error)),
            (_, Err(error)) => Err(error),
            (Some(ended), Ok(())) => Ok(ended),
            (None, Ok(())) => Err(answer_lost()),
        };
        let _ = self.reply.send(ended);
    }
}

impl Sqlite {
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self { path: full_path(sqlite_path(url))?, queue: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl TxOperation<T>,
    ) -> Result<Ended<T>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Operation { operation: Some(operation), ended: None, reply };
        self.queue()?.try_send(Box::new(job)).map_err(|_| queue_full(QUEUE_MAX))?;
        answer.await.unwrap_or_else(|_| Err(answer_lost()))
    }

    /// The queue of the thread, which is started again if it died.
    fn queue(&self) -> Result<mpsc::Sender<Box<dyn Job>>, StoreError> {
        let mut queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(queue) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return Ok(queue.clone());
        }
        let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
        let path = self.path.clone();
        // Ends with the last sender.
        spawn("tx", move || work(&path, waiting))?;
        Ok(queue.insert(jobs).clone())
    }
}

fn work(path: &Path, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
    let mut open: Option<Open> = None;
    // So many transactions have a commit of their own.
    let mut alone: usize = 0;
    while let Some(first) = waiting.blocking_recv() {
        let mut jobs = vec![first];
        let batch_max = if alone > 0 { 1 } else { BATCH_MAX };
        alone = alone.saturating_sub(1);
        while jobs.len() < batch_max
            && let Ok(next) = waiting.try_recv()
        {
            jobs.push(next);
        }
        // A file that was replaced is another database: what is written to the old one is lost.
        let same = open.take().filter(|open| open.file == file_id(path));
        let begun = same.map_or_else(|| Open::new(path), Ok).and_then(|open| {
            open.connection.execute_batch("BEGIN IMMEDIATE").map_err(explained(path, Fate::NotApplied))?;
            Ok(open)
        });
        let mut begun = match begun {
            Ok(begun) => begun,
            Err(error) => {
                jobs.into_iter().for_each(|job| job.answer(Err(error.again())));
                continue;
            }
        };
        let ran = run(&mut begun.connection, &mut jobs).map_err(explained(path, Fate::NotApplied));
        let committed = ran.and_then(|()| commit(&begun.connection, path, jobs.len()));
        if committed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            // The transaction that broke the commit is among these: each is alone when it comes again.
            alone = BATCH_MAX;
        }
        if committed.is_ok() {
            open = Some(begun);
        } else {
            // Closing the connection rolls back what is left.
            drop(begun);
        }
        jobs.into_iter().for_each(|job| job.answer(committed.as_ref().copied().map_err(StoreError::again)));
    }
}

/// A constraint that is checked at the commit takes all that share it back.
fn commit(connection: &Connection, path: &Path, transactions: usize) -> Result<(), StoreError> {
    let Err(error) = connection.execute_batch("COMMIT") else { return Ok(()) };
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) if transactions > 1 => {
            let message =
                "another transaction of the same commit broke a constraint; it is tried again alone";
            Err(StoreError::new(ErrorKind::Busy, Fate::NotApplied, message).with_source(error))
        }
        Some(ErrorCode::ConstraintViolation) => {
            let message =
                "a constraint is broken at the commit, so nothing was committed; mend what the step writes";
            Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error))
        }
        _ => Err(explained(path, Fate::InDoubt)(error)),
    }
}

/// Runs each in a savepoint, so that one that fails takes no other with it.
fn run(connection: &mut Connection, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    for job in jobs {
        connection.prepare_cached(SAVEPOINT)?.execute([])?;
        if !job.run(connection) {
            connection.execute_batch("ROLLBACK TO semel_tx")?;
        }
        // Fails if the database ended the whole transaction (its disk is full): then nothing was committed.
        connection.prepare_cached(RELEASE)?.execute([])?;
    }
    Ok(())
}

/// A connection, and the file it is to.
struct Open {
    connection: Connection,
    file: Option<(u64, u64)>,
}

impl Open {
    fn new(path: &Path) -> Result<Self, StoreError> {
        let file = file_id(path);
        // A missing file is an error, not an empty database.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags).map_err(SqliteError::from);
        #[cfg_attr(not(feature = "saga"), allow(unused_mut))]
        let mut connection = opened.map_err(|error| {
            let missing = "cannot be opened; give the path of the file that has semel's tables";
            let error = if error.is_cannot_open() { refused(missing.into()) } else { error };
            error.explain(path, Fate::NotApplied)
        })?;
        #[cfg_attr(not(feature = "saga"), allow(unused_mut))]
        let mut set_up = || {
            connection.busy_timeout(BUSY)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "fullfsync", true)?;
            #[cfg(feature = "saga")]
            super::sqlite_guard::install(&mut connection)?;
            Ok(())
        };
        set_up().map_err(explained(path, Fate::NotApplied))?;
        Ok(Self { connection, file })
    }
}

fn explained(path: &Path, fate: Fate) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| SqliteError::from(error).explain(path, fate)
}
