//! Recovery points: an operation split into atomic phases around remote calls.
//!
//! Each phase is a transaction of the caller's and commits its result with the position. A retry, here or in
//! another process, resumes after the last one that was committed. Between two phases there is room for a remote
//! call, under a key of its own ([`PhaseRun::child`]) that is the same on every retry.

use std::time::Duration;

use bytes::Bytes;

use super::claim::{self, Ask, Claimed};
use super::driver::{OpenTx, Tx};
use super::error::TxError;
use super::once::TxReply;
use super::stored_value::{Kept, Remember};
use crate::crash;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::guard_expiry::{KeyWindow, SAFE_MARGIN};
use crate::intent::identity::{Epoch, Intent, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, LEASE_MS_MAX, Retention, millis};
use crate::intent::state::State;
use crate::store::protect::Protection;

mod on_mysql;
mod steps;

/// Most phases an operation may have.
pub const PHASES_MAX: usize = 64;
/// Longest name of a phase in bytes.
pub const PHASE_BYTES_MAX: usize = 100;
/// The lease of an owner after each phase, unless [`Phases::lease`] says otherwise.
pub const LEASE: Duration = Duration::from_secs(30);

/// Why a list of phase names is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid phases: {why}; use 1 to {PHASES_MAX} different names of 1 to {PHASE_BYTES_MAX} letters, digits, \
     '.', '-' or '_'"
)]
pub struct PhasesError {
    why: String,
}

/// An operation in phases.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// # async fn charge(key: semel::Key, cents: i64) -> Result<String, std::io::Error> { Ok(String::new()) }
/// use semel::tx::{Phases, Started};
///
/// async fn order(
///     pool: &sqlx::PgPool,
///     intent: &semel::Intent,
///     asked: semel::intent::fingerprint::Fingerprint,
/// ) -> Result<String, Box<dyn std::error::Error>> {
///     let phases = Phases::new(intent, asked, &["reserve", "charge"])?;
///
///     // The start and the first phase may share a transaction.
///     let mut tx = pool.begin().await?;
///     let mut run = match phases.start_tx(&mut tx).await? {
///         Started::Run(run) => run,
///         Started::Replay(receipt) => return Ok(receipt),
///     };
///     run.phase_tx(&mut tx, "reserve", async |tx| {
///         sqlx::query("UPDATE stock SET left = left - 1").execute(&mut *tx).await?;
///         Ok::<_, sqlx::Error>(())
///     })
///     .await?;
///     tx.commit().await?;
///
///     // Under the same key on every retry: the provider charges once.
///     let receipt = charge(run.child("charge"), 4200).await?;
///
///     let mut tx = pool.begin().await?;
///     let paid = run.phase_tx(&mut tx, "charge", async |tx| {
///         sqlx::query("INSERT INTO payment (receipt) VALUES ($1)").bind(&receipt).execute(&mut *tx).await?;
///         Ok::<_, sqlx::Error>(receipt)
///     });
///     let paid = paid.await?;
///     tx.commit().await?;
///     Ok(paid.value)
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Phases {
    ask: Ask,
    names: Vec<String>,
    retention: Retention,
    changes: bool,
    protection: Protection,
}

/// The result of a start.
#[derive(Debug)]
pub enum Started<T> {
    /// Claimed: run it from [`PhaseRun::next`] on.
    Run(PhaseRun),
    /// It ended before, with this value.
    Replay(T),
}

impl Phases {
    /// An intent in these phases, in this order. The list may not change while operations are in flight.
    pub fn new(intent: &Intent, fingerprint: Fingerprint, names: &[&str]) -> Result<Self, PhasesError> {
        let wrong = |why: &str| Err(PhasesError { why: why.to_owned() });
        if names.is_empty() || names.len() > PHASES_MAX {
            return wrong(&format!("got {}", names.len()));
        }
        for (at, name) in names.iter().enumerate() {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            if name.is_empty() || name.len() > PHASE_BYTES_MAX || !name.bytes().all(plain) {
                return wrong(&format!("{name:?}"));
            }
            if names[..at].contains(name) {
                return wrong(&format!("{name:?} is listed twice"));
            }
        }
        let ask = Ask {
            intent: intent.clone(),
            fingerprint,
            owner: Owner::random(),
            // Remote calls in between carry their own keys: after a crash it may go on at once.
            effect: Effect::Keyed,
            lease_ms: millis(LEASE),
            window: KeyWindow::ENDLESS,
            wait: Duration::ZERO,
            barrier: false,
        };
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let (retention, protection) = (Retention::default(), Protection::none());
        Ok(Self { ask, names, retention, changes: false, protection })
    }

