//! What is held, what may be handled now, and what a failure means for what comes after it. Pure.
//!
//! Messages of one key form a line; only its front may be handled. A line whose front has failed rests for a while, and the
//! others go on. Messages without a key are lines of one, and of what comes again while it is held: a copy waits for the
//! original, and is not handled beside it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::handler::FailedKind;
use super::message::Message;
use super::options::ConsumerOptions;
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
pub(super) enum Tried {
    Done,
    /// Not to be tried again before `after`, where that was said.
    Failed {
        error: String,
        kind: FailedKind,
        after: Option<Duration>,
    },
}

impl Tried {
    /// Whose fault it is, if it failed.
    pub(super) fn kind(&self) -> Option<FailedKind> {
        match self {
            Self::Done => None,
            Self::Failed { kind, .. } => Some(*kind),
        }
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
pub(super) struct Desk {
    /// By the order in which they came.
    held: BTreeMap<u64, Held>,
    by_receipt: HashMap<Receipt, u64>,
    by_name: HashMap<Name, u64>,
    lines: HashMap<u64, Line>,
    next: u64,
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

struct Line {
    name: Name,
    held: usize,
    rest: Option<Rest>,
    doomed: Option<Doomed>,
}

/// The front of a line that is not to be tried again: the line goes on when it is buried, and not before.
struct Doomed {
    n: u64,
    error: String,
}

#[derive(Clone, Copy)]
struct Rest {
    until: Instant,
    pause: Duration,
}

impl Desk {
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
        let line = *self.by_name.entry(name.clone()).or_insert(n);
        self.lines.entry(line).or_insert(Line { name, held: 0, rest: None, doomed: None }).held += 1;
        self.by_receipt.insert(receipt, n);
        self.held.insert(
            n,
            Held { receipt, message, tries: 0, since: Instant::now(), failing_since: None, letter, line },
        );
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
        let Some(n) = self.by_receipt.remove(&receipt) else { return };
        let Some(held) = self.held.remove(&n) else { return };
        let Some(line) = self.lines.get_mut(&held.line) else { return };
        line.held -= 1;
        line.rest = None;
        line.doomed.take_if(|doomed| doomed.n == n);
        if line.held == 0
            && let Some(line) = self.lines.remove(&held.line)
        {
            self.by_name.remove(&line.name);
        }
    }

    fn rests(&self, line: u64, now: Instant) -> bool {
        self.lines.get(&line).and_then(|line| line.rest).is_some_and(|rest| rest.until > now)
    }

    /// Says that a message is not tried any more, and only waits to be buried.
    pub(super) fn doom(&mut self, receipt: Receipt, error: &str) {
        let Some(&n) = self.by_receipt.get(&receipt) else { return };
        let line = self.held.get(&n).and_then(|held| self.lines.get_mut(&held.line));
        let Some(line) = line else { return };
        line.doomed = Some(Doomed { n, error: error.to_owned() });
    }

    /// Whether the front of that line is not tried any more.
    pub(super) fn is_doomed(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|line| line.doomed.is_some())
    }

    /// What is only to be buried and has rested by then, each with why, in the order in which it came.
    pub(super) fn doomed(&self, at: Instant) -> Vec<(Held, String)> {
        let rested = self.lines.values().filter(|line| line.rest.is_none_or(|rest| rest.until <= at));
        let mut doomed: Vec<&Doomed> = rested.filter_map(|line| line.doomed.as_ref()).collect();
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

    /// At most so many batches that may be handled now, side by side: no line is in two of them or in one that is busy, and
    /// each has its messages in order.
    pub(super) fn ready(
        &self,
        now: Instant,
        options: &ConsumerOptions,
        busy: &HashSet<u64>,
        most: usize,
    ) -> Vec<Vec<Held>> {
        let mut batches: Vec<Vec<Held>> = Vec::new();
        let (mut batch_of, mut full) = (HashMap::new(), HashSet::new());
        for held in self.held.values().filter(|_| most > 0) {
            let waits = self.is_doomed(held.line) || self.rests(held.line, now);
            if busy.contains(&held.line) || full.contains(&held.line) || waits {
                continue;
            }
            // The lines by turns.
            let next = batch_of.len() % most;
            let at = *batch_of.entry(held.line).or_insert(next);
            if at == batches.len() {
                batches.push(Vec::new());
            }
            let batch = &mut batches[at];
            if batch.len() >= options.batch_max {
                // Not this one, so none after it in its line.
                full.insert(held.line);
                continue;
            }
            batch.push(held.clone());
        }
        batches
    }

    /// When the first resting line may go on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.lines.values().filter_map(|line| line.rest).map(|rest| rest.until).min()
    }

    /// Takes in what became of a message. `None`: it is done, or not held any more. A failure that is not `counted` is
    /// nobody's fault. A letter has failed often enough before.
    pub(super) fn tried(
        &mut self,
        receipt: Receipt,
        tried: Tried,
        counted: bool,
        now: Instant,
        options: &ConsumerOptions,
    ) -> Option<Verdict> {
        let Tried::Failed { error, kind, after } = tried else {
            self.remove(receipt);
            return None;
        };
        let held = self.held.get_mut(self.by_receipt.get(&receipt)?)?;
        held.failing_since.get_or_insert(now);
        let counted = (counted || held.letter.is_some()) && kind != FailedKind::Later;
        held.tries += u32::from(counted);
        let often = counted && (held.letter.is_some() || held.tries >= options.tries_max);
        self.rest(receipt, now, after, options);
        let bury = kind == FailedKind::Poison || often;
        Some(if bury { Verdict::Bury { error } } else { Verdict::Again })
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
        line.rest = Some(Rest { until: now + jittered.max(after.unwrap_or_default()), pause });
    }
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
