//! Checkpoints: copying the write-ahead log (WAL) into the file, in a thread of its own.
//!
//! By default SQLite checkpoints in the commit that makes the log too long. Here a thread copies (`PASSIVE`: it waits
//! for no lock) while the writer goes on appending. That alone never ends: the log starts over only when *all* of it
//! was copied, and under load there is always more. So when the thread has copied nearly everything, the writer copies
//! the short rest between two commits, and the next commit starts the log over.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use super::open;
use super::options::File;

/// Passes of the thread before it hands over; each copies what the writer appended during the one before.
const PASSES_MAX: u32 = 4;
/// A rest of at most this many pages is left to the writer.
const REST_PAGES: u32 = 64;

/// State of the log, shared by writer and checkpoint thread.
#[derive(Default)]
pub(super) struct Log {
    /// Its length in pages after the last commit.
    pages: AtomicU32,
    /// The writer should copy the rest.
    handed_over: AtomicBool,
    /// Held while the thread copies.
    copying: Mutex<()>,
}

impl Log {
    pub(super) fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }
}

/// The writer's side.
pub(super) struct Checkpointer {
    log: Arc<Log>,
    wake: SyncSender<()>,
    every_pages: u32,
    next_pages: u32,
    help_pages: u32,
}

impl Checkpointer {
    pub(super) fn new(log: Arc<Log>, wake: SyncSender<()>, every_pages: u32) -> Self {
        Self { log, wake, every_pages, next_pages: every_pages, help_pages: every_pages.saturating_mul(4) }
    }

    /// Tracks the length of the log after each commit of the writer's connection.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let log = Arc::clone(&self.log);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            log.pages.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Checkpoints or wakes the thread, if due. Called between two commits.
    pub(super) fn checkpoint_if_due(&mut self, connection: &Connection) {
        let pages = self.log.pages();
        if pages < self.every_pages {
            self.next_pages = self.every_pages;
            self.help_pages = self.every_pages.saturating_mul(4);
            return;
        }
        if pages >= self.help_pages {
            // The thread does not keep up (a slow disk, no free processor, or a reader on an old snapshot): wait for
            // its pass to end and copy the rest. That costs one slow commit, but bounds the log. If a reader blocks
            // it, the log grows by `every_pages` until the next try.
            self.help_pages = pages.saturating_add(self.every_pages);
            let _thread_waits = self.log.copying.lock();
            copy(connection);
        } else if self.log.handed_over.swap(false, Ordering::AcqRel) {
            copy(connection);
        } else if pages >= self.next_pages && self.wake.try_send(()).is_ok() {
            self.next_pages = pages.saturating_add(self.every_pages / 4);
        }
    }
}

/// The checkpoint thread. Ends when the writer does.
pub(super) fn run(file: &File, log: &Log, wake: &Receiver<()>) {
    let mut connection = None;
    while wake.recv().is_ok() {
        let Some(open) = connection.take().or_else(|| open::reconnect(file).ok()) else { continue };
        for _ in 0..PASSES_MAX {
            let copying = log.copying.lock();
            let copied = copy(&open);
            drop(copying);
            if log.pages().saturating_sub(copied) <= REST_PAGES {
                break;
            }
        }
        log.handed_over.store(true, Ordering::Release);
        connection = Some(open);
    }
}

/// Copies what can be copied without waiting for a lock; returns up to which page of the log all is copied. An error
/// (a full disk, a lock) only makes the log longer; a writer that cannot write reports that itself.
fn copy(connection: &Connection) -> u32 {
    let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(2));
    copied.map_or(0, |pages| u32::try_from(pages).unwrap_or(0))
}
