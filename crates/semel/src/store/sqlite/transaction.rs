//! One write transaction. Requests are decided by the code all stores share, against rows that no other connection can
//! change meanwhile.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};

use super::clock::Clock;

use super::error::SqliteError;
use super::row;
use crate::intent::identity::{Epoch, IntentId, Operation};
use crate::intent::state::{Change, Head, StepAnswer, StepEvent, step};
use crate::store::command::{Command, Finishing};
use crate::store::encoding;
use crate::store::record::{on_claim, on_decide};
use crate::store::{Claim, Claimed, Decide, Decided, Finished, Record, Renewed, StoreError, Ticket};

/// Operations whose numbers the writer caches.
const OPERATIONS_MAX: usize = 10_000;

/// State that outlives a transaction, so that it is not allocated for each.
#[derive(Default)]
pub(super) struct OperationCache {
    /// Numbers of operations. Cleared by a rollback, which may have removed a new name.
    operations: HashMap<Operation, i64>,
    /// Intents this transaction has changed.
    changed: HashSet<IntentId>,
}

/// When the answer may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTiming {
    /// The answer depends on committed rows only: the transaction has the write lock, so it read the last commit, which
    /// was durable before it could be read. The answer is true whatever becomes of this transaction.
    Now,
    /// It depends on something this transaction wrote.
    AfterCommit,
}

/// What failed, and when.
pub(super) enum Failure {
    /// Before the commit: rolled back, nothing happened.
    Before(SqliteError),
    /// The commit itself failed.
    InCommit(SqliteError),
}

pub(super) struct Transaction<'a> {
    connection: &'a Connection,
    clock: &'a Clock,
    cache: &'a mut OperationCache,
    /// The last epoch assigned, once it was read.
    last: Option<Epoch>,
    assigned: bool,
    wrote: bool,
}

impl<'a> Transaction<'a> {
    /// Takes the write lock. SQLite's own busy handler sleeps ever longer, up to 100 ms, and loses against a process
    /// that commits all the time; short sleeps of random length get the lock sooner.
    pub(super) fn begin(
        connection: &'a Connection,
        clock: &'a Clock,
        cache: &'a mut OperationCache,
        timeout: Duration,
    ) -> Result<Self, SqliteError> {
        let mut deadline = None;
        loop {
            match connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map_err(SqliteError::from) {
                Ok(_) => break,
                Err(error) if error.is_busy() => {
                    let now = Instant::now();
                    if now >= *deadline.get_or_insert(now + timeout) {
                        return Err(error);
                    }
                    thread::sleep(Duration::from_micros(fastrand::u64(100..1_500)));
                }
                Err(error) => return Err(error),
            }
        }
        cache.changed.clear();
        Ok(Self { connection, clock, cache, last: None, assigned: false, wrote: false })
    }

    /// Executes one request and stores the answer in it.
    pub(super) fn apply(&mut self, command: &mut Command) -> Result<ReplyTiming, SqliteError> {
        let wrote_before = std::mem::take(&mut self.wrote);
        let id = match command {
            Command::Claim(ask) => {
                ask.answer = Some(Ok(self.claim(&ask.request)?));
                ask.request.intent.id()
            }
            Command::Renew(ask) => {
                ask.answer = Some(Ok(self.renew(&ask.request.0, ask.request.1)?));
                ask.request.0.id
            }
            Command::Finish(ask) => {
                ask.answer = Some(Ok(self.finish(&ask.request)?));
                ask.request.ticket.id
            }
            Command::Decide(ask) => {
                ask.answer = Some(Ok(self.decide(&ask.request.0, &ask.request.1)?));
                ask.request.0
            }
        };
        let wrote = self.wrote;
        self.wrote |= wrote_before;
        if wrote {
            self.cache.changed.insert(id);
        }
        Ok(if wrote || self.cache.changed.contains(&id) {
            ReplyTiming::AfterCommit
        } else {
            ReplyTiming::Now
        })
    }

    /// Commits. Returns whether anything was written; if not, no flush was needed.
    pub(super) fn commit(self) -> Result<bool, Failure> {
        let before = |error| Failure::Before(SqliteError::Sqlite(error));
        if let (true, Some(last)) = (self.assigned, self.last) {
            let mut keep = self.connection.prepare_cached("UPDATE fence SET epoch = ?1").map_err(before)?;
            keep.execute([encoding::number(last.0)]).map_err(before)?;
        }
        let mut commit = self.connection.prepare_cached("COMMIT").map_err(before)?;
        commit.execute([]).map_err(|error| Failure::InCommit(SqliteError::Sqlite(error)))?;
        Ok(self.wrote)
    }

