//! The metrics of sagas, and the spans of their runs and calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Span;

use super::call::{CallEnd, Target};
use super::history::LOOKUP_ATTEMPT;
use super::journal::{SagaFigures, SagaRecord};
use super::run::Left;
use super::state::{ParkReason, Status};
use super::step::{LookedUp, StepError};
use crate::observe::readings::{Reading, Readings, Shared};
use crate::observe::{self, Counter, Gauge, GaugeGuard, Labelled, MetricSet, Metrics, Registry, names};

/// How often the journal is asked for its figures, if they are exported.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(15);

/// Counts what sagas do. Cheap to clone; clones count together. Pass it to
/// [`SagasBuilder::observed_by`](super::SagasBuilder::observed_by).
///
/// ```
/// let metrics = semel::saga::SagaMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// ```
#[derive(Clone)]
pub struct SagaMetrics(Arc<Families>);

struct Families {
    set: MetricSet,
    started: Labelled<1>,
    ended: Labelled<2>,
    parked: Labelled<2>,
    steps: Labelled<4>,
    step_waits: Labelled<1>,
    guard_expired: Labelled<2>,
    takeovers: Labelled<1>,
    leases_lost: Counter,
    at_work: Gauge,
    /// Only set when counted: a zero without a count would be a lie.
    open: Labelled<1, Gauge>,
    suppressed: Counter,
    state: Arc<Shared<State>>,
}

/// The figures that were read last, and when.
#[derive(Debug, Default)]
struct State(Option<Sample>);

#[derive(Debug)]
struct Sample {
    oldest_parked_ms: Option<u64>,
    overdue: u64,
    no_definition: u64,
    at: Instant,
}

impl Default for SagaMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl SagaMetrics {
    /// Starts from zero.
    pub fn new() -> Self {
        let mut set = MetricSet::default();
        let help = "Duplicates that did not run, by rail";
        let suppressed = set.counters(names::SUPPRESSED, help, [names::LABEL_RAIL]);
        Self::over(set, &suppressed)
    }

    /// For a process that exports a guard's metrics as well: duplicates are counted in the guard's family, by their rail,
    /// and exported there.
    ///
    /// ```
    /// use semel::observe::{Metrics, render};
    /// use semel::saga::SagaMetrics;
    ///
    /// let guard = Metrics::new();
    /// let sagas = SagaMetrics::beside(&guard);
    /// let text = render(|registry| {
    ///     guard.register(registry);
    ///     sagas.register(registry);
    /// });
    /// assert_eq!(text.matches("# TYPE semel_duplicates_suppressed ").count(), 1);
    /// ```
    pub fn beside(guard: &Metrics) -> Self {
        Self::over(MetricSet::default(), guard.suppressed())
    }

