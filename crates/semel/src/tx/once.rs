//! `once_tx`: intent, rows and outcome in one commit.

use std::time::Duration;

use super::claim::{self, Ask, Claimed, Seen};
use super::driver::{DriverError, DriverErrorKind, OpenTx, Tx};
use super::error::TxError;
use super::stored_value::{Kept, Remember};
use crate::crash;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::guard_expiry::KeyWindow;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::Outcome;
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::State;
use crate::store::protect::Protection;

/// How long a duplicate waits for the first attempt, unless [`Once::wait`] says otherwise.
pub const WAIT: Duration = Duration::from_secs(3);

/// A value, and whether it is a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxReply<T> {
    /// The value.
    pub value: T,
    /// It was committed before; nothing ran for this call.
    pub replayed: bool,
}

/// Runs `work` in the transaction `tx` unless the intent was committed before; then replays its outcome.
///
/// The outcome is written in `tx` too, so one commit decides about intent, rows and outcome: there is no lease,
/// nothing to be uncertain about, and no second fsync. Commit on `Ok`; on any error roll back, and nothing is kept.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// use semel::intent::fingerprint::Recipe;
/// use semel::tx::once_tx;
/// use semel::{Intent, Key, Operation, Scope};
///
/// async fn pay(pool: &sqlx::PgPool, key: Key, cents: i64) -> Result<i64, Box<dyn std::error::Error>> {
///     let intent = Intent::new(Scope::tenant("acme")?, Operation::new("payment.create")?, key);
///     let asked = Recipe::default().value(&("EUR", cents))?;
///
///     let mut tx = pool.begin().await?;
///     let payment = once_tx(&mut tx, &intent, asked, async |tx| {
///         sqlx::query("UPDATE account SET cents = cents - $1 WHERE id = 7")
///             .bind(cents)
///             .execute(&mut *tx)
///             .await?;
///         sqlx::query_scalar::<_, i64>("INSERT INTO payment (cents) VALUES ($1) RETURNING id")
///             .bind(cents)
///             .fetch_one(&mut *tx)
///             .await
///     })
///     .await?;
///     tx.commit().await?;
///     Ok(payment.value)
/// }
/// # }
/// ```
///
/// Of two transactions with the same intent the second waits until the first has ended, then replays or (after a
/// rollback) runs; see [`Once::wait`]. Remote calls do not belong in `work`: a rollback cannot undo them. Use
/// [`Phases`](super::Phases) for those.
pub async fn once_tx<X, T, E>(
    tx: &mut X,
    intent: &Intent,
    fingerprint: Fingerprint,
    work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<T, E>,
) -> Result<TxReply<T>, TxError<E>>
where
    X: Tx,
    T: Remember,
{
    Once::new(intent, fingerprint).run_tx(tx, work).await
}

/// [`once_tx`] with settings.
#[derive(Clone, Debug)]
#[must_use]
pub struct Once {
    ask: Ask,
    retention: Retention,
    protection: Protection,
}

impl Once {
    /// This intent with this request; remembered for a day, duplicates wait for [`WAIT`].
    pub fn new(intent: &Intent, fingerprint: Fingerprint) -> Self {
        let ask = Ask {
            intent: intent.clone(),
            fingerprint,
            owner: Owner::random(),
            effect: Effect::Atomic,
            lease_ms: 0,
            window: KeyWindow::ENDLESS,
            wait: WAIT,
            barrier: false,
        };
        Self { ask, retention: Retention::default(), protection: Protection::none() }
    }

    /// Sets how long the outcome is remembered.
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.retention = retention.into();
        self
    }

    /// Protects the stored outcome like a [`Protected`](crate::store::protect::Protected) store does, so that both may
    /// use the same records. Without it outcomes are stored in the clear, and sealed ones are an error.
    pub fn protect(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    fn revealed(&self, claimed: Claimed) -> Result<Claimed, TxError> {
        let Claimed::Replay(verdict, stored) = claimed else { return Ok(claimed) };
        Ok(Claimed::Replay(verdict, self.kept().reveal(&self.protection, stored)?))
    }

    fn protected<E>(&self, outcome: Outcome) -> Result<Outcome, TxError<E>> {
        self.kept().protect(&self.protection, outcome).map_err(TxError::or_work)
    }

    fn kept(&self) -> Kept {
        Kept::whole(&self.ask.intent)
    }

    /// Sets how long a duplicate waits for the first attempt before it gets [`TxError::InFlight`]. Zero: not at all.
    ///
    /// A waiting call polls the database with short pauses, and only one call per intent and process does so; the
    /// others wait in memory. The caller's transaction is unharmed.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.ask.wait = wait;
        self
    }

    /// See [`once_tx`].
    pub async fn run_tx<X, T, E>(
        self,
        tx: &mut X,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<T, E>,
    ) -> Result<TxReply<T>, TxError<E>>
    where
        X: Tx,
        T: Remember,
    {
        crash::point(crash::BEFORE_CLAIM);
        let claimed = claim::claim(&mut OpenTx::new(tx)?, &self.ask).await;
        let seen = match begun(claimed.and_then(|claimed| self.revealed(claimed)).map_err(TxError::or_work)?)?
        {
            Begun::Run(seen) => seen,
            Begun::Replay(reply) => return Ok(reply),
        };
        let value = match work(tx.lend()).await {
            Ok(value) => value,
            Err(error) => {
                let undo = async { claim::undo(&mut OpenTx::new(tx)?, &self.ask, seen).await };
                return Err(undone(undo.await, error));
            }
        };
        let outcome = Some(self.protected(ended(&value)?)?.encode());
        let mut tx = OpenTx::new(tx)?;
        let finished = claim::put(&mut tx, &self.ask, seen, State::Completed, self.retention, outcome).await;
        finished.map_err(TxError::or_work)?;
        crash::point(crash::AFTER_FINISH);
        Ok(TxReply { value, replayed: false })
    }
}

/// The error of failed work. A transaction that is gone with its connection has undone everything itself.
pub(super) fn undone<E>(undone: Result<(), DriverError>, error: E) -> TxError<E> {
    match undone {
        Err(undo) if !matches!(undo.kind(), DriverErrorKind::Lost | DriverErrorKind::NoTransaction) => {
            undo.into()
        }
        _ => TxError::Work(error),
    }
}

enum Begun<T> {
    Run(Seen),
    Replay(TxReply<T>),
}

/// Before the work.
fn begun<T: Remember, E>(claimed: Claimed) -> Result<Begun<T>, TxError<E>> {
    match claimed {
        // `Done` is for a barrier only.
        Claimed::Run(seen) | Claimed::Done(seen, _) => {
            crash::point(crash::AFTER_CLAIM);
            crash::point(crash::BEFORE_EFFECT);
            Ok(Begun::Run(seen))
        }
        Claimed::Replay(verdict, outcome) => {
            let value = T::recall(verdict, outcome).map_err(TxError::or_work)?;
            Ok(Begun::Replay(TxReply { value, replayed: true }))
        }
    }
}

/// After the work.
fn ended<T: Remember, E>(value: &T) -> Result<Outcome, TxError<E>> {
    crash::point(crash::AFTER_EFFECT);
    let outcome = value.remember().map_err(|why| TxError::Value { why })?;
    crash::point(crash::BEFORE_FINISH);
    Ok(outcome)
}
