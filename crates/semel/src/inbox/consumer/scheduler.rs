//! The scheduler of messages in flight: which may be handled now, and what a failure means for those behind it. Pure.
//!
//! Messages of one key form a key queue, which is handled in order. A queue whose front has failed backs off, and the
//! others go on. A message without a key has a queue of its own, shared only with its redeliveries: a copy waits for
//! the original and is not handled at the same time.
//!
//! A queue is *failing* from a failure of its front until one of its messages is handled. Failing queues
//!
//! - are retried in separate calls, never so many that none is left for the others ([`Slots`]);
//! - are to blame for a failure if anything was handled between the previous failure and this attempt
//!   ([`KeyScheduler::tried`]);
//! - do not count against the in-flight limit, up to as many messages again ([`KeyScheduler::room`]), so that
//!   messages behind them at the source are still read;
//! - are given up sooner if together they exceed that limit: those with the most messages.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::batches::{Batch, Slots, batches};
use super::handler::HandlerErrorKind;
use super::message::Message;
use super::options::{ConsumerOptions, Mechanism};
use crate::inbox::Identity;
use crate::source::Receipt;

/// A message in flight, in its key queue.
#[derive(Clone, Debug)]
pub(super) struct QueuedMessage {
    pub(super) receipt: Receipt,
    pub(super) message: Message,
    pub(super) attempts: u32,
    since: Instant,
    /// When it first failed.
    pub(super) failing_since: Option<Instant>,
    /// How many messages had been handled at its last failure.
    handled_before: Option<u64>,
    /// How many had been handled when its current call began.
    handled_at_begin: u64,
    /// If it is a redelivered dead letter and not from the source: its number.
    pub(super) dead_letter: Option<i64>,
    queue: u64,
}

impl QueuedMessage {
    /// Its key queue.
    pub(super) fn queue(&self) -> u64 {
        self.queue
    }
}

/// The result of one attempt at a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AttemptResult {
    Done,
    /// A duplicate: done, but no evidence that the handler works.
    Already,
    /// Not to be retried before `after`, if set.
    Failed {
        error: String,
        kind: HandlerErrorKind,
        after: Option<Duration>,
        /// The call timed out.
        too_long: bool,
    },
    /// The call timed out, with others in it: some message of it hangs, or everything does. Tried again with a smaller
    /// batch.
    Unclear,
}

impl AttemptResult {
    /// Whether it needs no further attempt.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Already)
    }
}

/// What to do about a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Retry after the queue's backoff.
    Retry,
    /// Max attempts reached, or a retry would not help: write a dead letter.
    DeadLetter { error: String },
}

#[derive(Default)]
pub(super) struct KeyScheduler {
    /// By arrival.
    messages: BTreeMap<u64, QueuedMessage>,
    by_receipt: HashMap<Receipt, u64>,
    by_name: HashMap<Name, u64>,
    queues: HashMap<u64, KeyQueue>,
    next: u64,
    /// How many messages were handled. Compared with a failure's count, it shows whether any was handled since.
    handled: u64,
    /// When the last one was handled.
    handled_at: Option<Instant>,
    /// Messages that failed, or were in a call that hung, since anything was handled.
    recent_failures: HashSet<Receipt>,
}

/// How long a handled message is evidence that the handler works, when failing queues hold too much.
const WORKED: Duration = Duration::from_secs(1);

/// What results that came in together say about each other's failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Something among them was handled, or few have failed since anything was: the failing messages are to blame.
    pub(super) is_blamed: bool,
    /// Failing queues hold too much. One with at least this many messages is given up sooner.
    pub(super) crowding: Option<usize>,
}

/// What the messages of a queue have in common.
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
    len: usize,
    backoff: Option<QueueBackoff>,
    pending_dead_letter: Option<PendingDeadLetter>,
    /// Whether its last attempt failed.
    fails: bool,
    /// How many messages had been handled when it began to fail.
    handled_before: Option<u64>,
    /// Whether that attempt timed out: others in the same call would have to wait.
    is_slow: bool,
    /// Since when its front may be tried. Of failing queues, the one waiting longest is first.
    turn: Instant,
}

/// A front that is not tried again: its queue goes on only when the dead letter is written.
struct PendingDeadLetter {
    n: u64,
    error: String,
}

#[derive(Clone, Copy)]
struct QueueBackoff {
    until: Instant,
    pause: Duration,
}

impl KeyScheduler {
    /// Receipts of messages from the source.
    pub(super) fn receipts(&self) -> Vec<Receipt> {
        self.messages
            .values()
            .filter(|queued| queued.dead_letter.is_none())
            .map(|queued| queued.receipt)
            .collect()
    }

