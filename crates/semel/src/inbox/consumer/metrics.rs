//! What a consumer counts, and whether it gets anywhere.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::desk::Tried;
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
/// use std::time::Duration;
///
/// let metrics = semel::inbox::consumer::ConsumerMetrics::new();
/// assert!(metrics.render().ends_with("# EOF\n"));
/// let trouble = metrics.trouble(Duration::from_secs(30)).unwrap();
/// assert_eq!(trouble, "the source was not reached yet");
/// ```
#[derive(Clone)]
pub struct ConsumerMetrics(Arc<Families>);

struct Families {
    registry: Registry,
    handled: Counter,
    failed: Counter,
    buried: Counter,
    source_errors: Counter,
    held: Gauge,
    success: Gauge<f64, AtomicU64>,
    health: Mutex<Health>,
}

impl ConsumerMetrics {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let messages = Family::<ByOutcome, Counter>::default();
        let (source_errors, held, success) =
            (Counter::default(), Gauge::default(), Gauge::<f64, AtomicU64>::default());
        registry.register(names::CONSUMER_MESSAGES, "Messages by what became of them", messages.clone());
        registry.register(names::CONSUMER_ERRORS, "Failures of the source", source_errors.clone());
        registry.register(names::CONSUMER_HELD, "Messages received and not settled", held.clone());
        registry.register(
            names::CONSUMER_SUCCESS,
            "When something was last handled, or nothing was there, since 1970",
            success.clone(),
        );
        let message = |outcome| messages.get_or_create(&ByOutcome { outcome }).clone();
        let (handled, failed, buried) = (message("handled"), message("failed"), message("buried"));
        let health = Mutex::default();
        Self(Arc::new(Families { registry, handled, failed, buried, source_errors, held, success, health }))
    }

    /// Everything counted so far, in the OpenMetrics text format that Prometheus reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }

    /// Why the consumer cannot be said to work, if neither its source nor its handler may fail for longer than this.
    /// `None`: it works.
    pub fn trouble(&self, patience: Duration) -> Option<String> {
        self.health().trouble(Instant::now(), patience)
    }

    pub(super) fn source_answered(&self, held: usize) {
        self.0.held.set(i64::try_from(held).unwrap_or(i64::MAX));
        if held == 0 {
            self.succeeded();
        }
        self.health().source_answered(Instant::now());
    }

    pub(super) fn source_failed(&self, error: &dyn fmt::Display) {
        self.0.source_errors.inc();
        self.health().source_failed(&error.to_string());
    }

    pub(super) fn round_begins(&self) {
        let mut health = self.health();
        health.batch_begins();
        health.call_begins(Instant::now());
    }

    /// What was said of messages that were tried.
    pub(super) fn round_ends<'t>(&self, told: impl Iterator<Item = &'t Tried>) {
        let (mut answered, mut error) = (false, None);
        for tried in told {
            match tried {
                Tried::Done => {
                    self.0.handled.inc();
                    answered = true;
                }
                Tried::Failed { error: why, .. } => {
                    self.0.failed.inc();
                    error.get_or_insert(why);
                }
            }
        }
        if answered {
            self.succeeded();
        }
        let mut health = self.health();
        health.call_ends(Instant::now(), answered, error.map(String::as_str));
        health.batch_ends();
    }

    pub(super) fn buried(&self) {
        self.0.buried.inc();
    }

    fn succeeded(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.success.set(since.as_secs_f64());
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.0.health.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::consumer::FailedKind;

    #[test]
    fn messages_are_counted_by_what_became_of_them() {
        let metrics = ConsumerMetrics::new();
        metrics.source_answered(3);
        metrics.round_begins();
        let failed = Tried::Failed { error: "no".into(), kind: FailedKind::Later, after: None };
        metrics.round_ends([Tried::Done, failed, Tried::Done].iter());
        metrics.buried();
        let text = metrics.render();
        for line in [
            "semel_consumer_messages_total{outcome=\"handled\"} 2",
            "semel_consumer_messages_total{outcome=\"failed\"} 1",
            "semel_consumer_messages_total{outcome=\"buried\"} 1",
            "semel_consumer_held_messages 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert_eq!(metrics.trouble(Duration::from_secs(30)), None);
    }
}
