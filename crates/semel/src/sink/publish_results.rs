//! The answers to one call, and the keys that have to wait because an event of theirs was not confirmed.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Published, SinkError};
use crate::outbox::Event;

/// Answers being collected. The first one of an event stands.
pub(super) struct PublishResults<'a> {
    events: &'a [Arc<Event>],
    of: Vec<Option<Published>>,
    held: HashSet<(&'a str, &'a str)>,
}

impl<'a> PublishResults<'a> {
    pub(super) fn to(events: &'a [Arc<Event>]) -> Self {
        Self { events, of: vec![None; events.len()], held: HashSet::new() }
    }

    /// What became of the `n`th event. One that is not confirmed holds back those after it with the same key.
    pub(super) fn set(&mut self, n: usize, answer: Published) {
        if answer != Published::Confirmed
            && let Some(key) = self.events[n].ordered_by()
        {
            self.held.insert((self.events[n].topic(), key));
        }
        self.of[n].get_or_insert(answer);
    }

    /// Whether the `n`th event has to wait for one before it.
    pub(super) fn is_held(&self, n: usize) -> bool {
        let event = &self.events[n];
        !self.held.is_empty()
            && event.ordered_by().is_some_and(|key| self.held.contains(&(event.topic(), key)))
    }

    /// Whether the `n`th event is known to be there.
    pub(super) fn is_confirmed(&self, n: usize) -> bool {
        self.of[n] == Some(Published::Confirmed)
    }

    /// As many answers as events.
    pub(super) fn finish(self) -> Vec<Published> {
        let unheard = || Published::Failed(SinkError::maybe_published("nothing was heard of it"));
        self.of.into_iter().map(|answer| answer.unwrap_or_else(unheard)).collect()
    }
}

/// The answer to an event that was not sent because one before it was not confirmed.
pub(super) fn held_back() -> Published {
    let told = "an event before it with the same key was not confirmed; it waits for that one";
    Published::Failed(SinkError::not_published(told))
}

/// The answer to an event that the broker took although one before it was not confirmed.
pub(super) fn overtaken() -> Published {
    let told = "it got there although an event before it with the same key was not confirmed";
    Published::Failed(SinkError::maybe_published(told))
}
