//! The metrics of a guard, and of what works with it: recovery, the HTTP edge, a cache, webhooks.

use std::fmt;
use std::sync::Arc;

use super::cache::CacheCounters;
use super::label_values::label_values;
use super::{Counter, Gauge, GaugeGuard, Histogram, Labelled, MetricSet, Registry, names, set};
use crate::intent::identity::Operation;
use crate::intent::state::State;

label_values! {
    /// The result of a claim, as the `status` of `idempotency_claim_total`.
    ClaimStatus {
        Run = "run",
        Mismatch = "mismatch",
        InFlight = "in_flight",
        Replay = "replay",
        Uncertain = "uncertain",
        Error = "error",
    }
}

label_values! {
    /// The result of a finish, as the `status` of `idempotency_finalize_total`.
    FinishStatus {
        Recorded = "recorded",
        Already = "already",
        /// The caller was no longer the owner: worth an alert.
        OwnerMismatch = "owner_mismatch",
        /// The store failed; it is being retried.
        Deferred = "deferred",
        /// Given up: the record is left to become uncertain.
        Lost = "lost",
    }
}

label_values! {
    /// The result of a lookup of an uncertain intent, as the `status` of `idempotency_recovery_total`.
    RecoveryStatus {
        Applied = "applied",
        NotApplied = "not_applied",
        Unknown = "unknown",
        Overtaken = "overtaken",
    }
}

label_values! {
    /// Which request to the store failed, as the `phase` of `idempotency_store_error_total`.
    Phase {
        Claim = "claim",
        Renew = "renew",
        Finish = "finish",
        Read = "read",
        Decide = "decide",
    }
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
#[derive(Clone, Default)]
pub struct Metrics(pub(super) Arc<Families>);

pub(super) struct Families {
    set: MetricSet,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    cache: CacheCounters,
    claim: Labelled<2>,
    existing: Labelled<2>,
    replay: Labelled<1>,
    conflict: Labelled<1>,
    in_progress: Labelled<1>,
    recovery: Labelled<2>,
    held: Labelled<1, Gauge>,
    held_oldest: Labelled<1, Gauge>,
    guard_expired: Labelled<1>,
    guard_expiring: Labelled<1, Gauge>,
    swept: Counter,
    record_age: Labelled<2, Histogram>,
    finalize: Labelled<2>,
    store_error: Labelled<2>,
    unguarded: Labelled<1>,
    other_recipe: Labelled<1>,
    lease_lost: Labelled<1>,
    running: Labelled<1, Gauge>,
    pub(super) suppressed: Labelled<1>,
    pub(super) webhook: Labelled<2>,
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    buffered: (Gauge, Counter),
}

impl Default for Families {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let by_operation = [names::LABEL_OPERATION];
        let by_status = [names::LABEL_OPERATION, names::LABEL_STATUS];
        let by_state = [names::LABEL_OPERATION, names::LABEL_STATE];
        let by_phase = [names::LABEL_OPERATION, names::LABEL_PHASE];
        let by_result = [names::LABEL_PROVIDER, names::LABEL_RESULT];
        let in_progress = "Calls answered in progress because another attempt is running";
        let held = "Uncertain intents that the last reconcile pass could not resolve";
        let held_oldest = "How long the oldest of them has been held";
        let guard_expired = "Attempts refused because the key may be forgotten downstream";
        let guard_expiring = "Unfinished intents without an owner at work whose key may be forgotten downstream soon, or is already";
        let swept = "Records deleted because their retention was over";
        let unguarded = "Runs without a claim because the store was down";
        let other_recipe = "Records whose fingerprint was made with another recipe";
        let buffer_refused = "Requests refused because the limit of buffered bodies was reached";
        // They are exported in this order.
        Self {
            cache: CacheCounters::new(&mut set),
            claim: set.counters(names::CLAIM, "Claims by result", by_status),
            existing: set.counters(names::EXISTING, "Claims that found a record, by its state", by_state),
            replay: set.counters(names::REPLAY, "Stored outcomes replayed", by_operation),
            conflict: set.counters(names::CONFLICT, "Keys reused for another request", by_operation),
            in_progress: set.counters(names::IN_PROGRESS, in_progress, by_operation),
            recovery: set.counters(names::RECOVERY, "Lookups of uncertain intents by result", by_status),
            held: set.family(names::HELD, held, by_operation, Gauge::default),
            held_oldest: set.family(names::HELD_OLDEST, held_oldest, by_operation, Gauge::default),
            guard_expired: set.counters(names::GUARD_EXPIRED, guard_expired, by_operation),
            guard_expiring: set.family(names::GUARD_EXPIRING, guard_expiring, by_operation, Gauge::default),
            swept: set.counter(names::SWEPT, swept),
            record_age: set.family(names::RECORD_AGE, "Age of the record a claim found", by_state, ages),
            finalize: set.counters(names::FINALIZE, "Outcomes written to the store, by result", by_status),
            store_error: set.counters(names::STORE_ERROR, "Requests to the store that failed", by_phase),
            unguarded: set.counters(names::UNGUARDED, unguarded, by_operation),
            other_recipe: set.counters(names::OTHER_RECIPE, other_recipe, by_operation),
            lease_lost: set.counters(
                names::LEASE_LOST,
                "Claims lost while the work was running",
                by_operation,
            ),
            running: set.family(names::RUNNING, "Work running in this process", by_operation, Gauge::default),
            suppressed: set.counters(
                names::SUPPRESSED,
                "Duplicates that did not run, by rail",
                [names::LABEL_RAIL],
            ),
            webhook: set.counters(names::WEBHOOK, "Webhooks by result", by_result),
            buffered: (
                set.gauge(names::HTTP_BUFFERED, "Bytes of request bodies that are buffered"),
                set.counter(names::HTTP_BUFFER_REFUSED, buffer_refused),
            ),
            set,
        }
    }
}

