//! What was taken from the stream and is not done: what waits to be given, what is out, and until when it is ours. Pure.
//!
//! A message that is given back stays here, under its sequence, and is given again before anything behind it: the server would
//! send it whenever it likes. A lease that ran out takes everything with it, so that all of it comes again in its order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use async_nats::Subject;

use crate::source::{Delivery, Receipt, Settle};

/// A message, and the subject to speak of its delivery on.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) delivery: Delivery,
    pub(super) reply: Subject,
    /// When others may have it.
    until: Instant,
    /// Done, and the server has not said that it knows.
    done: bool,
}

#[derive(Default)]
pub(super) struct InFlight {
    /// To be given, by their sequence.
    waiting: BTreeMap<u64, Kept>,
    /// Came while others may have what is before it: not to be given yet.
    back: BTreeMap<u64, Kept>,
    out: BTreeMap<Receipt, (u64, Kept)>,
    lost: Vec<Receipt>,
    /// To be given back to the server.
    returned: VecDeque<Subject>,
    last: u64,
}

impl InFlight {
    /// A message came, and is ours until then. `ahead`: others may still have what is before it.
    pub(super) fn came(
        &mut self,
        sequence: u64,
        delivery: Delivery,
        reply: Subject,
        until: Instant,
        ahead: bool,
    ) {
        // It was others' in between, or the server thinks so: what we had of it is worth nothing.
        let out = self.out.iter().find(|(_, (of, _))| *of == sequence).map(|(receipt, _)| *receipt);
        if let Some(receipt) = out {
            self.out.remove(&receipt);
            self.lost.push(receipt);
        }
        self.waiting.remove(&sequence);
        self.back.remove(&sequence);
        let kept = Kept { delivery, reply, until, done: false };
        if ahead {
            self.back.insert(sequence, kept);
        } else {
            self.waiting.insert(sequence, kept);
        }
    }

    /// How many messages up to there are held that are not done. Of a done one the server may know, and only its answer was
    /// lost.
    pub(super) fn pending(&self, up_to: u64) -> usize {
        let here = self.waiting.iter().chain(&self.back).map(|(sequence, kept)| (*sequence, kept));
        let all = here.chain(self.out.values().map(|(sequence, kept)| (*sequence, kept)));
        all.filter(|(sequence, kept)| *sequence <= up_to && !kept.done).count()
    }

    /// Nobody has what is before those that were held back.
    pub(super) fn release(&mut self) {
        self.waiting.append(&mut self.back);
    }

    /// Gives up to so many, in the order of the stream. Not what is behind one that is held back: that came again, and what
    /// was behind it when it first came is still here.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        let before = self.back.keys().next().copied().unwrap_or(u64::MAX);
        while given.len() < most
            && self.waiting.keys().next().is_some_and(|sequence| *sequence < before)
            && let Some((sequence, mut kept)) = self.waiting.pop_first()
        {
            self.last += 1;
            kept.delivery.receipt = Receipt(self.last);
            given.push(kept.delivery.clone());
            self.out.insert(Receipt(self.last), (sequence, kept));
        }
        given
    }

    /// What became of messages. Those that are done are to be told to the server.
    pub(super) fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Vec<(Receipt, Subject)> {
        let mut to_tell = Vec::new();
        for (receipt, settle) in settled {
            let Some((sequence, kept)) = self.out.get_mut(receipt) else { continue };
            match settle {
                Settle::Ack => {
                    kept.done = true;
                    to_tell.push((*receipt, kept.reply.clone()));
                }
                // What was done stays done.
                Settle::Nack if kept.done => {}
                Settle::Nack => {
                    let sequence = *sequence;
                    let Some((_, mut kept)) = self.out.remove(receipt) else { continue };
                    kept.delivery.deliveries = kept.delivery.deliveries.map(|times| times.saturating_add(1));
                    self.waiting.insert(sequence, kept);
                }
            }
        }
        to_tell
    }

    /// The server knows that it is done.
    pub(super) fn told(&mut self, receipt: Receipt) {
        self.out.remove(&receipt);
    }

    /// What is to be kept: what somebody works on, and what waits.
    pub(super) fn to_keep(&self, worked_on: &[Receipt]) -> Vec<(u64, Subject)> {
        let out = worked_on.iter().filter_map(|receipt| self.out.get(receipt));
        let out = out.map(|(sequence, kept)| (*sequence, kept.reply.clone()));
        let here = self.waiting.iter().chain(&self.back);
        out.chain(here.map(|(sequence, kept)| (*sequence, kept.reply.clone()))).collect()
    }

    /// The server knows that these are worked on, and they are ours until then.
    pub(super) fn kept(&mut self, sequences: &[u64], until: Instant) {
        for sequence in sequences {
            if let Some(kept) = self.waiting.get_mut(sequence).or_else(|| self.back.get_mut(sequence)) {
                kept.until = until;
            }
        }
        for (sequence, kept) in self.out.values_mut() {
            if sequences.contains(sequence) {
                kept.until = until;
            }
        }
    }

    /// When the first lease runs out.
    #[cfg(test)]
    fn first_until(&self) -> Option<Instant> {
        self.all().map(|kept| kept.until).min()
    }

    fn all(&self) -> impl Iterator<Item = &Kept> {
        self.waiting.values().chain(self.back.values()).chain(self.out.values().map(|(_, kept)| kept))
    }

    /// Gives everything up if anything ran out: what came later would overtake it. Whether it did.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        // Nobody works on what is done. It comes again, and is known.
        self.out.retain(|_, (_, kept)| !kept.done || kept.until > now);
        let ran_out = self.all().any(|kept| kept.until <= now);
        if ran_out {
            self.give_up(|kept| kept.until > now);
        }
        ran_out
    }

    /// Gives everything up, and that which is still ours back to the server, in the order of the stream.
    pub(super) fn give_up(&mut self, ours: impl Fn(&Kept) -> bool) {
        let mut all = std::mem::take(&mut self.waiting);
        all.append(&mut self.back);
        for (receipt, (sequence, kept)) in std::mem::take(&mut self.out) {
            self.lost.push(receipt);
            if !kept.done {
                all.insert(sequence, kept);
            }
        }
        self.returned.extend(all.into_values().filter(ours).map(|kept| kept.reply));
    }

    /// Gives everything up without a word: of a stream that was made anew, the server would take it for other messages.
    pub(super) fn abandon(&mut self) {
        self.give_up(|_| false);
        self.forget_returned();
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }

    /// What the server is to be told next that it may deliver it again.
    pub(super) fn next_returned(&self) -> Option<Subject> {
        self.returned.front().cloned()
    }

    /// It was told, and knows.
    pub(super) fn is_returned(&mut self) {
        self.returned.pop_front();
    }

    /// What it did not hear comes again by itself.
    pub(super) fn forget_returned(&mut self) {
        self.returned.clear();
    }
}

/// How much of a lease counts that was renewed: a word to the server takes a while.
pub(super) fn lease(ack_wait: Duration) -> Duration {
    ack_wait * 9 / 10
}

/// How often is kept.
pub(super) fn renew_after(ack_wait: Duration) -> Duration {
    ack_wait / 4
}

/// How much of a lease counts when a message is found: it may have arrived since was last looked.
pub(super) fn first_lease(ack_wait: Duration) -> Duration {
    lease(ack_wait) - renew_after(ack_wait)
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
