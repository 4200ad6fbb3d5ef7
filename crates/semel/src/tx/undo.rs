//! `undo_once_tx`: undoes a step once, and refuses it for ever: the barrier of a saga's participant.
//!
//! | what the forward intent is | the undo | the forward intent afterwards |
//! |---|---|---|
//! | done, also if its retention is over but its record is still there | runs its work with the step's value | refused for ever |
//! | absent, or rolled back | runs nothing: [`UndoneAs::NeverHappened`] | refused for ever |
//! | refused | runs nothing: [`UndoneAs::NeverHappened`] | as it was |
//! | at work in another transaction, or under a lease | waits, then one of the above; [`TxError::InFlight`] | as it was |
//! | in doubt | [`TxError::Uncertain`]: nothing is undone that may still happen | as it was |

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::{self, Ask, Claimed, Seen};
use super::driver::{DriverError, OpenTx, Tx};
use super::error::TxError;
use super::once::{TxReply, WAIT, undone};
use super::stored_value::{Kept, Remember};
use crate::crash;
use crate::intent::fingerprint::{Fingerprint, Recipe};
use crate::intent::guard_expiry::KeyWindow;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::State;
use crate::store::protect::Protection;

/// The recipe of a refusal's fingerprint: what the step would have asked for is unknown, so no request differs from it.
const ANY_REQUEST: u64 = 0;

/// The code of the outcome that a step gets which comes after its undo: 410, gone.
const GONE: u16 = 410;

const WHY: &str = "this step was undone; it does not happen any more";

/// What an undo came to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoneAs {
    /// The step had happened, and the work has undone it.
    Undone,
    /// The step never happened, and never will: there was nothing to undo.
    NeverHappened,
}

/// Undoes the step `forward` in the transaction `tx`, once, and refuses it for ever: a request for it that comes late, or
/// twice, has no effect any more. `work` runs if the step happened, with the value that its
/// [`once_tx`](super::once_tx()) returned.
///
/// For the participant of a saga: its undo may come before the step itself, which is still under way or will never come.
/// `forward` is the intent under which the participant runs the step, with the key that the saga has as
/// `at.forward_key()`, and `undo` the intent of the undo, with the undo's own key, `at.key()`. All is one commit: commit on `Ok`, and roll back on an error.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// use semel::tx::{UndoneAs, undo_once_tx};
/// use semel::{Intent, Key, Operation, Scope};
///
/// /// `DELETE /holds`, with the undo's key and the key of the request that made the hold.
/// async fn release(pool: &sqlx::PgPool, key: Key, hold_key: Key) -> Result<UndoneAs, Box<dyn std::error::Error>> {
///     let shop = Scope::tenant("acme")?;
///     let hold = Intent::new(shop.clone(), Operation::new("stock.hold")?, hold_key);
///     let release = Intent::new(shop, Operation::new("stock.release")?, key);
///
///     let mut tx = pool.begin().await?;
///     let undone = undo_once_tx(&mut tx, &hold, &release, async |tx, hold: i64| {
///         sqlx::query("DELETE FROM hold WHERE id = $1").bind(hold).execute(&mut *tx).await.map(drop)
///     })
///     .await?;
///     tx.commit().await?;
///     Ok(undone.value)
/// }
/// # }
/// ```
pub async fn undo_once_tx<X, T, E>(
    tx: &mut X,
    forward: &Intent,
    undo: &Intent,
    work: impl for<'l> AsyncFnOnce(X::Lent<'l>, T) -> Result<(), E>,
) -> Result<TxReply<UndoneAs>, TxError<E>>
where
    X: Tx,
    T: Remember,
{
    UndoOnce::new(forward, undo).run_tx(tx, work).await
}

/// [`undo_once_tx`] with settings.
#[derive(Clone, Debug)]
#[must_use]
pub struct UndoOnce {
    undo: Ask,
    forward: Ask,
    retention: Retention,
    refusal_retention: Retention,
    protection: Protection,
}

impl UndoOnce {
    /// Undoes `forward` under the intent `undo`. The undo's own answer is remembered for a day, the refusal of the step
    /// for ever; the call waits for [`WAIT`].
    pub fn new(forward: &Intent, undo: &Intent) -> Self {
        let ask = |intent: &Intent, fingerprint, effect, barrier| Ask {
            intent: intent.clone(),
            fingerprint,
            owner: Owner::random(),
            effect,
            lease_ms: 0,
            window: KeyWindow::ENDLESS,
            wait: WAIT,
            barrier,
        };
        // The same undo for another step is another request.
        let of = Recipe::default().bytes(forward.id().as_bytes());
        let any = Fingerprint::from_parts(*of.digest(), ANY_REQUEST);
        Self {
            undo: ask(undo, of, Effect::Atomic, false),
            // As one that nothing protects: what may have happened is in doubt, and not refused over.
            forward: ask(forward, any, Effect::Opaque, true),
            retention: Retention::default(),
            refusal_retention: Retention::Forever,
            protection: Protection::none(),
        }
    }

