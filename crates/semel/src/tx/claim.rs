//! The claim inside the caller's transaction: take the lock, read the record, decide; later write the
//! outcome.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Row, Sql, Tx, Value};
use super::error::TxError;
use super::wait_queue::Turn;
use crate::backoff::{Backoff, spread};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::guard_expiry::KeyWindow;
use crate::intent::identity::{Epoch, Intent, IntentId, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::state::{Change, Head, State, StepAnswer, StepEvent, step};
use crate::store::encoding::{self, Codes, Decoded};

/// Pauses between two attempts (backoff): short at first, because most transactions are short.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));

/// SQLite: takes the write lock and changes nothing. Without it two transactions could both read before either
/// writes.
pub(super) const LOCK_SQLITE: Sql = Sql::same("DELETE FROM semel_intent WHERE false");

const INSPECT: Sql = Sql {
    postgres: "SELECT * FROM semel_tx_look($1, $2)",
    // MySQL needs more than one statement: `mysql::inspect`.
    mysql: "",
    sqlite: include_str!("sql/look_sqlite.sql"),
};

/// Identifies the database among all that one process may talk to. The server's start time, or its data directory,
/// distinguishes two servers.
const DATABASE: Sql = Sql {
    postgres: "SELECT concat_ws('/', pg_postmaster_start_time(), current_database(), to_regclass('semel_intent')::oid)",
    mysql: "SELECT CONVERT(CONCAT_WS('/', @@hostname, @@port, @@datadir, DATABASE()) USING utf8mb4)",
    sqlite: "",
};

const EPOCH_SQLITE: Sql = Sql::same("UPDATE semel_tx SET epoch = epoch + 1 RETURNING epoch");

const PUT: Sql = Sql {
    postgres: "SELECT semel_tx_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
    mysql: include_str!("sql/put_mysql.sql"),
    sqlite: include_str!("sql/put_sqlite.sql"),
};

const KEEP_SAFE_UNTIL: Sql = Sql {
    postgres: "UPDATE semel_intent SET effect = 0, expires_at = $3 WHERE id = $1 AND epoch = $2 AND state = 0 \
               RETURNING epoch",
    mysql: "UPDATE semel_intent SET effect = 0, expires_at = ?3 WHERE id = ?1 AND epoch = ?2 AND state = 0;\n\
            SELECT CAST(IF(ROW_COUNT() > 0, ?2, NULL) AS SIGNED)",
    sqlite: "UPDATE semel_intent SET effect = 0, expires_at = ?3 WHERE id = ?1 AND epoch = ?2 AND state = 0 \
             RETURNING epoch",
};

/// A request to run an intent in the caller's transaction.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) intent: Intent,
    pub(super) fingerprint: Fingerprint,
    pub(super) owner: Owner,
    pub(super) effect: Effect,
    pub(super) lease_ms: u64,
    /// How long the keys of remote calls protect.
    pub(super) window: KeyWindow,
    pub(super) wait: Duration,
    /// It is claimed to be refused for ever: what is done comes back with a claim of its own, expired or not.
    pub(super) barrier: bool,
}

/// What was found when the lock was taken; [`put`] checks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    epoch: Option<Epoch>,
    owner: Option<Owner>,
    carry: bool,
    safe_until: Option<StoreTime>,
}

impl Seen {
    /// A takeover: an earlier attempt claimed it, so there may be phases.
    pub(super) fn is_takeover(&self) -> bool {
        self.carry
    }

    /// Until when the keys of remote calls protect; set by the first attempt.
    pub(super) fn safe_until(&self) -> Option<StoreTime> {
        self.safe_until
    }
}

/// The result of a claim.
#[derive(Debug)]
pub(super) enum Claimed {
    Run(Seen),
    Replay(Verdict, Outcome),
    /// For a barrier: it is done, and the claim may put a refusal in its place.
    Done(Seen, Outcome),
}

pub(super) struct Inspected {
    /// No other transaction can claim it until this one ends.
    locked: bool,
    writable: bool,
    now: StoreTime,
    pub(super) head: Option<Head>,
    outcome: Option<Bytes>,
}

