//! A journal in memory, for simulations: its statements run in the caller's task, so that virtual time waits for them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use super::clock::{Clocks, JournalClock};
use super::{Work, open};
use crate::store::sqlite::error::SqliteError;
use crate::store::{ErrorKind, Fate, StoreError};

/// The behaviour of the simulated disk for one commit.
#[derive(Clone, Copy, Default, Debug)]
pub struct Disk {
    /// How long until it is written.
    pub before: Duration,
    /// How long after that until its caller knows.
    pub after: Duration,
    /// If set, the commit fails with this fate.
    pub fails: Option<Fate>,
}

/// The simulated file. Clones share it: the next process finds what the last one wrote.
#[derive(Clone)]
pub struct MemoryFile {
    connection: Arc<Mutex<Option<Connection>>>,
    disk: Arc<dyn Fn() -> Disk + Send + Sync>,
}

impl MemoryFile {
    /// A new file. `disk` is called before each commit.
    ///
    /// # Errors
    /// When SQLite is out of memory.
    pub fn new(disk: impl Fn() -> Disk + Send + Sync + 'static) -> Result<Self, StoreError> {
        let connection = open::in_memory().map_err(explain)?;
        Ok(Self { connection: Arc::new(Mutex::new(Some(connection))), disk: Arc::new(disk) })
    }

    /// Frees its memory, even if clones exist. Nothing can be read or written after that.
    pub fn close(&self) {
        *self.connection() = None;
    }

    pub(super) fn clock(&self, clocks: Clocks, tolerance: Duration) -> Result<JournalClock, StoreError> {
        let mut connection = self.connection();
        let connection = connection.as_mut().ok_or_else(closed)?;
        open::clock(connection, clocks, tolerance).map_err(explain)
    }

    pub(super) async fn work(&self, work: Work) -> Result<(), StoreError> {
        let disk = (self.disk)();
        takes(disk.before).await;
        if disk.fails != Some(Fate::NotApplied)
            && let Some(connection) = &mut *self.connection()
        {
            work(connection);
        }
        takes(disk.after).await;
        match disk.fails {
            None => Ok(()),
            Some(fate) => Err(StoreError::new(ErrorKind::Unavailable, fate, "the simulated disk failed")),
        }
    }

    fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn takes(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "the simulated file is closed")
}

fn explain(error: SqliteError) -> StoreError {
    error.explain(":memory:".as_ref(), Fate::NotApplied)
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFile").finish_non_exhaustive()
    }
}
