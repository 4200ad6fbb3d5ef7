//! How PostgreSQL executes batches.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::Row;

use super::connect::{Connections, Session};
use super::error::PostgresError;
use super::lock;
use super::row::{self, column, time, unsigned};
use super::statement::{CLAIM, DECIDE, FINISH, OPERATIONS, RECORD, RENEW, Sql};
use crate::fault::Hook;
use crate::intent::identity::{Epoch, IntentId};
use crate::intent::policy::{Retention, StoreTime};
use crate::intent::state::{Change, State, StepAnswer, step};
use crate::store::coalesce::{Executor, Failure};
use crate::store::command::{Ask, Finishing};
use crate::store::encoding::{
    Codes, MS_MAX, decision_text, effect_code, number, recipe_code, safe_for_code, state_code, state_of,
};
use crate::store::locked_elsewhere::in_flight;
use crate::store::record::{on_claim, on_decide};
use crate::store::{Claim, Claimed, Decide, Decided, Fate, Finished, Renewed, Ticket};

/// Names of operations that are cached as present in their table.
const OPERATIONS_MAX: usize = 10_000;
/// Larger outcomes are read one by one: a batch of replays has to fit into memory.
const OUTCOME_BYTES_MAX: i32 = 64 << 10;
/// Tries after which a claim whose key is locked by another transaction is answered "in flight". Another batch has the
/// lock for one commit, a user's transaction for any length of time; about 20 ms distinguish the two.
const LOCKED_ATTEMPTS_MAX: u32 = 5;

/// The statements, so that a test can plant a bug in one.
#[derive(Clone, Copy)]
struct Statements {
    claim: &'static Sql,
    finish: &'static Sql,
    renew: &'static Sql,
}

impl Statements {
    fn new(edit: &Hook<fn(&str) -> String>) -> Self {
        let edited = |sql: &'static Sql| match edit.get() {
            None => sql,
            Some(edit) => {
                let text = Box::leak(edit(sql.text).into_boxed_str());
                Box::leak(Box::new(Sql { text, types: sql.types }))
            }
        };
        Self { claim: edited(&CLAIM), finish: edited(&FINISH), renew: edited(&RENEW) }
    }
}

pub(super) struct Batches {
    connections: Arc<Connections>,
    statements: Statements,
    operations: Mutex<HashSet<String>>,
}

