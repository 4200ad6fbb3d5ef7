//! Every metric, span and attribute name, and the one place where they are recorded.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::intent::identity::Operation;
use crate::intent::state::State;

#[cfg_attr(not(feature = "redis"), allow(dead_code))]
mod cache;
pub mod names;
// Without a database there is no inbox, and nothing to receive webhooks for.
#[cfg_attr(
    not(all(
        feature = "webhook-receiver",
        any(feature = "sqlite", feature = "postgres", feature = "mysql")
    )),
    allow(dead_code)
)]
mod webhook;

pub(crate) use cache::CacheCounters;
#[cfg(feature = "redis")]
pub(crate) use cache::{CacheFill, CacheLook};
#[cfg(all(
    feature = "webhook-receiver",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub(crate) use webhook::{WebhookCounters, WebhookResult};

/// The result of a claim, as the `status` of `idempotency_claim_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimStatus {
    Run,
    Mismatch,
    InFlight,
    Replay,
    Uncertain,
    Error,
}

impl ClaimStatus {
    const ALL: [Self; 6] =
        [Self::Run, Self::Mismatch, Self::InFlight, Self::Replay, Self::Uncertain, Self::Error];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Mismatch => "mismatch",
            Self::InFlight => "in_flight",
            Self::Replay => "replay",
            Self::Uncertain => "uncertain",
            Self::Error => "error",
        }
    }
}

/// The result of a finish, as the `status` of `idempotency_finalize_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FinishStatus {
    Recorded,
    Already,
    /// The caller was no longer the owner: worth an alert.
    OwnerMismatch,
    /// The store failed; it is being retried.
    Deferred,
    /// Given up: the record is left to become uncertain.
    Lost,
}

impl FinishStatus {
    const ALL: [Self; 5] = [Self::Recorded, Self::Already, Self::OwnerMismatch, Self::Deferred, Self::Lost];

    fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Already => "already",
            Self::OwnerMismatch => "owner_mismatch",
            Self::Deferred => "deferred",
            Self::Lost => "lost",
        }
    }
}

/// The result of a lookup of an uncertain intent, as the `status` of `idempotency_recovery_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryStatus {
    Applied,
    NotApplied,
    Unknown,
    Overtaken,
}

impl RecoveryStatus {
    const ALL: [Self; 4] = [Self::Applied, Self::NotApplied, Self::Unknown, Self::Overtaken];

    fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::NotApplied => "not_applied",
            Self::Unknown => "unknown",
            Self::Overtaken => "overtaken",
        }
    }
}

