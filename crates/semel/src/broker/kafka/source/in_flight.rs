//! Messages in flight, and how far their partitions may be committed.

use std::collections::HashMap;

use super::contiguous_offsets::ContiguousOffsets;
use crate::source::in_flight::InFlight;
use crate::source::{Delivery, Receipt, Settle};

/// A partition of a topic.
pub(crate) type Part = (String, i32);

/// The assigned partitions, and their messages.
#[derive(Default)]
pub(super) struct PartsInFlight {
    /// A group without a committed offset begins at the end.
    latest: bool,
    parts: HashMap<Part, ContiguousOffsets>,
    /// In the order of their arrival: of one partition that is the order of offsets, unless its log was cut off.
    messages: InFlight<(u64, Part, i64)>,
    arrived: u64,
}

impl PartsInFlight {
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
        self.messages.lose(|(_, of, _)| of == part);
    }

    /// A message arrived. Ignored if its partition is not ours.
    pub(super) fn arrived(&mut self, part: Part, offset: i64, delivery: Delivery) {
        if let Some(offsets) = self.parts.get_mut(&part) {
            offsets.given(offset);
            self.arrived += 1;
            self.messages.arrived((self.arrived, part, offset), delivery, ());
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.messages.ready.is_empty()
    }

    /// Delivers up to `most`, nacked ones first.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        self.messages.give(most, |_| true)
    }

    /// Acks or nacks a message. Does nothing if it was lost.
    pub(super) fn settle(&mut self, receipt: Receipt, settle: Settle) {
        if let Some((_, part, offset)) = self.messages.settle(receipt, settle)
            && let Some(offsets) = self.parts.get_mut(&part)
        {
            offsets.done(offset);
        }
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        self.messages.lost()
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

    fn in_flight(offsets: &[i64]) -> PartsInFlight {
        let mut in_flight = PartsInFlight::default();
        in_flight.assigned(part(0));
        in_flight.assigned(part(1));
        offsets.iter().for_each(|offset| arrive(&mut in_flight, 0, *offset));
        in_flight
    }

    fn part(partition: i32) -> Part {
        ("t".to_owned(), partition)
    }

    fn arrive(in_flight: &mut PartsInFlight, partition: i32, offset: i64) {
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
