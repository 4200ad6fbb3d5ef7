//! A consumer's metrics and health, and the spans of its calls.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::handler::HandlerError;
use super::scheduler::{AttemptResult, QueuedMessage};
use crate::observe::health::{Health, now};
use crate::observe::readings::{ATTEMPT_BOUNDS, BATCH_BOUNDS, CALL_BOUNDS, Reading, Readings, Shared};
use crate::observe::{self, Counter, Histogram, MetricSet, Registry, names};
use crate::source::SourceError;

/// Metrics of a consumer. Cheap to clone; clones share their counters. Pass it to
/// [`Consumer::observed_by`](super::Consumer::observed_by).
///
/// ```
/// use std::time::Duration;
///
/// let metrics = semel::inbox::consumer::ConsumerMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// let reason = metrics.unhealthy_reason(Duration::from_secs(30)).unwrap();
/// assert_eq!(reason, "the source was not reached yet");
/// ```
#[derive(Clone, Default)]
pub struct ConsumerMetrics(Arc<Families>);

struct Families {
    set: MetricSet,
    done: Counter,
    already: Counter,
    retried: Counter,
    failed: Counter,
    dead: Counter,
    lost: Counter,
    dead_letters_handled: Counter,
    dead_letters_failed: Counter,
    forgotten: Counter,
    source_errors: Counter,
    batch: Histogram,
    handle: Histogram,
    attempts: Histogram,
    state: Arc<Shared<State>>,
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    in_flight: Option<(usize, Option<Instant>)>,
    window: Option<Duration>,
    retention: Option<Duration>,
}

impl Default for Families {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let by_outcome = [names::LABEL_OUTCOME];
        let messages = set.counters(names::CONSUMER_MESSAGES, "Messages by outcome", by_outcome);
        let help = "Messages in one call to the handler";
        let batch = set.histogram(names::CONSUMER_BATCH, help, BATCH_BOUNDS);
        let help = "Duration of one call to the handler";
        let handle = set.histogram(names::CONSUMER_HANDLE, help, CALL_BOUNDS);
        let help = "Attempts until a message was done or dead";
        let attempts = set.histogram(names::CONSUMER_ATTEMPTS, help, ATTEMPT_BOUNDS);
        let help = "Dead letters redelivered, by outcome";
        let dead_letters = set.counters(names::CONSUMER_LETTERS, help, by_outcome);
        let forgotten = set.counter(names::CONSUMER_FORGOTTEN, "Marks pruned");
        let source_errors = set.counter(names::CONSUMER_ERRORS, "Errors of the source");
        let state = Arc::default();
        set.readings::<State>(&state);
        Self {
            done: messages.with(["done"]),
            already: messages.with(["already"]),
            retried: messages.with(["retried"]),
            failed: messages.with(["failed"]),
            dead: messages.with(["dead"]),
            lost: messages.with(["lost"]),
            dead_letters_handled: dead_letters.with(["handled"]),
            dead_letters_failed: dead_letters.with(["failed"]),
            set,
            forgotten,
            source_errors,
            batch,
            handle,
            attempts,
            state,
        }
    }
}

impl ConsumerMetrics {
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

    /// Why the consumer is unhealthy: its source or its handler has failed for longer than `patience`. `None`: healthy.
    pub fn unhealthy_reason(&self, patience: Duration) -> Option<String> {
        self.state().health.unhealthy_reason(now(), patience)
    }

    /// The source answered.
    pub(super) fn source_answered(&self) {
        self.state().health.source_answered(now());
    }

    /// The source failed. Only what is retried is counted: after anything else the consumer stops.
    pub(super) fn source_failed(&self, error: &SourceError) {
        if error.may_retry() {
            self.0.source_errors.inc();
        }
        self.state().health.source_failed(&error.to_string());
    }

    /// Calls of the handler begin.
    pub(super) fn round_begins(&self) {
        let mut state = self.state();
        state.health.batch_begins();
        state.health.call_begins(now());
    }

