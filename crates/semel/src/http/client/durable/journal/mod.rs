//! The journal's SQLite file: one thread, one connection, every commit flushed.
//!
//! | module | what it decides |
//! |---|---|
//! | `open` | opens the file: checks that it is a journal, and makes it durable |
//! | `table` | the rows: insert, claim, answer, release |
//! | `clock` | the machine's clock, made monotonic |
//! | `memory_file` | a journal in memory, for simulations |

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use self::clock::{JournalClock, Moment};
use crate::store::sqlite::error::SqliteError;
use crate::store::{ErrorKind, Fate, StoreError};

mod clock;
#[cfg(feature = "fault-injection")]
mod memory_file;
mod open;
mod table;

pub(super) use clock::Clocks;
#[cfg(feature = "fault-injection")]
pub use memory_file::{Disk, MemoryFile};
pub use table::JournalState;
pub(super) use table::{Answer, Begun, Claimed, JournalLimits, Owner, Written};

/// Requests that may wait for the file.
const QUEUE_MAX: usize = 256;

/// Times and durations stay below this, so that their sum still fits SQLite's integers.
const MS_MAX: i64 = 1 << 61;

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

/// Where the work on the file runs.
#[derive(Clone)]
enum File {
    /// A thread of its own, because a flush blocks.
    Thread(mpsc::Sender<Work>),
    /// The caller's task, in memory: for simulations.
    #[cfg(feature = "fault-injection")]
    Memory(MemoryFile),
}

#[derive(Clone)]
pub(super) struct Journal {
    path: Arc<PathBuf>,
    file: File,
    clock: Arc<JournalClock>,
}

impl Journal {
    /// `tolerance`: how far the file may be ahead of the machine's clock before the age of its intents counts as
    /// unknown.
    pub(super) async fn open(path: &Path, clocks: Clocks, tolerance: Duration) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|error| {
            let message =
                format!("{:?} is not the path of a file; use one such as intents.db", path.display());
            StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error)
        })?;
        let (queue, mut work) = mpsc::channel::<Work>(QUEUE_MAX);
        let (reply, opened) = oneshot::channel();
        let to_open = path.clone();
        let thread = move || {
            let opened = open::open(&to_open).and_then(|mut connection| {
                let clock = open::clock(&mut connection, clocks, tolerance)?;
                Ok((connection, clock))
            });
            let mut connection = match opened {
                Ok((connection, clock)) => {
                    let _ = reply.send(Ok(clock));
                    connection
                }
                Err(error) => {
                    let _ = reply.send(Err(error.explain(&to_open, Fate::NotApplied)));
                    return;
                }
            };
            while let Some(work) = work.blocking_recv() {
                work(&mut connection);
            }
        };
        thread::Builder::new().name("semel-client-journal".into()).spawn(thread).map_err(|error| {
            let message = "the journal's thread could not be started; raise the limit of threads";
            StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).with_source(error)
        })?;
        let clock = opened.await.unwrap_or_else(|_| Err(lost()))?;
        Ok(Self { path: Arc::new(path), file: File::Thread(queue), clock: Arc::new(clock) })
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn open_in_memory(
        file: &MemoryFile,
        clocks: Clocks,
        tolerance: Duration,
    ) -> Result<Self, StoreError> {
        let clock = Arc::new(file.clock(clocks, tolerance)?);
        Ok(Self { path: Arc::new(PathBuf::from(":memory:")), file: File::Memory(file.clone()), clock })
    }

    /// One transaction, at a moment of the journal's clock. When this returns `Ok` it is on disk.
    async fn commit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, Moment) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (path, clock) = (Arc::clone(&self.path), Arc::clone(&self.clock));
        // Taken now, not when the thread gets to it: the time in the queue must not make an intent younger.
        let moment = clock.now();
        let job: Work = Box::new(move |connection| {
            let explain = |fate| move |error: SqliteError| error.explain(&path, fate);
            let done = (|| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let moment = clock.agree(&transaction, moment)?;
                let done = work(&transaction, moment)?;
                Ok::<_, SqliteError>((transaction, done))
            })();
            let _ = reply.send(match done {
                Err(error) => Err(explain(Fate::NotApplied)(error)),
                Ok((transaction, done)) => match transaction.commit() {
                    Ok(()) => Ok(done),
                    // It may be on disk, and a restart may find it committed.
                    Err(error) => Err(explain(Fate::InDoubt)(error.into())),
                },
            });
        });
        match &self.file {
            File::Thread(queue) => queue.send(job).await.map_err(|_| lost())?,
            #[cfg(feature = "fault-injection")]
            File::Memory(file) => file.work(job).await?,
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

fn lost() -> StoreError {
    let message = "the journal stopped working in the middle of a request; restart the process";
    StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(MS_MAX).min(MS_MAX)
}

/// A duration; zero for a negative number.
pub(super) fn span(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