    /// Deletes up to `limit` expired records.
    pub(super) fn sweep(&mut self, limit: usize) -> Result<usize, SqliteError> {
        let now = self.clock.now();
        let mut sweep = self.connection.prepare_cached(include_str!("sql/sweep.sql"))?;
        let swept = sweep.execute(params![encoding::number(now.0), encoding::number(limit as u64)])?;
        self.wrote |= swept > 0;
        Ok(swept)
    }

    fn claim(&mut self, claim: &Claim) -> rusqlite::Result<Claimed> {
        let fresh = self.fresh()?;
        let now = self.clock.now();
        let connection = self.connection;
        let mut find = connection.prepare_cached(include_str!("sql/head.sql"))?;
        let mut rows = find.query([claim.intent.id().as_bytes()])?;
        let row = rows.next()?;
        // The id is a digest of the intent, so the row belongs to this intent without naming it.
        let before = row.map(|row| row::record(row, claim.intent.clone())).transpose()?;
        let (step, after) = on_claim(step, before.as_ref(), claim, fresh, now);
        if let Some(record) = after {
            let seq = row.map(row::seq).transpose()?;
            let expired = before.is_some_and(|before| before.state_at(now).is_none());
            drop(rows);
            self.put_claim(seq, expired, &record)?;
            return Ok(Claimed::Run(record.ticket(step.other_recipe)));
        }
        let (Some(mut record), Some(row)) = (before, row) else { return Ok(Claimed::Mismatch) };
        let answer = match step.answer {
            StepAnswer::Run => return Ok(Claimed::Run(record.ticket(step.other_recipe))),
            StepAnswer::InFlight => Claimed::InFlight,
            StepAnswer::Replay => Claimed::Replay,
            StepAnswer::Unknown => Claimed::Uncertain,
            _ => return Ok(Claimed::Mismatch),
        };
        record.outcome = row::outcome(row)?;
        Ok(answer(record.existing(now, step.other_recipe)))
    }

    fn put_claim(&mut self, seq: Option<i64>, expired: bool, record: &Record) -> rusqlite::Result<()> {
        let (head, codes) = (&record.head, encoding::Codes::of(&record.head));
        match seq {
            Some(seq) if !expired => {
                let mut again = self.connection.prepare_cached(include_str!("sql/reclaim.sql"))?;
                again.execute(params![
                    seq,
                    codes.state,
                    codes.effect,
                    encoding::number(head.epoch.0),
                    record.attempts,
                    encoding::number(head.lease_until.0),
                    encoding::number(record.changed_at.0),
                    head.owner.as_bytes(),
                    encoding::recipe_code(&head.fingerprint),
                    head.fingerprint.digest(),
                    codes.expires_at,
                ])?;
            }
            _ => {
                // An expired record counts as absent; the new one is listed as a new record.
                if let Some(seq) = seq {
                    self.connection.prepare_cached("DELETE FROM intent WHERE seq = ?1")?.execute([seq])?;
                    self.wrote = true;
                }
                let operation = self.operation(record.intent.operation())?;
                let mut insert = self.connection.prepare_cached(include_str!("sql/insert.sql"))?;
                insert.execute(params![
                    encoding::number(head.epoch.0),
                    record.intent.id().as_bytes(),
                    codes.state,
                    codes.effect,
                    record.attempts,
                    encoding::number(head.lease_until.0),
                    encoding::number(record.created_at.0),
                    encoding::number(record.changed_at.0),
                    head.owner.as_bytes(),
                    encoding::recipe_code(&head.fingerprint),
                    head.fingerprint.digest(),
                    operation,
                    record.intent.scope().as_str(),
                    record.intent.key().as_str(),
                    record.decision.as_ref().map(encoding::decision_text),
                    codes.expires_at,
                ])?;
            }
        }
        self.assign(head.epoch);
        self.wrote = true;
        Ok(())
    }

    fn renew(&mut self, ticket: &Ticket, lease_ms: u64) -> rusqlite::Result<Renewed> {
        let event = StepEvent::Renew { owner: ticket.owner, epoch: ticket.epoch, lease_ms };
        let Some((seq, before)) = self.head(&ticket.id)? else { return Ok(Renewed::Stale) };
        let Change::Put(head) = step(Some(&before), &event, self.clock.now()).change else {
            return Ok(Renewed::Stale);
        };
        let mut renew =
            self.connection.prepare_cached("UPDATE intent SET lease_until = ?2 WHERE seq = ?1")?;
        renew.execute(params![seq, encoding::number(head.lease_until.0)])?;
        self.wrote = true;
        Ok(Renewed::Until(head.lease_until))
    }