    fn over(mut set: MetricSet, suppressed: &Labelled<1>) -> Self {
        let by_saga = [names::LABEL_SAGA];
        let by_status = [names::LABEL_SAGA, names::LABEL_STATUS];
        let by_reason = [names::LABEL_SAGA, names::LABEL_REASON];
        let by_result = [names::LABEL_SAGA, names::LABEL_STEP, names::LABEL_OP, names::LABEL_RESULT];
        let waits = "Calls of steps that waited because enough of their kind were under way";
        let expired = "Attempts not made because the participant's key may protect them no longer";
        let takeovers = "Sagas taken from a worker whose lease had ended";
        let open = "Sagas in the journal that have not ended, by status; counting stops at 10,000 of each";
        let state = Arc::default();
        // They are exported in this order.
        let families = Families {
            started: set.counters(names::SAGA_STARTED, "Sagas started", by_saga),
            ended: set.counters(names::SAGA_ENDED, "Sagas that ended, by status", by_status),
            parked: set.counters(names::SAGA_PARKED, "Times that a saga was parked, by reason", by_reason),
            steps: set.counters(names::SAGA_STEPS, "Calls of steps by result", by_result),
            step_waits: set.counters(names::SAGA_STEP_WAITS, waits, [names::LABEL_STEP]),
            guard_expired: set.counters(
                names::SAGA_GUARD_EXPIRED,
                expired,
                [names::LABEL_SAGA, names::LABEL_STEP],
            ),
            takeovers: set.counters(names::SAGA_TAKEOVERS, takeovers, by_saga),
            leases_lost: set.counter(names::SAGA_LEASES_LOST, "Leases that this process lost as a worker"),
            at_work: set.gauge(names::SAGA_AT_WORK, "Sagas at work in this process"),
            open: set.family(names::SAGA_OPEN, open, [names::LABEL_STATUS], Gauge::default),
            suppressed: suppressed.with([names::RAIL_WORKFLOW]),
            state: Arc::clone(&state),
            set: {
                set.readings::<State>(&state);
                set
            },
        };
        Self(Arc::new(families))
    }

    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.0.set.register(registry);
    }

    /// All metrics, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        observe::render(|registry| self.register(registry))
    }

    /// The definition exists: its sagas are counted from zero.
    pub(super) fn declare(&self, saga: &str) {
        self.0.started.with([saga]);
        self.0.takeovers.with([saga]);
        for status in [Status::Completed, Status::Undone, Status::Abandoned] {
            self.0.ended.with([saga, status.as_str()]);
        }
    }

    pub(super) fn started(&self, saga: &str) {
        self.0.started.with([saga]).inc();
    }

    /// A saga that its key has already was not started again, or a step that the journal answers for was not called again.
    pub(super) fn suppressed(&self) {
        self.0.suppressed.inc();
    }

    pub(super) fn ended(&self, saga: &str, status: Status) {
        self.0.ended.with([saga, status.as_str()]).inc();
    }

    pub(super) fn parked(&self, saga: &str, reason: ParkReason) {
        self.0.parked.with([saga, reason.as_str()]).inc();
    }

    pub(super) fn step(&self, saga: &str, step: &str, op: &str, result: &str) {
        self.0.steps.with([saga, step, op, result]).inc();
    }

    pub(super) fn step_waits(&self, step: &str) {
        self.0.step_waits.with([step]).inc();
    }

    pub(super) fn guard_expired(&self, saga: &str, step: &str) {
        self.0.guard_expired.with([saga, step]).inc();
    }

    pub(super) fn taken_over(&self, saga: &str) {
        self.0.takeovers.with([saga]).inc();
    }

    pub(super) fn lease_lost(&self) {
        self.0.leases_lost.inc();
    }

    /// Counts one saga at work until it is dropped.
    pub(super) fn at_work(&self) -> GaugeGuard {
        GaugeGuard::new(&self.0.at_work)
    }

    /// What the journal has. `no_definition`: how many sagas that no worker took, and that this process could not.
    pub(super) fn sampled(&self, figures: &SagaFigures, no_definition: u64) {
        for (status, sagas) in &figures.open {
            self.0.open.with([status.as_str()]).set(i64::try_from(*sagas).unwrap_or(i64::MAX));
        }
        let oldest_parked_ms = figures.oldest_parked.map(|began| figures.now.since_ms(began));
        let overdue = figures.overdue.iter().map(|(_, sagas)| sagas).sum();
        let sample = Sample { oldest_parked_ms, overdue, no_definition, at: Instant::now() };
        *self.0.state.lock() = State(Some(sample));
    }
}

impl fmt::Debug for SagaMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SagaMetrics").finish_non_exhaustive()
    }
}

impl Readings for State {
    fn readings(&self) -> Vec<Reading> {
        let oldest = self.0.as_ref().map(|sample| match sample.oldest_parked_ms {
            Some(ms) => Duration::from_millis(ms).as_secs_f64() + sample.at.elapsed().as_secs_f64(),
            None => 0.0,
        });
        let no_definition = self.0.as_ref().map(|sample| sample.no_definition as f64);
        let overdue = self.0.as_ref().map(|sample| sample.overdue as f64);
        let late = "Sagas that no worker took within a lease, for whatever reason; counting stops at 10,000 of each \
                    definition";
        let unknown = "Sagas of other definitions than this process has that no worker took within a lease; \
                       counting stops at 10,000";
        vec![
            (names::SAGA_PARKED_OLDEST, "Age of the oldest saga that is parked", oldest),
            (names::SAGA_OVERDUE, late, overdue),
            (names::SAGA_NO_DEFINITION, unknown, no_definition),
        ]
    }
}