    /// Calls ended with these results.
    pub(super) fn round_ends<'t>(&self, results: impl Iterator<Item = &'t AttemptResult>) {
        let (mut answered, mut error) = (false, None);
        for tried in results {
            match tried {
                AttemptResult::Done | AttemptResult::Already => answered = true,
                AttemptResult::Failed { error: why, .. } => {
                    self.0.failed.inc();
                    error.get_or_insert(why);
                }
                AttemptResult::Unclear => {}
            }
        }
        let mut state = self.state();
        state.health.call_ends(now(), answered, error.map(String::as_str));
        state.health.batch_ends();
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
    pub(super) fn attempts(&self, attempts: u32) {
        self.0.attempts.observe(f64::from(attempts));
    }

    /// A message failed and will be retried.
    pub(super) fn retried(&self) {
        self.0.retried.inc();
    }

    /// A message became a dead letter after this many attempts.
    pub(super) fn dead(&self, attempts: u32) {
        self.0.dead.inc();
        self.0.attempts.observe(f64::from(attempts));
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

    /// A turn of the loop succeeded.
    pub(super) fn turned(&self) {
        self.state().health.succeeded(SystemTime::now());
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
        self.0.state.lock()
    }
}

impl fmt::Debug for ConsumerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerMetrics").finish_non_exhaustive()
    }
}

impl Readings for State {
    fn readings(&self) -> Vec<Reading> {
        let seconds = |time: Duration| time.as_secs_f64();
        let messages = self.in_flight.map(|(messages, _)| messages as f64);
        let age = |(_, since): (_, Option<Instant>)| since.map_or(Duration::ZERO, |since| since.elapsed());
        let oldest = self.in_flight.map(age).map(seconds);
        let (window, retention) = (self.window.map(seconds), self.retention.map(seconds));
        let success = self.health.last_success();
        vec![
            (names::CONSUMER_HELD, "Messages received and not settled", messages),
            (names::CONSUMER_OLDEST, "Age of the oldest of them", oldest),
            (names::CONSUMER_WINDOW, "Retention of marks", window),
            (names::CONSUMER_RETENTION, "Retention of messages at the source", retention),
            (names::CONSUMER_SUCCESS, "When a turn of the loop last succeeded", success),
        ]
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
                tries = queued.attempts,
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
    use crate::inbox::consumer::HandlerErrorKind;

    #[test]
    fn contract_names_types_labels_and_help() {
        let metrics = ConsumerMetrics::new();
        metrics.holds(1, None);
        metrics.keeps(Duration::from_secs(1), Some(Duration::from_secs(1)));
        metrics.turned();
        crate::contracts::pinned("metrics.consumer", &listing(&metrics.render()));
    }

    fn has(metrics: &ConsumerMetrics, line: &str) -> bool {
        metrics.render().lines().any(|have| have == line)
    }

    #[test]
    fn a_source_that_was_never_reached_is_a_reason_to_be_unhealthy() {
        let metrics = ConsumerMetrics::new();
        assert!(metrics.unhealthy_reason(Duration::ZERO).unwrap().contains("not reached yet"));
        metrics.source_answered();
        assert_eq!(metrics.unhealthy_reason(Duration::from_secs(3_600)), None);
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

    #[test]
    fn failures_are_counted_and_not_unhealthy_while_others_succeed() {
        let metrics = ConsumerMetrics::new();
        metrics.source_answered();
        metrics.round_begins();
        let failed = AttemptResult::Failed {
            error: "no".into(),
            kind: HandlerErrorKind::Transient,
            after: None,
            too_long: false,
        };
        metrics.round_ends([AttemptResult::Done, failed].iter());
        assert!(has(&metrics, "semel_consumer_messages_total{outcome=\"failed\"} 1"), "{}", metrics.render());
        assert_eq!(metrics.unhealthy_reason(Duration::from_secs(30)), None);
    }
}
