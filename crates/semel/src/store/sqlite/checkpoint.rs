//! Copying the write-ahead log into the file, beside the writer.
//!
//! SQLite's way is that whoever makes the log too long copies it, before it answers. Here a thread of its own
//! copies (`PASSIVE`: it waits for nobody), while the writer goes on appending. That alone never ends: the log
//! starts over only when *all* of it was copied, and under load there is always more. So when the thread has
//! copied nearly everything it lets the writer copy the short rest between two commits; the next commit then
//! starts the log over.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use super::open;
use super::options::File;

/// Passes of the thread before it hands over; each is over what the writer appended during the one before.
const PASSES_MAX: u32 = 4;
/// A rest this short is left to the writer.
const REST_PAGES: u32 = 64;

/// What writer and checkpointer know of the log.
#[derive(Default)]
pub(super) struct Log {
    /// Its length in pages after the last commit.
    pages: AtomicU32,
    /// The writer is to copy the rest.
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

    /// Learns the length of the log at each commit of the writer's connection.
    pub(super) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let log = Arc::clone(&self.log);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            log.pages.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Between two commits.
    pub(super) fn tend(&mut self, connection: &Connection) {
        let pages = self.log.pages();
        if pages < self.every_pages {
            self.next_pages = self.every_pages;
            self.help_pages = self.every_pages.saturating_mul(4);
            return;
        }
        if pages >= self.help_pages {
            // The thread does not keep up (a slow disk, no processor for it, or somebody reads an old state):
            // wait for its pass to end and copy the rest, at the price of one slow commit, rather than let
            // the log grow without bound. If a reader is in the way it grows by as much until the next try.
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

/// The checkpointer's thread. Ends when the writer does.
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

/// Copies what can be copied without waiting for anybody, and says up to which page of the log all is copied.
/// An error (a full disk, a lock) costs nothing but a longer log; a writer that cannot write says so itself.
fn copy(connection: &Connection) -> u32 {
    let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(2));
    copied.map_or(0, |pages| u32::try_from(pages).unwrap_or(0))
}
