//! The writer: one thread takes all waiting requests and commits them in one transaction (group commit).
//!
//! A commit costs a flush to disk, whatever is in it. While one is under way the next requests queue up, and the next
//! commit takes them all; a lone caller does not wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::mpsc;

use super::checkpoint::Checkpointer;
use super::clock::Clock;
use super::error::{SqliteError, moved};
use super::open;
use super::options::File;
use super::transaction::{Failure, OperationCache, ReplyTiming, Transaction, roll_back};
use crate::fault::Hook;
use crate::store::command::{Command, Reply};
use crate::store::queue::queue_full;
use crate::store::{Fate, StoreError};

/// Records a sweep deletes in one transaction; claims run in between.
const SWEEP_CHUNK: usize = 250;
/// Sweeps that may wait.
const SWEEPS_MAX: usize = 16;

/// A request in the writer's queue.
pub(super) enum Work {
    Command(Box<Command>),
    /// Delete up to this many expired records.
    Sweep(usize, Reply<usize>),
    /// Accept nothing more, and end.
    Close,
}

pub(super) struct Writer {
    file: Arc<File>,
    clock: Arc<Clock>,
    queue: mpsc::Receiver<Work>,
    batch_max: usize,
    checkpointer: Checkpointer,
    /// How many transactions were committed.
    commits: Hook<Arc<AtomicU64>>,
    identity: Option<(u64, u64)>,
    /// `None` after an error that may have left it in an unknown state.
    connection: Option<Connection>,
    cache: OperationCache,
    /// Taken from the queue and not yet answered.
    waiting: Vec<Command>,
    sweeps: VecDeque<Sweep>,
}

struct Sweep {
    left: usize,
    done: usize,
    reply: Reply<usize>,
}

impl Writer {
    pub(super) fn new(
        file: Arc<File>,
        clock: Arc<Clock>,
        queue: mpsc::Receiver<Work>,
        batch_max: usize,
        checkpointer: Checkpointer,
        commits: Hook<Arc<AtomicU64>>,
    ) -> Self {
        Self {
            identity: open::file_id(&file.path),
            file,
            clock,
            queue,
            batch_max,
            checkpointer,
            commits,
            connection: None,
            cache: OperationCache::default(),
            waiting: Vec::new(),
            sweeps: VecDeque::new(),
        }
    }

    /// Runs until the store is closed or dropped and everything asked before is answered.
    pub(super) fn run(&mut self, connection: Connection) {
        self.connection = self.adopt(connection).ok();
        loop {
            let first = match self.take() {
                Some(command) => Some(command),
                None if !self.sweeps.is_empty() => None,
                None => match self.queue.blocking_recv() {
                    Some(work) => self.accept(work),
                    None => return,
                },
            };
            if let Some(first) = first {
                self.commit_with(first);
            }
            self.sweep_some();
            if let Some(connection) = &self.connection {
                self.checkpointer.checkpoint_if_due(connection);
            }
        }
    }

    fn take(&mut self) -> Option<Command> {
        while let Ok(work) = self.queue.try_recv() {
            if let Some(command) = self.accept(work) {
                return Some(command);
            }
        }
        None
    }

    fn accept(&mut self, work: Work) -> Option<Command> {
        match work {
            Work::Command(command) => return Some(*command),
            Work::Sweep(_, reply) if self.sweeps.len() >= SWEEPS_MAX => {
                let _ = reply.send(Err(queue_full(SWEEPS_MAX)));
            }
            Work::Sweep(limit, reply) => self.sweeps.push_back(Sweep { left: limit, done: 0, reply }),
            Work::Close => self.queue.close(),
        }
        None
    }

    /// Commits `first` and all requests that have arrived by then.
    fn commit_with(&mut self, first: Command) {
        let connection = match self.connect() {
            Ok(connection) => connection,
            Err(error) => {
                first.refuse(error);
                return;
            }
        };
        match self.attempt(&connection, first, self.batch_max) {
            Ok(()) => self.connection = Some(connection),
            Err(Failure::Before(error)) if error.is_busy() => {
                self.connection = roll_back(connection, &mut self.cache);
                // Refuse them all now: each would wait for the same lock as long again, one after the other.
                for _ in 0..self.queue.len() {
                    let Some(command) = self.take() else { break };
                    self.waiting.push(command);
                }
                self.refuse_waiting(&error, Fate::NotApplied);
            }
            Err(Failure::InCommit(error)) if !error.is_full() => {
                // The disk failed during the commit: part of it may be written, and a restart may find it complete.
                drop(connection);
                self.refuse_waiting(&error, Fate::InDoubt);
            }
            Err(Failure::Before(error) | Failure::InCommit(error)) => {
                self.restore_connection(connection, &error);
                self.one_by_one();
            }
        }
    }