impl Inspected {
    /// Another transaction holds the lock; what it will commit is not known yet.
    #[cfg(feature = "mysql")]
    pub(super) fn locked_elsewhere() -> Self {
        Self { locked: false, writable: true, now: StoreTime(0), head: None, outcome: None }
    }
}

/// Claims the intent, or returns why it cannot. Waits for another holder, at most `ask.wait`.
pub(super) async fn claim(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask) -> Result<Claimed, TxError> {
    let begun = Instant::now();
    let deadline = begun + ask.wait;
    let id = ask.intent.id();
    let mut pause = BACKOFF.first;
    let (mut turn, mut unasked) = (None, None);
    // MySQL waits in the locking read itself. Several waiters for one row that is then rolled back each keep a lock
    // on the gap it leaves, and none can insert: a deadlock. So only one waits there.
    if tx.dialect() == Dialect::Mysql {
        // Most callers have no rival, and need not ask the server which database this is.
        unasked = Turn::take(id, None, begun).await;
        if unasked.is_none() {
            turn = Some(turn_in_database(tx, id, begun, deadline).await?);
            // The caller that holds this turn has not asked yet. If it uses another database, it does not block us.
            unasked = Turn::take(id, None, deadline).await;
        }
    }
    loop {
        let busy = match inspect(tx, ask).await {
            Ok(inspected) => {
                let locked = inspected.locked;
                match decide(ask, inspected)? {
                    Some(claimed) => return taken(tx, ask, claimed).await,
                    // An owner outside of a transaction needs the row, which we keep locked as long as we wait.
                    None if locked && tx.dialect() == Dialect::Mysql => {
                        return Err(TxError::InFlight { waited: begun.elapsed() });
                    }
                    None => false,
                }
            }
            Err(error) if error.kind() == DriverErrorKind::Busy => true,
            Err(error) => return Err(error.into()),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = begun.elapsed();
        let give_up = || if busy { TxError::Busy { waited } } else { TxError::InFlight { waited } };
        if left.is_zero() {
            return Err(give_up());
        }
        // SQLite's callers are threads; they wait for the file.
        drop(unasked.take());
        if turn.is_none() && tx.dialect() != Dialect::Sqlite {
            let waiting = Instant::now();
            turn = Some(turn_in_database(tx, id, begun, deadline).await?);
            // Others were ahead of us: it may be done by now.
            if waiting.elapsed() > BACKOFF.first {
                continue;
            }
        }
        // Jitter, or all waiters wake together.
        let nap = spread(pause, 0.5).min(left);
        tx.pause(nap).await;
        pause = BACKOFF.next(pause);
    }
}

/// The turn among the callers of this process that wait for this intent in this database.
async fn turn_in_database(
    tx: &mut OpenTx<'_, impl Tx>,
    id: IntentId,
    begun: Instant,
    deadline: Instant,
) -> Result<Turn, TxError> {
    let rows = tx.run(&DATABASE, Vec::new()).await?;
    let database = rows.first().ok_or_else(no_row)?.text(0)?.to_owned();
    let turn = Turn::take(id, Some(database), deadline).await;
    turn.ok_or_else(|| TxError::InFlight { waited: begun.elapsed() })
}

/// `None`: wait.
fn decide(ask: &Ask, inspected: Inspected) -> Result<Option<Claimed>, TxError> {
    let event = StepEvent::Claim {
        fingerprint: ask.fingerprint,
        owner: ask.owner,
        effect: ask.effect,
        lease_ms: ask.lease_ms,
        window: ask.window,
        // The database assigns it when the record is written.
        fresh: Epoch(0),
    };
    // What happened stays true after its retention: a barrier must not take it for something that never came.
    let known =
        |head: &Head| if ask.barrier && head.state == State::Completed { None } else { head.expires_at };
    let head = inspected.head.map(|head| Head { expires_at: known(&head), ..head });
    let step = step(head.as_ref(), &event, inspected.now);
    match step.answer {
        StepAnswer::Mismatch => Err(TxError::Mismatch),
        StepAnswer::Replay if ask.barrier && !inspected.locked => Ok(None),
        StepAnswer::Replay if ask.barrier && !inspected.writable => Err(read_only()),
        StepAnswer::Replay => {
            let failed = inspected.head.is_some_and(|head| head.state == State::FailedFinal);
            let verdict = if failed { Verdict::FailedFinal } else { Verdict::Completed };
            let outcome = match inspected.outcome {
                Some(stored) => Outcome::decode(stored)
                    .map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error))?,
                None => Outcome::unknown(),
            };
            if ask.barrier && !failed {
                let (epoch, owner) = inspected.head.map(|head| (head.epoch, head.owner)).unzip();
                return Ok(Some(Claimed::Done(
                    Seen { epoch, owner, carry: false, safe_until: None },
                    outcome,
                )));
            }
            Ok(Some(Claimed::Replay(verdict, outcome)))
        }
        StepAnswer::Run if inspected.locked && !inspected.writable => Err(read_only()),
        StepAnswer::Run if inspected.locked => {
            let carry = inspected.head.is_some_and(|head| head.state_at(inspected.now).is_some());
            let (epoch, owner) = inspected.head.map(|head| (head.epoch, head.owner)).unzip();
            let safe_until = match step.change {
                Change::Put(head) => head.safe_until,
                _ => None,
            };
            Ok(Some(Claimed::Run(Seen { epoch, owner, carry, safe_until })))
        }
        StepAnswer::Run | StepAnswer::InFlight => Ok(None),
        _ => Err(TxError::Uncertain { id: ask.intent.id() }),
    }
}