    /// Sets how long the outcome is remembered.
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.retention = retention.into();
        self
    }

    /// Protects the stored results of all phases, as [`Once::protect`](super::Once::protect) does an outcome. The
    /// last one is the outcome of the whole operation. If a sealed result cannot be opened, the start fails and takes
    /// over nothing.
    pub fn protect(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// Sets the lease after the start and after each phase: longer than any remote call takes, and at most a day.
    /// After that another process may take over; the first owner is then fenced, however long it lives.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.ask.lease_ms = millis(lease).min(LEASE_MS_MAX);
        self
    }

    /// Sets how long the services that the remote calls go to remember a key, at least, counted from the first start.
    /// A start that might repeat a call later than that is [`TxError::Uncertain`]: look up what happened, and decide the
    /// intent (`semel resolve`). Without it, a start long after the first one repeats a call under a key that may have
    /// been forgotten. No call may take longer than the [lease](Self::lease).
    pub fn safe_for(mut self, safe_for: Duration) -> Self {
        self.ask.window.safe_for_ms = Some(millis(safe_for));
        self
    }

    /// Sets how long to wait for another owner. Without it there is no wait: a waiter holds a transaction and its
    /// connection, and the owner may need that very connection for its next phase.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.ask.wait = wait;
        self
    }

    /// Lets an operation in flight go on with a list that differs in phases that are not done yet. Phases that are
    /// done have to match in any case.
    pub fn accept_changes_to_come(mut self) -> Self {
        self.changes = true;
        self
    }

    /// Claims the operation in `tx`, or replays its outcome. Commit before the first remote call.
    pub async fn start_tx<X, T>(&self, tx: &mut X) -> Result<Started<T>, TxError>
    where
        X: Tx,
        T: Remember,
    {
        self.clone().start(&mut OpenTx::new(tx)?, self.with_new_owner()).await?.recalled()
    }

    /// Each start is a new attempt: two with one owner token would both believe the claim theirs.
    fn with_new_owner(&self) -> Ask {
        let call_ms = self.ask.lease_ms.saturating_add(millis(SAFE_MARGIN));
        let window = KeyWindow { call_ms, ..self.ask.window };
        Ask { owner: Owner::random(), window, ..self.ask.clone() }
    }

    async fn start(self, tx: &mut OpenTx<'_, impl Tx>, ask: Ask) -> Result<Begun, TxError> {
        crash::point(crash::BEFORE_CLAIM);
        let seen = match claim::claim(tx, &ask).await? {
            Claimed::Replay(verdict, stored) => {
                let outcome = Kept::whole(&ask.intent).reveal(&self.protection, stored)?;
                return Ok(Begun::Ended(verdict, outcome));
            }
            // Phases are no barrier: they get a replay instead.
            Claimed::Run(seen) | Claimed::Done(seen, _) => seen,
        };
        let done = steps::done(tx, &ask.intent, seen.is_takeover()).await?;
        self.check(&done)?;
        let done = self.names.iter().zip(done).map(|(name, phase)| {
            Kept::phase(&ask.intent, name).reveal(&self.protection, decoded(phase.outcome)?)
        });
        let done = done.collect::<Result<_, TxError>>()?;
        let epoch = claim::put(tx, &ask, seen, State::InProgress, self.retention, None).await?;
        if let Some(until) = seen.safe_until() {
            claim::keep_safe_until(tx, &ask.intent, epoch, until).await?;
        }
        crash::point(crash::AFTER_CLAIM);
        let (names, retention, protection) = (self.names, self.retention, Box::new(self.protection));
        Ok(Begun::Run(PhaseRun { ask, names, retention, protection, epoch, done }))
    }

    /// A deploy may have changed the list while the operation was in flight.
    fn check(&self, done: &[steps::Done]) -> Result<(), TxError> {
        let Some(last) = done.last() else { return Ok(()) };
        let now = self.names.join(",");
        let same = if self.changes {
            let begun: Vec<&str> = last.plan.split(',').collect();
            begun.len() >= done.len()
                && self.names.len() >= done.len()
                && begun[..done.len()] == self.names[..done.len()]
        } else {
            last.plan == now
        };
        if same { Ok(()) } else { Err(TxError::PhasesChanged { begun: last.plan.clone(), now }) }
    }
}

enum Begun {
    Run(PhaseRun),
    Ended(Verdict, Outcome),
}

impl Begun {
    fn recalled<T: Remember>(self) -> Result<Started<T>, TxError> {
        match self {
            Self::Run(run) => Ok(Started::Run(run)),
            Self::Ended(verdict, outcome) => T::recall(verdict, outcome).map(Started::Replay),
        }
    }
}

