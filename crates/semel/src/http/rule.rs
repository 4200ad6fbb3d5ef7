//! The settings of one operation in the HTTP layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::response::Parts;

use super::failure::{Failures, On5xx};
use crate::guard::{Lookup, Policy, Rebuild, WorkResult};
use crate::intent::fingerprint::Recipe;
use crate::intent::policy::{Effect, InFlight, KeyFormat, Preset, Retention, StoreDown};

/// How much of a request's body is read by default; more is a 413.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// How much of a response's body is stored by default; more leaves "done, body not kept".
pub const RESPONSE_BYTES_MAX: usize = 256 << 10;
/// How long reading a response's body may take by default; one that takes longer is treated as a stream.
pub const RESPONSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Whether requests of an operation carry a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyRule {
    /// A request without one is refused.
    Required,
    /// A request without one passes through, unguarded.
    Optional,
    /// Keys are ignored; requests pass through, unguarded.
    Ignored,
}

/// The settings of one operation: which requests belong to it, whether they need a key, how they are guarded.
///
/// ```
/// use std::time::Duration;
/// use semel::http::{On5xx, Rule};
/// use semel::{Effect, InFlight, Preset};
///
/// let rule = Rule::on("POST /payments")
///     .name("payment.create")
///     .preset(Preset::Payment)
///     .effect(Effect::Keyed)
///     .in_flight(InFlight::Wait(Duration::from_secs(2)))
///     .key_bytes_min(16);
/// # let _ = rule;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rule {
    pub(super) route: Option<String>,
    pub(super) name: Option<String>,
    pub(super) key: KeyRule,
    pub(super) key_bytes_min: usize,
    pub(super) policy: Policy,
    pub(super) recipe: Recipe,
    pub(super) lookup: Option<Arc<dyn Lookup>>,
    pub(super) rebuild: Option<Arc<dyn Rebuild>>,
    pub(super) accept: bool,
    pub(super) respond_async_after: Option<Duration>,
    pub(super) failures: Failures,
    pub(super) body_bytes_max: usize,
    pub(super) response_bytes_max: usize,
    pub(super) response_time_max: Duration,
    pub(super) replay_headers: Vec<HeaderName>,
}

impl Rule {
    /// The requests of one route, such as `POST /payments/{id}/refund`. They need a key unless [`key`](Self::key) says
    /// otherwise. Of several rules that match, the first one applies.
    pub fn on(route: &str) -> Self {
        Self { route: Some(route.to_owned()), key: KeyRule::Required, ..Self::default_rule() }
    }

    /// Requests that no other rule matches. A key is optional.
    pub fn default_rule() -> Self {
        Self {
            route: None,
            name: None,
            key: KeyRule::Optional,
            key_bytes_min: 0,
            policy: Policy::default(),
            recipe: Recipe::default(),
            lookup: None,
            rebuild: None,
            accept: false,
            respond_async_after: None,
            failures: Failures::ByStatus(On5xx::default()),
            body_bytes_max: BODY_BYTES_MAX,
            response_bytes_max: RESPONSE_BYTES_MAX,
            response_time_max: RESPONSE_TIME_MAX,
            replay_headers: Vec::new(),
        }
    }

    /// Names the operation. The name is part of the identity, so set one if the route may be spelled differently one
    /// day; without it the operation is named after its method and template.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets whether a key is required. On the [`default_rule`](Self::default_rule) `Required` applies to POST and PATCH
    /// only: PUT and DELETE are idempotent by themselves, and guarded when a key is sent.
    pub fn key(mut self, key: KeyRule) -> Self {
        self.key = key;
        self
    }

    /// Refuses keys shorter than this: short ones collide, and can be guessed.
    pub fn key_bytes_min(mut self, key_bytes_min: usize) -> Self {
        self.key_bytes_min = key_bytes_min;
        self
    }

    /// Replaces the whole policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the defaults for a kind of work: its retention, and for payments [`On5xx::Hold`] and
    /// [`verify`](Self::verify).
    pub fn preset(mut self, preset: Preset) -> Self {
        self.policy.retention = preset.retention();
        self.policy.verify = preset.verify();
        if preset == Preset::Payment { self.on_5xx(On5xx::Hold) } else { self }
    }

