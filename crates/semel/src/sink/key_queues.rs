//! Events by key, so that at most one of a key is under way.
//!
//! A broker that answers each message by itself may refuse one and take the next. Order then only holds if the next of a
//! key is sent when the one before it has been confirmed. Different keys do not wait for each other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::publish_results::{PublishResults, held_back};
use crate::outbox::Event;

/// Most events under way at once.
pub(super) const WAVE_EVENTS_MAX: usize = 512;

/// What is still to be sent, one lane per key.
pub(super) struct KeyQueues {
    lanes: VecDeque<VecDeque<usize>>,
}

impl KeyQueues {
    pub(super) fn of(events: &[Arc<Event>]) -> Self {
        let mut lanes: VecDeque<VecDeque<usize>> = VecDeque::new();
        let mut by_key = HashMap::new();
        for (n, event) in events.iter().enumerate() {
            match event.ordered_by() {
                None => lanes.push_back(VecDeque::from([n])),
                Some(key) => {
                    let lane = *by_key.entry((event.topic(), key)).or_insert(lanes.len());
                    match lanes.get_mut(lane) {
                        Some(lane) => lane.push_back(n),
                        None => lanes.push_back(VecDeque::from([n])),
                    }
                }
            }
        }
        Self { lanes }
    }

    /// The next events that may be under way together; none when all are answered. A lane whose last event was not
    /// confirmed is answered here and goes no further.
    pub(super) fn next(&mut self, answers: &mut PublishResults<'_>) -> Vec<usize> {
        let mut wave = Vec::new();
        for _ in 0..self.lanes.len() {
            if wave.len() == WAVE_EVENTS_MAX {
                break;
            }
            let Some(mut lane) = self.lanes.pop_front() else { break };
            let Some(n) = lane.pop_front() else { continue };
            if answers.is_held(n) {
                answers.set(n, held_back());
                lane.into_iter().for_each(|n| answers.set(n, held_back()));
                continue;
            }
            wave.push(n);
            if !lane.is_empty() {
                self.lanes.push_back(lane);
            }
        }
        wave
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Published, SinkError};

    fn event(key: Option<&str>) -> Arc<Event> {
        let event = Event::new("t", "k", "").unwrap();
        Arc::new(match key {
            Some(key) => event.key(key).unwrap(),
            None => event,
        })
    }

    #[test]
    fn one_of_a_key_at_a_time_and_none_behind_a_failure() {
        let events = [Some("a"), Some("b"), Some("a"), None, Some("b"), Some("a"), None].map(event);
        let mut answers = PublishResults::to(&events);
        let mut lanes = KeyQueues::of(&events);
        let failed = || Published::Failed(SinkError::not_published("no"));
        assert_eq!(lanes.next(&mut answers), [0, 1, 3, 6]);
        for n in [0, 3, 6] {
            answers.set(n, Published::Confirmed);
        }
        answers.set(1, failed());
        assert_eq!(lanes.next(&mut answers), [2]);
        answers.set(2, Published::Confirmed);
        assert_eq!(lanes.next(&mut answers), [5]);
        answers.set(5, Published::Confirmed);
        assert_eq!(lanes.next(&mut answers), [0; 0]);
        let confirmed: Vec<_> = answers.finish().iter().map(|it| *it == Published::Confirmed).collect();
        assert_eq!(confirmed, [true, false, true, true, false, true, true]);
    }

    #[test]
    fn a_wave_is_bounded() {
        let events: Vec<_> = (0..WAVE_EVENTS_MAX * 2 + 3).map(|_| event(None)).collect();
        let mut answers = PublishResults::to(&events);
        let mut lanes = KeyQueues::of(&events);
        let sizes: Vec<_> =
            std::iter::from_fn(|| Some(lanes.next(&mut answers).len()).filter(|len| *len > 0)).collect();
        assert_eq!(sizes, [WAVE_EVENTS_MAX, WAVE_EVENTS_MAX, 3]);
    }
}
