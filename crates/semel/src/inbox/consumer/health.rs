//! Health: whether a consumer makes progress.

use std::fmt;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::metrics::ConsumerMetrics;
use super::scheduler::AttemptResult;
use crate::relay::health::Health;

impl ConsumerMetrics {
    /// Why the consumer is unhealthy: its source or its handler has failed for longer than `patience`. `None`: healthy.
    ///
    /// ```
    /// let metrics = semel::inbox::consumer::ConsumerMetrics::new();
    /// let trouble = metrics.trouble(std::time::Duration::from_secs(30)).unwrap();
    /// assert_eq!(trouble, "the source was not reached yet");
    /// ```
    pub fn trouble(&self, patience: Duration) -> Option<String> {
        self.health().trouble(Instant::now(), patience)
    }

    /// The source answered.
    pub(super) fn source_answered(&self) {
        self.health().source_answered(Instant::now());
    }

    /// The source failed.
    pub(super) fn source_is_away(&self, error: &dyn fmt::Display) {
        self.health().source_failed(&error.to_string());
    }

    /// Calls of the handler begin.
    pub(super) fn round_begins(&self) {
        let mut health = self.health();
        health.batch_begins();
        health.call_begins(Instant::now());
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
            }
        }
        let mut health = self.health();
        health.call_ends(Instant::now(), answered, error.map(String::as_str));
        health.batch_ends();
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.0.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::consumer::HandlerErrorKind;

    #[test]
    fn failures_are_counted_and_are_no_trouble_while_others_succeed() {
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
        let line = "semel_consumer_messages_total{outcome=\"failed\"} 1";
        assert!(metrics.render().lines().any(|have| have == line), "{}", metrics.render());
        assert_eq!(metrics.trouble(Duration::from_secs(30)), None);
    }
}