    /// One transaction: `first`, and while there is room whatever has arrived. On failure the unanswered ones are in
    /// `waiting`.
    fn attempt(&mut self, connection: &Connection, first: Command, room: usize) -> Result<(), Failure> {
        let mut next = Some(first);
        let mut cache = std::mem::take(&mut self.cache);
        let clock = Arc::clone(&self.clock);
        let begun = Transaction::begin(connection, &clock, &mut cache, self.file.busy_timeout);
        let result = begun.map_err(Failure::Before).and_then(|mut transaction| {
            for _ in 0..room {
                let Some(mut command) = next.take().or_else(|| self.take()) else { break };
                match transaction.apply(&mut command) {
                    Ok(ReplyTiming::Now) => command.send_answer(),
                    Ok(ReplyTiming::AfterCommit) => self.waiting.push(command),
                    Err(error) if error.is_of_one_request() && !connection.is_autocommit() => {
                        command.refuse(error.explain(&self.file.path, Fate::NotApplied));
                    }
                    Err(error) => {
                        self.waiting.push(command);
                        return Err(Failure::Before(error));
                    }
                }
            }
            transaction.commit()
        });
        self.cache = cache;
        self.waiting.extend(next);
        if result? {
            self.count_commit();
        }
        for command in self.waiting.drain(..) {
            command.send_answer();
        }
        Ok(())
    }

    /// After a failure that one request may have caused: each in a transaction of its own, so that only that one fails.
    fn one_by_one(&mut self) {
        for command in std::mem::take(&mut self.waiting) {
            let connection = match self.connect() {
                Ok(connection) => connection,
                Err(error) => {
                    command.refuse(error);
                    continue;
                }
            };
            match self.attempt(&connection, command, 1) {
                Ok(()) => self.connection = Some(connection),
                Err(Failure::InCommit(error)) if !error.is_full() => {
                    drop(connection);
                    self.refuse_waiting(&error, Fate::InDoubt);
                }
                Err(Failure::Before(error) | Failure::InCommit(error)) => {
                    self.restore_connection(connection, &error);
                    self.refuse_waiting(&error, Fate::NotApplied);
                }
            }
        }
    }

    /// Deletes up to one chunk, for the oldest waiting sweep.
    fn sweep_some(&mut self) {
        let Some(mut sweep) = self.sweeps.pop_front() else { return };
        let chunk = sweep.left.min(SWEEP_CHUNK);
        match self.sweep_chunk(chunk) {
            Ok(swept) => {
                sweep.done += swept;
                sweep.left -= swept;
                if sweep.left == 0 || swept < chunk || sweep.reply.is_closed() {
                    let _ = sweep.reply.send(Ok(sweep.done));
                } else {
                    self.sweeps.push_front(sweep);
                }
            }
            // What was swept stays swept; the next sweep reports the error.
            Err(_) if sweep.done > 0 => drop(sweep.reply.send(Ok(sweep.done))),
            Err(error) => drop(sweep.reply.send(Err(error))),
        }
    }

    fn count_commit(&self) {
        if let Some(commits) = self.commits.get() {
            commits.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sweep_chunk(&mut self, limit: usize) -> Result<usize, StoreError> {
        let connection = self.connect()?;
        let clock = Arc::clone(&self.clock);
        let swept = Transaction::begin(&connection, &clock, &mut self.cache, self.file.busy_timeout)
            .and_then(|mut transaction| Ok((transaction.sweep(limit)?, transaction)))
            .map_err(Failure::Before)
            .and_then(|(swept, transaction)| Ok((swept, transaction.commit()?)));
        match swept {
            Ok((swept, wrote)) => {
                if wrote {
                    self.count_commit();
                }
                self.connection = Some(connection);
                Ok(swept)
            }
            Err(failure) => {
                let (error, fate) = match failure {
                    Failure::InCommit(error) if !error.is_full() => (error, Fate::InDoubt),
                    Failure::Before(error) | Failure::InCommit(error) => (error, Fate::NotApplied),
                };
                self.restore_connection(connection, &error);
                Err(error.explain(&self.file.path, fate))
            }
        }
    }

    /// Takes the connection; opens a new one if an error made the last one unusable.
    fn connect(&mut self) -> Result<Connection, StoreError> {
        if open::file_id(&self.file.path) != self.identity {
            return Err(moved(&self.file.path));
        }
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => open::reconnect(&self.file).and_then(|connection| self.adopt(connection)),
        }
    }

    fn adopt(&self, mut connection: Connection) -> Result<Connection, StoreError> {
        // `Transaction::begin` waits for the lock.
        let set =
            connection.busy_timeout(Duration::ZERO).and_then(|()| self.checkpointer.watch(&mut connection));
        set.map_err(|error| SqliteError::from(error).explain(&self.file.path, Fate::NotApplied))?;
        Ok(connection)
    }

    /// Rolls back, and keeps the connection if it can still be trusted.
    fn restore_connection(&mut self, connection: Connection, error: &SqliteError) {
        let rolled_back = roll_back(connection, &mut self.cache);
        self.connection = if error.needs_new_connection() { None } else { rolled_back };
    }

    fn refuse_waiting(&mut self, error: &SqliteError, fate: Fate) {
        for command in self.waiting.drain(..) {
            command.refuse(error.explain(&self.file.path, fate));
        }
    }

    /// Ends the writer. Its connection closes last, after those of `others`: the last one to close checkpoints and
    /// removes the log.
    pub(super) fn end(self, others: Vec<JoinHandle<()>>) {
        // The checkpoint thread ends when its wake channel is dropped.
        drop(self.checkpointer);
        for other in others {
            let _ = other.join();
        }
        drop(self.connection);
    }
}
