//! The results of one call, and the keys held back behind an unconfirmed event.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Published, SinkError};
use crate::outbox::Event;

/// Collects results. The first result of an event counts.
pub(super) struct PublishResults<'a> {
    events: &'a [Arc<Event>],
    results: Vec<Option<Published>>,
    held: HashSet<(&'a str, &'a str)>,
}

impl<'a> PublishResults<'a> {
    pub(super) fn to(events: &'a [Arc<Event>]) -> Self {
        Self { events, results: vec![None; events.len()], held: HashSet::new() }
    }

    /// Sets the result of the `n`th event. If it is not confirmed, later events with the same key are held back.
    pub(super) fn set(&mut self, n: usize, answer: Published) {
        if answer != Published::Confirmed
            && let Some(key) = self.events[n].ordered_by()
        {
            self.held.insert((self.events[n].topic(), key));
        }
        self.results[n].get_or_insert(answer);
    }

    /// Whether the `n`th event has to wait for an earlier one.
    pub(super) fn is_held(&self, n: usize) -> bool {
        let event = &self.events[n];
        !self.held.is_empty()
            && event.ordered_by().is_some_and(|key| self.held.contains(&(event.topic(), key)))
    }

    /// Whether the `n`th event is confirmed.
    pub(super) fn is_confirmed(&self, n: usize) -> bool {
        self.results[n] == Some(Published::Confirmed)
    }

    /// One result per event. A missing result counts as in doubt.
    pub(super) fn finish(self) -> Vec<Published> {
        let in_doubt =
            || Published::Failed(SinkError::maybe_published("the broker returned no result for the event"));
        self.results.into_iter().map(|answer| answer.unwrap_or_else(in_doubt)).collect()
    }
}

/// The result of an event that was not sent because an earlier one was not confirmed.
pub(super) fn held_back() -> Published {
    let message = "not sent, because an earlier event with the same key was not confirmed";
    Published::Failed(SinkError::not_published(message))
}

/// The result of an event that the broker accepted although an earlier one was not confirmed.
pub(super) fn overtaken() -> Published {
    let message = "the broker accepted it although an earlier event with the same key was not confirmed";
    Published::Failed(SinkError::maybe_published(message))
}
