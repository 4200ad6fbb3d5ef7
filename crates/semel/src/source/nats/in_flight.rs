//! Messages in flight: waiting ones, delivered ones, and when their leases expire. Pure.
//!
//! A nacked message stays here under its sequence and is delivered again before anything behind it: the server would
//! redeliver it at any time. One expired lease gives up all messages, so that all of them are redelivered in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use async_nats::Subject;

use crate::source::{Delivery, Receipt, Settle};

/// A message, and the reply subject for its acks.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) delivery: Delivery,
    pub(super) reply: Subject,
    /// When the lease expires.
    until: Instant,
    /// Acked here; the server has not confirmed yet.
    done: bool,
}

#[derive(Default)]
pub(super) struct InFlight {
    /// To be delivered, by their sequence.
    waiting: BTreeMap<u64, Kept>,
    /// Held back: another reader may have earlier messages.
    held_back: BTreeMap<u64, Kept>,
    out: BTreeMap<Receipt, (u64, Kept)>,
    lost: Vec<Receipt>,
    /// To be nacked to the server.
    returned: VecDeque<Subject>,
    last: u64,
}

impl InFlight {
    /// A message arrived, with a lease until then. `ahead`: another reader may still have earlier messages.
    pub(super) fn arrived(
        &mut self,
        sequence: u64,
        delivery: Delivery,
        reply: Subject,
        until: Instant,
        ahead: bool,
    ) {
        // The server delivers it again, so our previous delivery of it is invalid.
        let out = self.out.iter().find(|(_, (of, _))| *of == sequence).map(|(receipt, _)| *receipt);
        if let Some(receipt) = out {
            self.out.remove(&receipt);
            self.lost.push(receipt);
        }
        self.waiting.remove(&sequence);
        self.held_back.remove(&sequence);
        let kept = Kept { delivery, reply, until, done: false };
        if ahead {
            self.held_back.insert(sequence, kept);
        } else {
            self.waiting.insert(sequence, kept);
        }
    }

    /// How many messages up to this sequence are in flight and not acked. An acked one may be known to the server, with
    /// only its answer lost.
    pub(super) fn pending(&self, up_to: u64) -> usize {
        let here = self.waiting.iter().chain(&self.held_back).map(|(sequence, kept)| (*sequence, kept));
        let all = here.chain(self.out.values().map(|(sequence, kept)| (*sequence, kept)));
        all.filter(|(sequence, kept)| *sequence <= up_to && !kept.done).count()
    }

    /// No other reader has earlier messages: those held back may be delivered.
    pub(super) fn release(&mut self) {
        self.waiting.append(&mut self.held_back);
    }

    /// Delivers up to `most`, in the order of the stream. Stops before the first one held back: it may be a redelivery,
    /// and its successors are still here from the first time.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        let before = self.held_back.keys().next().copied().unwrap_or(u64::MAX);
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

    /// Acks or nacks messages. Returns those whose ack has to be sent to the server.
    pub(super) fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Vec<(Receipt, Subject)> {
        let mut to_ack = Vec::new();
        for (receipt, settle) in settled {
            let Some((sequence, kept)) = self.out.get_mut(receipt) else { continue };
            match settle {
                Settle::Ack => {
                    kept.done = true;
                    to_ack.push((*receipt, kept.reply.clone()));
                }
                // An ack is final.
                Settle::Nack if kept.done => {}
                Settle::Nack => {
                    let sequence = *sequence;
                    let Some((_, mut kept)) = self.out.remove(receipt) else { continue };
                    kept.delivery.deliveries = kept.delivery.deliveries.map(|times| times.saturating_add(1));
                    self.waiting.insert(sequence, kept);
                }
            }
        }
        to_ack
    }

    /// The server has confirmed the ack.
    pub(super) fn ack_confirmed(&mut self, receipt: Receipt) {
        self.out.remove(&receipt);
    }

    /// Messages whose lease has to be extended: those being handled, and those waiting.
    pub(super) fn to_keep(&self, delivered: &[Receipt]) -> Vec<(u64, Subject)> {
        let out = delivered.iter().filter_map(|receipt| self.out.get(receipt));
        let out = out.map(|(sequence, kept)| (*sequence, kept.reply.clone()));
        let here = self.waiting.iter().chain(&self.held_back);
        out.chain(here.map(|(sequence, kept)| (*sequence, kept.reply.clone()))).collect()
    }

    /// The server has extended these leases.
    pub(super) fn extended(&mut self, sequences: &[u64], until: Instant) {
        for sequence in sequences {
            if let Some(kept) = self.waiting.get_mut(sequence).or_else(|| self.held_back.get_mut(sequence)) {
                kept.until = until;
            }
        }
        for (sequence, kept) in self.out.values_mut() {
            if sequences.contains(sequence) {
                kept.until = until;
            }
        }
    }

    /// When the first lease expires.
    #[cfg(test)]
    fn first_until(&self) -> Option<Instant> {
        self.all().map(|kept| kept.until).min()
    }

    fn all(&self) -> impl Iterator<Item = &Kept> {
        self.waiting.values().chain(self.held_back.values()).chain(self.out.values().map(|(_, kept)| kept))
    }

    /// Gives up everything if any lease expired: later messages would overtake that one. Returns whether one did.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        // An acked message is not being handled. It is redelivered, and the inbox deduplicates it.
        self.out.retain(|_, (_, kept)| !kept.done || kept.until > now);
        let expired = self.all().any(|kept| kept.until <= now);
        if expired {
            self.give_up(|kept| kept.until > now);
        }
        expired
    }

    /// Gives up everything. Queues nacks for those still ours, in the order of the stream.
    pub(super) fn give_up(&mut self, ours: impl Fn(&Kept) -> bool) {
        let mut all = std::mem::take(&mut self.waiting);
        all.append(&mut self.held_back);
        for (receipt, (sequence, kept)) in std::mem::take(&mut self.out) {
            self.lost.push(receipt);
            if !kept.done {
                all.insert(sequence, kept);
            }
        }
        self.returned.extend(all.into_values().filter(ours).map(|kept| kept.reply));
    }

    /// Gives up everything without nacks: in a recreated stream they would hit other messages.
    pub(super) fn abandon(&mut self) {
        self.give_up(|_| false);
        self.forget_returned();
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }

    /// The next message to nack to the server.
    pub(super) fn next_returned(&self) -> Option<Subject> {
        self.returned.front().cloned()
    }

    /// The server has confirmed the nack.
    pub(super) fn is_returned(&mut self) {
        self.returned.pop_front();
    }

    /// Drops pending nacks. The server redelivers those messages when their leases expire.
    pub(super) fn forget_returned(&mut self) {
        self.returned.clear();
    }
}

/// How much of a renewed lease counts: the request to the server takes time.
pub(super) fn lease(ack_wait: Duration) -> Duration {
    ack_wait * 9 / 10
}

/// How often leases are renewed.
pub(super) fn renew_after(ack_wait: Duration) -> Duration {
    ack_wait / 4
}

/// How much of the lease counts when a message is read: it may have arrived any time since the last poll.
pub(super) fn first_lease(ack_wait: Duration) -> Duration {
    lease(ack_wait) - renew_after(ack_wait)
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