    fn finish(&mut self, finishing: &Finishing) -> rusqlite::Result<Finished> {
        let Finishing { ticket, verdict, retention, outcome } = finishing;
        let event = StepEvent::Finish {
            owner: ticket.owner,
            epoch: ticket.epoch,
            verdict: *verdict,
            retention: *retention,
        };
        let Some((seq, before)) = self.head(&ticket.id)? else { return Ok(Finished::Stale) };
        let now = self.clock.now();
        let step = step(Some(&before), &event, now);
        if let Change::Put(head) = step.change {
            let mut finish = self.connection.prepare_cached(include_str!("sql/finish.sql"))?;
            let codes = encoding::Codes::of(&head);
            finish.execute(params![
                seq,
                codes.state,
                encoding::number(now.0),
                codes.expires_at,
                outcome.as_deref(),
                codes.effect,
            ])?;
            self.wrote = true;
        }
        Ok(Finished::new(step.answer, *verdict, before.state))
    }

    fn decide(&mut self, id: &IntentId, decide: &Decide) -> rusqlite::Result<Decided> {
        let fresh = self.fresh()?;
        let now = self.clock.now();
        let mut find = self.connection.prepare_cached(include_str!("sql/record.sql"))?;
        let found =
            find.query_row([id.as_bytes()], |row| Ok((row::seq(row)?, row::full_record(row)?))).optional()?;
        let Some((seq, mut record)) = found else { return Ok(Decided::Stale) };
        let step = on_decide(step, &mut record, decide, fresh, now);
        if let Change::Put(head) = step.change {
            let mut put = self.connection.prepare_cached(include_str!("sql/decide.sql"))?;
            let codes = encoding::Codes::of(&head);
            put.execute(params![
                seq,
                codes.state,
                encoding::number(head.epoch.0),
                head.owner.as_bytes(),
                encoding::number(record.changed_at.0),
                codes.expires_at,
                record.decision.as_ref().map(encoding::decision_text),
                record.outcome.as_ref().map(|outcome| outcome.encode().to_vec()),
                codes.effect,
            ])?;
            self.assign(head.epoch);
            self.wrote = true;
        }
        Ok(match step.answer {
            StepAnswer::Done => Decided::Recorded,
            StepAnswer::Refused => Decided::Refused(record.state_at(now).unwrap_or(record.head.state)),
            _ => Decided::Stale,
        })
    }

    fn head(&self, id: &IntentId) -> rusqlite::Result<Option<(i64, Head)>> {
        let mut find = self.connection.prepare_cached(include_str!("sql/head.sql"))?;
        find.query_row([id.as_bytes()], |row| Ok((row::seq(row)?, row::head(row)?))).optional()
    }

    /// The next epoch. Read under the write lock and stored by the same commit, so no other process and no later run of
    /// this one assigns it again.
    fn fresh(&mut self) -> rusqlite::Result<Epoch> {
        if let Some(last) = self.last {
            return Ok(last.next());
        }
        let mut find = self.connection.prepare_cached("SELECT epoch FROM fence")?;
        let last = Epoch(find.query_row([], |row| row::unsigned(row, 0))?);
        self.last = Some(last);
        Ok(last.next())
    }

    fn assign(&mut self, epoch: Epoch) {
        self.last = self.last.max(Some(epoch));
        self.assigned = true;
    }

    fn operation(&mut self, operation: &Operation) -> rusqlite::Result<i64> {
        if let Some(n) = self.cache.operations.get(operation) {
            return Ok(*n);
        }
        let mut find = self.connection.prepare_cached("SELECT n FROM operation WHERE name = ?1")?;
        let found = find.query_row([operation.as_str()], |row| row.get(0)).optional()?;
        let n = match found {
            Some(n) => n,
            None => {
                let mut add = self.connection.prepare_cached("INSERT INTO operation (name) VALUES (?1)")?;
                self.wrote = true;
                add.insert([operation.as_str()])?
            }
        };
        if self.cache.operations.len() >= OPERATIONS_MAX {
            self.cache.operations.clear();
        }
        self.cache.operations.insert(operation.clone(), n);
        Ok(n)
    }
}

impl Command {
    pub(super) fn send_answer(self) {
        match self {
            Self::Claim(ask) => ask.send_answer(),
            Self::Renew(ask) => ask.send_answer(),
            Self::Finish(ask) => ask.send_answer(),
            Self::Decide(ask) => ask.send_answer(),
        }
    }

    pub(super) fn refuse(self, error: StoreError) {
        match self {
            Self::Claim(ask) => ask.refuse(error),
            Self::Renew(ask) => ask.refuse(error),
            Self::Finish(ask) => ask.refuse(error),
            Self::Decide(ask) => ask.refuse(error),
        }
    }
}

/// Rolls back. `None` when even that fails: the connection is dropped, which certainly rolls back.
pub(super) fn roll_back(connection: Connection, cache: &mut OperationCache) -> Option<Connection> {
    cache.operations.clear();
    let rolled_back = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
    rolled_back.then_some(connection)
}