    /// Sets what protects the effect.
    ///
    /// [`Effect::Atomic`] makes the layer only read: it refuses a mismatch and replays what is finished, and
    /// otherwise calls the handler, which claims and finishes inside its own transaction with
    /// `ClaimHandle::once_tx` of its [`ClaimHandle`](super::ClaimHandle). The handler's commit stores the outcome, so a
    /// crash before it leaves nothing behind and one after it is replayed. Settings that do nothing there
    /// ([`respond_accepted`](Self::respond_accepted), [`respond_async_after`](Self::respond_async_after),
    /// [`lookup`](Self::lookup), [`failures`](Self::failures)) are refused when the layer is built;
    /// [`on_5xx`](Self::on_5xx) is ignored, because what the handler commits is the outcome, whatever its status. A
    /// handler that takes longer than [`timeout`](Self::timeout) is dropped, and its transaction with it.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.policy.effect = effect;
        self
    }

    /// Sets how long outcomes are kept.
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.policy.retention = retention.into();
        self
    }

    /// Sets how long an owner counts as alive without renewing.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// Sets what a duplicate gets while the first request is in flight: "in progress", or the outcome if it comes in
    /// time.
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.policy.in_flight = in_flight;
        self
    }

    /// Answers "in progress" with 202 and the URL of a status resource, instead of 409. The builder needs
    /// [`status_path`](super::Builder::status_path) for that.
    pub fn respond_accepted(mut self) -> Self {
        self.accept = true;
        self
    }

    /// Answers the first request with 202, too, when its work takes longer than this; the work goes on.
    pub fn respond_async_after(mut self, after: Duration) -> Self {
        self.respond_async_after = Some(after);
        self.accept = true;
        self
    }

    /// Sets what happens when the store is unavailable.
    pub fn store_down(mut self, store_down: StoreDown) -> Self {
        self.policy.store_down = store_down;
        self
    }

    /// Sets whether a replay is checked with the authority, where a cache stands in front of it; see
    /// [`Guarded::verify`](crate::Guarded::verify).
    pub fn verify(mut self, verify: bool) -> Self {
        self.policy.verify = verify;
        self
    }

    /// Sets the format of keys, so that late retries are refused instead of run.
    pub fn key_format(mut self, key_format: KeyFormat) -> Self {
        self.policy.key_format = key_format;
        self
    }

    /// Limits how long the work may take; after that its result is unknown.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(timeout);
        self
    }

    /// Sets how long the service behind the handler remembers a key, at least, counted from the first attempt; see
    /// [`Guarded::safe_for`](crate::Guarded::safe_for). Needs [`Effect::Keyed`] and a [`timeout`](Self::timeout).
    pub fn safe_for(mut self, safe_for: Duration) -> Self {
        self.policy.safe_for = Some(safe_for);
        self
    }

    /// Sets how uncertain intents are looked up; see [`Guarded::lookup`](crate::Guarded::lookup).
    pub fn lookup(mut self, lookup: impl Lookup, settle: Duration) -> Self {
        self.lookup = Some(Arc::new(lookup));
        self.policy.settle = settle;
        self
    }

    /// Stores only the status and a reference to the result; see [`Guarded::minimal`](crate::Guarded::minimal). Headers
    /// are not stored either: a replay has those of the rebuilt outcome.
    pub fn minimal(mut self, rebuild: impl Rebuild) -> Self {
        self.rebuild = Some(Arc::new(rebuild));
        self
    }

    /// Sets what the fingerprint covers, including chosen headers.
    pub fn recipe(mut self, recipe: Recipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// Sets what a 5xx of the service itself means.
    pub fn on_5xx(mut self, on_5xx: On5xx) -> Self {
        self.failures = Failures::ByStatus(on_5xx);
        self
    }

    /// Replaces the whole table of what a status means. The handler's mark and the service's `Idempotency-Effect` come
    /// first.
    pub fn failures(mut self, judge: impl Fn(&Parts) -> WorkResult + Send + Sync + 'static) -> Self {
        self.failures = Failures::By(Arc::new(judge));
        self
    }

    /// Reads at most this much of a request's body; more is a 413.
    pub fn body_bytes_max(mut self, body_bytes_max: usize) -> Self {
        self.body_bytes_max = body_bytes_max;
        self
    }

    /// Stores at most this much of a response's body.
    pub fn response_bytes_max(mut self, response_bytes_max: usize) -> Self {
        self.response_bytes_max = response_bytes_max;
        self
    }

    /// Treats a response whose body takes longer than this as a stream: it is passed on and not stored.
    pub fn response_time_max(mut self, response_time_max: Duration) -> Self {
        self.response_time_max = response_time_max;
        self
    }

    /// Stores and replays this header of responses, too. Cookies, credentials and hop-by-hop headers are refused.
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.replay_headers.push(name);
        self
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("route", &self.route)
            .field("name", &self.name)
            .field("key", &self.key)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
