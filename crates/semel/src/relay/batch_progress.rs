//! Decides which events of a batch may be sent now, and what the sink's results mean for the rest. Pure.
//!
//! A key keeps its order across topics, but a sink keeps it only within one topic of a call. So a round sends the
//! events of a key up to the first change of topic; later ones wait until these are confirmed.
//!
//! An event is parked after `attempts_max` failed attempts (max attempts) for which it is to [blame](super::blame). If
//! nothing gets through for long, the relay skips the batch: everything that fails is parked. An event that was parked
//! before and fails again is parked at once: it has used up its attempts, and is retried later by itself.

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

use super::blame::Blame;
use super::options::{Poison, RelayOptions};
use super::outbox_reader::{Batch, Settled};
use crate::sink::{Published, SinkError};

/// The progress of one batch.
pub(super) struct BatchProgress<'a> {
    events: Vec<EventState<'a>>,
    poison: Poison,
    attempts_max: u32,
    failing_keys_max: usize,
    is_retry: bool,
    /// Number of calls to the sink so far.
    calls: u32,
    /// The last call that confirmed anything.
    confirmed_in: Option<u32>,
    /// Since when nothing was confirmed, and the number of calls since then.
    stalled: Option<(Instant, u32)>,
    /// Topics with at least one confirmed event.
    taken: BTreeSet<&'a str>,
}

struct EventState<'a> {
    /// Events with the same number keep their order. `None`: no order.
    key: Option<usize>,
    topic: &'a str,
    /// The call in which the event first failed.
    first_failed: Option<u32>,
    /// Failures for which the event was to blame.
    failures: u32,
    settled: Option<Settled>,
}

