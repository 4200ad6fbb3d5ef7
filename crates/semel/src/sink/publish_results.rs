//! The results of one call, and the keys held back behind an unconfirmed event.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Published, SinkError};
use crate::outbox::Event;

/// Collects results. The first result of an event counts.
pub(crate) struct PublishResults<'a> {
    events: &'a [Arc<Event>],
    results: Vec<Option<Published>>,
    /// The first event of each key, by topic and key, that is not confirmed.
    blocked_by: HashMap<(&'a str, &'a str), usize>,
}

impl<'a> PublishResults<'a> {
    pub(crate) fn to(events: &'a [Arc<Event>]) -> Self {
        Self { events, results: vec![None; events.len()], blocked_by: HashMap::new() }
    }

    /// Sets the result of the `n`th event. If it is not confirmed, later events with the same key are held back.
    pub(crate) fn set(&mut self, n: usize, answer: Published) {
        if answer != Published::Confirmed
            && let Some(key) = self.events[n].ordered_by()
        {
            let first = self.blocked_by.entry((self.events[n].topic(), key)).or_insert(n);
            *first = n.min(*first);
        }
        self.results[n].get_or_insert(answer);
    }

    /// Whether the `n`th event has to wait for an earlier one.
    pub(crate) fn is_blocked(&self, n: usize) -> bool {
        let event = &self.events[n];
        !self.blocked_by.is_empty()
            && event
                .ordered_by()
                .and_then(|key| self.blocked_by.get(&(event.topic(), key)))
                .is_some_and(|first| *first < n)
    }

    /// Whether the `n`th event is confirmed.
    pub(crate) fn is_confirmed(&self, n: usize) -> bool {
        self.results[n] == Some(Published::Confirmed)
    }

    /// One result per event. A missing result counts as in doubt.
    pub(crate) fn finish(self) -> Vec<Published> {
        let in_doubt =
            || Published::Failed(SinkError::maybe_published("the broker returned no result for the event"));
        self.results.into_iter().map(|answer| answer.unwrap_or_else(in_doubt)).collect()
    }
}

/// The result of an event that was not sent because an earlier one was not confirmed.
pub(crate) fn blocked() -> Published {
    let message = "not sent, because an earlier event with the same key was not confirmed";
    Published::Failed(SinkError::not_published(message))
}

/// The result of an event that the broker accepted although an earlier one was not confirmed.
pub(crate) fn overtaken() -> Published {
    let message = "the broker accepted it although an earlier event with the same key was not confirmed";
    Published::Failed(SinkError::maybe_published(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_held_back_by_an_earlier_one_of_its_key_and_by_no_later_one() {
        let event = |key: &str| Arc::new(Event::new("t", "k", "").unwrap().key(key).unwrap());
        let events = [event("a"), event("a"), event("b"), event("a")];
        let mut results = PublishResults::to(&events);
        results.set(1, blocked());
        let all_blocked =
            |results: &PublishResults<'_>| (0..4).map(|n| results.is_blocked(n)).collect::<Vec<_>>();
        assert_eq!(all_blocked(&results), [false, false, false, true]);
        results.set(0, overtaken());
        assert_eq!(all_blocked(&results), [false, true, false, true]);
        results.set(2, Published::Confirmed);
        assert_eq!(all_blocked(&results), [false, true, false, true]);
    }
}
