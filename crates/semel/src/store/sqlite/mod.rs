//! The embedded default: one SQLite file.
//!
//! ```text
//!  callers ──▶ queue ──▶ writer ──▶ one commit for all that waited ──▶ answers
//!     │                    ▲ └── appends to the log; between commits copies the short rest of it
//!     │                    │
//!     │              checkpointer: copies the log into the file, in a thread of its own
//!     └──────▶ readers (get, list): connections of their own, never behind a commit
//! ```
//!
//! - **Durable before acknowledged**: write-ahead log, `synchronous=FULL`, both verified after opening.
//! - **Several processes** may use one file on one machine. They stay correct but take turns at writing, so
//!   latency grows. Keep leases much longer than [`busy_timeout`](SqliteOptions::busy_timeout).
//! - **The clock** is the machine's; within a process it never runs backwards.
//! - **Inspect it** with the usual tool: `sqlite3 semel.db 'SELECT * FROM intents LIMIT 10'`. Back up with
//!   its `.backup` or `VACUUM INTO`, never by copying the file alone while it is in use.
//!
//! | module | what it decides |
//! |---|---|
//! | `writer` | one thread takes all waiting requests and commits them together (group commit) |
//! | `transaction` | one write transaction |
//! | `reader`, `row` | reads on connections of their own; from a row to a record |
//! | `open` | checks on the file, and how a connection is set up |
//! | `checkpoint` | copies the write-ahead log into the file |
//! | `clock` | the machine's clock, monotonic within a process |
//! | `schema` | the tables, their version, migrations |
//! | `options`, `error` | settings; what SQLite's errors mean |

use std::fmt;
use std::path::Path;
#[cfg(feature = "fault-injection")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::time::Duration;

use tokio::sync::watch;

use self::checkpoint::{Checkpointer, Log};
use self::clock::Clock;
use self::options::File;
use self::reader::ReadRequest;
use self::writer::{Work, Writer};
use super::command::{Ask, Command, Finishing};
use super::encoding::{MS_MAX, bounded};
use super::memory::check_size;
use super::pager::sequence;
use super::queue::Queue;
use super::{
    Capabilities, Claim, Claimed, Decide, Decided, Filter, Finish, Finished, Lineage, Page, Record, Renewed,
    Store, StoreError, Ticket,
};
use crate::fault::Hook;
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;

mod checkpoint;
mod clock;
pub(crate) mod error;
pub(crate) mod open;
mod options;
mod reader;
mod row;
pub mod schema;
mod transaction;
mod writer;

pub use options::SqliteOptions;

/// How long dropping the last handle waits for the threads to finish and to checkpoint the file.
const DROP_WAIT: Duration = Duration::from_secs(10);

/// A store in one SQLite file. Cheap to clone; the file is closed with the last clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("semel.db");
/// use semel::store::{Store, sqlite::SqliteStore};
///
/// let store = SqliteStore::open(&path).await?;
/// assert!(store.capabilities().durable);
/// store.close().await;
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    file: Arc<File>,
    clock: Arc<Clock>,
    #[cfg(feature = "fault-injection")]
    commits: Hook<Arc<AtomicU64>>,
    #[cfg(feature = "fault-injection")]
    log: Arc<Log>,
    writer: Queue<Work>,
    // Two, so that a `get` never waits for a `list` over millions of records.
    gets: Queue<ReadRequest>,
    lists: Queue<ReadRequest>,
    // Last, and therefore dropped after the queues: the threads end when the queues are dropped.
    threads: Threads,
}

/// Signals that the threads have ended: the writer ends last, and both of these with it.
struct Threads {
    ended: watch::Receiver<()>,
    gone: Mutex<blocking::Receiver<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The threads never wait for us; this takes as long as their queued requests and a checkpoint.
        let gone = self.gone.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = gone.recv_timeout(DROP_WAIT);
    }
}

