//! The keys whose partitions know this producer.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outbox::Event;

/// Most keys remembered; then the set is cleared.
const KEYS_MAX: usize = 65_536;
/// A broker forgets a producer that was idle for a day. The set is cleared long before that.
const AGE_MAX: Duration = Duration::from_secs(3_600);

/// If a partition does not know a producer, the broker accepts any sequence number as its first. After the first event
/// of a key is confirmed, the partition knows the producer, and the broker rejects gaps in the sequence.
pub(super) struct KnownKeys {
    keys: HashSet<u64>,
    since: Instant,
}

impl Default for KnownKeys {
    fn default() -> Self {
        Self { keys: HashSet::new(), since: Instant::now() }
    }
}

impl KnownKeys {
    /// The events that may be sent at once, and those that wait until the first event of their key is confirmed.
    pub(super) fn split(&mut self, events: &[Arc<Event>], of: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        if self.keys.len() > KEYS_MAX || self.since.elapsed() > AGE_MAX {
            *self = Self::default();
        }
        let mut first = HashSet::new();
        of.into_iter()
            .partition(|&n| hash(&events[n]).is_none_or(|key| self.keys.contains(&key) || first.insert(key)))
    }

    /// The event is confirmed, so its partition knows the producer.
    pub(super) fn add(&mut self, event: &Event) {
        self.keys.extend(hash(event));
    }
}

fn hash(event: &Event) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    (event.topic(), event.ordered_by()?).hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_an_unknown_key_goes_ahead() {
        let event = |key: &str| Arc::new(Event::new("t", "k", "").unwrap().key(key).unwrap());
        let keyless = Arc::new(Event::new("t", "k", "").unwrap());
        let events = [event("a"), event("a"), event("b"), keyless.clone(), event("a"), keyless];
        let mut known_keys = KnownKeys::default();
        assert_eq!(known_keys.split(&events, (0..6).collect()), (vec![0, 2, 3, 5], vec![1, 4]));
        known_keys.add(&events[0]);
        assert_eq!(known_keys.split(&events, (0..6).collect()), ((0..6).collect(), vec![]));
    }
}