/// An operation in flight, claimed by this process.
#[derive(Debug)]
pub struct PhaseRun {
    ask: Ask,
    names: Vec<String>,
    retention: Retention,
    /// Boxed: a run travels in [`Started`], beside small values.
    protection: Box<Protection>,
    epoch: Epoch,
    /// Outcomes that were committed when we started.
    done: Vec<Outcome>,
}

impl PhaseRun {
    /// The intent.
    pub fn intent(&self) -> &Intent {
        &self.ask.intent
    }

    /// The key for the remote call of one phase: the same on every retry, in every process.
    pub fn child(&self, phase: &str) -> Key {
        self.ask.intent.child(phase)
    }

    /// The first phase that was not committed when this run started.
    pub fn next(&self) -> &str {
        // A run with all phases done is ended, so there is one; the first name is only for the compiler.
        self.names.get(self.done.len()).map_or(&self.names[0], |name| name)
    }

    /// The value of a phase that was committed before this run started: its remote call need not be made.
    pub fn recall<T: Remember>(&self, phase: &str) -> Result<Option<T>, TxError> {
        let position = self.position(phase)?;
        self.done.get(position).map(|outcome| T::recall(Verdict::Completed, outcome.clone())).transpose()
    }

    /// Runs one phase in `tx`, or replays its value if it was committed before. The last phase of the list ends the
    /// operation; its value is what every later start replays.
    ///
    /// [`TxError::Lost`]: another process has taken over, or an earlier phase of this run was not committed. Roll
    /// back, and start again.
    pub async fn phase_tx<X, T, E>(
        &mut self,
        tx: &mut X,
        phase: &str,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<T, E>,
    ) -> Result<TxReply<T>, TxError<E>>
    where
        X: Tx,
        T: Remember,
    {
        let (position, attempt) = (self.position(phase).map_err(TxError::or_work)?, Owner::random());
        let before = steps::before(&mut OpenTx::new(tx)?, &self.ask, self.epoch, position, attempt).await;
        if let Some(stored) = before.map_err(TxError::or_work)? {
            let value = self.recalled(position, stored).map_err(TxError::or_work)?;
            return Ok(TxReply { value, replayed: true });
        }
        crash::point(crash::BEFORE_EFFECT);
        let value = work(tx.lend()).await.map_err(TxError::Work)?;
        let after = self.after(position, attempt, &value).map_err(TxError::or_work)?;
        steps::after(&mut OpenTx::new(tx)?, after).await.map_err(TxError::or_work)?;
        crash::point(crash::AFTER_FINISH);
        Ok(TxReply { value, replayed: false })
    }

    fn position(&self, phase: &str) -> Result<usize, TxError> {
        self.names.iter().position(|name| name == phase).ok_or_else(|| {
            let why = format!("{phase:?} is not one of the phases {}", self.names.join(","));
            TxError::Value { why }
        })
    }

    fn after<T: Remember>(
        &self,
        position: usize,
        attempt: Owner,
        value: &T,
    ) -> Result<steps::After, TxError> {
        crash::point(crash::AFTER_EFFECT);
        let outcome = value.remember().map_err(|why| TxError::Value { why })?;
        let outcome = self.kept(position).protect(&self.protection, outcome)?.encode();
        crash::point(crash::BEFORE_FINISH);
        Ok(steps::After {
            id: self.ask.intent.id(),
            epoch: self.epoch,
            position,
            attempt,
            last: position + 1 == self.names.len(),
            plan: self.names.join(","),
            retention: self.retention,
            outcome,
        })
    }

    /// The last one is the outcome of the whole operation, which others read too.
    fn kept(&self, position: usize) -> Kept {
        match self.names.get(position) {
            Some(name) if position + 1 < self.names.len() => Kept::phase(&self.ask.intent, name),
            _ => Kept::whole(&self.ask.intent),
        }
    }

    fn recalled<T: Remember>(&self, position: usize, stored: Bytes) -> Result<T, TxError> {
        // A result stored among the phases was not the last one when it was stored.
        let name = self.names.get(position).map_or("", String::as_str);
        let kept = Kept::phase(&self.ask.intent, name);
        let outcome = kept.reveal(&self.protection, decoded(stored)?)?;
        T::recall(Verdict::Completed, outcome)
    }
}

fn decoded(stored: Bytes) -> Result<Outcome, TxError> {
    Outcome::decode(stored).map_err(|error| TxError::Value { why: error.to_string() })
}
