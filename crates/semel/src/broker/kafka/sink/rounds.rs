//! Decides which events of a call are sent together, and in which order. Pure.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::known_keys::KnownKeys;
use crate::outbox::Event;

/// The events that still have to be sent.
pub(super) struct Rounds<'a> {
    events: &'a [Arc<Event>],
    /// Sent together in the next round.
    waiting: Vec<usize>,
    /// Sent once `waiting` is empty: later events of keys that are new to this producer. See [`KnownKeys`].
    behind: Option<Vec<usize>>,
    /// Sent alone, before all others: their batch was refused, and alone they show which event is to blame.
    suspects: VecDeque<usize>,
    /// Rejected or purged behind a refused batch. librdkafka may have sent them before, so they are in doubt until they
    /// are reported again.
    in_doubt: HashSet<usize>,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(events: &'a [Arc<Event>], known_keys: &mut KnownKeys) -> Self {
        let (waiting, behind) = known_keys.split(events, (0..events.len()).collect());
        Self { events, waiting, behind: Some(behind), suspects: VecDeque::new(), in_doubt: HashSet::new() }
    }

    /// The next round. `None`: all are sent.
    pub(super) fn next(&mut self) -> Option<Vec<usize>> {
        if let Some(suspect) = self.suspects.pop_front() {
            return Some(vec![suspect]);
        }
        if self.waiting.is_empty() {
            self.waiting = self.behind.take().unwrap_or_default();
        }
        Some(std::mem::take(&mut self.waiting)).filter(|round| !round.is_empty())
    }

    /// The batch of this event was refused. Events are reported in their order.
    ///
    /// If an earlier event of its key waits, it waits too: alone it would overtake that one.
    pub(super) fn suspect(&mut self, n: usize) {
        let key = |n: usize| self.events[n].ordered_by().map(|key| (self.events[n].topic(), key));
        if key(n).is_some() && self.waiting.iter().any(|earlier| key(*earlier) == key(n)) {
            self.waiting.push(n);
        } else {
            self.suspects.push_back(n);
        }
    }

    /// The event was not sent, or was rejected, because a batch before it was refused.
    pub(super) fn again(&mut self, n: usize) {
        self.in_doubt.insert(n);
        self.waiting.push(n);
    }

    /// Nothing of this round was sent.
    pub(super) fn put_back(&mut self, round: Vec<usize>) {
        match *round {
            [alone] => self.suspects.push_front(alone),
            _ => self.waiting.splice(0..0, round).for_each(drop),
        }
    }

    /// Another producer takes over, which the partitions do not know. So the first remaining event of each key is sent
    /// ahead again, even if the previous producer got an earlier one confirmed.
    pub(super) fn producer_changed(&mut self, known_keys: &mut KnownKeys) {
        let mut left = std::mem::take(&mut self.waiting);
        left.extend(self.behind.take().unwrap_or_default());
        let (ahead, behind) = known_keys.split(self.events, left);
        (self.waiting, self.behind) = (ahead, Some(behind));
    }

    /// All events that are left, in no order, and whether each may have been published.
    pub(super) fn rest(self) -> impl Iterator<Item = (usize, bool)> {
        let left = self.suspects.into_iter().chain(self.waiting).chain(self.behind.unwrap_or_default());
        left.map(move |n| (n, self.in_doubt.contains(&n)))
    }

    /// How many events are sent alone.
    pub(super) fn suspects(&self) -> usize {
        self.suspects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(keys: &[&str]) -> Vec<Arc<Event>> {
        let event = |key: &&str| {
            let event = Event::new("t", "k", "").unwrap();
            Arc::new(if key.is_empty() { event } else { event.key(key).unwrap() })
        };
        keys.iter().map(event).collect()
    }

    #[test]
    fn the_first_of_each_key_goes_ahead_and_then_the_others() {
        let events = events(&["a", "a", "b", ""]);
        let mut rounds = Rounds::new(&events, &mut KnownKeys::default());
        assert_eq!(rounds.next(), Some(vec![0, 2, 3]));
        assert_eq!(rounds.next(), Some(vec![1]));
        assert_eq!(rounds.next(), None);
    }

    #[test]
    fn a_suspect_is_sent_alone_and_before_what_waits() {
        let events = events(&["a", "b", "c"]);
        let mut rounds = Rounds::new(&events, &mut KnownKeys::default());
        rounds.next();
        rounds.suspect(0);
        rounds.again(1);
        rounds.suspect(2);
        assert_eq!(rounds.suspects(), 2);
        assert_eq!(
            [rounds.next(), rounds.next(), rounds.next()],
            [Some(vec![0]), Some(vec![2]), Some(vec![1])]
        );
        assert_eq!(rounds.next(), None);
    }

    #[test]
    fn a_suspect_does_not_overtake_an_event_of_its_key_that_waits() {
        let events = events(&["a", "a", "b", ""]);
        let mut known_keys = KnownKeys::default();
        known_keys.add(&events[0]);
        let mut rounds = Rounds::new(&events, &mut known_keys);
        assert_eq!(rounds.next(), Some(vec![0, 1, 2, 3]));
        rounds.again(0);
        rounds.suspect(1);
        rounds.suspect(2);
        rounds.suspect(3);
        assert_eq!([rounds.next(), rounds.next()], [Some(vec![2]), Some(vec![3])]);
        assert_eq!(rounds.next(), Some(vec![0, 1]));
    }

    #[test]
    fn a_round_of_which_nothing_was_sent_comes_again() {
        let events = events(&["a", "b", "c"]);
        let mut rounds = Rounds::new(&events, &mut KnownKeys::default());
        let round = rounds.next().unwrap();
        rounds.put_back(round);
        assert_eq!(rounds.next(), Some(vec![0, 1, 2]));
        rounds.suspect(0);
        rounds.suspect(1);
        rounds.again(2);
        let suspect = rounds.next().unwrap();
        rounds.put_back(suspect);
        assert_eq!(
            [rounds.next(), rounds.next(), rounds.next(), rounds.next()],
            [Some(vec![0]), Some(vec![1]), Some(vec![2]), None]
        );
    }

    #[test]
    fn a_new_producer_sends_the_first_of_each_key_ahead() {
        let events = events(&["a", "a", "b"]);
        let mut known_keys = KnownKeys::default();
        known_keys.add(&events[0]);
        let mut rounds = Rounds::new(&events, &mut known_keys);
        rounds.next();
        (0..3).for_each(|n| rounds.again(n));
        rounds.producer_changed(&mut KnownKeys::default());
        assert_eq!([rounds.next(), rounds.next(), rounds.next()], [Some(vec![0, 2]), Some(vec![1]), None]);
    }

    /// The previous producer got the first event of a key confirmed. Of the events behind it, the new producer again
    /// sends only one ahead.
    #[test]
    fn a_new_producer_sends_ahead_also_of_what_was_to_follow() {
        let events = events(&["a", "a", "a", "b", "b"]);
        let mut rounds = Rounds::new(&events, &mut KnownKeys::default());
        assert_eq!(rounds.next(), Some(vec![0, 3]));
        rounds.producer_changed(&mut KnownKeys::default());
        assert_eq!([rounds.next(), rounds.next(), rounds.next()], [Some(vec![1, 4]), Some(vec![2]), None]);
    }

    #[test]
    fn what_is_left_is_known_when_time_is_over() {
        let events = events(&["a", "a", "b", "c"]);
        let mut rounds = Rounds::new(&events, &mut KnownKeys::default());
        rounds.next();
        rounds.suspect(0);
        rounds.again(2);
        let mut rest: Vec<(usize, bool)> = rounds.rest().collect();
        rest.sort_unstable();
        assert_eq!(rest, [(0, false), (1, false), (2, true)]);
    }
}