    /// How many messages are in flight, and since when the oldest is.
    pub(super) fn in_flight(&self) -> (usize, Option<Instant>) {
        (self.messages.len(), self.messages.values().next().map(|queued| queued.since))
    }

    /// Dead letters in flight.
    pub(super) fn dead_letters(&self) -> HashSet<i64> {
        self.messages.values().filter_map(|queued| queued.dead_letter).collect()
    }

    /// Adds a message, behind those of its key.
    pub(super) fn add(&mut self, receipt: Receipt, message: Message) {
        self.put(receipt, message, None);
    }

    /// Adds a dead letter, as if it had just arrived.
    pub(super) fn add_dead_letter(&mut self, receipt: Receipt, message: Message, dead_letter: i64) {
        self.put(receipt, message, Some(dead_letter));
    }

    fn put(&mut self, receipt: Receipt, message: Message, dead_letter: Option<i64>) {
        let n = self.next;
        self.next += 1;
        let name = Name::of(&message);
        let (queue, since) = (*self.by_name.entry(name.clone()).or_insert(n), Instant::now());
        let new = KeyQueue {
            name,
            len: 0,
            backoff: None,
            pending_dead_letter: None,
            fails: false,
            handled_before: None,
            is_slow: false,
            turn: since,
        };
        self.queues.entry(queue).or_insert(new).len += 1;
        self.by_receipt.insert(receipt, n);
        let queued = QueuedMessage {
            receipt,
            message,
            attempts: 0,
            since,
            failing_since: None,
            handled_before: None,
            handled_at_begin: 0,
            dead_letter,
            queue,
        };
        self.messages.insert(n, queued);
    }

    /// Drops messages lost to another consumer, and those behind them in their queues: they would overtake the lost
    /// ones. Returns the latter, to be nacked. Dead letters among them are not returned: they are still stored.
    pub(super) fn drop_lost(&mut self, lost: &[Receipt]) -> Vec<Receipt> {
        let mut fronts: HashMap<u64, u64> = HashMap::new();
        for n in lost.iter().filter_map(|receipt| self.by_receipt.get(receipt)) {
            let front = fronts.entry(self.messages[n].queue).or_insert(*n);
            *front = (*front).min(*n);
        }
        let overtaking =
            |(n, queued): &(&u64, &QueuedMessage)| fronts.get(&queued.queue).is_some_and(|front| *n > front);
        let behind: Vec<(Receipt, bool)> = self
            .messages
            .iter()
            .filter(overtaking)
            .map(|(_, queued)| (queued.receipt, queued.dead_letter.is_none()))
            .collect();
        for receipt in lost.iter().chain(behind.iter().map(|(receipt, _)| receipt)) {
            self.remove(*receipt);
        }
        let given_back = |(receipt, ours): &(Receipt, bool)| *ours && !lost.contains(receipt);
        behind.into_iter().filter(given_back).map(|(receipt, _)| receipt).collect()
    }

    /// Removes a message; its queue goes on at once.
    fn remove(&mut self, receipt: Receipt) {
        self.recent_failures.remove(&receipt);
        let Some(n) = self.by_receipt.remove(&receipt) else { return };
        let Some(queued) = self.messages.remove(&n) else { return };
        let Some(queue) = self.queues.get_mut(&queued.queue) else { return };
        queue.len -= 1;
        queue.backoff = None;
        queue.turn = Instant::now();
        queue.pending_dead_letter.take_if(|pending| pending.n == n);
        if queue.len == 0
            && let Some(queue) = self.queues.remove(&queued.queue)
        {
            self.by_name.remove(&queue.name);
        }
    }

    /// Does not try a message any more: it only waits for its dead letter to be written.
    pub(super) fn set_pending_dead_letter(&mut self, receipt: Receipt, error: &str) {
        let Some(&n) = self.by_receipt.get(&receipt) else { return };
        let queue = self.messages.get(&n).and_then(|queued| self.queues.get_mut(&queued.queue));
        let Some(queue) = queue else { return };
        queue.pending_dead_letter = Some(PendingDeadLetter { n, error: error.to_owned() });
    }

    /// Whether the front of that queue waits for its dead letter.
    pub(super) fn awaits_dead_letter(&self, queue: u64) -> bool {
        self.queues.get(&queue).is_some_and(|queue| queue.pending_dead_letter.is_some())
    }

