//! Splits a batch into transactions: one for all events, or bisected to find the event that the sink rejects. Pure.
//!
//! The checkpoint of each transaction names the events that are still left out. So any part of a batch may be published
//! alone, and after a crash the relay knows which events were published.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use super::batch_progress::BatchProgress;
use super::options::RelayOptions;
use super::outbox_reader::{Batch, LeftOut, Pending, Settled, SinkCheckpoint};
use crate::outbox::Event;
use crate::sink::SinkError;

/// The progress of one batch.
pub(super) struct TransactionSplitter<'a> {
    batch: &'a Batch,
    progress: BatchProgress<'a>,
    /// Most events of the next transaction.
    events_max: usize,
    /// How often the first open event has failed alone.
    failures: u32,
    attempts_max: u32,
    /// Topics with an event that was parked after max attempts.
    given_up: HashSet<&'a str>,
    parked: Vec<GivenUp>,
    /// Ids shared by several events of the batch, on different topics.
    shared: HashSet<Uuid>,
}

/// An event to be parked, remembered while the relay asks the sink for its checkpoint.
#[derive(Clone, Debug)]
pub(super) struct GivenUp {
    at: usize,
    event: Arc<Event>,
    error: SinkError,
    for_good: bool,
}

impl GivenUp {
    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

impl<'a> TransactionSplitter<'a> {
    /// `checkpoint`: the sink's last checkpoint. If it belongs to this batch, only the events it left out are still
    /// open.
    pub(super) fn new(
        batch: &'a Batch,
        checkpoint: Option<&SinkCheckpoint>,
        events_max: usize,
        options: &RelayOptions,
    ) -> Self {
        let mut progress = BatchProgress::new(batch, options);
        if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.is_of(&batch.position)) {
            let mut left_out: HashMap<Uuid, Vec<&LeftOut>> = HashMap::new();
            for left in &checkpoint.left_out {
                left_out.entry(left.event).or_default().push(left);
            }
            for (at, pending) in batch.events.iter().enumerate() {
                let of_its_id = left_out.get(&pending.event.id()).map_or(&[][..], Vec::as_slice);
                // Also an event that is held now: it was not held when it was published.
                if !of_its_id.iter().any(|left| left.is(&pending.event)) {
                    progress.settle(at, Settled::Confirmed);
                }
            }
        }
        let mut ids = HashSet::new();
        let all = batch.events.iter().map(|pending| pending.event.id());
        let shared = all.filter(|id| !ids.insert(*id)).collect();
        let (events_max, attempts_max) =
            (events_max.max(1), if batch.is_retry { 1 } else { options.attempts_max });
        Self {
            batch,
            progress,
            events_max,
            failures: 0,
            attempts_max,
            given_up: HashSet::new(),
            parked: Vec::new(),
            shared,
        }
    }

    /// Indexes of the events for the next transaction, in order. Empty when all are settled.
    pub(super) fn next(&self) -> Vec<usize> {
        let mut open = self.progress.open();
        open.truncate(self.events_max);
        open
    }

    /// The events that the checkpoint has to name when these are published: all that are not published.
    pub(super) fn left_out(&self, sending: &[usize]) -> Vec<LeftOut> {
        let sending: HashSet<&usize> = sending.iter().collect();
        let left = |at: &usize| !sending.contains(at) && !self.progress.is_confirmed(*at);
        let events = self.batch.events.iter().enumerate();
        let named = |pending: &Pending| {
            let (event, topic) = (pending.event.id(), pending.event.topic());
            LeftOut { event, topic: self.shared.contains(&event).then(|| topic.to_owned()) }
        };
        events.filter(|(at, _)| left(at)).map(|(_, pending)| named(pending)).collect()
    }

    /// Most events of the next transaction.
    pub(super) fn events_max(&self) -> usize {
        self.events_max
    }

    pub(super) fn confirm(&mut self, sent: &[usize]) {
        for at in sent {
            self.progress.settle(*at, Settled::Confirmed);
        }
        self.found();
    }

    /// Parks the event that the sink refused. `false`: none of these has the id, or several; bisecting finds it.
    pub(super) fn refuse(&mut self, sent: &[usize], event: Uuid, error: &SinkError) -> bool {
        let named = |at: &&usize| self.batch.events.get(**at).is_some_and(|one| one.event.id() == event);
        let mut named = sent.iter().filter(named);
        let (Some(at), None) = (named.next(), named.next()) else { return false };
        self.park(*at, error, true);
        self.found();
        true
    }

    fn park(&mut self, at: usize, error: &SinkError, for_good: bool) {
        self.progress.park(at, error, for_good);
        let event = self.batch.events.get(at).map(|pending| Arc::clone(&pending.event));
        self.parked.extend(event.map(|event| GivenUp { at, event, error: error.clone(), for_good }));
    }

    /// The events of this batch that are to be parked so far.
    pub(super) fn given_up(self) -> Vec<GivenUp> {
        self.parked
    }

    /// Parks again what was to be parked before the sink was asked for its checkpoint. Published events are skipped.
    pub(super) fn give_up_again(&mut self, before: Vec<GivenUp>) {
        for GivenUp { at, event, error, for_good } in before {
            let is_same = self.batch.events.get(at).is_some_and(|pending| {
                (pending.event.id(), pending.event.topic()) == (event.id(), event.topic())
            });
            if is_same && self.progress.open().contains(&at) {
                self.park(at, &error, for_good);
            }
        }
    }

    /// The first open event ended in doubt this often, alone, and turned out not to be published.
    pub(super) fn was_in_doubt(&mut self, times: u32) {
        self.failures = times;
    }

    /// The sink works and rejected these: one of them is to blame. `true`: retry the same after a backoff.
    pub(super) fn blame(&mut self, sent: &[usize], error: &SinkError) -> bool {
        let [at] = sent else {
            self.events_max = (sent.len() / 2).max(1);
            return false;
        };
        self.failures += 1;
        let topic = self.batch.events.get(*at).map_or("", |pending| pending.event.topic());
        // One event of a topic had all its attempts; the others of that topic get one each.
        if self.failures < self.attempts_max && !self.given_up.contains(topic) {
            return true;
        }
        self.given_up.insert(topic);
        self.park(*at, error, false);
        self.found();
        false
    }

    /// The outcome of each event, once [`next`](Self::next) is empty.
    pub(super) fn settled(self) -> Vec<Settled> {
        self.progress.settled()
    }

    fn found(&mut self) {
        self.failures = 0;
        self.events_max = self.events_max.saturating_mul(2);
    }
}

#[cfg(test)]
#[path = "transaction_split_tests.rs"]
mod tests;