impl SqliteStore {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// A file that is not semel's, or was written by a newer semel, is refused and left unchanged.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::options().open(path).await
    }

    /// Options with other bounds than the defaults.
    pub fn options() -> SqliteOptions {
        SqliteOptions::default()
    }

    async fn open_with(options: SqliteOptions, path: &Path) -> Result<Self, StoreError> {
        let file = Arc::new(options.file(path)?);
        let to_open = Arc::clone(&file);
        let (main, for_gets, for_lists) = open::in_thread(move || {
            let main = open::connect(&to_open)?;
            Ok((main, open::reconnect_reader(&to_open)?, open::reconnect_reader(&to_open)?))
        })
        .await?;

        let clock = options.clock;
        let (gets, to_get) = Queue::new(options.queue_max, options.queue_wait);
        let (lists, to_list) = Queue::new(options.queue_max, options.queue_wait);
        let mut others = Vec::new();
        for (name, queue, connection) in [("get", to_get, for_gets), ("list", to_list, for_lists)] {
            let (file, clock) = (Arc::clone(&file), Arc::clone(&clock));
            others.push(open::spawn(name, move || reader::run(&file, &clock, queue, connection))?);
        }

        let log = Arc::new(Log::default());
        let (wake, woken) = blocking::sync_channel(1);
        let (file_to_copy, log_to_copy) = (Arc::clone(&file), Arc::clone(&log));
        others.push(open::spawn("checkpoint", move || checkpoint::run(&file_to_copy, &log_to_copy, &woken))?);

        let commits = Hook::from(Arc::default());
        let (writer, to_write) = Queue::new(options.queue_max, options.queue_wait);
        let (end, ended) = watch::channel(());
        let (going, gone) = blocking::channel();
        let mut thread = Writer::new(
            Arc::clone(&file),
            Arc::clone(&clock),
            to_write,
            options.batch_max,
            Checkpointer::new(Arc::clone(&log), wake, options.checkpoint_pages),
            commits.clone(),
        );
        open::spawn("writer", move || {
            // Dropped however this thread ends, so that no one waits for a writer that is gone.
            let _ends = (end, going);
            thread.run(main);
            thread.end(others);
        })?;
        let threads = Threads { ended, gone: Mutex::new(gone) };
        Ok(Self {
            inner: Arc::new(Inner {
                file,
                clock,
                #[cfg(feature = "fault-injection")]
                commits,
                #[cfg(feature = "fault-injection")]
                log,
                writer,
                gets,
                lists,
                threads,
            }),
        })
    }

    /// Drains and closes: answers what was asked before, accepts nothing more (also from clones), and checkpoints the
    /// file; afterwards there is one file, without its log. Dropping the last clone does the same, but blocks its
    /// thread.
    pub async fn close(&self) {
        self.inner.writer.put_last(Work::Close).await;
        self.inner.gets.put_last(ReadRequest::Close).await;
        self.inner.lists.put_last(ReadRequest::Close).await;
        let mut ended = self.inner.threads.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// How many transactions this handle's writer has committed.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn commits(&self) -> u64 {
        self.inner.commits.get().map_or(0, |commits| commits.load(Ordering::Relaxed))
    }

    /// How many pages the write-ahead log had after the last commit.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn log_pages(&self) -> u32 {
        self.inner.log.pages()
    }

    async fn command<Q, A>(
        &self,
        request: Q,
        kind: impl FnOnce(Ask<Q, A>) -> Command,
    ) -> Result<A, StoreError> {
        self.inner.writer.ask(|reply| Work::Command(Box::new(kind(Ask::new(request, reply))))).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.inner.file.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, shared: true, same_tx: false }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        Ok(self.inner.clock.now())
    }

    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        claim.lease_ms = claim.lease_ms.min(MS_MAX);
        self.command(claim, Command::Claim).await
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.command((ticket, lease_ms.min(MS_MAX)), Command::Renew).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        check_size(finish.outcome.as_ref())?;
        let finishing = Finishing {
            ticket,
            verdict: finish.verdict,
            retention: bounded(finish.retention),
            outcome: finish.outcome.map(|outcome| outcome.encode()),
        };
        self.command(finishing, Command::Finish).await
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.inner.gets.ask(|reply| ReadRequest::Get(id, reply)).await
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        let after = sequence(&filter)?;
        self.inner.lists.ask(|reply| ReadRequest::List(Box::new(filter), after, reply)).await
    }

    async fn decide(&self, id: IntentId, mut decide: Decide) -> Result<Decided, StoreError> {
        check_size(decide.outcome.as_ref())?;
        decide.retention = bounded(decide.retention);
        self.command((id, decide), Command::Decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.inner.writer.ask(|reply| Work::Sweep(limit, reply)).await
    }

    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        self.inner.gets.ask(ReadRequest::Lineage).await.map(Some)
    }
}
