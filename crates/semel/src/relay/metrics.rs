//! The relay's metrics, and its health.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::health::Health;
use super::outbox_reader::{Lag, Settled};
use crate::observe::names;
use crate::sink::{Published, SinkError};

/// How often the relay samples the outbox's lag.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct BySide {
    side: &'static str,
}

/// Counts what a relay does. Cheap to clone; clones share their counters. Pass it to
/// [`Relay::observed_by`](super::Relay::observed_by).
///
/// ```
/// use std::time::Duration;
///
/// let metrics = semel::relay::RelayMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// let trouble = metrics.trouble(Duration::from_secs(30)).unwrap();
/// assert_eq!(trouble, "the source was not reached yet");
/// ```
#[derive(Clone)]
pub struct RelayMetrics(Arc<Families>);

struct Families {
    registry: Registry,
    confirmed: Counter,
    failed: Counter,
    parked: Counter,
    held: Counter,
    batch: Histogram,
    publish: Histogram,
    source_errors: Counter,
    sink_errors: Counter,
    state: SharedState,
}

type SharedState = Arc<Mutex<State>>;

/// The runtime's clock, so that tests can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    lag: Option<(Lag, Instant)>,
    succeeded_at: Option<SystemTime>,
}

impl RelayMetrics {
    /// Starts from zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (events, errors) =
            (Family::<ByOutcome, Counter>::default(), Family::<BySide, Counter>::default());
        let batch = Histogram::new([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0]);
        let publish =
            Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]);
        let state = SharedState::default();
        registry.register(names::RELAY_EVENTS, "Events by outcome", events.clone());
        registry.register(names::RELAY_BATCH, "Events in a batch", batch.clone());
        registry.register(names::RELAY_PUBLISH, "Duration of one call to the sink", publish.clone());
        registry.register(names::RELAY_ERRORS, "Failures of the source and the sink", errors.clone());
        registry.register_collector(Box::new(Lags(state.clone())));
        let event = |outcome| events.get_or_create(&ByOutcome { outcome }).clone();
        let error = |side| errors.get_or_create(&BySide { side }).clone();
        Self(Arc::new(Families {
            confirmed: event("confirmed"),
            failed: event("failed"),
            parked: event("parked"),
            held: event("held"),
            source_errors: error("source"),
            sink_errors: error("sink"),
            registry,
            batch,
            publish,
            state,
        }))
    }

    /// All metrics, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// Why the relay is unhealthy, if its source and its sink may each be down for at most this long. `None`: it is
    /// healthy.
    pub fn trouble(&self, patience: Duration) -> Option<String> {
        self.state().health.trouble(now(), patience)
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
        self.state().succeeded_at = Some(SystemTime::now());
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
        lock(&self.0.state)
    }
}

impl Default for RelayMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RelayMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayMetrics").finish_non_exhaustive()
    }
}

fn lock(state: &SharedState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gauges from the last sample of the lag. Absent before the first sample: a zero would be wrong.
#[derive(Debug)]
struct Lags(SharedState);

impl Collector for Lags {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (lag, succeeded_at) = {
            let state = lock(&self.0);
            (state.lag, state.succeeded_at)
        };
        let mut encode = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Some(at) = succeeded_at {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            encode(names::RELAY_SUCCESS, "Unix time of the last success", since.as_secs_f64())?;
        }
        let Some((lag, at)) = lag else { return Ok(()) };
        let help = "Unpublished events in this relay's partitions; counting stops at 10,000";
        encode(names::RELAY_UNPUBLISHED, help, lag.events as f64)?;
        let oldest = oldest(&lag, now().saturating_duration_since(at)).as_secs_f64();
        encode(names::RELAY_OLDEST, "Age of the oldest unpublished event", oldest)?;
        encode(names::RELAY_PARKED, "Parked and held events; counting stops at 10,000", lag.parked as f64)?;
        encode(names::RELAY_LANES, "Outbox partitions that this relay owns", f64::from(lag.lanes))?;
        if let Some(epoch) = lag.epoch {
            encode(names::RELAY_EPOCH, "The highest epoch of an owned partition", epoch as f64)?;
        }
        if let Some(bytes) = lag.bytes {
            encode(names::RELAY_SLOT_LAG, "Log that the server retains for this relay's slot", bytes as f64)?;
        }
        Ok(())
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
    fn names_types_labels_and_help_are_as_listed() {
        let metrics = RelayMetrics::new();
        metrics.succeeded();
        metrics.sampled(Lag { epoch: Some(1), bytes: Some(1), ..Lag::default() });
        assert_eq!(listing(&metrics.render()), include_str!("../observe/listings/relay.txt"));
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
        metrics.sampled(Lag { events: 7, lanes: 16, epoch: Some(3), ..Lag::default() });
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
