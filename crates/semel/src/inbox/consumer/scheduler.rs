//! What is held, what may be handled now, and what a failure means for what comes after it. Pure.
//!
//! Messages of one key form a line; only its front may be handled. A line whose front has failed rests for a while, and the
//! others go on. Messages without a key are lines of one, and of what comes again while it is held: a copy waits for the
//! original, and is not handled beside it.
//!
//! A line *fails* from a failure of its front until one of its messages is handled. Lines that fail
//!
//! - are tried in calls of their own, of which there are never so many that none is left for the others ([`Slots`]);
//! - are to blame for a failure if anything was handled between the one before and this try ([`KeyScheduler::tried`]);
//! - do not count among the messages that may be held, up to as many again ([`KeyScheduler::room`]): what stands behind them at the
//!   source is read all the same;
//! - and where they hold more than all others may, those that hold most of it are given up sooner.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::batches::{Batch, Slots, batches};
use super::handler::HandlerErrorKind;
use super::message::Message;
use super::options::{ConsumerOptions, Mechanism};
use crate::inbox::Identity;
use crate::source::Receipt;

/// A message that waits for its turn.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) receipt: Receipt,
    pub(super) message: Message,
    pub(super) tries: u32,
    since: Instant,
    /// When it failed for the first time.
    pub(super) failing_since: Option<Instant>,
    /// How many messages had been handled when it failed last.
    handled_before: Option<u64>,
    /// How many had been when the call began that it is in.
    handled_at_begin: u64,
    /// It does not come from the source: the number of the letter that it is.
    pub(super) letter: Option<i64>,
    line: u64,
}

impl Held {
    /// Which line it stands in.
    pub(super) fn line(&self) -> u64 {
        self.line
    }
}

/// What became of a message that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AttemptResult {
    Done,
    /// It had been handled before: done, and no sign that the handler works.
    Already,
    /// Not to be tried again before `after`, where that was said.
    Failed {
        error: String,
        kind: HandlerErrorKind,
        after: Option<Duration>,
        /// It took longer than a call may take.
        too_long: bool,
    },
}

impl AttemptResult {
    /// Whether it need not be tried again.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Already)
    }
}

/// What is to be done about a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is tried again when its line has rested.
    Again,
    /// It was tried often enough, or trying again would not help.
    Bury { error: String },
}

#[derive(Default)]
pub(super) struct KeyScheduler {
    /// By the order in which they came.
    held: BTreeMap<u64, Held>,
    by_receipt: HashMap<Receipt, u64>,
    by_name: HashMap<Name, u64>,
    lines: HashMap<u64, KeyQueue>,
    next: u64,
    /// How many messages were handled: by it a message knows whether any was since it failed.
    handled: u64,
    /// When the last one was.
    handled_at: Option<Instant>,
    /// What has failed since anything was handled.
    recent_failures: HashSet<Receipt>,
}

/// How long a message that was handled shows that the handler works, where failing lines hold too much.
const WORKED: Duration = Duration::from_secs(1);

/// What the messages that came back together say about each other's failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Something was handled among them, or few have failed since anything was: failures are the messages' own.
    pub(super) is_blamed: bool,
    /// Failing lines hold too much. A line that holds at least this much is given up sooner.
    pub(super) crowding: Option<usize>,
}

/// What those in a line have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Name {
    Key { from: String, key: String },
    Message(Identity),
}

impl Name {
    fn of(message: &Message) -> Self {
        let delivery = message.delivery();
        match &delivery.key {
            Some(key) => Self::Key { from: delivery.from.clone(), key: key.clone() },
            None => Self::Message(message.identity().clone()),
        }
    }
}

struct KeyQueue {
    name: Name,
    held: usize,
    rest: Option<Backoff>,
    doomed: Option<PendingDeadLetter>,
    /// Whether the last of its messages that was tried has failed.
    fails: bool,
    /// How many messages had been handled when it began to fail.
    handled_before: Option<u64>,
    /// Whether that took too long: others would have to wait in the same call.
    is_slow: bool,
    /// Since when its front may be tried. Of lines that fail, who waits longest is first.
    turn: Instant,
}

/// The front of a line that is not to be tried again: the line goes on when it is buried, and not before.
struct PendingDeadLetter {
    n: u64,
    error: String,
}