impl Metrics {
    /// Starts from zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.0.set.register(registry);
    }

    /// Everything counted so far, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        set::render(|registry| self.register(registry))
    }

    /// Counts the records a sweep has deleted.
    pub(crate) fn swept(&self, records: usize) {
        self.0.swept.inc_by(records as u64);
    }

    /// The bytes of request bodies that are buffered, and the requests that were refused for it.
    #[cfg(feature = "http")]
    pub(crate) fn buffered(&self) -> (Gauge, Counter) {
        self.0.buffered.clone()
    }

    /// The counters of a cache in front of the store.
    #[cfg(feature = "redis")]
    pub(crate) fn cache(&self) -> CacheCounters {
        self.0.cache.clone()
    }

    /// Duplicates that did not run, by rail.
    #[cfg(feature = "saga")]
    pub(crate) fn suppressed(&self) -> &Labelled<1> {
        &self.0.suppressed
    }

    pub(crate) fn operation(&self, operation: &Operation) -> OperationMetrics {
        OperationMetrics::new(&self.0, operation.as_str())
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
    held: (Labelled<1, Gauge>, Labelled<1, Gauge>, String),
    guard_expired: Counter,
    /// Only set when counted, too.
    guard_expiring: Labelled<1, Gauge>,
    claim: [Counter; ClaimStatus::ALL.len()],
    existing: [Counter; State::ALL.len()],
    record_age: [Histogram; State::ALL.len()],
    replay: Counter,
    conflict: Counter,
    in_progress: Counter,
    recovery: [Counter; RecoveryStatus::ALL.len()],
    finalize: [Counter; FinishStatus::ALL.len()],
    store_error: [Counter; Phase::ALL.len()],
    unguarded: Counter,
    other_recipe: Counter,
    lease_lost: Counter,
    running: Gauge,
    suppressed: Counter,
}

impl OperationMetrics {
    fn new(families: &Families, operation: &str) -> Self {
        let plain = [operation];
        Self(Arc::new(Counters {
            held: (families.held.clone(), families.held_oldest.clone(), operation.to_owned()),
            guard_expired: families.guard_expired.with(plain),
            guard_expiring: families.guard_expiring.clone(),
            claim: ClaimStatus::ALL.map(|status| families.claim.with([operation, status.as_str()])),
            existing: State::ALL.map(|state| families.existing.with([operation, state.as_str()])),
            record_age: State::ALL.map(|state| families.record_age.with([operation, state.as_str()])),
            replay: families.replay.with(plain),
            conflict: families.conflict.with(plain),
            in_progress: families.in_progress.with(plain),
            recovery: RecoveryStatus::ALL.map(|status| families.recovery.with([operation, status.as_str()])),
            finalize: FinishStatus::ALL.map(|status| families.finalize.with([operation, status.as_str()])),
            store_error: Phase::ALL.map(|phase| families.store_error.with([operation, phase.as_str()])),
            unguarded: families.unguarded.with(plain),
            other_recipe: families.other_recipe.with(plain),
            lease_lost: families.lease_lost.with(plain),
            running: families.running.with(plain),
            suppressed: families.suppressed.with([names::RAIL_EDGE]),
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
        held.with([operation]).set(i64::try_from(intents).unwrap_or(i64::MAX));
        oldest.with([operation]).set(i64::try_from(oldest_ms / 1_000).unwrap_or(i64::MAX));
    }

    pub(crate) fn guard_expired(&self) {
        self.0.guard_expired.inc();
    }

    /// Sets how many keys may be forgotten soon.
    pub(crate) fn guard_expiring(&self, intents: usize) {
        let expiring = self.0.guard_expiring.with([&self.0.held.2]);
        expiring.set(i64::try_from(intents).unwrap_or(i64::MAX));
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
    pub(crate) fn running(&self) -> GaugeGuard {
        GaugeGuard::new(&self.0.running)
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn contract_names_types_labels_and_help() {
        let metrics = Metrics::new();
        let pay = metrics.operation(&Operation::new("pay").unwrap());
        pay.held(1, 1);
        pay.guard_expiring(1);
        metrics.webhook("stripe");
        crate::contracts::pinned("metrics.guard", &listing(&metrics.render()));
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
