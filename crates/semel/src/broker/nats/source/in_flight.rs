//! Messages in flight: waiting ones, delivered ones, and when their leases expire. Pure.
//!
//! A nacked message stays here under its sequence and is delivered again before anything behind it: the server would
//! redeliver it at any time. One expired lease gives up all messages, so that all of them are redelivered in order.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

use async_nats::Subject;

use crate::source::in_flight::InFlight;
use crate::source::{Delivery, Receipt, Settle};

/// The lease of a message.
#[derive(Debug)]
pub(super) struct Lease {
    /// The reply subject for its acks.
    reply: Subject,
    until: Instant,
    /// Acked here; the server has not confirmed yet.
    done: bool,
}

#[derive(Default)]
pub(super) struct LeasedInFlight {
    /// By their sequence in the stream.
    messages: InFlight<u64, Lease>,
    /// Sequences of ready messages that are held back: another reader may have earlier messages.
    held_back: BTreeSet<u64>,
    /// To be nacked to the server.
    returned: VecDeque<Subject>,
}

impl LeasedInFlight {
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
        self.messages.lose_delivered(|of| *of == sequence);
        self.messages.arrived(sequence, delivery, Lease { reply, until, done: false });
        if ahead {
            self.held_back.insert(sequence);
        } else {
            self.held_back.remove(&sequence);
        }
    }

    fn all(&self) -> impl Iterator<Item = (u64, &Lease)> {
        let out = self.messages.out.values().map(|(sequence, (_, lease))| (*sequence, lease));
        self.ready().chain(out)
    }

    fn ready(&self) -> impl Iterator<Item = (u64, &Lease)> {
        self.messages.ready.iter().map(|(sequence, (_, lease))| (*sequence, lease))
    }

    /// The number of messages up to this sequence that are in flight and not acked. Acked ones do not count even
    /// without an answer: the server may have the ack.
    pub(super) fn pending(&self, up_to: u64) -> usize {
        self.all().filter(|(sequence, lease)| *sequence <= up_to && !lease.done).count()
    }

    /// No other reader has earlier messages: those held back may be delivered.
    pub(super) fn release(&mut self) {
        self.held_back.clear();
    }

    /// Delivers up to `most`, in the order of the stream. Stops before the first one held back: it may be a redelivery,
    /// and its successors are still here from the first time.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let before = self.held_back.first().copied();
        self.messages.give(most, |sequence| before.is_none_or(|before| *sequence < before))
    }

    /// Acks or nacks messages. Returns those whose ack has to be sent to the server.
    pub(super) fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Vec<(Receipt, Subject)> {
        let mut to_ack = Vec::new();
        for (receipt, settle) in settled {
            let Some((_, (_, lease))) = self.messages.out.get_mut(receipt) else { continue };
            match settle {
                Settle::Ack => {
                    lease.done = true;
                    to_ack.push((*receipt, lease.reply.clone()));
                }
                // An ack is final.
                Settle::Nack if lease.done => {}
                Settle::Nack => drop(self.messages.settle(*receipt, Settle::Nack)),
            }
        }
        to_ack
    }

    /// The server has confirmed the ack.
    pub(super) fn ack_confirmed(&mut self, receipt: Receipt) {
        self.messages.settle(receipt, Settle::Ack);
    }

    /// Messages whose lease has to be extended: those being handled, and those waiting.
    pub(super) fn to_keep(&self, delivered: &[Receipt]) -> Vec<(u64, Subject)> {
        let out = delivered.iter().filter_map(|receipt| self.messages.out.get(receipt));
        let out = out.map(|(sequence, (_, lease))| (*sequence, lease));
        out.chain(self.ready()).map(|(sequence, lease)| (sequence, lease.reply.clone())).collect()
    }

    /// The server has extended these leases.
    pub(super) fn extended(&mut self, sequences: &[u64], until: Instant) {
        let sequences: HashSet<u64> = sequences.iter().copied().collect();
        let ready = self.messages.ready.iter_mut().map(|(sequence, (_, lease))| (sequence, lease));
        let out = self.messages.out.values_mut().map(|(sequence, (_, lease))| (&*sequence, lease));
        let extended = ready.chain(out).filter(|(sequence, _)| sequences.contains(sequence));
        extended.for_each(|(_, lease)| lease.until = until);
    }

    /// When the first lease expires.
    #[cfg(test)]
    fn first_until(&self) -> Option<Instant> {
        self.all().map(|(_, lease)| lease.until).min()
    }

    /// Gives up everything if any lease expired: later messages would overtake that one. Returns whether one did.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        // An acked message is not being handled. It is redelivered, and the inbox deduplicates it.
        self.messages.out.retain(|_, (_, (_, lease))| !lease.done || lease.until > now);
        let expired = self.all().any(|(_, lease)| lease.until <= now);
        if expired {
            self.give_up(|lease| lease.until > now);
        }
        expired
    }

    /// Gives up everything. Queues nacks for those still ours, in the order of the stream.
    pub(super) fn give_up(&mut self, ours: impl Fn(&Lease) -> bool) {
        let returned = self.all().filter(|(_, lease)| !lease.done && ours(lease));
        let returned: BTreeMap<u64, Subject> =
            returned.map(|(sequence, lease)| (sequence, lease.reply.clone())).collect();
        self.returned.extend(returned.into_values());
        self.held_back.clear();
        self.messages.lose(|_| true);
    }

    /// Gives up everything without nacks: in a recreated stream they would hit other messages.
    pub(super) fn abandon(&mut self) {
        self.give_up(|_| false);
        self.forget_returned();
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        self.messages.lost()
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

/// The usable part of a renewed lease. The rest allows for the time that the request to the server takes.
pub(super) fn lease(ack_wait: Duration) -> Duration {
    ack_wait * 9 / 10
}

/// How often leases are renewed.
pub(super) fn renew_after(ack_wait: Duration) -> Duration {
    ack_wait / 4
}

/// The usable part of the lease of a message just read. It may have arrived at any time since the last poll.
pub(super) fn first_lease(ack_wait: Duration) -> Duration {
    lease(ack_wait) - renew_after(ack_wait)
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