/// The result of one call to the sink.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RoundResult {
    pub(super) confirmed: usize,
    pub(super) parked: usize,
    /// Keys that were parked because nothing gets through.
    pub(super) read_past: usize,
    /// Another relay has taken over the sink.
    pub(super) fenced: Option<SinkError>,
    /// The first failure.
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
        let mut progress = Self {
            events: events.collect(),
            poison: options.poison,
            attempts_max: if batch.is_retry { 1 } else { options.attempts_max },
            failing_keys_max: options.failing_keys_max,
            is_retry: batch.is_retry,
            calls: 0,
            confirmed_in: None,
            stalled: None,
            taken: BTreeSet::new(),
        };
        for (at, pending) in batch.events.iter().enumerate().filter(|(_, pending)| !pending.held) {
            if let (Some(reason), None) = (&pending.unreadable, &progress.events[at].settled) {
                progress.park(at, &SinkError::not_published(reason.clone()), true);
            }
        }
        progress
    }

    /// Indexes of the events that may be sent now, in order. Empty when all are settled.
    pub(super) fn ready(&self) -> Vec<usize> {
        let mut topics: HashMap<usize, &str> = HashMap::new();
        let mut closed = HashSet::new();
        let mut ready = Vec::new();
        for (at, state) in self.events.iter().enumerate() {
            if state.settled.is_some() {
                continue;
            }
            if let Some(key) = state.key {
                if closed.contains(&key) {
                    continue;
                }
                if *topics.entry(key).or_insert(state.topic) != state.topic {
                    closed.insert(key);
                    continue;
                }
            }
            ready.push(at);
        }
        ready
    }

    /// Indexes of all events that are not settled, in order.
    pub(super) fn open(&self) -> Vec<usize> {
        let open = self.events.iter().enumerate().filter(|(_, state)| state.settled.is_none());
        open.map(|(at, _)| at).collect()
    }

    pub(super) fn is_confirmed(&self, at: usize) -> bool {
        self.events.get(at).is_some_and(|state| state.settled == Some(Settled::Confirmed))
    }

    /// Applies the sink's results for the events at these indexes. A missing result counts as a failure in doubt.
    pub(super) fn apply(
        &mut self,
        sent: &[usize],
        answers: Vec<Published>,
        now: Instant,
        blame: &mut Blame,
    ) -> RoundResult {
        let mut result = RoundResult::default();
        let mut failed: Vec<(usize, SinkError)> = Vec::new();
        let mut failed_keys = HashSet::new();
        let mut taken = BTreeSet::new();
        self.calls += 1;
        let silent =
            || Published::Failed(SinkError::maybe_published("the sink returned no result for the event"));
        let answers = answers.into_iter().map(Some).chain(std::iter::repeat(None));
        for (&at, answer) in sent.iter().zip(answers) {
            let Some((key, topic)) = self.events.get(at).map(|state| (state.key, state.topic)) else {
                continue;
            };
            // Later events of the key failed because the first one did; they are not to blame.
            let mut is_first = || key.is_none_or(|key| failed_keys.insert(key));
            match answer.unwrap_or_else(silent) {
                Published::Confirmed => {
                    result.confirmed += 1;
                    taken.insert(topic);
                    self.settle(at, Settled::Confirmed);
                }
                Published::Failed(error) | Published::Refused(error) if error.is_fenced() => {
                    result.fenced.get_or_insert(error);
                }
                Published::Failed(error) => {
                    if is_first() {
                        failed.push((at, error.clone()));
                    }
                    result.failure.get_or_insert(error);
                }
                Published::Refused(error) => {
                    if is_first() {
                        result.parked += 1;
                        self.park(at, &error, true);
                    }
                }
            }
        }
        if result.confirmed > 0 {
            self.confirmed_in = Some(self.calls);
            self.stalled = None;
            blame.succeeded(taken.iter().copied());
            self.taken.append(&mut taken);
        }
        let unsettled = self.park_blamed(failed, &mut result, blame);
        self.read_past_if_stalled(&unsettled, now, &mut result, blame);
        result
    }

    /// Parks the events that used up their attempts and are to blame. Returns the other failed events.
    fn park_blamed(
        &mut self,
        failed: Vec<(usize, SinkError)>,
        result: &mut RoundResult,
        blame: &mut Blame,
    ) -> Vec<(usize, SinkError)> {
        let mut unsettled = Vec::new();
        for (at, error) in failed {
            let Some(state) = self.events.get_mut(at) else { continue };
            // An event that was not sent gets another call, unless the calls confirm nothing.
            let is_tried = !error.is_not_tried() || (self.is_retry && result.confirmed == 0);
            if is_tried {
                let first_failed = *state.first_failed.get_or_insert(self.calls);
                let to_blame = self.is_retry
                    || error.is_destination_down()
                    || self.confirmed_in.is_some_and(|confirmed| confirmed >= first_failed)
                    || blame.is_failing(state.topic);
                state.failures += u32::from(to_blame);
            }
            let topic = state.topic;
            if state.failures < self.attempts_max {
                unsettled.push((at, error));
                continue;
            }
            result.parked += 1;
            if self.confirmed_in.is_some() && !self.taken.contains(topic) {
                blame.parked(topic);
            }
            self.park(at, &error, false);
        }
        unsettled
    }

    /// Parks these events if nothing was confirmed for long.
    fn read_past_if_stalled(
        &mut self,
        failed: &[(usize, SinkError)],
        now: Instant,
        result: &mut RoundResult,
        blame: &mut Blame,
    ) {
        if result.confirmed > 0 || failed.is_empty() {
            return;
        }
        let (since, calls) = self.stalled.get_or_insert((now, 0));
        *calls += 1;
        let (stalled_for, calls) = (now.saturating_duration_since(*since), *calls);
        let is_over =
            blame.patience(failed.len(), self.failing_keys_max).is_some_and(|most| stalled_for >= most);
        if calls < self.attempts_max || !is_over {
            return;
        }
        let topics = failed.iter().filter_map(|(at, _)| self.events.get(*at)).map(|state| state.topic);
        blame.set_aside(topics);
        result.read_past = failed.len();
        for (at, error) in failed {
            self.park(*at, error, false);
        }
    }

    /// The outcome of each event, once [`ready`](Self::ready) is empty.
    pub(super) fn settled(self) -> Vec<Settled> {
        // All are settled by then. Held is safe: it keeps the event.
        self.events.into_iter().map(|state| state.settled.unwrap_or(Settled::Held)).collect()
    }

    pub(super) fn settle(&mut self, at: usize, settled: Settled) {
        if let Some(state) = self.events.get_mut(at) {
            state.settled = Some(settled);
        }
    }

    pub(super) fn park(&mut self, at: usize, error: &SinkError, for_good: bool) {
        let Some((key, first_failed)) = self.events.get(at).map(|state| (state.key, state.first_failed))
        else {
            return;
        };
        let alone = self.poison == Poison::ParksItself || key.is_none();
        self.settle(at, Settled::Parked { error: error.to_string(), for_good, alone });
        if alone {
            // The key's next event inherits `first_failed`, or the relay would wait anew for each.
            let next =
                |state: &&mut EventState<'_>| key.is_some() && state.key == key && state.settled.is_none();
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