#[derive(Clone, Copy)]
struct Backoff {
    until: Instant,
    pause: Duration,
}

impl KeyScheduler {
    /// What the source has given.
    pub(super) fn receipts(&self) -> Vec<Receipt> {
        self.held.values().filter(|held| held.letter.is_none()).map(|held| held.receipt).collect()
    }

    /// How many messages are held, and since when the oldest of them.
    pub(super) fn held(&self) -> (usize, Option<Instant>) {
        (self.held.len(), self.held.values().next().map(|held| held.since))
    }

    /// The letters among what is held.
    pub(super) fn letters(&self) -> HashSet<i64> {
        self.held.values().filter_map(|held| held.letter).collect()
    }

    /// Takes a message in, behind those of its key.
    pub(super) fn add(&mut self, receipt: Receipt, message: Message) {
        self.put(receipt, message, None);
    }

    /// Takes a letter in, as if it had come now.
    pub(super) fn add_letter(&mut self, receipt: Receipt, message: Message, letter: i64) {
        self.put(receipt, message, Some(letter));
    }

    fn put(&mut self, receipt: Receipt, message: Message, letter: Option<i64>) {
        let n = self.next;
        self.next += 1;
        let name = Name::of(&message);
        let (line, since) = (*self.by_name.entry(name.clone()).or_insert(n), Instant::now());
        let new = KeyQueue {
            name,
            held: 0,
            rest: None,
            doomed: None,
            fails: false,
            handled_before: None,
            is_slow: false,
            turn: since,
        };
        self.lines.entry(line).or_insert(new).held += 1;
        self.by_receipt.insert(receipt, n);
        let held = Held {
            receipt,
            message,
            tries: 0,
            since,
            failing_since: None,
            handled_before: None,
            handled_at_begin: 0,
            letter,
            line,
        };
        self.held.insert(n, held);
    }

    /// Forgets messages that are not ours any more, and what stands behind them in their lines: whoever has the front
    /// now would be overtaken. The latter are to be given back; letters among them are still where they were.
    pub(super) fn drop_lost(&mut self, lost: &[Receipt]) -> Vec<Receipt> {
        let mut fronts: HashMap<u64, u64> = HashMap::new();
        for n in lost.iter().filter_map(|receipt| self.by_receipt.get(receipt)) {
            let front = fronts.entry(self.held[n].line).or_insert(*n);
            *front = (*front).min(*n);
        }
        let overtaking = |(n, held): &(&u64, &Held)| fronts.get(&held.line).is_some_and(|front| *n > front);
        let behind: Vec<(Receipt, bool)> = self
            .held
            .iter()
            .filter(overtaking)
            .map(|(_, held)| (held.receipt, held.letter.is_none()))
            .collect();
        for receipt in lost.iter().chain(behind.iter().map(|(receipt, _)| receipt)) {
            self.remove(*receipt);
        }
        let given_back = |(receipt, ours): &(Receipt, bool)| *ours && !lost.contains(receipt);
        behind.into_iter().filter(given_back).map(|(receipt, _)| receipt).collect()
    }

    /// Takes a message out; its line goes on at once.
    fn remove(&mut self, receipt: Receipt) {
        self.recent_failures.remove(&receipt);
        let Some(n) = self.by_receipt.remove(&receipt) else { return };
        let Some(held) = self.held.remove(&n) else { return };
        let Some(line) = self.lines.get_mut(&held.line) else { return };
        line.held -= 1;
        line.rest = None;
        line.turn = Instant::now();
        line.doomed.take_if(|doomed| doomed.n == n);
        if line.held == 0
            && let Some(line) = self.lines.remove(&held.line)
        {
            self.by_name.remove(&line.name);
        }
    }

    /// Says that a message is not tried any more, and only waits to be buried.
    pub(super) fn doom(&mut self, receipt: Receipt, error: &str) {
        let Some(&n) = self.by_receipt.get(&receipt) else { return };
        let line = self.held.get(&n).and_then(|held| self.lines.get_mut(&held.line));
        let Some(line) = line else { return };
        line.doomed = Some(PendingDeadLetter { n, error: error.to_owned() });
    }