/// Which request to the store failed, as the `phase` of `idempotency_store_error_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Claim,
    Renew,
    Finish,
    Read,
    Decide,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Claim, Self::Renew, Self::Finish, Self::Read, Self::Decide];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::Finish => "finish",
            Self::Read => "read",
            Self::Decide => "decide",
        }
    }
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByOperation {
    operation: String,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByStatus {
    operation: String,
    status: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByState {
    operation: String,
    state: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByPhase {
    operation: String,
    phase: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByRail {
    rail: &'static str,
}

fn ages() -> Histogram {
    // From a quick retry to a week: shows whether retention is long enough.
    Histogram::new([0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0])
}

/// Counts what happens. Cheap to clone; all clones count together.
///
/// ```
/// let metrics = semel::observe::Metrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

struct Families {
    registry: Registry,
    claim: Family<ByStatus, Counter>,
    existing: Family<ByState, Counter>,
    replay: Family<ByOperation, Counter>,
    conflict: Family<ByOperation, Counter>,
    in_progress: Family<ByOperation, Counter>,
    recovery: Family<ByStatus, Counter>,
    held: Family<ByOperation, Gauge>,
    held_oldest: Family<ByOperation, Gauge>,
    swept: Counter,
    record_age: Family<ByState, Histogram>,
    finalize: Family<ByStatus, Counter>,
    store_error: Family<ByPhase, Counter>,
    unguarded: Family<ByOperation, Counter>,
    other_recipe: Family<ByOperation, Counter>,
    lease_lost: Family<ByOperation, Counter>,
    running: Family<ByOperation, Gauge>,
    suppressed: Family<ByRail, Counter>,
    webhook: Family<webhook::ByProvider, Counter>,
    buffered: Gauge,
    buffer_refused: Counter,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    cache: CacheCounters,
}

impl Metrics {
    /// Starts from zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let mut families = Families {
            registry: Registry::default(),
            cache: CacheCounters::register(&mut registry),
            claim: Family::default(),
            existing: Family::default(),
            replay: Family::default(),
            conflict: Family::default(),
            in_progress: Family::default(),
            recovery: Family::default(),
            held: Family::default(),
            held_oldest: Family::default(),
            swept: Counter::default(),
            record_age: Family::new_with_constructor(ages),
            finalize: Family::default(),
            store_error: Family::default(),
            unguarded: Family::default(),
            other_recipe: Family::default(),
            lease_lost: Family::default(),
            running: Family::default(),
            suppressed: Family::default(),
            webhook: Family::default(),
            buffered: Gauge::default(),
            buffer_refused: Counter::default(),
        };
        registry.register(names::CLAIM, "Claims by result", families.claim.clone());
        registry.register(
            names::EXISTING,
            "Claims that found a record, by its state",
            families.existing.clone(),
        );
        registry.register(names::REPLAY, "Stored outcomes replayed", families.replay.clone());
        registry.register(names::CONFLICT, "Keys reused for another request", families.conflict.clone());
        registry.register(
            names::IN_PROGRESS,
            "Calls answered in progress because another attempt is running",
            families.in_progress.clone(),
        );
        registry.register(
            names::RECOVERY,
            "Lookups of uncertain intents by result",
            families.recovery.clone(),
        );
        registry.register(
            names::HELD,
            "Uncertain intents that the last reconcile pass could not resolve",
            families.held.clone(),
        );
        registry.register(
            names::HELD_OLDEST,
            "How long the oldest of them has been held",
            families.held_oldest.clone(),
        );
        registry.register(
            names::SWEPT,
            "Records deleted because their retention was over",
            families.swept.clone(),
        );
        registry.register(names::RECORD_AGE, "Age of the record a claim found", families.record_age.clone());
        registry.register(
            names::FINALIZE,
            "Outcomes written to the store, by result",
            families.finalize.clone(),
        );
        registry.register(
            names::STORE_ERROR,
            "Requests to the store that failed",
            families.store_error.clone(),
        );
        registry.register(
            names::UNGUARDED,
            "Runs without a claim because the store was down",
            families.unguarded.clone(),
        );
        registry.register(
            names::OTHER_RECIPE,
            "Records whose fingerprint was made with another recipe",
            families.other_recipe.clone(),
        );
        registry.register(
            names::LEASE_LOST,
            "Claims lost while the work was running",
            families.lease_lost.clone(),
        );
        registry.register(names::RUNNING, "Work running in this process", families.running.clone());
        registry.register(
            names::SUPPRESSED,
            "Duplicates that did not run, by rail",
            families.suppressed.clone(),
        );
        registry.register(names::WEBHOOK, "Webhooks by result", families.webhook.clone());
        registry.register(
            names::HTTP_BUFFERED,
            "Bytes of request bodies that are buffered",
            families.buffered.clone(),
        );
        registry.register(
            names::HTTP_BUFFER_REFUSED,
            "Requests refused because the limit of buffered bodies was reached",
            families.buffer_refused.clone(),
        );
        families.registry = registry;
        Self(Arc::new(families))
    }

    /// Everything counted so far, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// Counts the records a sweep has deleted.
    pub(crate) fn swept(&self, records: usize) {
        self.0.swept.inc_by(records as u64);
    }

    /// The bytes of request bodies that are buffered, and the requests that were refused for it.
    #[cfg(feature = "http")]
    pub(crate) fn buffered(&self) -> (Gauge, Counter) {
        (self.0.buffered.clone(), self.0.buffer_refused.clone())
    }

    /// The counters of a cache in front of the store.
    #[cfg(feature = "redis")]
    pub(crate) fn cache(&self) -> CacheCounters {
        self.0.cache.clone()
    }

    pub(crate) fn operation(&self, operation: &Operation) -> OperationMetrics {
        OperationMetrics::new(&self.0, operation.as_str())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The counters of one operation, looked up once so that counting is an atomic addition.
#[derive(Clone)]
pub(crate) struct OperationMetrics(Arc<Counters>);

struct Counters {
    /// Only set when counted: a zero without a count would be a lie.
    held: (Family<ByOperation, Gauge>, Family<ByOperation, Gauge>, ByOperation),
    claim: [Counter; 6],
    existing: [Counter; 5],
    record_age: [Histogram; 5],
    replay: Counter,
    conflict: Counter,
    in_progress: Counter,
    recovery: [Counter; 4],
    finalize: [Counter; 5],
    store_error: [Counter; 5],
    unguarded: Counter,
    other_recipe: Counter,
    lease_lost: Counter,
    running: Gauge,
    suppressed: Counter,
}

impl OperationMetrics {
    fn new(families: &Families, operation: &str) -> Self {
        let plain = || ByOperation { operation: operation.to_owned() };
        let status = |status| ByStatus { operation: operation.to_owned(), status };
        let state = |state: State| ByState { operation: operation.to_owned(), state: state.as_str() };
        let phase = |phase: Phase| ByPhase { operation: operation.to_owned(), phase: phase.as_str() };
        Self(Arc::new(Counters {
            held: (families.held.clone(), families.held_oldest.clone(), plain()),
            claim: ClaimStatus::ALL.map(|s| families.claim.get_or_create(&status(s.as_str())).clone()),
            existing: State::ALL.map(|s| families.existing.get_or_create(&state(s)).clone()),
            record_age: State::ALL.map(|s| families.record_age.get_or_create(&state(s)).clone()),
            replay: families.replay.get_or_create(&plain()).clone(),
            conflict: families.conflict.get_or_create(&plain()).clone(),
            in_progress: families.in_progress.get_or_create(&plain()).clone(),
            recovery: RecoveryStatus::ALL
                .map(|s| families.recovery.get_or_create(&status(s.as_str())).clone()),
            finalize: FinishStatus::ALL.map(|s| families.finalize.get_or_create(&status(s.as_str())).clone()),
            store_error: Phase::ALL.map(|p| families.store_error.get_or_create(&phase(p)).clone()),
            unguarded: families.unguarded.get_or_create(&plain()).clone(),
            other_recipe: families.other_recipe.get_or_create(&plain()).clone(),
            lease_lost: families.lease_lost.get_or_create(&plain()).clone(),
            running: families.running.get_or_create(&plain()).clone(),
            suppressed: families.suppressed.get_or_create(&ByRail { rail: names::RAIL_EDGE }).clone(),
        }))
    }

    pub(crate) fn claim(&self, status: ClaimStatus) {
        self.0.claim[status as usize].inc();
        match status {
            ClaimStatus::Mismatch => {
                self.0.conflict.inc();
            }
            ClaimStatus::InFlight | ClaimStatus::Replay | ClaimStatus::Uncertain => {
                self.0.suppressed.inc();
            }
            ClaimStatus::Run | ClaimStatus::Error => {}
        }
    }

    pub(crate) fn existing(&self, state: State, age_ms: u64) {
        self.0.existing[state as usize].inc();
        self.0.record_age[state as usize].observe(age_ms as f64 / 1_000.0);
    }

    pub(crate) fn replay(&self) {
        self.0.replay.inc();
    }

    pub(crate) fn in_progress(&self) {
        self.0.in_progress.inc();
    }

    pub(crate) fn recovery(&self, status: RecoveryStatus) {
        self.0.recovery[status as usize].inc();
    }

    /// Sets what a whole pass over the operation has left uncertain.
    pub(crate) fn held(&self, intents: u64, oldest_ms: u64) {
        let (held, oldest, operation) = &self.0.held;
        held.get_or_create(operation).set(i64::try_from(intents).unwrap_or(i64::MAX));
        oldest.get_or_create(operation).set(i64::try_from(oldest_ms / 1_000).unwrap_or(i64::MAX));
    }

    pub(crate) fn finalize(&self, status: FinishStatus) {
        self.0.finalize[status as usize].inc();
    }

    pub(crate) fn store_error(&self, phase: Phase) {
        self.0.store_error[phase as usize].inc();
    }

    pub(crate) fn unguarded(&self) {
        self.0.unguarded.inc();
    }

    pub(crate) fn other_recipe(&self) {
        self.0.other_recipe.inc();
    }

    pub(crate) fn lease_lost(&self) {
        self.0.lease_lost.inc();
    }

    /// Counts one run until it is dropped.
    pub(crate) fn running(&self) -> Running {
        self.0.running.inc();
        Running(self.0.running.clone())
    }
}

/// See [`OperationMetrics::running`].
pub(crate) struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn names_types_labels_and_help_are_as_listed() {
        let metrics = Metrics::new();
        metrics.operation(&Operation::new("pay").unwrap()).held(1, 1);
        metrics.webhook("stripe");
        assert_eq!(listing(&metrics.render()), include_str!("listings/guard.txt"));
    }

    #[test]
    fn counts_appear_under_the_promised_names() {
        let metrics = Metrics::new();
        let pay = metrics.operation(&Operation::new("pay").unwrap());
        pay.claim(ClaimStatus::Replay);
        pay.claim(ClaimStatus::Mismatch);
        pay.existing(State::Uncertain, 61_000);
        pay.finalize(FinishStatus::OwnerMismatch);
        pay.store_error(Phase::Decide);
        pay.recovery(RecoveryStatus::Overtaken);
        let run = pay.running();
        let text = metrics.render();
        for line in [
            r#"idempotency_claim_total{operation="pay",status="replay"} 1"#,
            r#"idempotency_claim_total{operation="pay",status="run"} 0"#,
            r#"idempotency_conflict_total{operation="pay"} 1"#,
            r#"idempotency_existing_total{operation="pay",state="uncertain"} 1"#,
            r#"idempotency_record_age_seconds_bucket{le="600.0",operation="pay",state="uncertain"} 1"#,
            r#"idempotency_record_age_seconds_bucket{le="60.0",operation="pay",state="uncertain"} 0"#,
            r#"idempotency_finalize_total{operation="pay",status="owner_mismatch"} 1"#,
            r#"idempotency_store_error_total{operation="pay",phase="decide"} 1"#,
            r#"idempotency_recovery_total{operation="pay",status="overtaken"} 1"#,
            r#"idempotency_running{operation="pay"} 1"#,
            r#"semel_duplicates_suppressed_total{rail="edge"} 1"#,
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
        }
        drop(run);
        assert!(metrics.render().contains(r#"idempotency_running{operation="pay"} 0"#));
    }
}
