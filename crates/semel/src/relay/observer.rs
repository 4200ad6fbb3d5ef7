//! What a relay reports while it runs: counts, samples of the lag, a span for each event.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::metrics::{RelayMetrics, SAMPLE_EVERY};
use super::outbox_reader::{Lag, OutboxReader};
use super::run::Relay;
use crate::observe::names;
use crate::outbox::Event;
use crate::sink::{Sink, SinkError};

/// How often the log warns about waiting events.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where the relay counts, and when it last sampled and warned.
pub(super) struct Observer {
    pub(super) metrics: RelayMetrics,
    sampled_at: Option<Instant>,
    warned_at: Option<Instant>,
}

impl Observer {
    pub(super) fn new(metrics: &RelayMetrics) -> Self {
        Self { metrics: metrics.clone(), sampled_at: None, warned_at: None }
    }

    /// Warns about waiting events, at most once a minute.
    fn warn_of(&mut self, lag: Lag, age: Duration) {
        let Some(oldest) = lag.oldest.filter(|oldest| *oldest > age) else { return };
        if self.warned_at.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned_at = Some(Instant::now());
        tracing::warn!(
            oldest_seconds = oldest.as_secs(),
            events = lag.events,
            bytes = lag.bytes,
            "events have been waiting long to be published; check that the sink accepts them"
        );
    }
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    pub(super) fn observe(&self, count: impl FnOnce(&RelayMetrics)) {
        if let Some(observer) = &self.observer {
            count(&observer.metrics);
        }
    }

    /// Samples the lag, if the relay is observed and a sample is due.
    pub(super) async fn sample_if_due(&mut self) {
        let Some(observer) = &mut self.observer else { return };
        if observer.sampled_at.is_some_and(|at| at.elapsed() < SAMPLE_EVERY) {
            return;
        }
        observer.sampled_at = Some(Instant::now());
        match Box::pin(self.source.lag()).await {
            Ok(lag) => {
                observer.metrics.source_answered();
                observer.metrics.sampled(lag);
                observer.warn_of(lag, self.options.warn_age);
            }
            // Only debug: the next iteration warns.
            Err(error) => {
                observer.metrics.source_failed(&error);
                tracing::debug!(%error, "failed to measure the outbox's lag");
            }
        }
    }
}

/// A span for each event, if enabled: below the batch's span, with the trace in which it was appended.
pub(super) fn spans(events: &[Arc<Event>]) -> Vec<tracing::Span> {
    if !tracing::span_enabled!(tracing::Level::INFO) {
        return Vec::new();
    }
    let span = |event: &Arc<Event>| {
        tracing::info_span!(
            names::SPAN_RELAY_PUBLISH,
            event = %event.id(),
            topic = event.topic(),
            kind = event.kind(),
            trace_parent = event.trace(),
            outcome = tracing::field::Empty,
            error = tracing::field::Empty,
        )
    };
    events.iter().map(span).collect()
}

/// Records an event's outcome in its span.
pub(super) fn record(span: &tracing::Span, outcome: &str, error: Option<&SinkError>) {
    span.record("outcome", outcome);
    if let Some(error) = error {
        span.record("error", tracing::field::display(error));
    }
}
