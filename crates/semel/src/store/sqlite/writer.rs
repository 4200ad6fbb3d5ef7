//! The writer: one thread takes everything that waits and commits it in one transaction.
//!
//! A commit costs a flush to disk, whatever is in it. While one is under way the next requests queue up, and
//! the next commit takes them all; a lone caller waits for nobody.

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
use crate::store::command::{Command, Reply};
use crate::store::queue::queue_full;
use crate::store::{Fate, StoreError};

/// Records a sweep forgets in one transaction; claims go in between.
const SWEEP_CHUNK: usize = 250;
/// Sweeps that may wait for each other.
const SWEEPS_MAX: usize = 16;

/// What the writer's queue holds.
pub(super) enum Work {
    Command(Box<Command>),
    /// Forget up to so many.
    Sweep(usize, Reply<usize>),
    /// Take nothing more, and end.
    Close,
}

pub(super) struct Writer {
    file: Arc<File>,
    clock: Arc<Clock>,
    queue: mpsc::Receiver<Work>,
    batch_max: usize,
    tender: Checkpointer,
    commits: Arc<AtomicU64>,
    identity: Option<(u64, u64)>,
    /// `None` after an error that may have left it in a state we do not know.
    connection: Option<Connection>,
    memo: OperationCache,
    /// Taken from the queue and not answered.
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
        tender: Checkpointer,
        commits: Arc<AtomicU64>,
    ) -> Self {
        Self {
            identity: open::identity(&file),
            file,
            clock,
            queue,
            batch_max,
            tender,
            commits,
            connection: None,
            memo: OperationCache::default(),
            waiting: Vec::new(),
            sweeps: VecDeque::new(),
        }
    }

    /// Until the store is closed or dropped, and what was asked before that is answered.
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
                self.tender.tend(connection);
            }
        }
    }

    /// The next request that is already there.
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

    /// Commits `first` and whatever else has come by the time it is carried out.
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
            Err(Failure::Before(trouble)) if trouble.is_busy() => {
                self.connection = roll_back(connection, &mut self.memo);
                // Each of those who wait would wait as long again, one after the other.
                for _ in 0..self.queue.len() {
                    let Some(command) = self.take() else { break };
                    self.waiting.push(command);
                }
                self.refuse_waiting(&trouble, Fate::NotApplied);
            }
            Err(Failure::InCommit(trouble)) if !trouble.is_full() => {
                // The disk failed in the commit: part of it may be there, and a restart may find it whole.
                drop(connection);
                self.refuse_waiting(&trouble, Fate::InDoubt);
            }
            Err(Failure::Before(trouble) | Failure::InCommit(trouble)) => {
                self.settle(connection, &trouble);
                self.one_by_one();
            }
        }
    }

    /// One transaction: `command`, and while there is room whatever comes. On failure those not answered
    /// are in `waiting`.
    fn attempt(&mut self, connection: &Connection, first: Command, room: usize) -> Result<(), Failure> {
        let mut next = Some(first);
        let mut memo = std::mem::take(&mut self.memo);
        let clock = Arc::clone(&self.clock);
        let begun = Transaction::begin(connection, &clock, &mut memo, self.file.busy_timeout);
        let result = begun.map_err(Failure::Before).and_then(|mut transaction| {
            for _ in 0..room {
                let Some(mut command) = next.take().or_else(|| self.take()) else { break };
                match transaction.apply(&mut command) {
                    Ok(ReplyTiming::Now) => command.tell(),
                    Ok(ReplyTiming::AfterCommit) => self.waiting.push(command),
                    Err(trouble) if trouble.is_of_one_request() && !connection.is_autocommit() => {
                        command.refuse(trouble.explain(&self.file.path, Fate::NotApplied));
                    }
                    Err(trouble) => {
                        self.waiting.push(command);
                        return Err(Failure::Before(trouble));
                    }
                }
            }
            transaction.commit()
        });
        self.memo = memo;
        self.waiting.extend(next);
        if result? {
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
        for command in self.waiting.drain(..) {
            command.tell();
        }
        Ok(())
    }

    /// After a failure that one of them may have caused: each on its own, so that it alone fails.
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
                Err(Failure::InCommit(trouble)) if !trouble.is_full() => {
                    drop(connection);
                    self.refuse_waiting(&trouble, Fate::InDoubt);
                }
                Err(Failure::Before(trouble) | Failure::InCommit(trouble)) => {
                    self.settle(connection, &trouble);
                    self.refuse_waiting(&trouble, Fate::NotApplied);
                }
            }
        }
    }

    /// Up to a chunk of the sweep that was asked for first.
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
            // What was swept stays swept; the next sweep will say what is wrong.
            Err(_) if sweep.done > 0 => drop(sweep.reply.send(Ok(sweep.done))),
            Err(error) => drop(sweep.reply.send(Err(error))),
        }
    }

    fn sweep_chunk(&mut self, limit: usize) -> Result<usize, StoreError> {
        let connection = self.connect()?;
        let clock = Arc::clone(&self.clock);
        let swept = Transaction::begin(&connection, &clock, &mut self.memo, self.file.busy_timeout)
            .and_then(|mut transaction| Ok((transaction.sweep(limit)?, transaction)))
            .map_err(Failure::Before)
            .and_then(|(swept, transaction)| Ok((swept, transaction.commit()?)));
        match swept {
            Ok((swept, wrote)) => {
                self.commits.fetch_add(u64::from(wrote), Ordering::Relaxed);
                self.connection = Some(connection);
                Ok(swept)
            }
            Err(failure) => {
                let (trouble, fate) = match failure {
                    Failure::InCommit(trouble) if !trouble.is_full() => (trouble, Fate::InDoubt),
                    Failure::Before(trouble) | Failure::InCommit(trouble) => (trouble, Fate::NotApplied),
                };
                self.settle(connection, &trouble);
                Err(trouble.explain(&self.file.path, fate))
            }
        }
    }

    /// The connection, taken out; opened anew after an error that spoiled the last one.
    fn connect(&mut self) -> Result<Connection, StoreError> {
        if open::identity(&self.file) != self.identity {
            return Err(moved(&self.file.path));
        }
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => open::reconnect(&self.file).and_then(|connection| self.adopt(connection)),
        }
    }

    fn adopt(&self, mut connection: Connection) -> Result<Connection, StoreError> {
        // Waiting for the write lock is done in `Transaction::begin`.
        let set = connection.busy_timeout(Duration::ZERO).and_then(|()| self.tender.watch(&mut connection));
        set.map_err(|error| SqliteError::from(error).explain(&self.file.path, Fate::NotApplied))?;
        Ok(connection)
    }

    /// Undoes, and keeps the connection if it can still be trusted.
    fn settle(&mut self, connection: Connection, trouble: &SqliteError) {
        let undone = roll_back(connection, &mut self.memo);
        self.connection = if trouble.needs_new_connection() { None } else { undone };
    }

    fn refuse_waiting(&mut self, trouble: &SqliteError, fate: Fate) {
        for command in self.waiting.drain(..) {
            command.refuse(trouble.explain(&self.file.path, fate));
        }
    }

    /// When nothing more will come: the connection closes last, after those of `others`, and takes what is
    /// left of the log with it.
    pub(super) fn end(self, others: Vec<JoinHandle<()>>) {
        // The checkpointer ends when nobody can wake it any more.
        drop(self.tender);
        for other in others {
            let _ = other.join();
        }
        drop(self.connection);
    }
}
