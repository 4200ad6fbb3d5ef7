//! One write transaction. Requests are decided by the code all stores share, against rows nobody else can
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

/// Names of operations the writer keeps the numbers of.
const OPERATIONS_MAX: usize = 10_000;

/// What outlives a transaction, so that it need not be made anew for each.
#[derive(Default)]
pub(super) struct OperationCache {
    /// Numbers of operations. Emptied by a rollback, which may have taken a new name with it.
    operations: HashMap<Operation, i64>,
    /// What this transaction has changed.
    changed: HashSet<IntentId>,
}

/// When the one who asked may hear the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTiming {
    /// The answer rests on committed rows alone: the transaction holds the write lock, so what it read is the
    /// last commit, which was durable before anybody could read it. Whatever becomes of this transaction,
    /// the answer was true.
    Now,
    /// It rests on something this transaction wrote.
    AfterCommit,
}

/// What went wrong, and when.
pub(super) enum Failure {
    /// Before the commit: rolled back, nothing happened.
    Before(SqliteError),
    /// The commit itself failed.
    InCommit(SqliteError),
}

pub(super) struct Transaction<'a> {
    connection: &'a Connection,
    clock: &'a Clock,
    memo: &'a mut OperationCache,
    /// The last epoch given away, once it was looked up.
    last: Option<Epoch>,
    given: bool,
    wrote: bool,
}

impl<'a> Transaction<'a> {
    /// Takes the write lock. SQLite's own busy handler sleeps ever longer, up to 100 ms, and loses against a
    /// process that commits all the time; short naps of random length get their turn sooner.
    pub(super) fn begin(
        connection: &'a Connection,
        clock: &'a Clock,
        memo: &'a mut OperationCache,
        patience: Duration,
    ) -> Result<Self, SqliteError> {
        let mut deadline = None;
        loop {
            match connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map_err(SqliteError::from) {
                Ok(_) => break,
                Err(trouble) if trouble.is_busy() => {
                    let now = Instant::now();
                    if now >= *deadline.get_or_insert(now + patience) {
                        return Err(trouble);
                    }
                    thread::sleep(Duration::from_micros(fastrand::u64(100..1_500)));
                }
                Err(trouble) => return Err(trouble),
            }
        }
        memo.changed.clear();
        Ok(Self { connection, clock, memo, last: None, given: false, wrote: false })
    }

    /// Carries out one request and leaves the answer in it.
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
            self.memo.changed.insert(id);
        }
        Ok(if wrote || self.memo.changed.contains(&id) { ReplyTiming::AfterCommit } else { ReplyTiming::Now })
    }

    /// Makes it durable. Says whether there was anything to make durable; if not, it cost nothing.
    pub(super) fn commit(self) -> Result<bool, Failure> {
        let before = |error| Failure::Before(SqliteError::Sqlite(error));
        if let (true, Some(last)) = (self.given, self.last) {
            let mut keep = self.connection.prepare_cached("UPDATE fence SET epoch = ?1").map_err(before)?;
            keep.execute([encoding::number(last.0)]).map_err(before)?;
        }
        let mut commit = self.connection.prepare_cached("COMMIT").map_err(before)?;
        commit.execute([]).map_err(|error| Failure::InCommit(SqliteError::Sqlite(error)))?;
        Ok(self.wrote)
    }

    /// Forgets up to `limit` expired records.
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
        // The id is a digest of the intent: the row is this intent's, and need not name it.
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
        let head = &record.head;
        match seq {
            Some(seq) if !expired => {
                let mut again = self.connection.prepare_cached(include_str!("sql/reclaim.sql"))?;
                again.execute(params![
                    seq,
                    encoding::state_code(head.state),
                    encoding::effect_code(head.effect),
                    encoding::number(head.epoch.0),
                    record.attempts,
                    encoding::number(head.lease_until.0),
                    encoding::number(record.changed_at.0),
                    head.owner.as_bytes(),
                    encoding::recipe_code(&head.fingerprint),
                    head.fingerprint.digest(),
                ])?;
            }
            _ => {
                // An expired record is no record; the new one takes its place in the list as a new one.
                if let Some(seq) = seq {
                    self.connection.prepare_cached("DELETE FROM intent WHERE seq = ?1")?.execute([seq])?;
                    self.wrote = true;
                }
                let operation = self.operation(record.intent.operation())?;
                let mut insert = self.connection.prepare_cached(include_str!("sql/insert.sql"))?;
                insert.execute(params![
                    encoding::number(head.epoch.0),
                    record.intent.id().as_bytes(),
                    encoding::state_code(head.state),
                    encoding::effect_code(head.effect),
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
                ])?;
            }
        }
        self.give_away(head.epoch);
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
            finish.execute(params![
                seq,
                encoding::state_code(head.state),
                encoding::number(now.0),
                head.expires_at.map(|at| encoding::number(at.0)),
                outcome.as_deref(),
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
            put.execute(params![
                seq,
                encoding::state_code(head.state),
                encoding::number(head.epoch.0),
                head.owner.as_bytes(),
                encoding::number(record.changed_at.0),
                head.expires_at.map(|at| encoding::number(at.0)),
                record.decision.as_ref().map(encoding::decision_text),
                record.outcome.as_ref().map(|outcome| outcome.encode().to_vec()),
            ])?;
            self.give_away(head.epoch);
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

    /// The epoch for whoever may run. Read under the write lock and stored by the same commit, so no other
    /// process and no later run of this one gives it away again.
    fn fresh(&mut self) -> rusqlite::Result<Epoch> {
        if let Some(last) = self.last {
            return Ok(last.next());
        }
        let mut find = self.connection.prepare_cached("SELECT epoch FROM fence")?;
        let last = Epoch(find.query_row([], |row| row::unsigned(row, 0))?);
        self.last = Some(last);
        Ok(last.next())
    }

    fn give_away(&mut self, epoch: Epoch) {
        self.last = self.last.max(Some(epoch));
        self.given = true;
    }

    fn operation(&mut self, operation: &Operation) -> rusqlite::Result<i64> {
        if let Some(n) = self.memo.operations.get(operation) {
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
        if self.memo.operations.len() >= OPERATIONS_MAX {
            self.memo.operations.clear();
        }
        self.memo.operations.insert(operation.clone(), n);
        Ok(n)
    }
}

impl Command {
    pub(super) fn tell(self) {
        match self {
            Self::Claim(ask) => ask.tell(),
            Self::Renew(ask) => ask.tell(),
            Self::Finish(ask) => ask.tell(),
            Self::Decide(ask) => ask.tell(),
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

/// Undoes what was not committed. `None` when even that fails: the connection is to be dropped, which undoes
/// it for certain.
pub(super) fn roll_back(connection: Connection, memo: &mut OperationCache) -> Option<Connection> {
    memo.operations.clear();
    let undone = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
    undone.then_some(connection)
}