fn read_only() -> TxError {
    let message = "the transaction is read-only, so the intent cannot be recorded in it; begin \
                   a read-write transaction";
    DriverError::new(DriverErrorKind::ReadOnly, message).into()
}

/// MySQL: a row that existed before has to name the new owner.
#[cfg(feature = "mysql")]
async fn taken(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask, claimed: Claimed) -> Result<Claimed, TxError> {
    if let (
        Dialect::Mysql,
        Claimed::Run(Seen { epoch: Some(_), .. }) | Claimed::Done(Seen { epoch: Some(_), .. }, _),
    ) = (tx.dialect(), &claimed)
    {
        super::mysql::take(tx, ask).await?;
    }
    Ok(claimed)
}

#[cfg(not(feature = "mysql"))]
async fn taken(_: &mut OpenTx<'_, impl Tx>, _: &Ask, claimed: Claimed) -> Result<Claimed, TxError> {
    Ok(claimed)
}

/// After work that failed: restores what was there before the claim. Only MySQL writes anything before [`put`], and a
/// caller that commits all the same would leave it behind.
pub(super) async fn undo(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask, seen: Seen) -> Result<(), DriverError> {
    #[cfg(feature = "mysql")]
    if tx.dialect() == Dialect::Mysql {
        return super::mysql::undo(tx, ask, seen.owner).await;
    }
    let _ = (tx, ask, seen.owner);
    Ok(())
}

async fn inspect(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask) -> Result<Inspected, DriverError> {
    let intent = &ask.intent;
    match tx.dialect() {
        Dialect::Postgres => {
            let values = vec![lock_key(intent).into(), intent.id().as_bytes()[..].into()];
            let rows = tx.run(&INSPECT, values).await?;
            let row = rows.first().ok_or_else(no_row)?;
            inspected(row, 3, row.int(0)? != 0, row.int(1)? != 0, row.int(2)?)
        }
        Dialect::Sqlite => {
            tx.run(&LOCK_SQLITE, Vec::new()).await?;
            let rows = tx.run(&INSPECT, vec![intent.id().as_bytes()[..].into()]).await?;
            let row = rows.first().ok_or_else(no_row)?;
            inspected(row, 1, true, true, row.int(0)?)
        }
        #[cfg(feature = "mysql")]
        Dialect::Mysql => super::mysql::inspect(tx, ask).await,
        #[cfg(not(feature = "mysql"))]
        Dialect::Mysql => {
            let message = "this build has no MySQL; build with the feature `mysql`";
            Err(DriverError::new(DriverErrorKind::Other, message))
        }
    }
}

