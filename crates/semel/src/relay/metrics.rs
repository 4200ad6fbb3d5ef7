//! What a relay counts, and whether it gets anywhere.

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

/// How often the source is asked how much is left.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct BySide {
    side: &'static str,
}

/// Counts what a relay does. Cheap to clone; all clones count together. Given to
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
    seen: Seen,
}

type Seen = Arc<Mutex<State>>;

/// The runtime's clock, so that a paused one is obeyed.
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
        let seen = Seen::default();
        registry.register(names::RELAY_EVENTS, "Events by what became of them", events.clone());
        registry.register(names::RELAY_BATCH, "Events in a batch", batch.clone());
        registry.register(names::RELAY_PUBLISH, "How long one call to the sink took", publish.clone());
        registry.register(names::RELAY_ERRORS, "Failures of the two ends", errors.clone());
        registry.register_collector(Box::new(Lags(seen.clone())));
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
            seen,
        }))
    }

    /// Everything counted so far, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// Why the relay cannot be said to work, if neither its source nor its sink may be away for longer than this.
    /// `None`: it works.
    pub fn trouble(&self, patience: Duration) -> Option<String> {
        self.seen().health.trouble(now(), patience)
    }

    /// The source did what it was asked.
    pub(crate) fn source_answered(&self) {
        self.seen().health.source_answered(now());
    }

    /// The source failed.
    pub(crate) fn source_failed(&self, error: &dyn fmt::Display) {
        self.0.source_errors.inc();
        self.seen().health.source_failed(&error.to_string());
    }

    /// Nothing is left to do, or a batch is settled.
    pub(crate) fn succeeded(&self) {
        self.seen().succeeded_at = Some(SystemTime::now());
    }

    /// A batch of so many events is to be sent.
    pub(crate) fn batch_begins(&self, events: usize) {
        self.0.batch.observe(events as f64);
        self.seen().health.batch_begins();
    }

    /// It was settled, or left to be sent again.
    pub(crate) fn batch_ends(&self) {
        self.seen().health.batch_ends();
    }

    /// What became of its events.
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

    /// The sink is given events.
    pub(crate) fn call_begins(&self) {
        self.seen().health.call_begins(now());
    }

    /// What the sink said after this long.
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
        self.call_told(took, answered, failed, error);
    }

    /// What became of a transaction of so many events.
    pub(crate) fn transaction_ends(&self, took: Duration, events: usize, error: Option<&SinkError>) {
        let answered = error.is_none_or(|error| error.refused_event().is_some());
        let failed = if error.is_some() { events as u64 } else { 0 };
        self.call_told(took, answered, failed, error.map(ToString::to_string));
    }

    fn call_told(&self, took: Duration, answered: bool, failed: u64, error: Option<String>) {
        self.0.publish.observe(took.as_secs_f64());
        self.0.failed.inc_by(failed);
        if error.is_some() {
            self.0.sink_errors.inc();
        }
        self.seen().health.call_ends(now(), answered, error.as_deref());
    }

    /// The call was left before its end: nothing is known of the sink.
    pub(crate) fn call_left(&self) {
        self.seen().health.call_left();
    }

    /// How much is left.
    pub(crate) fn sampled(&self, lag: Lag) {
        self.seen().lag = Some((lag, now()));
    }

    fn seen(&self) -> MutexGuard<'_, State> {
        lock(&self.0.seen)
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

fn lock(seen: &Seen) -> MutexGuard<'_, State> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the source was asked for, told from when it was asked: a zero that nobody has counted would be a lie.
#[derive(Debug)]
struct Lags(Seen);

impl Collector for Lags {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (lag, succeeded_at) = {
            let seen = lock(&self.0);
            (seen.lag, seen.succeeded_at)
        };
        let mut tell = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Some(at) = succeeded_at {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            tell(names::RELAY_SUCCESS, "When something last got done, since 1970", since.as_secs_f64())?;
        }
        let Some((lag, at)) = lag else { return Ok(()) };
        let help = "Events of our lanes to be published; counting stops at 10,000";
        tell(names::RELAY_UNPUBLISHED, help, lag.events as f64)?;
        let oldest = oldest(&lag, now().saturating_duration_since(at)).as_secs_f64();
        tell(names::RELAY_OLDEST, "For how long the oldest of them waits", oldest)?;
        tell(names::RELAY_PARKED, "Parked and held events; counting stops at 10,000", lag.parked as f64)?;
        tell(names::RELAY_LANES, "Lanes that are ours", f64::from(lag.lanes))?;
        if let Some(epoch) = lag.epoch {
            tell(names::RELAY_EPOCH, "The highest epoch under which one is", epoch as f64)?;
        }
        if let Some(bytes) = lag.bytes {
            tell(names::RELAY_SLOT_LAG, "What the server keeps for us", bytes as f64)?;
        }
        Ok(())
    }
}

/// While nobody can be asked, what waits grows older all the same.
fn oldest(lag: &Lag, asked_ago: Duration) -> Duration {
    lag.oldest.map_or(Duration::ZERO, |oldest| oldest + asked_ago.saturating_sub(SAMPLE_EVERY))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_was_not_asked_is_not_told() {
        let metrics = RelayMetrics::new();
        let told = |name: &str| metrics.render().lines().any(|line| line.starts_with(name));
        assert!(!told("semel_relay_unpublished_events "));
        metrics.sampled(Lag { events: 7, lanes: 16, epoch: Some(3), ..Lag::default() });
        assert!(has(&metrics, "semel_relay_unpublished_events 7.0"));
        assert!(has(&metrics, "semel_relay_owner_epoch 3.0"));
        assert!(!told("semel_relay_slot_lag_bytes "));
        metrics.sampled(Lag { bytes: Some(4_096), ..Lag::default() });
        assert!(has(&metrics, "semel_relay_slot_lag_bytes 4096.0"));
    }

    #[test]
    fn what_waits_grows_older_while_nobody_can_be_asked() {
        let ten = Duration::from_secs(10);
        let lag = Lag { events: 1, oldest: Some(ten), ..Lag::default() };
        assert_eq!(oldest(&lag, Duration::ZERO), ten);
        assert_eq!(oldest(&lag, SAMPLE_EVERY), ten);
        assert_eq!(oldest(&lag, SAMPLE_EVERY + ten), 2 * ten);
        assert_eq!(oldest(&Lag::default(), 9 * ten), Duration::ZERO);
    }
}
