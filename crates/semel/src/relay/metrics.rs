//! The relay's metrics, and its health.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use super::outbox_reader::{Lag, Settled};
use crate::observe::health::{Health, now};
use crate::observe::readings::{BATCH_BOUNDS, CALL_BOUNDS, Reading, Readings, Shared};
use crate::observe::{self, Counter, Histogram, MetricSet, Registry, names};
use crate::sink::{Published, SinkError};

/// How often the relay samples the outbox's lag.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(3);

/// Counts what a relay does. Cheap to clone; clones share their counters. Pass it to
/// [`Relay::observed_by`](super::Relay::observed_by).
///
/// ```
/// use std::time::Duration;
///
/// let metrics = semel::relay::RelayMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// let reason = metrics.unhealthy_reason(Duration::from_secs(30)).unwrap();
/// assert_eq!(reason, "the source was not reached yet");
/// ```
#[derive(Clone, Default)]
pub struct RelayMetrics(Arc<Families>);

struct Families {
    set: MetricSet,
    confirmed: Counter,
    failed: Counter,
    parked: Counter,
    held: Counter,
    batch: Histogram,
    publish: Histogram,
    source_errors: Counter,
    sink_errors: Counter,
    state: Arc<Shared<State>>,
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    lag: Option<(Lag, Instant)>,
}

impl Default for Families {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let events = set.counters(names::RELAY_EVENTS, "Events by outcome", [names::LABEL_OUTCOME]);
        let batch = set.histogram(names::RELAY_BATCH, "Events in a batch", BATCH_BOUNDS);
        let publish = set.histogram(names::RELAY_PUBLISH, "Duration of one call to the sink", CALL_BOUNDS);
        let help = "Failures of the source and the sink";
        let errors = set.counters(names::RELAY_ERRORS, help, [names::LABEL_SIDE]);
        let state = Arc::default();
        set.readings::<State>(&state);
        Self {
            confirmed: events.with(["confirmed"]),
            failed: events.with(["failed"]),
            parked: events.with(["parked"]),
            held: events.with(["held"]),
            source_errors: errors.with(["source"]),
            sink_errors: errors.with(["sink"]),
            set,
            batch,
            publish,
            state,
        }
    }
}