pub(super) fn inspected(
    row: &Row,
    at: usize,
    locked: bool,
    writable: bool,
    now: i64,
) -> Result<Inspected, DriverError> {
    let now = StoreTime(now.cast_unsigned());
    let Some(state) = row.int_or_null(at)? else {
        return Ok(Inspected { locked, writable, now, head: None, outcome: None });
    };
    let codes = Codes { state, effect: row.int(at + 1)?, expires_at: row.int_or_null(at + 4)? };
    let Decoded { state, effect, expires_at, safe_until } = codes.read().map_err(unreadable)?;
    let head = Head {
        state,
        effect,
        epoch: Epoch(row.int(at + 2)?.cast_unsigned()),
        lease_until: StoreTime(row.int(at + 3)?.cast_unsigned()),
        expires_at,
        safe_until,
        owner: Owner::from_bytes(fixed(&row.bytes(at + 5)?)?),
        fingerprint: Fingerprint::from_parts(fixed(&row.bytes(at + 7)?)?, row.int(at + 6)?.cast_unsigned()),
    };
    Ok(Inspected { locked, writable, now, head: Some(head), outcome: row.bytes_or_null(at + 8)? })
}

/// Writes the record: a claim that outlives this transaction, or its outcome. Returns its epoch.
pub(super) async fn put(
    tx: &mut OpenTx<'_, impl Tx>,
    ask: &Ask,
    seen: Seen,
    state: State,
    retention: Retention,
    outcome: Option<Bytes>,
) -> Result<Epoch, TxError> {
    let retention_ms = match encoding::bounded(retention) {
        Retention::Ms(ms) => Some(encoding::number(ms)),
        Retention::Forever => None,
    };
    let Ask { intent, fingerprint, owner, effect, lease_ms, .. } = ask;
    let mut values: Vec<Value> = vec![
        intent.id().as_bytes()[..].into(),
        seen.epoch.map(|epoch| encoding::number(epoch.0)).into(),
        i64::from(seen.carry).into(),
        encoding::state_code(state).into(),
        encoding::effect_code(*effect).into(),
        owner.as_bytes()[..].into(),
        encoding::number((*lease_ms).min(encoding::MS_MAX)).into(),
        retention_ms.into(),
        fingerprint.digest()[..].into(),
        encoding::recipe_code(fingerprint).into(),
        intent.operation().as_str().into(),
        intent.scope().as_str().into(),
        intent.key().as_str().into(),
        outcome.into(),
    ];
    if tx.dialect() == Dialect::Sqlite {
        let rows = tx.run(&EPOCH_SQLITE, Vec::new()).await?;
        values.push(rows.first().ok_or_else(no_row)?.int(0)?.into());
    }
    let rows = tx.run(&PUT, values).await?;
    let epoch = match rows.first() {
        Some(row) => row.int_or_null(0)?,
        None => None,
    };
    // Another owner did that without taking the lock; its claim stands, and ours is rolled back.
    epoch.map(|epoch| Epoch(epoch.cast_unsigned())).ok_or(TxError::Lost)
}

/// Keeps until when the keys of remote calls protect, in the transaction that has just written the claim: as
/// [`Codes`] says, in the place of an expiry, and with an effect that an older version holds.
pub(super) async fn keep_safe_until(
    tx: &mut OpenTx<'_, impl Tx>,
    intent: &Intent,
    epoch: Epoch,
    until: StoreTime,
) -> Result<(), TxError> {
    let values = vec![
        intent.id().as_bytes()[..].into(),
        encoding::number(epoch.0).into(),
        encoding::number(until.0.min(encoding::MS_MAX)).into(),
    ];
    let rows = tx.run(&KEEP_SAFE_UNTIL, values).await?;
    let kept = match rows.first() {
        Some(row) => row.int_or_null(0)?,
        None => None,
    };
    kept.filter(|kept| *kept > 0).map(|_| ()).ok_or(TxError::Lost)
}

/// The key of an intent's advisory lock.
pub(super) fn lock_key(intent: &Intent) -> i64 {
    #[cfg(feature = "postgres")]
    return crate::store::postgres::lock::key(&intent.id());
    #[cfg(not(feature = "postgres"))]
    {
        let _ = intent;
        0
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], DriverError> {
    bytes.try_into().map_err(|_| unreadable(format!("stored value has {} bytes, expected {N}", bytes.len())))
}

fn unreadable(why: String) -> DriverError {
    DriverError::of(DriverErrorKind::Unreadable, why)
}

pub(super) fn no_row() -> DriverError {
    unreadable("expected a row, but the query returned none".to_owned())
}