    /// Whether the front of that line is not tried any more.
    pub(super) fn is_doomed(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|line| line.doomed.is_some())
    }

    /// What is only to be buried and has rested by then, each with why, in the order in which it came.
    pub(super) fn doomed(&self, at: Instant) -> Vec<(Held, String)> {
        let rested = self.lines.values().filter(|line| line.rest.is_none_or(|rest| rest.until <= at));
        let mut doomed: Vec<&PendingDeadLetter> = rested.filter_map(|line| line.doomed.as_ref()).collect();
        doomed.sort_unstable_by_key(|doomed| doomed.n);
        doomed
            .iter()
            .filter_map(|doomed| Some((self.held.get(&doomed.n)?.clone(), doomed.error.clone())))
            .collect()
    }

    /// The line in which it stands, if it is still here.
    pub(super) fn line_of(&self, receipt: Receipt) -> Option<u64> {
        self.by_receipt.get(&receipt).and_then(|n| self.held.get(n)).map(Held::line)
    }

    /// How many messages there is room for, beside these that have no line. Those of lines that fail take up no room, up
    /// to as many again: else they would keep everybody else out.
    pub(super) fn room(&self, unnamed: usize, options: &ConsumerOptions) -> usize {
        let ours = self.held.values().filter(|held| held.letter.is_none());
        let (failing, others): (Vec<&Held>, Vec<&Held>) = ours.partition(|held| self.fails(held.line));
        let others = others.len() + unnamed;
        let most = options.held_max;
        if !options.has(Mechanism::ReadingPast) {
            return most.saturating_sub(others + failing.len());
        }
        most.saturating_sub(others).min((most * 2).saturating_sub(others + failing.len()))
    }

    fn fails(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|line| line.fails)
    }

    /// Batches that may be handled now, side by side: no line is in two of them or in one that is busy, and each has its
    /// messages in order. Of a line that fails only the front is tried.
    pub(super) fn ready(
        &self,
        now: Instant,
        options: &ConsumerOptions,
        busy: &HashSet<u64>,
        slots: Slots,
    ) -> Vec<Batch> {
        if slots.all == 0 {
            return Vec::new();
        }
        let (mut fresh, mut retries, mut fronts) = (Vec::new(), Vec::new(), HashSet::new());
        for held in self.held.values() {
            let Some(line) = self.lines.get(&held.line).filter(|line| line.doomed.is_none()) else {
                continue;
            };
            if busy.contains(&held.line) || line.rest.is_some_and(|rest| rest.until > now) {
                continue;
            }
            if !line.fails || !options.has(Mechanism::RetriesApart) {
                fresh.push(held);
            } else if fronts.insert(held.line) {
                retries.push((line.rest.map_or(line.turn, |rest| rest.until), held));
            }
        }
        retries.sort_by_key(|(turn, _)| *turn);
        let (for_fresh, for_retries) = slots.split(!fresh.is_empty(), !retries.is_empty());
        let mut ready = batches(&fresh, for_fresh, options.batch_max, false);
        // What took too long is tried alone, the others together; who waits longest is first.
        let is_slow = |held: &Held| self.lines.get(&held.line).is_some_and(|line| line.is_slow);
        let order: Vec<&Held> = retries.into_iter().map(|(_, held)| held).collect();
        let (slow, quick): (Vec<&Held>, Vec<&Held>) = order.iter().copied().partition(|held| is_slow(held));
        let mut retries = batches(&quick, for_retries, options.batch_max, true);
        retries.extend(slow.into_iter().map(|held| Batch { held: vec![held.clone()], retries: true }));
        let turn = |batch: &Batch| order.iter().position(|held| held.receipt == batch.held[0].receipt);
        retries.sort_by_cached_key(turn);
        ready.extend(retries.into_iter().take(for_retries));
        ready
    }

    /// A call with these begins.
    pub(super) fn begin(&mut self, batch: &Batch) {
        for held in &batch.held {
            if let Some(held) = self.by_receipt.get(&held.receipt).and_then(|n| self.held.get_mut(n)) {
                held.handled_at_begin = self.handled;
            }
        }
    }

    /// When the first resting line may go on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.lines.values().filter_map(|line| line.rest).map(|rest| rest.until).min()
    }

    /// Looks at messages that came back together, before each of them is [taken in](KeyScheduler::tried). Letters have failed
    /// before, and say nothing.
    pub(super) fn round(
        &mut self,
        told: &[(Receipt, AttemptResult)],
        now: Instant,
        options: &ConsumerOptions,
    ) -> Round {
        let done = told.iter().filter(|(_, tried)| *tried == AttemptResult::Done).count();
        if done > 0 {
            self.recent_failures.clear();
            self.handled += done as u64;
            self.handled_at = Some(now);
        }
        let failed = told.iter().filter(|(_, tried)| !tried.is_done()).map(|(receipt, _)| *receipt);
        let is_letter = |receipt: &Receipt| {
            let held = self.by_receipt.get(receipt).and_then(|n| self.held.get(n));
            held.is_none_or(|held| held.letter.is_some())
        };
        let failed: Vec<Receipt> = failed.filter(|receipt| !is_letter(receipt)).collect();
        self.recent_failures.extend(failed.into_iter().take(options.suspects_max));
        let is_blamed = done > 0 || self.recent_failures.len() < options.suspects_max;
        let failing: Vec<usize> =
            self.lines.values().filter(|line| line.fails).map(|line| line.held).collect();
        let crowded =
            failing.iter().sum::<usize>() > options.held_max && options.has(Mechanism::GivingUpSooner);
        let crowding = crowded.then(|| (options.held_max / failing.len()).max(1));
        Round { is_blamed, crowding }
    }

    /// Takes in what became of a message. `None`: it is done, or not held any more.
    ///
    /// A failure counts if it is the message's own: something was handled between its last failure and the beginning of this
    /// try, or the [round](KeyScheduler::round) says so. A letter has failed often enough before.
    pub(super) fn tried(
        &mut self,
        receipt: Receipt,
        tried: AttemptResult,
        round: Round,
        now: Instant,
        options: &ConsumerOptions,
    ) -> Option<Verdict> {
        let held = self.held.get_mut(self.by_receipt.get(&receipt)?)?;
        let line = self.lines.get_mut(&held.line)?;
        let AttemptResult::Failed { error, kind, after, too_long } = tried else {
            (line.fails, line.is_slow, line.handled_before) = (false, false, None);
            self.remove(receipt);
            return None;
        };
        (line.fails, line.is_slow) = (true, too_long);
        held.failing_since.get_or_insert(now);
        // What is nobody's fault says nothing about the message, nor about its line.
        let may_be_own = kind != HandlerErrorKind::Transient;
        let (mut others_go_on, mut line_is_blamed) = (false, false);
        if may_be_own && options.has(Mechanism::BlameByTime) {
            let begun = held.handled_at_begin;
            others_go_on = held.handled_before.replace(self.handled).is_some_and(|before| before < begun);
            line_is_blamed = *line.handled_before.get_or_insert(self.handled) < begun;
        }
        let counted = may_be_own && (others_go_on || round.is_blamed || held.letter.is_some());
        held.tries += u32::from(counted);
        let works = self.handled_at.is_some_and(|at| now < at + WORKED);
        let crowds = round.crowding.is_some_and(|share| line.held >= share)
            && (others_go_on || (line_is_blamed && works));
        let often = counted && (held.letter.is_some() || held.tries >= options.tries_max);
        self.rest(receipt, now, after, options);
        let dead_letter = kind == HandlerErrorKind::Permanent || often || crowds;
        Some(if dead_letter { Verdict::Bury { error } } else { Verdict::Again })
    }

    /// A message that was buried is done, and its line goes on.
    pub(super) fn buried(&mut self, receipt: Receipt) {
        self.remove(receipt);
    }

    /// Its line rests, for longer than the last time.
    pub(super) fn rest(
        &mut self,
        receipt: Receipt,
        now: Instant,
        after: Option<Duration>,
        options: &ConsumerOptions,
    ) {
        let (first, longest) = options.pause;
        let line = self.by_receipt.get(&receipt).and_then(|n| self.held.get(n)).map(|held| held.line);
        let Some(line) = line.and_then(|line| self.lines.get_mut(&line)) else { return };
        let pause = line.rest.map_or(first, |rest| (rest.pause * 2).min(longest));
        let jittered = pause.mul_f64(0.8 + 0.2 * fastrand::f64());
        line.rest = Some(Backoff { until: now + jittered.max(after.unwrap_or_default()), pause });
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
