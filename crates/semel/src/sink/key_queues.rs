//! One queue per key, so that at most one event of a key is in flight.
//!
//! A broker that acks each message separately may reject one and accept the next. Order then holds only if the next
//! event of a key is sent after the previous one is confirmed. Different keys do not wait for each other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::publish_results::{PublishResults, blocked};
use crate::outbox::Event;

/// Most events in flight at once.
pub(crate) const ROUND_EVENTS_MAX: usize = 512;

/// The events still to be sent, one queue per key.
pub(crate) struct KeyQueues {
    queues: VecDeque<VecDeque<usize>>,
}

impl KeyQueues {
    pub(crate) fn of(events: &[Arc<Event>]) -> Self {
        let mut queues: VecDeque<VecDeque<usize>> = VecDeque::new();
        let mut by_key = HashMap::new();
        for (n, event) in events.iter().enumerate() {
            match event.ordered_by() {
                None => queues.push_back(VecDeque::from([n])),
                Some(key) => {
                    let queue = *by_key.entry((event.topic(), key)).or_insert(queues.len());
                    match queues.get_mut(queue) {
                        Some(queue) => queue.push_back(n),
                        None => queues.push_back(VecDeque::from([n])),
                    }
                }
            }
        }
        Self { queues }
    }

    /// The next events that may be in flight together; empty when every event has a result. If the last event of a
    /// queue was not confirmed, the rest of the queue fails here.
    pub(crate) fn next(&mut self, answers: &mut PublishResults<'_>) -> Vec<usize> {
        let mut round = Vec::new();
        for _ in 0..self.queues.len() {
            if round.len() == ROUND_EVENTS_MAX {
                break;
            }
            let Some(mut queue) = self.queues.pop_front() else { break };
            let Some(n) = queue.pop_front() else { continue };
            if answers.is_blocked(n) {
                answers.set(n, blocked());
                queue.into_iter().for_each(|n| answers.set(n, blocked()));
                continue;
            }
            round.push(n);
            if !queue.is_empty() {
                self.queues.push_back(queue);
            }
        }
        round
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
        let mut queues = KeyQueues::of(&events);
        let failed = || Published::Failed(SinkError::not_published("no"));
        assert_eq!(queues.next(&mut answers), [0, 1, 3, 6]);
        for n in [0, 3, 6] {
            answers.set(n, Published::Confirmed);
        }
        answers.set(1, failed());
        assert_eq!(queues.next(&mut answers), [2]);
        answers.set(2, Published::Confirmed);
        assert_eq!(queues.next(&mut answers), [5]);
        answers.set(5, Published::Confirmed);
        assert_eq!(queues.next(&mut answers), [0; 0]);
        let confirmed: Vec<_> = answers.finish().iter().map(|it| *it == Published::Confirmed).collect();
        assert_eq!(confirmed, [true, false, true, true, false, true, true]);
    }

    #[test]
    fn a_wave_is_bounded() {
        let events: Vec<_> = (0..ROUND_EVENTS_MAX * 2 + 3).map(|_| event(None)).collect();
        let mut answers = PublishResults::to(&events);
        let mut queues = KeyQueues::of(&events);
        let sizes: Vec<_> =
            std::iter::from_fn(|| Some(queues.next(&mut answers).len()).filter(|len| *len > 0)).collect();
        assert_eq!(sizes, [ROUND_EVENTS_MAX, ROUND_EVENTS_MAX, 3]);
    }
}
