//! Messages in flight, by partition: waiting ones, delivered ones, and nacked ones to deliver again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::contiguous_offsets::ContiguousOffsets;
use crate::source::{Delivery, Receipt, Settle};

/// A partition of a topic.
pub(crate) type Part = (String, i32);

/// The assigned partitions, and their messages.
#[derive(Default)]
pub(super) struct InFlight {
    /// A group without a committed offset begins at the end.
    latest: bool,
    parts: HashMap<Part, ContiguousOffsets>,
    /// Polled and never delivered.
    waiting: VecDeque<(Part, i64, Delivery)>,
    /// Nacked: to be delivered again, before what waits.
    nacked: BTreeMap<(Part, i64, Receipt), Delivery>,
    out: HashMap<Receipt, (Part, i64, Delivery)>,
    lost: Vec<Receipt>,
    last: u64,
}

impl InFlight {
    pub(super) fn new(latest: bool) -> Self {
        Self { latest, ..Self::default() }
    }

    /// A partition was assigned to us.
    pub(super) fn assigned(&mut self, part: Part) {
        self.revoked(&part);
        self.parts.insert(part, ContiguousOffsets::new(self.latest));
    }

    /// A partition was revoked: its delivered messages are lost, its waiting ones are dropped.
    pub(super) fn revoked(&mut self, part: &Part) {
        self.parts.remove(part);
        self.waiting.retain(|(of, ..)| of != part);
        self.nacked.retain(|(of, ..), _| of != part);
        let lost = &mut self.lost;
        self.out.retain(|receipt, (of, ..)| {
            if of == part {
                lost.push(*receipt);
            }
            of != part
        });
    }

    /// A message arrived. Ignored if its partition is not ours.
    pub(super) fn arrived(&mut self, part: Part, offset: i64, delivery: Delivery) {
        if let Some(offsets) = self.parts.get_mut(&part) {
            offsets.given(offset);
            self.waiting.push_back((part, offset, delivery));
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.nacked.is_empty() || !self.waiting.is_empty()
    }

    /// Delivers up to `most`, nacked ones first.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        while given.len() < most {
            let (part, offset, mut delivery) = match self.nacked.pop_first() {
                Some(((part, offset, _), delivery)) => (part, offset, delivery),
                None => match self.waiting.pop_front() {
                    Some(next) => next,
                    None => break,
                },
            };
            self.last += 1;
            delivery.receipt = Receipt(self.last);
            self.out.insert(delivery.receipt, (part, offset, delivery.clone()));
            given.push(delivery);
        }
        given
    }

    /// Acks or nacks a message. Does nothing if it was lost.
    pub(super) fn settle(&mut self, receipt: Receipt, settle: Settle) {
        let Some((part, offset, delivery)) = self.out.remove(&receipt) else { return };
        match settle {
            Settle::Ack => {
                if let Some(offsets) = self.parts.get_mut(&part) {
                    offsets.done(offset);
                }
            }
            Settle::Nack => drop(self.nacked.insert((part, offset, receipt), delivery)),
        }
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }

    /// Positions to commit, of these partitions or of all.
    pub(super) fn to_commit(&self, of: Option<&[Part]>) -> Vec<(Part, i64)> {
        let wanted = self.parts.iter().filter(|(part, _)| of.is_none_or(|of| of.contains(part)));
        wanted.filter_map(|(part, offsets)| Some((part.clone(), offsets.to_commit()?))).collect()
    }

    /// The broker confirmed a commit.
    pub(super) fn committed(&mut self, part: &Part, offset: i64) {
        if let Some(offsets) = self.parts.get_mut(part) {
            offsets.committed(offset);
        }
    }

    /// These commits were sent, without an answer.
    pub(super) fn commit_sent(&mut self, commits: &[(Part, i64)]) {
        for (part, _) in commits {
            if let Some(offsets) = self.parts.get_mut(part) {
                offsets.commit_sent();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(offsets: &[i64]) -> InFlight {
        let mut in_flight = InFlight::default();
        in_flight.assigned(part(0));
        in_flight.assigned(part(1));
        offsets.iter().for_each(|offset| arrive(&mut in_flight, 0, *offset));
        in_flight
    }

    fn part(partition: i32) -> Part {
        ("t".to_owned(), partition)
    }

    fn arrive(in_flight: &mut InFlight, partition: i32, offset: i64) {
        let delivery = Delivery::new(Receipt(0), "t", format!("t/{partition}/{offset}"), "");
        in_flight.arrived(part(partition), offset, delivery);
    }

    fn positions(given: &[Delivery]) -> Vec<&str> {
        given.iter().map(|delivery| delivery.place.as_str()).collect()
    }

    #[test]
    fn what_comes_again_comes_in_order_before_what_was_never_given() {
        let mut in_flight = in_flight(&[1, 2, 3, 4]);
        let first = in_flight.give(3);
        in_flight.settle(first[2].receipt, Settle::Nack);
        in_flight.settle(first[1].receipt, Settle::Nack);
        in_flight.settle(first[0].receipt, Settle::Ack);
        assert_eq!(in_flight.to_commit(None), [(part(0), 2)]);
        let second = in_flight.give(10);
        assert_eq!(positions(&second), ["t/0/2", "t/0/3", "t/0/4"]);
        assert!(second.iter().all(|delivery| first.iter().all(|other| other.receipt != delivery.receipt)));
        assert!(!in_flight.has_waiting());
        // The old receipts are invalid.
        in_flight.settle(first[1].receipt, Settle::Ack);
        assert_eq!(in_flight.to_commit(None), [(part(0), 2)]);
        second.iter().for_each(|delivery| in_flight.settle(delivery.receipt, Settle::Ack));
        assert_eq!(in_flight.to_commit(None), [(part(0), 5)]);
    }

    #[test]
    fn what_was_taken_away_is_lost_and_settling_it_does_nothing() {
        let mut in_flight = in_flight(&[1, 2, 3]);
        arrive(&mut in_flight, 1, 8);
        let given = in_flight.give(2);
        in_flight.revoked(&part(0));
        assert_eq!(in_flight.lost().len(), 2);
        assert!(in_flight.lost().is_empty(), "reported once");
        in_flight.settle(given[0].receipt, Settle::Ack);
        in_flight.settle(given[1].receipt, Settle::Nack);
        assert_eq!(in_flight.to_commit(None), []);
        arrive(&mut in_flight, 0, 4);
        assert_eq!(positions(&in_flight.give(10)), ["t/1/8"], "the rest was dropped");
        // Assigned again, from the other consumer's position.
        in_flight.assigned(part(0));
        arrive(&mut in_flight, 0, 1);
        in_flight.settle(given[0].receipt, Settle::Ack);
        assert_eq!(in_flight.to_commit(None), []);
        assert_eq!(positions(&in_flight.give(10)), ["t/0/1"]);
    }
}
