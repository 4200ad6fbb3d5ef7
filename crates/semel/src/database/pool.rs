//! How many sessions a process has with one database, and which is used again.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Sessions that are idle, and room for those at work.
pub(super) struct Pool<S> {
    room: Semaphore,
    idle: Mutex<Vec<S>>,
}

/// Room for one session.
pub(super) struct Place<'p, S> {
    pool: &'p Pool<S>,
    _room: SemaphorePermit<'p>,
}

impl<S> Pool<S> {
    pub(super) fn new(sessions: usize) -> Self {
        Self { room: Semaphore::new(sessions.clamp(1, Semaphore::MAX_PERMITS)), idle: Mutex::default() }
    }

    /// Waits for room.
    pub(super) async fn place(&self) -> Place<'_, S> {
        let Ok(room) = self.room.acquire().await else { unreachable!("the pool is never closed") };
        Place { pool: self, _room: room }
    }
}

impl<S> Place<'_, S> {
    /// The session that was used last: the server's memory of it is warm, and others may close.
    pub(super) fn take(&self) -> Option<S> {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// A session whose state is known. One that met an error is dropped instead.
    pub(super) fn put_back(self, session: S) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}