    /// Messages that wait for their dead letters and whose backoff is over at that time, with their errors, by arrival.
    pub(super) fn pending_dead_letters(&self, at: Instant) -> Vec<(QueuedMessage, String)> {
        let due =
            self.queues.values().filter(|queue| queue.backoff.is_none_or(|backoff| backoff.until <= at));
        let mut pending: Vec<&PendingDeadLetter> =
            due.filter_map(|queue| queue.pending_dead_letter.as_ref()).collect();
        pending.sort_unstable_by_key(|pending| pending.n);
        pending
            .iter()
            .filter_map(|pending| Some((self.messages.get(&pending.n)?.clone(), pending.error.clone())))
            .collect()
    }

    /// Its queue, if it is still in flight.
    pub(super) fn queue_of(&self, receipt: Receipt) -> Option<u64> {
        self.by_receipt.get(&receipt).and_then(|n| self.messages.get(n)).map(QueuedMessage::queue)
    }

    /// How many more messages may be received, with `unidentified` in flight outside the queues. Messages of failing
    /// queues do not count, up to as many again: otherwise they would block all other keys.
    pub(super) fn room(&self, unidentified: usize, options: &ConsumerOptions) -> usize {
        let ours = self.messages.values().filter(|queued| queued.dead_letter.is_none());
        let (failing, others): (Vec<&QueuedMessage>, Vec<&QueuedMessage>) =
            ours.partition(|queued| self.fails(queued.queue));
        let others = others.len() + unidentified;
        let most = options.in_flight_max;
        if !options.has(Mechanism::ReadingPast) {
            return most.saturating_sub(others + failing.len());
        }
        most.saturating_sub(others).min((most * 2).saturating_sub(others + failing.len()))
    }

    fn fails(&self, queue: u64) -> bool {
        self.queues.get(&queue).is_some_and(|queue| queue.fails)
    }

