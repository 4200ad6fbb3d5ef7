//! Options of a SQLite store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::{SqliteStore, StoreError, open};
use crate::fault::Hook;

/// Bounds of a [`SqliteStore`], and how to open it. The defaults suit a service.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("semel.db");
/// use std::time::Duration;
/// use semel::store::sqlite::SqliteStore;
///
/// let store = SqliteStore::options().busy_timeout(Duration::from_secs(1)).open(&path).await?;
/// # drop(store);
/// // `create(false)` is for tools: a mistyped path is an error, not a new and empty store.
/// assert!(SqliteStore::options().create(false).open(path.with_extension("typo")).await.is_err());
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteOptions {
    pub(super) create: bool,
    pub(super) queue_max: usize,
    pub(super) queue_wait: Duration,
    pub(super) batch_max: usize,
    pub(super) busy_timeout: Duration,
    pub(super) checkpoint_pages: u32,
    pub(super) pages_max: Hook<u32>,
    pub(super) clock: Arc<Clock>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            create: true,
            queue_max: 1_024,
            queue_wait: Duration::from_secs(1),
            batch_max: 256,
            busy_timeout: Duration::from_secs(5),
            checkpoint_pages: 2_000,
            pages_max: Hook::default(),
            clock: Arc::default(),
        }
    }
}

impl SqliteOptions {
    /// Whether a missing file is created. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How many requests may wait for the writer. Default: 1,024. One that finds the queue full waits for
    /// [`queue_wait`](Self::queue_wait) and is then refused as busy.
    pub fn queue_max(mut self, requests: usize) -> Self {
        self.queue_max = requests.max(1);
        self
    }

    /// How long a request waits for room in a full queue. Default: one second.
    pub fn queue_wait(mut self, wait: Duration) -> Self {
        self.queue_wait = wait;
        self
    }

    /// How many requests share one commit at most. Default: 256.
    pub fn batch_max(mut self, requests: usize) -> Self {
        self.batch_max = requests.max(1);
        self
    }

    /// How long to wait for another process that writes to the same file. Default: five seconds. Keep leases much
    /// longer than this, or a lease may expire while its renewal waits.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Checkpoint interval: how many pages of 4 KiB the write-ahead log collects before they are copied into the
    /// file. Default: 2,000. Under continuous load the log stays within four times this, unless a reader blocks the
    /// checkpoint.
    pub fn checkpoint_pages(mut self, pages: u32) -> Self {
        self.checkpoint_pages = pages.max(16);
        self
    }

    /// Limits the file to this many pages: simulates a full disk, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn pages_max(mut self, pages: u32) -> Self {
        self.pages_max = pages.into();
        self
    }

    /// Uses the caller's clock for leases and expiry: virtual time, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn clock(
        mut self,
        clock: impl Fn() -> crate::intent::policy::StoreTime + Send + Sync + 'static,
    ) -> Self {
        self.clock = Arc::new(Clock::new(clock));
        self
    }

    /// Opens the file, and creates it if allowed.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_with(self, path.as_ref()).await
    }

    /// The settings every connection to the file is opened with.
    pub(super) fn file(&self, path: &Path) -> Result<File, StoreError> {
        Ok(File {
            path: open::full_path(path)?,
            create: self.create,
            busy_timeout: self.busy_timeout,
            checkpoint_pages: self.checkpoint_pages,
            pages_max: self.pages_max.clone(),
        })
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("create", &self.create)
            .field("queue_max", &self.queue_max)
            .field("batch_max", &self.batch_max)
            .field("busy_timeout", &self.busy_timeout)
            .finish_non_exhaustive()
    }
}

/// The file, and how connections to it are set up.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) create: bool,
    pub(super) busy_timeout: Duration,
    pub(super) checkpoint_pages: u32,
    pub(super) pages_max: Hook<u32>,
}