/// A span for one run of a saga.
pub(super) fn run_span(record: &SagaRecord) -> Span {
    tracing::info_span!(
        names::SPAN_SAGA_RUN,
        saga = record.name,
        number = record.number.0,
        version = record.version,
        epoch = record.row.epoch,
        undoing = record.row.undo.is_some(),
        idempotency.key_hash = record.intent.key().short_hash(),
        outcome = tracing::field::Empty,
    )
}

/// A span for one call of a step.
pub(super) fn step_span(record: &SagaRecord, target: &Target) -> Span {
    tracing::info_span!(
        names::SPAN_SAGA_STEP,
        saga = record.name,
        number = record.number.0,
        step = %target.step,
        op = op_of(target),
        attempt = target.attempt,
        outcome = tracing::field::Empty,
    )
}

/// What of a step is called.
pub(super) fn op_of(target: &Target) -> &'static str {
    if target.attempt == LOOKUP_ATTEMPT { "lookup" } else { target.op.as_str() }
}

impl Left {
    /// What became of the saga, as the `outcome` of its span.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Waits(_) => "waits",
            Self::Parked(..) => "parked",
            Self::Lost => "lost",
        }
    }
}

impl CallEnd {
    /// What the call came to, as the `result` of its metric and the `outcome` of its span.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Called(Ok(_)) => "done",
            Self::Called(Err(error)) => error.as_str(),
            Self::LookedUp(LookedUp::Applied(_)) => "applied",
            Self::LookedUp(LookedUp::NotApplied) => "not_applied",
            Self::LookedUp(LookedUp::Unknown) => "unknown",
        }
    }
}

impl StepError {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::NotApplied(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;
    use crate::intent::policy::StoreTime;
    use crate::saga::journal::DefinitionId;

    #[test]
    fn contract_names_types_labels_and_help() {
        let metrics = SagaMetrics::new();
        metrics.declare("checkout");
        for reason in ParkReason::ALL {
            metrics.parked("checkout", reason);
        }
        for (op, results) in [
            ("forward", &["done", "refused", "failed", "unknown"][..]),
            ("pivot", &["done", "refused", "failed", "unknown"]),
            ("undo", &["done", "refused", "failed", "unknown"]),
            ("lookup", &["applied", "not_applied", "unknown"]),
        ] {
            results.iter().for_each(|result| metrics.step("checkout", "charge", op, result));
        }
        metrics.step("checkout", "charge", "forward", "lost");
        metrics.step_waits("charge");
        metrics.guard_expired("checkout", "charge");
        let open = Status::ALL.into_iter().filter(|status| !status.is_ended()).map(|status| (status, 1));
        let figures = SagaFigures {
            open: open.collect(),
            oldest_parked: Some(StoreTime(1_000)),
            overdue: vec![(DefinitionId { name: "checkout".to_owned(), version: 1 }, 3)],
            now: StoreTime(61_000),
        };
        metrics.sampled(&figures, 2);
        crate::contracts::pinned("metrics.saga", &listing(&metrics.render()));
        let lines = metrics.render();
        for line in [
            "semel_saga_no_definition 2.0",
            "semel_saga_overdue 3.0",
            r#"semel_saga_open{status="parked"} 1"#,
        ] {
            assert!(lines.lines().any(|have| have == line), "{line}\n{lines}");
        }
    }

    #[test]
    fn beside_a_guard_duplicates_are_one_family() {
        let guard = Metrics::new();
        let metrics = SagaMetrics::beside(&guard);
        metrics.suppressed();
        assert!(guard.render().contains(r#"semel_duplicates_suppressed_total{rail="workflow"} 1"#));
        assert!(!metrics.render().contains(names::SUPPRESSED));
    }
}
