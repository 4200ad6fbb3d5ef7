//! Decides what is to blame when events fail: a poison message, its topic, or the sink. Pure.
//!
//! It judges by what the sink confirmed since the first failure, never by the number of failed events.
//!
//! | observation | conclusion |
//! |---|---|
//! | the sink confirmed anything since the event first failed | the event is to blame |
//! | its topic failed while others got through, and had nothing confirmed since | the topic's events are to blame |
//! | nothing gets through | unknown: the sink may be down, or these events are the only ones in flight |
//!
//! In the last case the relay waits, then skips the batch: it parks the keys, to see whether anything else gets
//! through. It waits at most a second for up to `failing_keys_max` keys. More keys look like an outage: half a minute to a
//! minute. Each further batch in a row waits that much longer. So a sink that is down for an hour parks only a few
//! batches, and many events for one destination cannot starve those for another.

use std::collections::BTreeSet;
use std::time::Duration;

/// Longest wait for the first stalled batch.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// Shortest wait if more than `failing_keys_max` keys fail: most likely the sink is down, and a broker restart should not
/// park anything.
const OUTAGE_PATIENCE_MIN: Duration = Duration::from_secs(30);
/// Most topics remembered. Further topics are judged anew each time.
const TOPICS_MAX: usize = 1_000;

/// State kept from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Blame {
    /// Batches skipped since the last success.
    read_past: u32,
    /// Topics of the keys parked with those batches. The next success proves that these topics were to blame.
    maybe_failing: BTreeSet<String>,
    /// Topics that failed while others got through, and had nothing confirmed since.
    failing: BTreeSet<String>,
}

impl Blame {
    /// The sink confirmed events of these topics.
    pub(super) fn succeeded<'a>(&mut self, topics: impl IntoIterator<Item = &'a str>) {
        self.read_past = 0;
        self.failing.append(&mut self.maybe_failing);
        for topic in topics {
            self.failing.remove(topic);
        }
        while self.failing.len() > TOPICS_MAX {
            self.failing.pop_last();
        }
    }

    /// Events of this topic were parked; nothing of it got through, but events of other topics did.
    pub(super) fn parked(&mut self, topic: &str) {
        if self.failing.len() < TOPICS_MAX {
            self.failing.insert(topic.to_owned());
        }
    }

    /// A batch with events of these topics was skipped.
    pub(super) fn set_aside<'a>(&mut self, topics: impl IntoIterator<Item = &'a str>) {
        self.read_past = self.read_past.saturating_add(1);
        for topic in topics {
            if self.maybe_failing.len() < TOPICS_MAX && !self.failing.contains(topic) {
                self.maybe_failing.insert(topic.to_owned());
            }
        }
    }

    /// Whether this topic fails while others do not.
    pub(super) fn is_failing(&self, topic: &str) -> bool {
        self.failing.contains(topic)
    }

    /// How long nothing may get through before a batch with this many failing keys is skipped. `None`: never skipped.
    pub(super) fn patience(&self, keys: usize, failing_keys_max: usize) -> Option<Duration> {
        let a_second = u32::try_from(failing_keys_max).unwrap_or(u32::MAX);
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let first = Duration::from_secs(1).saturating_mul(keys).checked_div(a_second)?.min(PATIENCE_MAX);
        let first = if keys > a_second { first.max(OUTAGE_PATIENCE_MIN) } else { first };
        Some(first.saturating_mul(self.read_past.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_success_blames_what_was_set_aside_until_it_succeeds_itself() {
        let mut blame = Blame::default();
        blame.set_aside(["a", "b"]);
        assert!(!blame.is_failing("a") && !blame.is_failing("b"), "it may be the sink");
        blame.succeeded(["b", "c"]);
        assert!(blame.is_failing("a") && !blame.is_failing("b") && !blame.is_failing("c"));
        blame.succeeded(["c"]);
        assert!(blame.is_failing("a"));
        blame.succeeded(["a"]);
        assert!(!blame.is_failing("a"));
        blame.parked("d");
        assert!(blame.is_failing("d"));
    }

    #[test]
    fn patience_grows_with_the_keys_and_with_each_batch_in_a_row() {
        let mut blame = Blame::default();
        let table = [
            (0, 0.0),
            (1, 0.125),
            (8, 1.0),
            (9, 30.0),
            (240, 30.0),
            (480, 60.0),
            (4_000, 60.0),
            (usize::MAX, 60.0),
        ];
        for (keys, seconds) in table {
            assert_eq!(blame.patience(keys, 8), Some(Duration::from_secs_f64(seconds)), "{keys}");
        }
        blame.set_aside(["a"]);
        assert_eq!(blame.patience(8, 8), Some(Duration::from_secs(2)));
        blame.set_aside(["a"]);
        assert_eq!(blame.patience(4_000, 8), Some(Duration::from_secs(180)));
        blame.succeeded(["b"]);
        assert_eq!(blame.patience(8, 8), Some(Duration::from_secs(1)));
        assert_eq!(blame.patience(8, 0), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut blame = Blame::default();
        let topics: Vec<String> = (0..3 * TOPICS_MAX).map(|n| n.to_string()).collect();
        topics.iter().for_each(|topic| blame.parked(topic));
        blame.set_aside(topics.iter().rev().map(String::as_str));
        blame.succeeded([]);
        assert_eq!(blame.failing.len(), TOPICS_MAX);
    }
}
