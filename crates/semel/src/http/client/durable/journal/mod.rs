//! The file the intents are written down in: one thread, one connection, every commit flushed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::store::sqlite::error::Trouble;
use crate::store::{ErrorKind, Fate, StoreError};

mod memory_file;
mod open;
mod table;

pub use memory_file::{Disk, MemoryFile};
pub use table::State;
pub(super) use table::{Answer, Begun, Claimed, Owner, Place, Written};

/// Requests that may wait for the file.
const QUEUE_MAX: usize = 256;

/// Times and spans stay below this, so that their sum is still an integer of SQLite's.
const MS_MAX: i64 = 1 << 61;

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

/// Milliseconds since 1970.
pub(super) type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Who works on the file.
#[derive(Clone)]
enum File {
    /// A thread of its own: a flush takes as long as the disk takes.
    Thread(mpsc::Sender<Work>),
    /// The caller's own task, in memory: for simulations.
    Memory(MemoryFile),
}

#[derive(Clone)]
pub(super) struct Journal {
    path: Arc<PathBuf>,
    file: File,
    clock: Clock,
    latest: Arc<AtomicI64>,
}

pub(super) fn machine_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ms(since)
    })
}

impl Journal {
    pub(super) async fn open(path: &Path, clock: Clock) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|error| {
            let message =
                format!("{:?} is not a path of a file; name one, such as intents.db", path.display());
            StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error)
        })?;
        let (queue, mut work) = mpsc::channel::<Work>(QUEUE_MAX);
        let (reply, opened) = oneshot::channel();
        let to_open = path.clone();
        let thread = move || {
            let connection = open::open(&to_open).and_then(|connection| {
                let latest = table::latest(&connection)?;
                Ok((connection, latest))
            });
            let mut connection = match connection {
                Ok((connection, latest)) => {
                    let _ = reply.send(Ok(latest));
                    connection
                }
                Err(trouble) => {
                    let _ = reply.send(Err(trouble.explain(&to_open, Fate::NotApplied)));
                    return;
                }
            };
            while let Some(work) = work.blocking_recv() {
                work(&mut connection);
            }
        };
        thread::Builder::new().name("semel-client-journal".into()).spawn(thread).map_err(|error| {
            let message = "no thread could be started for the journal; raise the limit of threads";
            StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).with_source(error)
        })?;
        let latest = opened.await.unwrap_or_else(|_| Err(lost()))?;
        Ok(Self::new(path, File::Thread(queue), clock, latest))
    }

    pub(super) fn open_in_memory(file: &MemoryFile, clock: Clock) -> Result<Self, StoreError> {
        let latest = file.latest()?;
        Ok(Self::new(PathBuf::from(":memory:"), File::Memory(file.clone()), clock, latest))
    }

    fn new(path: PathBuf, file: File, clock: Clock, latest: i64) -> Self {
        Self { path: Arc::new(path), file, clock, latest: Arc::new(AtomicI64::new(latest)) }
    }

    /// Never backwards, neither in this process nor behind what the file has seen: an intent that was too old
    /// must not become young again.
    pub(super) fn now_ms(&self) -> i64 {
        let now = (self.clock)().clamp(0, MS_MAX);
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// One transaction. When this returns `Ok` it is on the disk.
    async fn commit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let path = Arc::clone(&self.path);
        let job: Work = Box::new(move |connection| {
            let explain = |fate| move |trouble: Trouble| trouble.explain(&path, fate);
            let done = (|| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let done = work(&transaction)?;
                Ok::<_, Trouble>((transaction, done))
            })();
            let _ = reply.send(match done {
                Err(trouble) => Err(explain(Fate::NotApplied)(trouble)),
                Ok((transaction, done)) => match transaction.commit() {
                    Ok(()) => Ok(done),
                    // Part of it may be on the disk, and a restart may find it whole.
                    Err(error) => Err(explain(Fate::InDoubt)(error.into())),
                },
            });
        });
        match &self.file {
            File::Thread(queue) => queue.send(job).await.map_err(|_| lost())?,
            File::Memory(file) => file.work(job).await?,
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

fn lost() -> StoreError {
    let message = "the journal stopped working in the middle of a request; restart the process";
    StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
}

/// As the file keeps them.
fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(MS_MAX).min(MS_MAX)
}

/// Nothing for what has passed.
pub(super) fn span(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
