//! One operation with its policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Guard;
use super::lookup::Lookup;
use super::rebuild::Rebuild;
use crate::intent::fingerprint::Recipe;
use crate::intent::guard_expiry::{KeyWindow, SAFE_MARGIN};
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::{Effect, InFlight, KeyFormat, LEASE_MS_MAX, Preset, Retention, StoreDown};
use crate::intent::scope::Scope;
use crate::observe::OperationMetrics;
use crate::store::Store;

/// Shortest lease. With a shorter one a busy machine would lose claims to its own load.
pub const LEASE_MIN: Duration = Duration::from_millis(10);
/// Longest lease: after a crash retries get "in progress" for this long.
pub const LEASE_MAX: Duration = Duration::from_millis(LEASE_MS_MAX);
/// Longest time a duplicate may wait for the first call.
pub const WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// How an operation is guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// What protects the effect.
    pub effect: Effect,
    /// How long outcomes are kept.
    pub retention: Retention,
    /// How long an owner counts as alive without renewing. The lease is renewed every third of this.
    pub lease: Duration,
    /// What a duplicate gets while the first call is in flight.
    pub in_flight: InFlight,
    /// What happens when the store is unavailable.
    pub store_down: StoreDown,
    /// The format of keys.
    pub key_format: KeyFormat,
    /// How long the work may take; after that it is dropped and its result is unknown. `None` is no bound.
    pub timeout: Option<Duration>,
    /// How long the downstream service remembers a key, at least, counted from the first attempt (guard expiry). After
    /// that a retry might have its effect twice, so the intent is uncertain. `None`: it is assumed to remember for ever.
    pub safe_for: Option<Duration>,
    /// Settle delay: how long after an intent became uncertain a lookup's "not found" is trusted.
    pub settle: Duration,
    /// Whether a replay is checked with the authority, where a cache stands in front of it.
    pub verify: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            effect: Effect::Opaque,
            retention: Retention::DAY,
            lease: Duration::from_secs(30),
            in_flight: InFlight::Reject,
            store_down: StoreDown::Closed,
            key_format: KeyFormat::Any,
            timeout: None,
            safe_for: None,
            settle: Duration::from_secs(10),
            verify: false,
        }
    }
}

/// An invalid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// See [`LEASE_MIN`] and [`LEASE_MAX`].
    #[error("a lease of {0:?} is not between {LEASE_MIN:?} and {LEASE_MAX:?}")]
    Lease(Duration),
    /// See [`WAIT_MAX`].
    #[error("an in-flight wait of {0:?} is longer than the maximum of {WAIT_MAX:?}")]
    Wait(Duration),
    /// Nothing would be kept.
    #[error("a retention of nothing would let every retry run again")]
    Retention,
    /// Only a keyed effect has a key that somebody remembers.
    #[error(
        "safe_for says how long the other side remembers the key of a keyed effect; set Effect::Keyed first"
    )]
    SafeForEffect,
    /// Without a bound, work that began in time may send its call too late.
    #[error("safe_for needs a bound on how long the work takes; set the timeout first")]
    SafeForTimeout,
    /// No retry would ever be made.
    #[error(
        "a safe_for of {safe_for:?} leaves no time for a retry: the work may take {timeout:?}, and {SAFE_MARGIN:?} \
         are kept as a margin"
    )]
    SafeForShort {
        /// How long the key is remembered.
        safe_for: Duration,
        /// How long the work may take.
        timeout: Duration,
    },
    /// A guard does not write its records in the transaction of your rows.
    #[error(
        "Effect::Atomic needs the claim and your rows in one transaction; use once_tx, or another effect"
    )]
    Atomic,
}

impl Policy {
    /// Validates the policy.
    pub fn check(&self) -> Result<(), PolicyError> {
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return Err(PolicyError::Lease(self.lease));
        }
        if let InFlight::Wait(wait) = self.in_flight
            && wait > WAIT_MAX
        {
            return Err(PolicyError::Wait(wait));
        }
        if self.retention == Retention::Ms(0) {
            return Err(PolicyError::Retention);
        }
        if self.effect == Effect::Atomic {
            return Err(PolicyError::Atomic);
        }
        if let Some(safe_for) = self.safe_for {
            if self.effect != Effect::Keyed {
                return Err(PolicyError::SafeForEffect);
            }
            let Some(timeout) = self.timeout else { return Err(PolicyError::SafeForTimeout) };
            if safe_for <= timeout.saturating_add(SAFE_MARGIN) {
                return Err(PolicyError::SafeForShort { safe_for, timeout });
            }
        }
        Ok(())
    }

    /// How long a key protects. Work without a bound is taken to end with its lease.
    pub(crate) fn window(&self) -> KeyWindow {
        KeyWindow::new(self.safe_for, self.timeout.unwrap_or(self.lease))
    }
}

