//! A consumer's metrics, and the spans of its calls.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::handler::HandlerError;
use super::scheduler::QueuedMessage;
use crate::observe::names;
use crate::relay::health::Health;

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

/// Metrics of a consumer. Cheap to clone; clones share their counters. Pass it to
/// [`Consumer::observed_by`](super::Consumer::observed_by).
///
/// ```
/// let metrics = semel::inbox::consumer::ConsumerMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// ```
#[derive(Clone)]
pub struct ConsumerMetrics(pub(super) Arc<Families>);

pub(super) struct Families {
    registry: Registry,
    done: Counter,
    already: Counter,
    retried: Counter,
    pub(super) failed: Counter,
    dead: Counter,
    lost: Counter,
    dead_letters_handled: Counter,
    dead_letters_failed: Counter,
    forgotten: Counter,
    source_errors: Counter,
    batch: Histogram,
    handle: Histogram,
    attempts: Histogram,
    state: SharedState,
    pub(super) health: Mutex<Health>,
}

type SharedState = Arc<Mutex<State>>;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    in_flight: Option<(usize, Option<Instant>)>,
    window: Option<Duration>,
    retention: Option<Duration>,
    succeeded_at: Option<SystemTime>,
}

impl ConsumerMetrics {
    /// Starts from zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (messages, dead_letters) =
            (Family::<ByOutcome, Counter>::default(), Family::<ByOutcome, Counter>::default());
        let batch = Histogram::new([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0]);
        let handle =
            Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]);
        let attempts = Histogram::new([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]);
        let (forgotten, source_errors) = (Counter::default(), Counter::default());
        let state = SharedState::default();
        registry.register(names::CONSUMER_MESSAGES, "Messages by outcome", messages.clone());
        registry.register(names::CONSUMER_BATCH, "Messages in one call to the handler", batch.clone());
        registry.register(names::CONSUMER_HANDLE, "Duration of one call to the handler", handle.clone());
        registry.register(
            names::CONSUMER_ATTEMPTS,
            "Attempts until a message was done or dead",
            attempts.clone(),
        );
        registry.register(
            names::CONSUMER_LETTERS,
            "Dead letters redelivered, by outcome",
            dead_letters.clone(),
        );
        registry.register(names::CONSUMER_FORGOTTEN, "Marks pruned", forgotten.clone());
        registry.register(names::CONSUMER_ERRORS, "Errors of the source", source_errors.clone());
        registry.register_collector(Box::new(Gauges(state.clone())));
        let message = |outcome| messages.get_or_create(&ByOutcome { outcome }).clone();
        let dead_letter = |outcome| dead_letters.get_or_create(&ByOutcome { outcome }).clone();
        Self(Arc::new(Families {
            done: message("done"),
            already: message("already"),
            retried: message("retried"),
            failed: message("failed"),
            dead: message("dead"),
            lost: message("lost"),
            dead_letters_handled: dead_letter("handled"),
            dead_letters_failed: dead_letter("failed"),
            registry,
            forgotten,
            source_errors,
            batch,
            handle,
            attempts,
            state,
            health: Mutex::default(),
        }))
    }

    /// All metrics, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// A call ended. `already`: how many of its messages were duplicates.
    pub(super) fn called(
        &self,
        took: Duration,
        messages: usize,
        already: usize,
        error: Option<&HandlerError>,
    ) {
        self.0.batch.observe(messages as f64);
        self.0.handle.observe(took.as_secs_f64());
        if error.is_none() {
            self.0.done.inc_by(messages.saturating_sub(already) as u64);
            self.0.already.inc_by(already.min(messages) as u64);
        }
    }

    /// A message was done after this many attempts.
    pub(super) fn attempts(&self, tries: u32) {
        self.0.attempts.observe(f64::from(tries));
    }

    /// A message failed and will be retried.
    pub(super) fn retried(&self) {
        self.0.retried.inc();
    }

    /// A message became a dead letter after this many attempts.
    pub(super) fn dead(&self, tries: u32) {
        self.0.dead.inc();
        self.0.attempts.observe(f64::from(tries));
    }

    /// Messages were lost: their leases went to another consumer.
    pub(super) fn lost(&self, messages: usize) {
        self.0.lost.inc_by(messages as u64);
    }

    /// A redelivered dead letter was handled, or failed again.
    pub(super) fn dead_letter(&self, handled: bool) {
        if handled { &self.0.dead_letters_handled } else { &self.0.dead_letters_failed }.inc();
    }

    /// Marks were pruned.
    pub(super) fn forgotten(&self, marks: u64) {
        self.0.forgotten.inc_by(marks);
    }

    /// The source failed.
    pub(super) fn source_failed(&self) {
        self.0.source_errors.inc();
    }

    /// A turn of the loop succeeded.
    pub(super) fn turned(&self) {
        self.state().succeeded_at = Some(SystemTime::now());
    }

    /// How many messages are in flight, and since when the oldest is.
    pub(super) fn holds(&self, messages: usize, oldest: Option<Instant>) {
        self.state().in_flight = Some((messages, oldest));
    }

    /// Retention of marks, and of messages at the source.
    pub(super) fn keeps(&self, window: Duration, retention: Option<Duration>) {
        let mut state = self.state();
        (state.window, state.retention) = (Some(window), retention);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

impl Default for ConsumerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ConsumerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerMetrics").finish_non_exhaustive()
    }
}