impl RelayMetrics {
    /// Starts from zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.0.set.register(registry);
    }

    /// All metrics, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        observe::render(|registry| self.register(registry))
    }

    /// Why the relay is unhealthy, if its source and its sink may each be down for at most this long. `None`: it is
    /// healthy.
    pub fn unhealthy_reason(&self, patience: Duration) -> Option<String> {
        self.state().health.unhealthy_reason(now(), patience)
    }

    /// The source answered.
    pub(crate) fn source_answered(&self) {
        self.state().health.source_answered(now());
    }

    /// The source failed.
    pub(crate) fn source_failed(&self, error: &dyn fmt::Display) {
        self.0.source_errors.inc();
        self.state().health.source_failed(&error.to_string());
    }

    /// The outbox is empty, or a batch is settled.
    pub(crate) fn succeeded(&self) {
        self.state().health.succeeded(SystemTime::now());
    }

    /// The relay starts to send a batch of this many events.
    pub(crate) fn batch_begins(&self, events: usize) {
        self.0.batch.observe(events as f64);
        self.state().health.batch_begins();
    }

    /// The batch is settled, or will be sent again.
    pub(crate) fn batch_ends(&self) {
        self.state().health.batch_ends();
    }

    /// Counts the outcomes of a batch's events.
    pub(crate) fn settled(&self, settled: &[Settled]) {
        for one in settled {
            match one {
                Settled::Confirmed => &self.0.confirmed,
                Settled::Parked { .. } => &self.0.parked,
                Settled::Held => &self.0.held,
            }
            .inc();
        }
    }

    /// A call to the sink starts.
    pub(crate) fn call_begins(&self) {
        self.state().health.call_begins(now());
    }

    /// A call to the sink took this long and returned these results.
    pub(crate) fn call_ends(&self, took: Duration, answers: &[Published]) {
        let (mut answered, mut failed, mut error) = (false, 0, None);
        for answer in answers {
            match answer {
                Published::Confirmed | Published::Refused(_) => answered = true,
                Published::Failed(why) => {
                    failed += 1;
                    error.get_or_insert_with(|| why.to_string());
                }
            }
        }
        self.record_call(took, answered, failed, error);
    }

    /// A transaction of this many events ended.
    pub(crate) fn transaction_ends(&self, took: Duration, events: usize, error: Option<&SinkError>) {
        let answered = error.is_none_or(|error| error.refused_event().is_some());
        let failed = if error.is_some() { events as u64 } else { 0 };
        self.record_call(took, answered, failed, error.map(ToString::to_string));
    }

    fn record_call(&self, took: Duration, answered: bool, failed: u64, error: Option<String>) {
        self.0.publish.observe(took.as_secs_f64());
        self.0.failed.inc_by(failed);
        if error.is_some() {
            self.0.sink_errors.inc();
        }
        self.state().health.call_ends(now(), answered, error.as_deref());
    }

    /// The call was abandoned: it says nothing about the sink.
    pub(crate) fn call_left(&self) {
        self.state().health.call_left();
    }

    /// Stores a sample of the lag.
    pub(crate) fn sampled(&self, lag: Lag) {
        self.state().lag = Some((lag, now()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl fmt::Debug for RelayMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayMetrics").finish_non_exhaustive()
    }
}

impl Readings for State {
    fn readings(&self) -> Vec<Reading> {
        let success = (names::RELAY_SUCCESS, "Unix time of the last success", self.health.last_success());
        let Some((lag, at)) = self.lag else { return vec![success] };
        let unpublished = "Unpublished events in this relay's partitions; counting stops at 10,000";
        let oldest = oldest(&lag, now().saturating_duration_since(at)).as_secs_f64();
        let slot_lag = "Log that the server retains for this relay's slot";
        vec![
            success,
            (names::RELAY_UNPUBLISHED, unpublished, Some(lag.events as f64)),
            (names::RELAY_OLDEST, "Age of the oldest unpublished event", Some(oldest)),
            (
                names::RELAY_PARKED,
                "Parked and held events; counting stops at 10,000",
                Some(lag.parked as f64),
            ),
            (names::RELAY_PARTITIONS, "Outbox partitions that this relay owns", Some(lag.partitions.into())),
            (
                names::RELAY_EPOCH,
                "The highest epoch of an owned partition",
                lag.epoch.map(|epoch| epoch as f64),
            ),
            (names::RELAY_SLOT_LAG, slot_lag, lag.bytes.map(|bytes| bytes as f64)),
        ]
    }
}

/// Age of the oldest event now. It keeps growing while the outbox cannot be sampled.
fn oldest(lag: &Lag, asked_ago: Duration) -> Duration {
    lag.oldest.map_or(Duration::ZERO, |oldest| oldest + asked_ago.saturating_sub(SAMPLE_EVERY))
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn contract_names_types_labels_and_help() {
        let metrics = RelayMetrics::new();
        metrics.succeeded();
        metrics.sampled(Lag { epoch: Some(1), bytes: Some(1), ..Lag::default() });
        crate::contracts::pinned("metrics.relay", &listing(&metrics.render()));
    }

    fn has(metrics: &RelayMetrics, line: &str) -> bool {
        metrics.render().lines().any(|have| have == line)
    }

    #[test]
    fn events_are_counted_by_what_became_of_them() {
        let metrics = RelayMetrics::new();
        let parked = Settled::Parked { error: "no".into(), for_good: true, alone: false };
        metrics.settled(&[Settled::Confirmed, Settled::Confirmed, parked, Settled::Held]);
        let failed = || Published::Failed(SinkError::not_published("no leader"));
        metrics.call_ends(Duration::from_millis(3), &[failed(), Published::Confirmed, failed()]);
        for line in [
            "semel_relay_events_total{outcome=\"confirmed\"} 2",
            "semel_relay_events_total{outcome=\"parked\"} 1",
            "semel_relay_events_total{outcome=\"held\"} 1",
            "semel_relay_events_total{outcome=\"failed\"} 2",
            "semel_relay_errors_total{side=\"sink\"} 1",
            "semel_relay_publish_seconds_count 1",
        ] {
            assert!(has(&metrics, line), "{line}\n{}", metrics.render());
        }
    }

    #[test]
    fn what_was_not_measured_is_not_exported() {
        let metrics = RelayMetrics::new();
        let has_gauge = |name: &str| metrics.render().lines().any(|line| line.starts_with(name));
        assert!(!has_gauge("semel_relay_unpublished_events "));
        metrics.sampled(Lag { events: 7, partitions: 16, epoch: Some(3), ..Lag::default() });
        assert!(has(&metrics, "semel_relay_unpublished_events 7.0"));
        assert!(has(&metrics, "semel_relay_owner_epoch 3.0"));
        assert!(!has_gauge("semel_relay_slot_lag_bytes "));
        metrics.sampled(Lag { bytes: Some(4_096), ..Lag::default() });
        assert!(has(&metrics, "semel_relay_slot_lag_bytes 4096.0"));
    }

    #[test]
    fn what_waits_grows_older_while_the_source_is_down() {
        let ten = Duration::from_secs(10);
        let lag = Lag { events: 1, oldest: Some(ten), ..Lag::default() };
        assert_eq!(oldest(&lag, Duration::ZERO), ten);
        assert_eq!(oldest(&lag, SAMPLE_EVERY), ten);
        assert_eq!(oldest(&lag, SAMPLE_EVERY + ten), 2 * ten);
        assert_eq!(oldest(&Lag::default(), 9 * ten), Duration::ZERO);
    }
}
