//! What a consumer counts, and the spans of its calls.

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
use super::scheduler::Held;
use crate::observe::names;
use crate::relay::health::Health;

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

/// Counts what a consumer does. Cheap to clone; all clones count together. Given to
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
    letters_handled: Counter,
    letters_failed: Counter,
    forgotten: Counter,
    source_errors: Counter,
    batch: Histogram,
    handle: Histogram,
    attempts: Histogram,
    seen: Seen,
    pub(super) health: Mutex<Health>,
}

type Seen = Arc<Mutex<State>>;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    held: Option<(usize, Option<Instant>)>,
    window: Option<Duration>,
    retention: Option<Duration>,
    succeeded_at: Option<SystemTime>,
}

impl ConsumerMetrics {
    /// Starts from zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (messages, letters) =
            (Family::<ByOutcome, Counter>::default(), Family::<ByOutcome, Counter>::default());
        let batch = Histogram::new([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0]);
        let handle =
            Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]);
        let attempts = Histogram::new([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]);
        let (forgotten, source_errors) = (Counter::default(), Counter::default());
        let seen = Seen::default();
        registry.register(names::CONSUMER_MESSAGES, "Messages by what became of them", messages.clone());
        registry.register(names::CONSUMER_BATCH, "Messages in one call to the handler", batch.clone());
        registry.register(names::CONSUMER_HANDLE, "How long one call to the handler took", handle.clone());
        registry.register(
            names::CONSUMER_ATTEMPTS,
            "How often a message was tried until it was done or dead",
            attempts.clone(),
        );
        registry.register(names::CONSUMER_LETTERS, "Dead letters that were handled again", letters.clone());
        registry.register(names::CONSUMER_FORGOTTEN, "Marks that were forgotten", forgotten.clone());
        registry.register(names::CONSUMER_ERRORS, "Failures of the source", source_errors.clone());
        registry.register_collector(Box::new(Gauges(seen.clone())));
        let message = |outcome| messages.get_or_create(&ByOutcome { outcome }).clone();
        let letter = |outcome| letters.get_or_create(&ByOutcome { outcome }).clone();
        Self(Arc::new(Families {
            done: message("done"),
            already: message("already"),
            retried: message("retried"),
            failed: message("failed"),
            dead: message("dead"),
            lost: message("lost"),
            letters_handled: letter("handled"),
            letters_failed: letter("failed"),
            registry,
            forgotten,
            source_errors,
            batch,
            handle,
            attempts,
            seen,
            health: Mutex::default(),
        }))
    }

    /// Everything counted so far, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// A call with so many messages ended; so many of them had been handled before.
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

    /// A message was done at this try.
    pub(super) fn attempts(&self, tries: u32) {
        self.0.attempts.observe(f64::from(tries));
    }

    /// A message failed and is tried again.
    pub(super) fn retried(&self) {
        self.0.retried.inc();
    }

    /// A message was buried after so many tries.
    pub(super) fn dead(&self, tries: u32) {
        self.0.dead.inc();
        self.0.attempts.observe(f64::from(tries));
    }

    /// Messages are not ours any more.
    pub(super) fn lost(&self, messages: usize) {
        self.0.lost.inc_by(messages as u64);
    }

    /// A dead letter was handled again, or was not.
    pub(super) fn letter(&self, handled: bool) {
        if handled { &self.0.letters_handled } else { &self.0.letters_failed }.inc();
    }

    /// Marks were forgotten.
    pub(super) fn forgotten(&self, marks: u64) {
        self.0.forgotten.inc_by(marks);
    }

    /// The source failed.
    pub(super) fn source_failed(&self) {
        self.0.source_errors.inc();
    }

    /// A turn of the loop went well.
    pub(super) fn turned(&self) {
        self.seen().succeeded_at = Some(SystemTime::now());
    }

    /// So much is held, the oldest since then.
    pub(super) fn holds(&self, messages: usize, oldest: Option<Instant>) {
        self.seen().held = Some((messages, oldest));
    }

    /// How long marks are kept, and messages at the source.
    pub(super) fn keeps(&self, window: Duration, retention: Option<Duration>) {
        let mut seen = self.seen();
        (seen.window, seen.retention) = (Some(window), retention);
    }

    fn seen(&self) -> MutexGuard<'_, State> {
        lock(&self.0.seen)
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