    /// Sets how long the undo's answer is remembered. An undo that comes again after it finds the step refused, and does
    /// nothing.
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.retention = retention.into();
        self
    }

    /// Sets how long the step is refused. After it a request for the step that is still under way would have its effect.
    pub fn refusal_retention(mut self, retention: impl Into<Retention>) -> Self {
        self.refusal_retention = retention.into();
        self
    }

    /// Protects what is stored, and opens the step's value, as [`Once::protect`](super::Once::protect) does.
    pub fn protect(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// Sets how long to wait for the step, or for the same undo, in another transaction.
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.undo.wait, self.forward.wait) = (wait, wait);
        self
    }

    /// See [`undo_once_tx`].
    pub async fn run_tx<X, T, E>(
        self,
        tx: &mut X,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>, T) -> Result<(), E>,
    ) -> Result<TxReply<UndoneAs>, TxError<E>>
    where
        X: Tx,
        T: Remember,
    {
        crash::point(crash::BEFORE_CLAIM);
        let claimed = claim::claim(&mut OpenTx::new(tx)?, &self.undo).await.map_err(TxError::or_work)?;
        let seen = match claimed {
            Claimed::Run(seen) | Claimed::Done(seen, _) => seen,
            Claimed::Replay(verdict, stored) => {
                let stored = Kept::whole(&self.undo.intent).reveal(&self.protection, stored);
                let value = stored.and_then(|outcome| UndoneAs::recall(verdict, outcome));
                return Ok(TxReply { value: value.map_err(TxError::or_work)?, replayed: true });
            }
        };
        let mut barrier = None;
        let forward = claim::claim(&mut OpenTx::new(tx)?, &self.forward).await.and_then(|claimed| {
            if let Claimed::Run(seen) | Claimed::Done(seen, _) = &claimed {
                barrier = Some(*seen);
            }
            self.step::<T>(claimed)
        });
        let forward = match forward {
            Ok(forward) => forward,
            // Nothing is done; the caller's transaction may go on.
            Err(error) => {
                self.give_back(&mut OpenTx::new(tx)?, seen, barrier).await?;
                return Err(error.or_work());
            }
        };
        crash::point(crash::AFTER_CLAIM);
        crash::point(crash::BEFORE_EFFECT);
        let value = match forward {
            Some(value) => {
                if let Err(error) = work(tx.lend(), value).await {
                    let given = async { self.give_back(&mut OpenTx::new(tx)?, seen, barrier).await };
                    return Err(undone(given.await, error));
                }
                UndoneAs::Undone
            }
            None => UndoneAs::NeverHappened,
        };
        crash::point(crash::AFTER_EFFECT);
        self.put(&mut OpenTx::new(tx)?, seen, value, barrier).await.map_err(TxError::or_work)?;
        crash::point(crash::AFTER_FINISH);
        Ok(TxReply { value, replayed: false })
    }

    /// The refusal of the step, and the undo's own answer.
    async fn put(
        self,
        tx: &mut OpenTx<'_, impl Tx>,
        seen: Seen,
        value: UndoneAs,
        barrier: Option<Seen>,
    ) -> Result<(), TxError> {
        let protected = |intent: &Intent, outcome: Outcome| {
            Kept::whole(intent).protect(&self.protection, outcome).map(|outcome| Some(outcome.encode()))
        };
        let answer = value.remember().map_err(|why| TxError::Value { why })?;
        let answer = protected(&self.undo.intent, answer)?;
        crash::point(crash::BEFORE_FINISH);
        if let Some(barrier) = barrier {
            let refusal = protected(&self.forward.intent, Outcome::new(GONE, WHY))?;
            let retention = self.refusal_retention;
            claim::put(tx, &self.forward, barrier, State::FailedFinal, retention, refusal).await?;
        }
        claim::put(tx, &self.undo, seen, State::Completed, self.retention, answer).await.map(drop)
    }

    /// The step's value, if it happened.
    fn step<T: Remember>(&self, claimed: Claimed) -> Result<Option<T>, TxError> {
        match claimed {
            // It never came; or it is refused already, for as long as its record says.
            Claimed::Run(_) | Claimed::Replay(..) => Ok(None),
            Claimed::Done(_, stored) => {
                let outcome = Kept::whole(&self.forward.intent).reveal(&self.protection, stored)?;
                T::recall(Verdict::Completed, outcome).map(Some)
            }
        }
    }

    /// Restores what was there before both claims: a caller may take the error for an answer, and commit.
    async fn give_back(
        &self,
        tx: &mut OpenTx<'_, impl Tx>,
        seen: Seen,
        barrier: Option<Seen>,
    ) -> Result<(), DriverError> {
        if let Some(barrier) = barrier {
            claim::undo(tx, &self.forward, barrier).await?;
        }
        claim::undo(tx, &self.undo, seen).await
    }
}
