//! Which events of a batch may go now, and what the sink's answers mean for the rest. Pure.
//!
//! The order of a key holds over topics, but within one call a sink keeps it only for events of one topic. So of each
//! key the events up to the first change of topic go in one wave, and what comes after waits until they are confirmed.
//!
//! An event that fails is given up after `tries_max` tries for which it is to [blame](super::blame). Where nothing gets
//! through for long the batch is read past: all that fails is set aside. Events that were parked before and fail again are
//! parked again at once: they have had their tries, and come back by themselves.

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

use super::blame::Blame;
use super::options::{Poison, RelayOptions};
use super::outbox_reader::{Batch, Settled};
use crate::sink::{Published, SinkError};

/// A batch on its way.
pub(super) struct BatchProgress<'a> {
    events: Vec<EventState<'a>>,
    poison: Poison,
    tries_max: u32,
    suspects_max: usize,
    is_retry: bool,
    /// Calls to the sink so far.
    calls: u32,
    /// The last of them that confirmed anything.
    confirmed_in: Option<u32>,
    /// Since when nothing was confirmed, and the calls since then.
    stalled: Option<(Instant, u32)>,
    /// Topics of which something was confirmed.
    taken: BTreeSet<&'a str>,
}

struct EventState<'a> {
    /// Events with the same number keep their order; `None` has none to keep.
    key: Option<usize>,
    topic: &'a str,
    /// The call in which it was tried and failed first.
    first_failed: Option<u32>,
    /// Failures for which it was to blame.
    failures: u32,
    settled: Option<Settled>,
}

/// What a call to the sink brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RoundResult {
    pub(super) confirmed: usize,
    pub(super) parked: usize,
    /// Keys that were set aside because nothing gets through.
    pub(super) read_past: usize,
    /// Another relay has taken the sink over.
    pub(super) fenced: Option<SinkError>,
    /// What the first failure said.
    pub(super) failure: Option<SinkError>,
}

impl<'a> BatchProgress<'a> {
    pub(super) fn new(batch: &'a Batch, options: &RelayOptions) -> Self {
        let mut keys = HashMap::new();
        let events = batch.events.iter().map(|pending| {
            let next = keys.len();
            let key = pending.event.ordered_by().map(|key| *keys.entry(key).or_insert(next));
            let settled = pending.held.then_some(Settled::Held);
            EventState { key, topic: pending.event.topic(), first_failed: None, failures: 0, settled }
        });
        let mut waves = Self {
            events: events.collect(),
            poison: options.poison,
            tries_max: if batch.is_retry { 1 } else { options.tries_max },
            suspects_max: options.suspects_max,
            is_retry: batch.is_retry,
            calls: 0,
            confirmed_in: None,
            stalled: None,
            taken: BTreeSet::new(),
        };
        for (at, pending) in batch.events.iter().enumerate().filter(|(_, pending)| !pending.held) {
            if let (Some(reason), None) = (&pending.unreadable, &waves.events[at].settled) {
                waves.park(at, &SinkError::not_published(reason.clone()), true);
            }
        }
        waves
    }