fn lock(seen: &Seen) -> MutexGuard<'_, State> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is told only when it is known: a zero that nobody has counted would be a lie.
#[derive(Debug)]
struct Gauges(Seen);

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let State { held, window, retention, succeeded_at } = *lock(&self.0);
        let mut tell = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Some((messages, oldest)) = held {
            tell(names::CONSUMER_HELD, "Messages received and not settled", messages as f64)?;
            let oldest = oldest.map_or(Duration::ZERO, |since| since.elapsed());
            tell(names::CONSUMER_OLDEST, "For how long the oldest of them is held", oldest.as_secs_f64())?;
        }
        if let Some(window) = window {
            tell(names::CONSUMER_WINDOW, "How long marks are kept", window.as_secs_f64())?;
        }
        if let Some(retention) = retention {
            let help = "How long the source keeps messages";
            tell(names::CONSUMER_RETENTION, help, retention.as_secs_f64())?;
        }
        if let Some(at) = succeeded_at {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            tell(names::CONSUMER_SUCCESS, "When all there was to do was last done", since.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Who looks at the calls of a consumer.
#[derive(Clone)]
pub(super) struct Observer {
    consumer: String,
    pub(super) metrics: Option<ConsumerMetrics>,
}

impl Observer {
    pub(super) fn new(consumer: &str) -> Self {
        Self { consumer: consumer.to_owned(), metrics: None }
    }

    /// A span for the call and, if anybody looks at them, one for each of its messages, naming the trace in which it was
    /// published.
    pub(super) fn spans(&self, part: &[Held]) -> (tracing::Span, Vec<tracing::Span>) {
        let call = tracing::info_span!(
            names::SPAN_CONSUMER_HANDLE,
            consumer = self.consumer,
            messages = part.len(),
            // Of one message alone the call is its own.
            trace_parent =
                part.first().filter(|_| part.len() == 1).and_then(|held| held.message.trace_parent()),
        );
        if call.is_disabled() {
            return (call, Vec::new());
        }
        let span = |held: &Held| {
            tracing::info_span!(
                parent: &call,
                names::SPAN_CONSUMER_MESSAGE,
                message = %held.message.identity().id(),
                source = held.message.identity().source(),
                kind = held.message.kind(),
                trace_parent = held.message.trace_parent(),
                tries = held.tries,
                outcome = tracing::field::Empty,
                error = tracing::field::Empty,
            )
        };
        let spans = part.iter().map(span).collect();
        (call, spans)
    }
}

/// What became of the message of a span.
pub(super) fn record(span: &tracing::Span, error: Option<&HandlerError>) {
    span.record("outcome", if error.is_some() { "failed" } else { "done" });
    if let Some(error) = error {
        span.record("error", tracing::field::display(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        metrics.letter(true);
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
    fn what_is_not_known_is_not_told() {
        let metrics = ConsumerMetrics::new();
        let told = |name: &str| metrics.render().lines().any(|line| line.starts_with(name));
        assert!(!told("semel_consumer_held_messages ") && !told("semel_consumer_window_seconds "));
        metrics.holds(4, None);
        metrics.keeps(Duration::from_secs(60), None);
        assert!(has(&metrics, "semel_consumer_held_messages 4.0"));
        assert!(has(&metrics, "semel_consumer_held_oldest_seconds 0.0"));
        assert!(has(&metrics, "semel_consumer_window_seconds 60.0"));
        assert!(!told("semel_consumer_retention_seconds "));
    }
}