impl Batches {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        let statements = Statements::new(&connections.options.edit);
        Self { connections, statements, operations: Mutex::default() }
    }

    fn operations(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts missing names of operations, before the claims need them.
    async fn insert_operations(
        &self,
        session: &Session,
        asks: &[Ask<Claim, Claimed>],
    ) -> Result<(), PostgresError> {
        let missing: BTreeSet<&str> = {
            let mut known = self.operations();
            // A request that is retried may have met a cached name that is not in the table any more.
            for ask in asks.iter().filter(|ask| ask.attempts > 1) {
                known.remove(ask.request.intent.operation().as_str());
            }
            let names = asks.iter().map(|ask| ask.request.intent.operation().as_str());
            names.filter(|name| !known.contains(*name)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = missing.into_iter().collect();
        session.query(&OPERATIONS, &[&names]).await?;
        let mut known = self.operations();
        if known.len() + names.len() > OPERATIONS_MAX {
            known.clear();
        }
        known.extend(names.into_iter().map(str::to_owned));
        Ok(())
    }

    async fn claim(&self, session: &Session, asks: &mut [Ask<Claim, Claimed>]) -> Result<(), PostgresError> {
        let rows = {
            let ids: Vec<IntentId> = asks.iter().map(|ask| ask.request.intent.id()).collect();
            let first: Vec<bool> = (0..ids.len()).map(|at| at == 0 || ids[at - 1] != ids[at]).collect();
            let column = Columns(asks);
            session
                .query(
                    self.statements.claim,
                    &[
                        &ids.iter().map(|id| &id.as_bytes()[..]).collect::<Vec<_>>(),
                        &ids.iter().map(lock::key).collect::<Vec<_>>(),
                        &column.of(|claim| &claim.owner.as_bytes()[..]),
                        &column.of(|claim| &claim.fingerprint.digest()[..]),
                        &column.of(|claim| recipe_code(&claim.fingerprint)),
                        &column.of(|claim| small(effect_code(claim.effect))),
                        &column.of(|claim| number(claim.lease_ms)),
                        &column.of(|claim| claim.intent.scope().as_str()),
                        &column.of(|claim| claim.intent.operation().as_str()),
                        &column.of(|claim| claim.intent.key().as_str()),
                        &first,
                        &OUTCOME_BYTES_MAX,
                        &column.of(|claim| safe_for_code(claim.effect, &claim.window)),
                        &column.of(|claim| number(claim.window.call_ms.min(MS_MAX))),
                    ],
                )
                .await?
        };
        // The statement has committed: an error from here on concerns one claim.
        let mut broken: Option<Failure> = None;
        for row in &rows {
            let (part, flag): (i32, bool) = (column(row, "part")?, column(row, "flag")?);
            let Some(ask) = asked(asks, row)? else { continue };
            let answer = match (part, &broken) {
                (0, Some(failure)) if flag => Err(failure.clone()),
                (0, None) if flag => {
                    let fetched = fetched(session, &ask.request).await;
                    fetched.map_err(|error| error.failure_with(Fate::NotApplied))
                }
                // Only part 1 writes: its claim was granted, even if its row cannot be read.
                _ => answered(ask, part, row).map_err(|error| {
                    error.failure_with(if part == 1 { Fate::Applied } else { Fate::NotApplied })
                }),
            };
            broken = answer.as_ref().err().filter(|failure| failure.lost).cloned().or(broken);
            ask.answer = answer.map_err(|failure| failure.error()).transpose();
        }
        Ok(())
    }

    async fn finish(
        &self,
        session: &Session,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> Result<(), PostgresError> {
        let rows = {
            let column = Columns(asks);
            session
                .query(
                    self.statements.finish,
                    &[
                        &column.of(|finishing| &finishing.ticket.id.as_bytes()[..]),
                        &column.of(|finishing| &finishing.ticket.owner.as_bytes()[..]),
                        &column.of(|finishing| number(finishing.ticket.epoch.0)),
                        &column.of(|finishing| small(state_code(State::from(finishing.verdict)))),
                        &column.of(|finishing| match finishing.retention {
                            Retention::Ms(ms) => Some(number(ms)),
                            Retention::Forever => None,
                        }),
                        &column.of(|finishing| finishing.outcome.as_deref()),
                    ],
                )
                .await?
        };
        let mut answers: Vec<Option<i32>> = vec![None; asks.len()];
        for row in &rows {
            let at = index_of(asks, column(row, "id")?, |finishing| &finishing.ticket.id);
            let answer: i32 = column(row, "answer")?;
            if let Some(known) = at.and_then(|at| answers.get_mut(at)) {
                *known = Some(known.map_or(answer, |known| known.min(answer)));
            }
        }
        for (ask, answer) in asks.iter_mut().zip(answers) {
            ask.answer = match answer {
                Some(0) => Some(Ok(Finished::Recorded)),
                Some(1) => Some(Ok(Finished::Already)),
                Some(3) => None,
                Some(other @ 10..) => {
                    let state = state_of(i64::from(other) - 10).map_err(PostgresError::Unreadable)?;
                    Some(Ok(Finished::Other(state)))
                }
                _ => Some(Ok(Finished::Stale)),
            };
        }
        Ok(())
    }

    async fn renew(
        &self,
        session: &Session,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> Result<(), PostgresError> {
        let rows = {
            let column = Columns(asks);
            session
                .query(
                    self.statements.renew,
                    &[
                        &column.of(|(ticket, _)| &ticket.id.as_bytes()[..]),
                        &column.of(|(ticket, _)| &ticket.owner.as_bytes()[..]),
                        &column.of(|(ticket, _)| number(ticket.epoch.0)),
                        &column.of(|(_, lease_ms)| number(*lease_ms)),
                    ],
                )
                .await?
        };
        for ask in &mut *asks {
            ask.answer = Some(Ok(Renewed::Stale));
        }
        for row in &rows {
            let at = index_of(asks, column(row, "id")?, |(ticket, _)| &ticket.id);
            let Some(ask) = at.and_then(|at| asks.get_mut(at)) else { continue };
            ask.answer = match column(row, "again")? {
                true => None,
                false => Some(
                    time(row, "lease_until")
                        .map(Renewed::Until)
                        .map_err(|error| error.failure_with(Fate::Applied).error()),
                ),
            };
        }
        Ok(())
    }

    /// Reads, decides by the code all stores share, and writes if the record has not changed since.
    async fn decide(
        &self,
        session: &Session,
        id: &IntentId,
        decide: &Decide,
    ) -> Result<Option<Decided>, Failure> {
        let id = &id.as_bytes()[..];
        let read = async {
            let rows = session.query(&RECORD, &[&id]).await?;
            rows.first().map(|row| Ok((row::full_record(row)?, time(row, "now")?))).transpose()
        };
        let read = read.await.map_err(|error: PostgresError| error.failure_with(Fate::NotApplied))?;
        let Some((mut record, now)) = read else { return Ok(Some(Decided::Stale)) };
        let read = record.head;
        // The server assigns the epoch.
        let step = on_decide(step, &mut record, decide, Epoch(0), now);
        let Change::Put(head) = step.change else {
            return Ok(Some(match step.answer {
                StepAnswer::Refused => Decided::Refused(record.state_at(now).unwrap_or(record.head.state)),
                _ => Decided::Stale,
            }));
        };
        let outcome = record.outcome.as_ref().map(|outcome| outcome.encode().to_vec());
        let codes = Codes::of(&head);
        let rows = session
            .query(
                &DECIDE,
                &[
                    &id,
                    &number(read.epoch.0),
                    &small(Codes::of(&read).state),
                    &number(read.lease_until.0),
                    &small(codes.state),
                    &&head.owner.as_bytes()[..],
                    &number(record.changed_at.0),
                    &codes.expires_at,
                    &record.decision.as_ref().map(decision_text),
                    &outcome,
                    &small(codes.effect),
                ],
            )
            .await
            .map_err(|error| error.failure())?;
        let answer = rows.first().map_or(Ok(0), |row| column::<i32>(row, "answer"));
        let answer = answer.map_err(|error| error.failure())?;
        Ok((answer == 1).then_some(Decided::Recorded))
    }
}

impl Executor for Batches {
    type Connection = Session;

    const CLAIMS_MAY_REPEAT: bool = true;

    async fn connect(&self) -> Result<Session, Failure> {
        match self.connections.session().await {
            Ok((session, _)) => Ok(session),
            Err(error) => Err(error.failure_with(Fate::NotApplied)),
        }
    }

    fn is_open(&self, session: &Session) -> bool {
        session.is_open()
    }

    async fn claims(&self, session: &mut Session, asks: &mut [Ask<Claim, Claimed>]) -> Result<(), Failure> {
        let inserted = self.insert_operations(session, asks).await;
        inserted.map_err(|error| error.failure_with(Fate::NotApplied))?;
        self.claim(session, asks).await.map_err(|error| error.failure())
    }

    async fn finishes(
        &self,
        session: &mut Session,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> Result<(), Failure> {
        self.finish(session, asks).await.map_err(|error| error.failure())
    }

    async fn renews(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> Result<(), Failure> {
        self.renew(session, asks).await.map_err(|error| error.failure())
    }

    async fn decides(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> Result<(), Failure> {
        for ask in asks {
            let (id, decide) = &ask.request;
            ask.answer = self.decide(session, id, decide).await?.map(Ok);
        }
        Ok(())
    }
}

/// Requests turned into columns.
struct Columns<'a, Q, A>(&'a [Ask<Q, A>]);

impl<'a, Q, A> Columns<'a, Q, A> {
    fn of<T>(&self, value: impl Fn(&'a Q) -> T) -> Vec<T> {
        self.0.iter().map(|ask| value(&ask.request)).collect()
    }
}

/// Codes of states and effects are small.
fn small(code: i64) -> i16 {
    i16::try_from(code).unwrap_or(i16::MAX)
}

/// The index of the first request with this id in a batch, which is sorted.
fn index_of<Q, A>(asks: &[Ask<Q, A>], id: &[u8], of: impl Fn(&Q) -> &IntentId) -> Option<usize> {
    let at = asks.partition_point(|ask| &of(&ask.request).as_bytes()[..] < id);
    (asks.get(at).is_some_and(|ask| of(&ask.request).as_bytes() == id)).then_some(at)
}

/// The claim a row is about: by its number, or by its id, which means the first claim of that id.
fn asked<'a>(
    asks: &'a mut [Ask<Claim, Claimed>],
    row: &Row,
) -> Result<Option<&'a mut Ask<Claim, Claimed>>, PostgresError> {
    let n: Option<i64> = column(row, "n")?;
    let at = match n {
        Some(n) => usize::try_from(n - 1).ok(),
        None => {
            let id: &[u8] = column(row, "id")?;
            let at = asks.partition_point(|ask| &ask.request.intent.id().as_bytes()[..] < id);
            asks.get(at).is_some_and(|ask| ask.request.intent.id().as_bytes() == id).then_some(at)
        }
    };
    Ok(at.and_then(|at| asks.get_mut(at)))
}

/// The answer to a claim, from a row of the statement. `None`: it is retried.
fn answered(ask: &Ask<Claim, Claimed>, part: i32, row: &Row) -> Result<Option<Claimed>, PostgresError> {
    let claim = &ask.request;
    Ok(match part {
        0 => decided(claim, row)?,
        1 => Some(Claimed::Run(Ticket {
            id: claim.intent.id(),
            owner: claim.owner,
            epoch: Epoch(unsigned(row, "epoch")?),
            attempt: column::<i32>(row, "attempts")?.unsigned_abs(),
            lease_until: time(row, "lease_until")?,
            safe_until: column::<Option<i64>>(row, "expires_at")?.map(|at| StoreTime(at.cast_unsigned())),
            other_recipe: column(row, "flag")?,
        })),
        _ if ask.attempts >= LOCKED_ATTEMPTS_MAX => Some(in_flight(claim, time(row, "now")?)),
        _ => None,
    })
}

/// The same where the outcome is too large for the batch: reads the record alone and decides on its present state,
/// which may have changed meanwhile.
async fn fetched(session: &Session, claim: &Claim) -> Result<Option<Claimed>, PostgresError> {
    let rows = session.query(&RECORD, &[&&claim.intent.id().as_bytes()[..]]).await?;
    rows.first().map_or(Ok(None), |row| decided(claim, row))
}

/// The answer to a claim that found this row. `None` when it may be taken over after all: it is retried.
fn decided(claim: &Claim, row: &Row) -> Result<Option<Claimed>, PostgresError> {
    let now = time(row, "now")?;
    let record = row::record(row, claim.intent.clone())?;
    let (step, change) = on_claim(step, Some(&record), claim, Epoch(0), now);
    if change.is_some() {
        return Ok(None);
    }
    Ok(Some(match step.answer {
        StepAnswer::Run => Claimed::Run(record.ticket(step.other_recipe)),
        StepAnswer::InFlight => Claimed::InFlight(record.existing(now, step.other_recipe)),
        StepAnswer::Replay => Claimed::Replay(record.existing(now, step.other_recipe)),
        StepAnswer::Unknown => Claimed::Uncertain(record.existing(now, step.other_recipe)),
        _ => Claimed::Mismatch,
    }))
}