    /// The places of those that may go now, in order. Empty when all is settled.
    pub(super) fn ready(&self) -> Vec<usize> {
        let mut topics: HashMap<usize, &str> = HashMap::new();
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
    pub(super) fn fold(
        &mut self,
        sent: &[usize],
        answers: Vec<Published>,
        now: Instant,
        blame: &mut Blame,
    ) -> RoundResult {
        let mut folded = RoundResult::default();
        let mut failed: Vec<(usize, SinkError)> = Vec::new();
        let mut failed_keys = HashSet::new();
        let mut taken = BTreeSet::new();
        self.calls += 1;
        let silent =
            || Published::Failed(SinkError::maybe_published("the sink gave no answer for the event"));
        let answers = answers.into_iter().map(Some).chain(std::iter::repeat(None));
        for (&at, answer) in sent.iter().zip(answers) {
            let Some((key, topic)) = self.events.get(at).map(|going| (going.key, going.topic)) else {
                continue;
            };
            // The events behind one of their key failed because it did; they are not to blame.
            let mut is_first = || key.is_none_or(|key| failed_keys.insert(key));
            match answer.unwrap_or_else(silent) {
                Published::Confirmed => {
                    folded.confirmed += 1;
                    taken.insert(topic);
                    self.settle(at, Settled::Confirmed);
                }
                Published::Failed(error) | Published::Refused(error) if error.is_fenced() => {
                    folded.fenced.get_or_insert(error);
                }
                Published::Failed(error) => {
                    if is_first() {
                        failed.push((at, error.clone()));
                    }
                    folded.failure.get_or_insert(error);
                }
                Published::Refused(error) => {
                    if is_first() {
                        folded.parked += 1;
                        self.park(at, &error, true);
                    }
                }
            }
        }
        if folded.confirmed > 0 {
            self.confirmed_in = Some(self.calls);
            self.stalled = None;
            blame.succeeded(taken.iter().copied());
            self.taken.append(&mut taken);
        }
        let unsettled = self.give_up_the_guilty(failed, &mut folded, blame);
        self.read_past_if_stalled(&unsettled, now, &mut folded, blame);
        folded
    }

    /// Parks what has failed too often and is to blame for it. Returns what is not settled.
    fn give_up_the_guilty(
        &mut self,
        failed: Vec<(usize, SinkError)>,
        folded: &mut RoundResult,
        blame: &mut Blame,
    ) -> Vec<(usize, SinkError)> {
        let mut unsettled = Vec::new();
        for (at, error) in failed {
            let Some(going) = self.events.get_mut(at) else { continue };
            // One that was not tried gets another call, unless the calls get nowhere.
            let is_tried = !error.is_not_tried() || (self.is_retry && folded.confirmed == 0);
            if is_tried {
                let first_failed = *going.first_failed.get_or_insert(self.calls);
                let to_blame = self.is_retry
                    || error.is_of_one_place()
                    || self.confirmed_in.is_some_and(|confirmed| confirmed >= first_failed)
                    || blame.is_failing(going.topic);
                going.failures += u32::from(to_blame);
            }
            let topic = going.topic;
            if going.failures < self.tries_max {
                unsettled.push((at, error));
                continue;
            }
            folded.parked += 1;
            if self.confirmed_in.is_some() && !self.taken.contains(topic) {
                blame.parked(topic);
            }
            self.park(at, &error, false);
        }
        unsettled
    }

    /// Sets these aside if nothing was confirmed for long.
    fn read_past_if_stalled(
        &mut self,
        failed: &[(usize, SinkError)],
        now: Instant,
        folded: &mut RoundResult,
        blame: &mut Blame,
    ) {
        if folded.confirmed > 0 || failed.is_empty() {
            return;
        }
        let (since, calls) = self.stalled.get_or_insert((now, 0));
        *calls += 1;
        let (stalled_for, calls) = (now.saturating_duration_since(*since), *calls);
        let is_over = blame.patience(failed.len(), self.suspects_max).is_some_and(|most| stalled_for >= most);
        if calls < self.tries_max || !is_over {
            return;
        }
        let topics = failed.iter().filter_map(|(at, _)| self.events.get(*at)).map(|going| going.topic);
        blame.set_aside(topics);
        folded.read_past = failed.len();
        for (at, error) in failed {
            self.park(*at, error, false);
        }
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
        let Some((key, first_failed)) = self.events.get(at).map(|going| (going.key, going.first_failed))
        else {
            return;
        };
        let alone = self.poison == Poison::ParksItself || key.is_none();
        self.settle(at, Settled::Parked { error: error.to_string(), for_good, alone });
        if alone {
            // The next of its key is judged by what was confirmed since the key first failed, or each would be waited for anew.
            let next =
                |going: &&mut EventState<'_>| key.is_some() && going.key == key && going.settled.is_none();
            if let Some(next) = self.events.iter_mut().skip(at + 1).find(next) {
                next.first_failed = next.first_failed.or(first_failed);
            }
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
#[path = "batch_progress_tests.rs"]
mod tests;