fn lock(state: &SharedState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gauges that appear only once their value is known: an invented zero would mislead.
#[derive(Debug)]
struct Gauges(SharedState);

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let State { in_flight, window, retention, succeeded_at } = *lock(&self.0);
        let mut gauge_of = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Some((messages, oldest)) = in_flight {
            gauge_of(names::CONSUMER_HELD, "Messages received and not settled", messages as f64)?;
            let oldest = oldest.map_or(Duration::ZERO, |since| since.elapsed());
            gauge_of(names::CONSUMER_OLDEST, "Age of the oldest of them", oldest.as_secs_f64())?;
        }
        if let Some(window) = window {
            gauge_of(names::CONSUMER_WINDOW, "Retention of marks", window.as_secs_f64())?;
        }
        if let Some(retention) = retention {
            let help = "Retention of messages at the source";
            gauge_of(names::CONSUMER_RETENTION, help, retention.as_secs_f64())?;
        }
        if let Some(at) = succeeded_at {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            gauge_of(names::CONSUMER_SUCCESS, "When a turn of the loop last succeeded", since.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Spans and metrics of a consumer's calls.
#[derive(Clone)]
pub(super) struct Observer {
    consumer: String,
    pub(super) metrics: Option<ConsumerMetrics>,
}

impl Observer {
    pub(super) fn new(consumer: &str) -> Self {
        Self { consumer: consumer.to_owned(), metrics: None }
    }

    /// A span for the call and, if spans are enabled, one per message that names the trace it was published under.
    pub(super) fn spans(&self, part: &[QueuedMessage]) -> (tracing::Span, Vec<tracing::Span>) {
        let call = tracing::info_span!(
            names::SPAN_CONSUMER_HANDLE,
            consumer = self.consumer,
            messages = part.len(),
            // A call with one message belongs to that message's trace.
            trace_parent =
                part.first().filter(|_| part.len() == 1).and_then(|queued| queued.message.trace_parent()),
        );
        if call.is_disabled() {
            return (call, Vec::new());
        }
        let span = |queued: &QueuedMessage| {
            tracing::info_span!(
                parent: &call,
                names::SPAN_CONSUMER_MESSAGE,
                message = %queued.message.identity().id(),
                source = queued.message.identity().source(),
                kind = queued.message.kind(),
                trace_parent = queued.message.trace_parent(),
                tries = queued.tries,
                outcome = tracing::field::Empty,
                error = tracing::field::Empty,
            )
        };
        let spans = part.iter().map(span).collect();
        (call, spans)
    }
}

/// Records the outcome of a message in its span.
pub(super) fn record(span: &tracing::Span, error: Option<&HandlerError>) {
    span.record("outcome", if error.is_some() { "failed" } else { "done" });
    if let Some(error) = error {
        span.record("error", tracing::field::display(error));
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn names_types_labels_and_help_are_as_listed() {
        let metrics = ConsumerMetrics::new();
        metrics.holds(1, None);
        metrics.keeps(Duration::from_secs(1), Some(Duration::from_secs(1)));
        metrics.turned();
        assert_eq!(listing(&metrics.render()), include_str!("../../observe/listings/consumer.txt"));
    }

    fn has(metrics: &ConsumerMetrics, line: &str) -> bool {
        metrics.render().lines().any(|have| have == line)
    }

    #[test]
    fn messages_are_counted_by_what_became_of_them() {
        let metrics = ConsumerMetrics::new();
        metrics.called(Duration::from_millis(2), 7, 2, None);
        metrics.called(Duration::from_millis(2), 9, 0, Some(&HandlerError::retry("no")));
        metrics.retried();
        metrics.dead(8);
        metrics.lost(3);
        metrics.dead_letter(true);
        for line in [
            "semel_consumer_messages_total{outcome=\"done\"} 5",
            "semel_consumer_messages_total{outcome=\"already\"} 2",
            "semel_consumer_messages_total{outcome=\"retried\"} 1",
            "semel_consumer_messages_total{outcome=\"dead\"} 1",
            "semel_consumer_messages_total{outcome=\"lost\"} 3",
            "semel_consumer_letters_total{outcome=\"handled\"} 1",
            "semel_consumer_batch_messages_count 2",
            "semel_consumer_attempts_sum 8.0",
        ] {
            assert!(has(&metrics, line), "{line}\n{}", metrics.render());
        }
    }

    #[test]
    fn what_is_not_known_is_not_exported() {
        let metrics = ConsumerMetrics::new();
        let shown = |name: &str| metrics.render().lines().any(|line| line.starts_with(name));
        assert!(!shown("semel_consumer_held_messages ") && !shown("semel_consumer_window_seconds "));
        metrics.holds(4, None);
        metrics.keeps(Duration::from_secs(60), None);
        assert!(has(&metrics, "semel_consumer_held_messages 4.0"));
        assert!(has(&metrics, "semel_consumer_held_oldest_seconds 0.0"));
        assert!(has(&metrics, "semel_consumer_window_seconds 60.0"));
        assert!(!shown("semel_consumer_retention_seconds "));
    }
}