/// A guarded operation: runs work once per key. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use semel::{Effect, Guard, InFlight, Preset, store::memory::MemoryStore};
///
/// let refunds = Guard::new(MemoryStore::new())
///     .operation("payment.refund")?
///     .preset(Preset::Payment)
///     .effect(Effect::Keyed)?
///     .in_flight(InFlight::Wait(Duration::from_secs(2)))?;
/// # let _ = refunds; Ok(()) }
/// ```
pub struct Guarded<S> {
    pub(crate) of: Arc<Of<S>>,
}

/// The parts of a [`Guarded`], shared by its clones: every run holds one.
pub(crate) struct Of<S> {
    pub(super) guard: Guard<S>,
    pub(crate) operation: Operation,
    pub(crate) policy: Policy,
    pub(super) recipe: Recipe,
    pub(crate) lookup: Option<Arc<dyn Lookup>>,
    pub(crate) rebuild: Option<Arc<dyn Rebuild>>,
    pub(crate) metrics: OperationMetrics,
    /// The work runs in its caller's task until the caller is dropped.
    pub(super) attached: bool,
    /// That its keys are taken to protect for ever was said.
    endless_key_said: Arc<AtomicBool>,
}

impl<S> Clone for Guarded<S> {
    fn clone(&self) -> Self {
        Self { of: Arc::clone(&self.of) }
    }
}

impl<S> Clone for Of<S> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            operation: self.operation.clone(),
            policy: self.policy,
            recipe: self.recipe.clone(),
            lookup: self.lookup.clone(),
            rebuild: self.rebuild.clone(),
            metrics: self.metrics.clone(),
            attached: self.attached,
            endless_key_said: Arc::clone(&self.endless_key_said),
        }
    }
}

impl<S: Store> Guarded<S> {
    pub(crate) fn new(guard: Guard<S>, operation: Operation) -> Self {
        let metrics = guard.inner.metrics.operation(&operation);
        let (policy, recipe) = (Policy::default(), Recipe::default());
        let (lookup, rebuild, attached) = (None, None, false);
        let endless_key_said = Arc::default();
        let of =
            Of { guard, operation, policy, recipe, lookup, rebuild, metrics, attached, endless_key_said };
        Self { of: Arc::new(of) }
    }

    fn with(mut self, set: impl FnOnce(&mut Of<S>)) -> Self {
        set(Arc::make_mut(&mut self.of));
        self
    }

    /// Replaces the whole policy.
    pub fn policy(self, policy: Policy) -> Result<Self, PolicyError> {
        policy.check()?;
        Ok(self.with(|of| of.policy = policy))
    }

    /// Sets what protects the effect.
    pub fn effect(self, effect: Effect) -> Result<Self, PolicyError> {
        let policy = Policy { effect, ..self.of.policy };
        self.policy(policy)
    }

    /// Sets how long outcomes are kept.
    pub fn retention(self, retention: impl Into<Retention>) -> Result<Self, PolicyError> {
        let policy = Policy { retention: retention.into(), ..self.of.policy };
        self.policy(policy)
    }

    /// Sets the defaults for a kind of work: its retention, and for payments [`verify`](Self::verify).
    pub fn preset(self, preset: Preset) -> Self {
        self.with(|of| {
            of.policy.retention = preset.retention();
            of.policy.verify = preset.verify();
        })
    }

    /// Sets whether a replay is checked with the authority, where a cache stands in front of it (see
    /// [`tiered`](crate::store)). Other stores are their own authority.
    pub fn verify(self, verify: bool) -> Self {
        self.with(|of| of.policy.verify = verify)
    }

    /// Sets how long an owner counts as alive without renewing.
    pub fn lease(self, lease: Duration) -> Result<Self, PolicyError> {
        let policy = Policy { lease, ..self.of.policy };
        self.policy(policy)
    }

