//! Which events of a batch may go now, and what the sink's answers mean for the rest. Pure.
//!
//! The order of a key holds over topics, but within one call a sink keeps it only for events of one topic. So of each
//! key the events up to the first change of topic go in one wave, and what comes after waits until they are confirmed.

use std::collections::{HashMap, HashSet};

use super::options::{Poison, RelayOptions};
use super::source::{Pending, Settled};
use crate::sink::{Published, SinkError};

/// A batch on its way.
pub(super) struct Waves {
    events: Vec<Going>,
    poison: Poison,
    tries_max: u32,
    suspects_max: usize,
}

struct Going {
    /// Events with the same number keep their order; `None` has none to keep.
    key: Option<usize>,
    topic: usize,
    failures: u32,
    settled: Option<Settled>,
}

/// What a call to the sink brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    pub(super) confirmed: usize,
    pub(super) parked: usize,
    /// Another relay has taken the sink over.
    pub(super) fenced: Option<SinkError>,
    /// What the first failure said.
    pub(super) failure: Option<SinkError>,
}

impl Waves {
    pub(super) fn new(batch: &[Pending], options: &RelayOptions) -> Self {
        let (mut keys, mut topics) = (HashMap::new(), HashMap::new());
        let events = batch.iter().map(|pending| {
            let next = keys.len();
            let key = pending.event.ordered_by().map(|key| *keys.entry(key).or_insert(next));
            let next = topics.len();
            let topic = *topics.entry(pending.event.topic()).or_insert(next);
            Going { key, topic, failures: 0, settled: pending.held.then_some(Settled::Held) }
        });
        Self {
            events: events.collect(),
            poison: options.poison,
            tries_max: options.tries_max,
            suspects_max: options.suspects_max,
        }
    }

    /// The places of those that may go now, in order. Empty when all is settled.
    pub(super) fn ready(&self) -> Vec<usize> {
        let mut topics: HashMap<usize, usize> = HashMap::new();
        let mut closed = HashSet::new();
        let mut ready = Vec::new();
        for (at, going) in self.events.iter().enumerate() {
            if going.settled.is_some() {
                continue;
            }
            if let Some(key) = going.key {
                if closed.contains(&key) {
                    continue;
                }
                if *topics.entry(key).or_insert(going.topic) != going.topic {
                    closed.insert(key);
                    continue;
                }
            }
            ready.push(at);
        }
        ready
    }

    /// The places of all that is not settled, in order.
    pub(super) fn open(&self) -> Vec<usize> {
        let open = self.events.iter().enumerate().filter(|(_, going)| going.settled.is_none());
        open.map(|(at, _)| at).collect()
    }

    pub(super) fn is_confirmed(&self, at: usize) -> bool {
        self.events.get(at).is_some_and(|going| going.settled == Some(Settled::Confirmed))
    }

    /// Takes the sink's answers for the events at these places. An answer that is missing is a failure.
    pub(super) fn fold(&mut self, sent: &[usize], answers: Vec<Published>) -> Folded {
        let mut folded = Folded::default();
        let mut failed: Vec<(usize, SinkError)> = Vec::new();
        let mut failed_keys = HashSet::new();
        let silent =
            || Published::Failed(SinkError::maybe_published("the sink gave no answer for the event"));
        let answers = answers.into_iter().map(Some).chain(std::iter::repeat(None));
        for (&at, answer) in sent.iter().zip(answers) {
            match answer.unwrap_or_else(silent) {
                Published::Confirmed => {
                    folded.confirmed += 1;
                    self.settle(at, Settled::Confirmed);
                }
                Published::Failed(error) | Published::Refused(error) if error.is_fenced() => {
                    folded.fenced.get_or_insert(error);
                }
                Published::Failed(error) => {
                    // The events behind it in its key failed because it did; they are not to blame.
                    let first = self.events.get(at).is_some_and(|going| match going.key {
                        Some(key) => failed_keys.insert(key),
                        None => true,
                    });
                    if first && !error.is_not_tried() {
                        failed.push((at, error.clone()));
                    }
                    folded.failure.get_or_insert(error);
                }
                Published::Refused(error) => {
                    if self
                        .events
                        .get(at)
                        .and_then(|going| going.key)
                        .is_none_or(|key| failed_keys.insert(key))
                    {
                        folded.parked += 1;
                        self.park(at, &error, true);
                    }
                }
            }
        }
        // Nothing got through and many failed: that is the sink, not the events. It knows better where it says so.
        let suspects = failed.iter().filter(|(_, error)| !error.is_of_one_place()).count();
        if folded.confirmed == 0 && suspects > self.suspects_max {
            failed.retain(|(_, error)| error.is_of_one_place());
        }
        for (at, error) in failed {
            let Some(going) = self.events.get_mut(at) else { continue };
            going.failures += 1;
            if going.failures >= self.tries_max {
                folded.parked += 1;
                self.park(at, &error, false);
            }
        }
        folded
    }

    /// What became of each, once [`ready`](Self::ready) is empty.
    pub(super) fn settled(self) -> Vec<Settled> {
        // None is open then. Held is what keeps an event.
        self.events.into_iter().map(|going| going.settled.unwrap_or(Settled::Held)).collect()
    }

    pub(super) fn settle(&mut self, at: usize, settled: Settled) {
        if let Some(going) = self.events.get_mut(at) {
            going.settled = Some(settled);
        }
    }

    pub(super) fn park(&mut self, at: usize, error: &SinkError, for_good: bool) {
        let Some(key) = self.events.get(at).map(|going| going.key) else { return };
        let alone = self.poison == Poison::ParksItself || key.is_none();
        self.settle(at, Settled::Parked { error: error.to_string(), for_good, alone });
        if alone {
            return;
        }
        for later in self.events.iter_mut().skip(at + 1) {
            if later.key == key && later.settled.is_none() {
                later.settled = Some(Settled::Held);
            }
        }
    }
}

#[cfg(test)]
#[path = "wave_tests.rs"]
mod tests;
