//! One operation with its policy.

use std::sync::Arc;
use std::time::Duration;

use super::Guard;
use super::lookup::Lookup;
use super::rebuild::Rebuild;
use crate::intent::fingerprint::Recipe;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::{Effect, InFlight, KeyFormat, LEASE_MS_MAX, Preset, Retention, StoreDown};
use crate::intent::scope::Scope;
use crate::observe::OperationMetrics;
use crate::store::Store;

/// Shortest lease. Below it a busy machine loses claims by being busy.
pub const LEASE_MIN: Duration = Duration::from_millis(10);
/// Longest lease: after a crash that is how long a retry is told "in progress".
pub const LEASE_MAX: Duration = Duration::from_millis(LEASE_MS_MAX);
/// Longest a duplicate may wait for the first.
pub const WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// How an operation is guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// What protects the effect.
    pub effect: Effect,
    /// How long outcomes are remembered.
    pub retention: Retention,
    /// How long an owner is believed alive without renewing. It is renewed at a third of this.
    pub lease: Duration,
    /// What a duplicate gets while the first is at it.
    pub in_flight: InFlight,
    /// What happens when the store cannot be asked.
    pub store_down: StoreDown,
    /// What keys look like.
    pub key_format: KeyFormat,
    /// How long the work may take; it is dropped after that and its fate is unknown. `None` is no bound.
    pub timeout: Option<Duration>,
    /// How long after an intent became uncertain a lookup may be believed when it finds nothing.
    pub settle: Duration,
    /// Whether the authority is asked before a replay, where a cache stands in front of it.
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
            settle: Duration::from_secs(10),
            verify: false,
        }
    }
}

/// A policy that cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// See [`LEASE_MIN`] and [`LEASE_MAX`].
    #[error("a lease of {0:?} is not between {LEASE_MIN:?} and {LEASE_MAX:?}")]
    Lease(Duration),
    /// See [`WAIT_MAX`].
    #[error("waiting {0:?} for a duplicate is more than {WAIT_MAX:?}")]
    Wait(Duration),
    /// Nothing would be remembered.
    #[error("a retention of nothing would let every retry run again")]
    Retention,
    /// The guard keeps its records apart from your rows.
    #[error(
        "effect = atomic needs claim and rows in one transaction; a guard around a function cannot give that"
    )]
    Atomic,
}

impl Policy {
    /// Whether it can hold.
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
        Ok(())
    }
}

/// One operation, ready to run things once. Cheap to clone.
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

/// What a [`Guarded`] is made of, shared by its clones: every run takes one along.
pub(crate) struct Of<S> {
    pub(super) guard: Guard<S>,
    pub(crate) operation: Operation,
    pub(crate) policy: Policy,
    pub(super) recipe: Recipe,
    pub(crate) lookup: Option<Arc<dyn Lookup>>,
    pub(crate) rebuild: Option<Arc<dyn Rebuild>>,
    pub(crate) metrics: OperationMetrics,
    /// The work runs in its caller's task for as long as there is one.
    pub(super) attached: bool,
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
        }
    }
}

impl<S: Store> Guarded<S> {
    pub(crate) fn new(guard: Guard<S>, operation: Operation) -> Self {
        let metrics = guard.inner.metrics.operation(&operation);
        let (policy, recipe) = (Policy::default(), Recipe::default());
        let of =
            Of { guard, operation, policy, recipe, lookup: None, rebuild: None, metrics, attached: false };
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

    /// Says what protects the effect.
    pub fn effect(self, effect: Effect) -> Result<Self, PolicyError> {
        let policy = Policy { effect, ..self.of.policy };
        self.policy(policy)
    }

    /// Says how long outcomes are remembered.
    pub fn retention(self, retention: impl Into<Retention>) -> Result<Self, PolicyError> {
        let policy = Policy { retention: retention.into(), ..self.of.policy };
        self.policy(policy)
    }

    /// Takes what fits a kind of work: its retention, and for payments [`verify`](Self::verify).
    pub fn preset(self, preset: Preset) -> Self {
        self.with(|of| {
            of.policy.retention = preset.retention();
            of.policy.verify = preset.verify();
        })
    }

    /// Says whether the authority is asked before a replay, where a cache stands in front of it (see
    /// [`tiered`](crate::store)). Other stores are their own authority.
    pub fn verify(self, verify: bool) -> Self {
        self.with(|of| of.policy.verify = verify)
    }

    /// Says how long an owner is believed alive without renewing.
    pub fn lease(self, lease: Duration) -> Result<Self, PolicyError> {
        let policy = Policy { lease, ..self.of.policy };
        self.policy(policy)
    }

    /// Says what a duplicate gets while the first is at it.
    pub fn in_flight(self, in_flight: InFlight) -> Result<Self, PolicyError> {
        let policy = Policy { in_flight, ..self.of.policy };
        self.policy(policy)
    }

    /// Says what happens when the store cannot be asked.
    pub fn store_down(self, store_down: StoreDown) -> Self {
        self.with(|of| of.policy.store_down = store_down)
    }

    /// Says what keys look like, so that late retries are refused instead of run.
    pub fn key_format(self, key_format: KeyFormat) -> Self {
        self.with(|of| of.policy.key_format = key_format)
    }

    /// Bounds the work itself.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|of| of.policy.timeout = Some(timeout))
    }

    /// Says how uncertain intents are looked up, and how long after they became uncertain "not found" may
    /// be believed: longer than a call that was sent may still be on its way and the store's clock may jump ahead, both
    /// together. Opaque work whose claim is lost (its lease could not be renewed) is dropped at that moment, so that
    /// it sends nothing any more; only a process that stands still in the very act of sending can.
    pub fn lookup(self, lookup: impl Lookup, settle: Duration) -> Self {
        self.with(|of| {
            of.lookup = Some(Arc::new(lookup));
            of.policy.settle = settle;
        })
    }

    /// Keeps only the status and what names the result, and makes the answer again for later callers.
    pub fn minimal(self, rebuild: impl Rebuild) -> Self {
        self.rebuilt_by(Some(Arc::new(rebuild)))
    }

    pub(crate) fn rebuilt_by(self, rebuild: Option<Arc<dyn Rebuild>>) -> Self {
        self.with(|of| of.rebuild = rebuild)
    }

    /// Says what belongs to the fingerprint.
    pub fn recipe(self, recipe: Recipe) -> Self {
        self.with(|of| of.recipe = recipe)
    }

    /// For callers that go on polling until they have their answer or are dropped: saves the hop to a task of
    /// the work's own. A caller that holds the future without polling it would let the lease run out.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn attached(self) -> Self {
        self.with(|of| of.attached = true)
    }

    /// Names an intent of this operation.
    pub fn intent(&self, scope: &Scope, key: &Key) -> Intent {
        Intent::new(scope.clone(), self.of.operation.clone(), key.clone())
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