    /// Batches that may be handled now, concurrently: no queue is in two of them or in a busy call, and messages are in
    /// order. Of a failing queue only the front is tried.
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
        for queued in self.messages.values() {
            let Some(queue) =
                self.queues.get(&queued.queue).filter(|queue| queue.pending_dead_letter.is_none())
            else {
                continue;
            };
            if busy.contains(&queued.queue) || queue.backoff.is_some_and(|backoff| backoff.until > now) {
                continue;
            }
            if !queue.fails || !options.has(Mechanism::RetriesApart) {
                fresh.push(queued);
            } else if fronts.insert(queued.queue) {
                retries.push((queue.backoff.map_or(queue.turn, |backoff| backoff.until), queued));
            }
        }
        retries.sort_by_key(|(turn, _)| *turn);
        let (for_fresh, for_retries) = slots.split(!fresh.is_empty(), !retries.is_empty());
        let mut ready = batches(&fresh, for_fresh, options.batch_max, false);
        // A queue that timed out is tried alone, the others together; the one waiting longest is first.
        let is_slow =
            |queued: &QueuedMessage| self.queues.get(&queued.queue).is_some_and(|queue| queue.is_slow);
        let order: Vec<&QueuedMessage> = retries.into_iter().map(|(_, queued)| queued).collect();
        let (slow, quick): (Vec<&QueuedMessage>, Vec<&QueuedMessage>) =
            order.iter().copied().partition(|queued| is_slow(queued));
        let mut retries = batches(&quick, for_retries, options.batch_max, true);
        retries
            .extend(slow.into_iter().map(|queued| Batch { messages: vec![queued.clone()], retries: true }));
        let turn =
            |batch: &Batch| order.iter().position(|queued| queued.receipt == batch.messages[0].receipt);
        retries.sort_by_cached_key(turn);
        ready.extend(retries.into_iter().take(for_retries));
        ready
    }

    /// A call with these messages begins.
    pub(super) fn begin(&mut self, batch: &Batch) {
        for queued in &batch.messages {
            if let Some(queued) = self.by_receipt.get(&queued.receipt).and_then(|n| self.messages.get_mut(n))
            {
                queued.handled_at_begin = self.handled;
            }
        }
    }

    /// When the first backoff ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queues.values().filter_map(|queue| queue.backoff).map(|backoff| backoff.until).min()
    }

    /// Judges results that came in together, before each is [recorded](KeyScheduler::tried). Dead letters are ignored:
    /// they have failed before.
    pub(super) fn round(
        &mut self,
        results: &[(Receipt, AttemptResult)],
        now: Instant,
        options: &ConsumerOptions,
    ) -> Round {
        let done = results.iter().filter(|(_, tried)| *tried == AttemptResult::Done).count();
        if done > 0 {
            self.recent_failures.clear();
            self.handled += done as u64;
            self.handled_at = Some(now);
        }
        let failed = results.iter().filter(|(_, tried)| !tried.is_done()).map(|(receipt, _)| *receipt);
        let is_dead_letter = |receipt: &Receipt| {
            let queued = self.by_receipt.get(receipt).and_then(|n| self.messages.get(n));
            queued.is_none_or(|queued| queued.dead_letter.is_some())
        };
        let failed: Vec<Receipt> = failed.filter(|receipt| !is_dead_letter(receipt)).collect();
        self.recent_failures.extend(failed.into_iter().take(options.outage_keys_min));
        let is_blamed = done > 0 || self.recent_failures.len() < options.outage_keys_min;
        let failing: Vec<usize> =
            self.queues.values().filter(|queue| queue.fails).map(|queue| queue.len).collect();
        let crowded =
            failing.iter().sum::<usize>() > options.in_flight_max && options.has(Mechanism::GivingUpSooner);
        let crowding = crowded.then(|| (options.in_flight_max / failing.len()).max(1));
        Round { is_blamed, crowding }
    }

    /// Records the result of an attempt. `None`: the message is done, not in flight any more, or nothing is known about
    /// it.
    ///
    /// A failure counts if the message is to blame: something was handled between its last failure and the start of
    /// this attempt, or the [round](KeyScheduler::round) says so. For a dead letter one failure is enough.
    pub(super) fn tried(
        &mut self,
        receipt: Receipt,
        tried: AttemptResult,
        round: Round,
        now: Instant,
        options: &ConsumerOptions,
    ) -> Option<Verdict> {
        let queued = self.messages.get_mut(self.by_receipt.get(&receipt)?)?;
        let queue = self.queues.get_mut(&queued.queue)?;
        let (error, kind, after, too_long) = match tried {
            AttemptResult::Failed { error, kind, after, too_long } => (error, kind, after, too_long),
            AttemptResult::Unclear => return None,
            AttemptResult::Done | AttemptResult::Already => {
                (queue.fails, queue.is_slow, queue.handled_before) = (false, false, None);
                self.remove(receipt);
                return None;
            }
        };
        (queue.fails, queue.is_slow) = (true, too_long);
        queued.failing_since.get_or_insert(now);
        // A transient failure says nothing about the message or its queue.
        let may_be_own = kind != HandlerErrorKind::Transient;
        let (mut others_go_on, mut queue_is_blamed) = (false, false);
        if may_be_own && options.has(Mechanism::BlameByTime) {
            let begun = queued.handled_at_begin;
            others_go_on = queued.handled_before.replace(self.handled).is_some_and(|before| before < begun);
            queue_is_blamed = *queue.handled_before.get_or_insert(self.handled) < begun;
        }
        let counted = may_be_own && (others_go_on || round.is_blamed || queued.dead_letter.is_some());
        queued.attempts += u32::from(counted);
        let works = self.handled_at.is_some_and(|at| now < at + WORKED);
        let crowds = round.crowding.is_some_and(|share| queue.len >= share)
            && (others_go_on || (queue_is_blamed && works));
        let often = counted && (queued.dead_letter.is_some() || queued.attempts >= options.attempts_max);
        self.back_off(receipt, now, after, options);
        let dead_letter = kind == HandlerErrorKind::Permanent || often || crowds;
        Some(if dead_letter { Verdict::DeadLetter { error } } else { Verdict::Retry })
    }

    /// Its dead letter was written: the message is done, and its queue goes on.
    pub(super) fn dead_lettered(&mut self, receipt: Receipt) {
        self.remove(receipt);
    }

    /// Its queue backs off, longer than the last time (exponential backoff with jitter).
    pub(super) fn back_off(
        &mut self,
        receipt: Receipt,
        now: Instant,
        after: Option<Duration>,
        options: &ConsumerOptions,
    ) {
        let queue =
            self.by_receipt.get(&receipt).and_then(|n| self.messages.get(n)).map(|queued| queued.queue);
        let Some(queue) = queue.and_then(|queue| self.queues.get_mut(&queue)) else { return };
        let pause = options.backoff.next(queue.backoff.map_or(Duration::ZERO, |backoff| backoff.pause));
        // Wide jitter: otherwise a hanging message can stay in phase with messages that arrive at regular intervals. Their
        // success would then always fall into one of its attempts, where it does not count, and never between two.
        let jittered = options.backoff.jittered(pause);
        queue.backoff = Some(QueueBackoff { until: now + jittered.max(after.unwrap_or_default()), pause });
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