    /// Sets what a duplicate gets while the first call is in flight.
    pub fn in_flight(self, in_flight: InFlight) -> Result<Self, PolicyError> {
        let policy = Policy { in_flight, ..self.of.policy };
        self.policy(policy)
    }

    /// Sets what happens when the store is unavailable.
    pub fn store_down(self, store_down: StoreDown) -> Self {
        self.with(|of| of.policy.store_down = store_down)
    }

    /// Sets the format of keys, so that late retries are refused instead of run.
    pub fn key_format(self, key_format: KeyFormat) -> Self {
        self.with(|of| of.policy.key_format = key_format)
    }

    /// Limits how long the work may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|of| of.policy.timeout = Some(timeout))
    }

    /// Sets how long the downstream service remembers a key, at least, counted from the first attempt: 24 hours at many.
    /// A retry that might end later is not made; the intent is then uncertain, to be looked up or decided. The effect has
    /// to be keyed, and the work bounded by a [`timeout`](Self::timeout) that was set before. An intent that failed
    /// retryably is kept until then, whatever the retention.
    ///
    /// The downstream is assumed to count from when it first sees the key, whatever became of that attempt: so "not
    /// applied" (of a lookup or a person) keeps a time that is still ahead, and begins a new one only after it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use semel::{Effect, Guard, store::memory::MemoryStore};
    ///
    /// let charge = Guard::new(MemoryStore::new())
    ///     .operation("card.charge")?
    ///     .effect(Effect::Keyed)?
    ///     .timeout(Duration::from_secs(10))
    ///     .safe_for(Duration::from_secs(24 * 60 * 60))?;
    /// # let _ = charge; Ok(()) }
    /// ```
    pub fn safe_for(self, safe_for: Duration) -> Result<Self, PolicyError> {
        let policy = Policy { safe_for: Some(safe_for), ..self.of.policy };
        self.policy(policy)
    }

    /// Sets how uncertain intents are looked up, and the settle delay after which "not found" is trusted. The delay
    /// must be longer than the time a sent call may still be on its way plus the time the store's clock may jump
    /// ahead. Opaque work that loses its claim (its lease could not be renewed) is dropped at that moment, so that
    /// it sends nothing more; only a process that is paused in the very act of sending still can.
    pub fn lookup(self, lookup: impl Lookup, settle: Duration) -> Self {
        self.with(|of| {
            of.lookup = Some(Arc::new(lookup));
            of.policy.settle = settle;
        })
    }

    /// Stores only the status and a reference to the result, and rebuilds the answer for later callers.
    pub fn minimal(self, rebuild: impl Rebuild) -> Self {
        self.rebuilt_by(Some(Arc::new(rebuild)))
    }

    pub(crate) fn rebuilt_by(self, rebuild: Option<Arc<dyn Rebuild>>) -> Self {
        self.with(|of| of.rebuild = rebuild)
    }

    /// Sets what the fingerprint covers.
    pub fn recipe(self, recipe: Recipe) -> Self {
        self.with(|of| of.recipe = recipe)
    }

    /// Runs the work in the caller's task, which saves the hop to another one. Only for callers that poll until they
    /// have their answer or are dropped: one that holds the future without polling it lets the lease expire.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn attached(self) -> Self {
        self.with(|of| of.attached = true)
    }

    /// The intent of this operation for a scope and a key.
    pub fn intent(&self, scope: &Scope, key: &Key) -> Intent {
        Intent::new(scope.clone(), self.of.operation.clone(), key.clone())
    }

    /// Says once that retries are made however late, because no setting says how long the key is remembered.
    pub(crate) fn say_endless_key(&self) {
        let Policy { effect, safe_for, .. } = self.of.policy;
        if effect == Effect::Keyed
            && safe_for.is_none()
            && !self.of.endless_key_said.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                operation = self.of.operation.as_str(),
                "the effect is keyed and no safe_for is set: retries are made however late, although the other side \
                 may have forgotten the key by then"
            );
        }
    }

    /// The guard it belongs to.
    pub fn guard(&self) -> &Guard<S> {
        &self.of.guard
    }

    /// The operation's name, as intents carry it.
    pub fn name(&self) -> &Operation {
        &self.of.operation
    }
}

impl<S> std::fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded")
            .field("operation", &self.of.operation)
            .field("policy", &self.of.policy)
            .finish_non_exhaustive()
    }
}
