//! A batch in transactions: all of it in one, unless it has to be found out which event the sink does not take. Pure.
//!
//! Whatever part of a batch is published, the position says what is still left out. So a part may be published alone,
//! and after a crash it is known which were.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use super::batch_progress::BatchProgress;
use super::options::RelayOptions;
use super::outbox_reader::{Batch, LeftOut, Pending, Settled, SinkCheckpoint};
use crate::outbox::Event;
use crate::sink::SinkError;

/// A batch on its way.
pub(super) struct TransactionSplitter<'a> {
    batch: &'a Batch,
    waves: BatchProgress<'a>,
    /// Most events of the next transaction.
    most: usize,
    /// How often the first of the open ones has failed alone.
    failures: u32,
    tries_max: u32,
    /// Topics of which an event was given up after many tries.
    given_up: HashSet<&'a str>,
    parked: Vec<GivenUp>,
    /// Ids that several events of the batch have, on different topics.
    shared: HashSet<Uuid>,
}

/// An event of a batch that is to be parked, kept while the sink is asked what it has.
#[derive(Clone, Debug)]
pub(super) struct GivenUp {
    at: usize,
    event: Arc<Event>,
    error: SinkError,
    for_good: bool,
}

impl GivenUp {
    /// Which event.
    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

impl<'a> TransactionSplitter<'a> {
    /// `reached`: what the sink has had last. If that is of this batch, only what was left out is still open.
    pub(super) fn new(
        batch: &'a Batch,
        reached: Option<&SinkCheckpoint>,
        most: usize,
        options: &RelayOptions,
    ) -> Self {
        let mut waves = BatchProgress::new(batch, options);
        if let Some(reached) = reached.filter(|reached| reached.is_of(&batch.position)) {
            let mut left_out: HashMap<Uuid, Vec<&LeftOut>> = HashMap::new();
            for left in &reached.left_out {
                left_out.entry(left.event).or_default().push(left);
            }
            for (at, pending) in batch.events.iter().enumerate() {
                let of_its_id = left_out.get(&pending.event.id()).map_or(&[][..], Vec::as_slice);
                // Also one that is held now: it was not when it was published.
                if !of_its_id.iter().any(|left| left.is(&pending.event)) {
                    waves.settle(at, Settled::Confirmed);
                }
            }
        }
        let mut ids = HashSet::new();
        let all = batch.events.iter().map(|pending| pending.event.id());
        let shared = all.filter(|id| !ids.insert(*id)).collect();
        let (most, tries_max) = (most.max(1), if batch.is_retry { 1 } else { options.tries_max });
        Self {
            batch,
            waves,
            most,
            failures: 0,
            tries_max,
            given_up: HashSet::new(),
            parked: Vec::new(),
            shared,
        }
    }

    /// The places of those that go into the next transaction, in order. Empty when all is settled.
    pub(super) fn next(&self) -> Vec<usize> {
        let mut open = self.waves.open();
        open.truncate(self.most);
        open
    }

    /// Whom the position names when these are published: all that are not.
    pub(super) fn left_out(&self, sending: &[usize]) -> Vec<LeftOut> {
        let sending: HashSet<&usize> = sending.iter().collect();
        let left = |at: &usize| !sending.contains(at) && !self.waves.is_confirmed(*at);
        let events = self.batch.events.iter().enumerate();
        let named = |pending: &Pending| {
            let (event, topic) = (pending.event.id(), pending.event.topic());
            LeftOut { event, topic: self.shared.contains(&event).then(|| topic.to_owned()) }
        };
        events.filter(|(at, _)| left(at)).map(|(_, pending)| named(pending)).collect()
    }

    /// Most events of the next transaction.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn confirm(&mut self, sent: &[usize]) {
        for at in sent {
            self.waves.settle(*at, Settled::Confirmed);
        }
        self.found();
    }

    /// The sink named the event. `false`: it is none of these, or several: then it is found like one that was not named.
    pub(super) fn refuse(&mut self, sent: &[usize], event: Uuid, error: &SinkError) -> bool {
        let named = |at: &&usize| self.batch.events.get(**at).is_some_and(|one| one.event.id() == event);
        let mut named = sent.iter().filter(named);
        let (Some(at), None) = (named.next(), named.next()) else { return false };
        self.park(*at, error, true);
        self.found();
        true
    }

    fn park(&mut self, at: usize, error: &SinkError, for_good: bool) {
        self.waves.park(at, error, for_good);
        let event = self.batch.events.get(at).map(|pending| Arc::clone(&pending.event));
        self.parked.extend(event.map(|event| GivenUp { at, event, error: error.clone(), for_good }));
    }

    /// What was found out about the events of this batch so far.
    pub(super) fn given_up(self) -> Vec<GivenUp> {
        self.parked
    }

    /// What was found out about them before the sink was asked what it has. Events that it has are not given up.
    pub(super) fn give_up_again(&mut self, before: Vec<GivenUp>) {
        for GivenUp { at, event, error, for_good } in before {
            let is_same = self.batch.events.get(at).is_some_and(|pending| {
                (pending.event.id(), pending.event.topic()) == (event.id(), event.topic())
            });
            if is_same && self.waves.open().contains(&at) {
                self.park(at, &error, for_good);
            }
        }
    }

    /// So often the first of the open ones has ended in doubt alone, and was then seen not to be published.
    pub(super) fn was_in_doubt(&mut self, times: u32) {
        self.failures = times;
    }

    /// The sink works and did not take these: one of them is to blame. `true`: the same is to be tried once more, after
    /// a pause.
    pub(super) fn blame(&mut self, sent: &[usize], error: &SinkError) -> bool {
        let [at] = sent else {
            self.most = (sent.len() / 2).max(1);
            return false;
        };
        self.failures += 1;
        let topic = self.batch.events.get(*at).map_or("", |pending| pending.event.topic());
        // What was waited for with one event of a topic is not waited for with each of the others.
        if self.failures < self.tries_max && !self.given_up.contains(topic) {
            return true;
        }
        self.given_up.insert(topic);
        self.park(*at, error, false);
        self.found();
        false
    }

    /// What became of each, once [`next`](Self::next) is empty.
    pub(super) fn settled(self) -> Vec<Settled> {
        self.waves.settled()
    }

    fn found(&mut self) {
        self.failures = 0;
        self.most = self.most.saturating_mul(2);
    }
}

#[cfg(test)]
#[path = "transaction_split_tests.rs"]
mod tests;
