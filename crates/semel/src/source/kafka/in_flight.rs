//! What was taken from the broker and is not done: what waits to be given, what is out, and what became of it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::contiguous_offsets::ContiguousOffsets;
use crate::source::{Delivery, Receipt, Settle};

/// A partition of a topic.
pub(crate) type Part = (String, i32);

/// All partitions that are ours, and their messages.
#[derive(Default)]
pub(super) struct InFlight {
    /// A group without a place begins at the end.
    latest: bool,
    parts: HashMap<Part, ContiguousOffsets>,
    /// Taken from the broker and never given.
    waiting: VecDeque<(Part, i64, Delivery)>,
    /// To be given again, before what waits.
    again: BTreeMap<(Part, i64, Receipt), Delivery>,
    out: HashMap<Receipt, (Part, i64, Delivery)>,
    lost: Vec<Receipt>,
    last: u64,
}

impl InFlight {
    pub(super) fn new(latest: bool) -> Self {
        Self { latest, ..Self::default() }
    }

    /// A partition is ours from now on.
    pub(super) fn assigned(&mut self, part: Part) {
        self.revoked(&part);
        self.parts.insert(part, ContiguousOffsets::new(self.latest));
    }

    /// A partition is not ours any more: what is out of it is lost, and what waits is for others.
    pub(super) fn revoked(&mut self, part: &Part) {
        self.parts.remove(part);
        self.waiting.retain(|(of, ..)| of != part);
        self.again.retain(|(of, ..), _| of != part);
        let lost = &mut self.lost;
        self.out.retain(|receipt, (of, ..)| {
            if of == part {
                lost.push(*receipt);
            }
            of != part
        });
    }

    /// A message came. Of a partition that is not ours it is nobody's here.
    pub(super) fn came(&mut self, part: Part, offset: i64, delivery: Delivery) {
        if let Some(prefix) = self.parts.get_mut(&part) {
            prefix.given(offset);
            self.waiting.push_back((part, offset, delivery));
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.again.is_empty() || !self.waiting.is_empty()
    }

    /// Gives up to so many: what comes again first.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        while given.len() < most {
            let (part, offset, mut delivery) = match self.again.pop_first() {
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

    /// What became of a message. Of one that was lost, nothing.
    pub(super) fn settle(&mut self, receipt: Receipt, settle: Settle) {
        let Some((part, offset, delivery)) = self.out.remove(&receipt) else { return };
        match settle {
            Settle::Ack => {
                if let Some(prefix) = self.parts.get_mut(&part) {
                    prefix.done(offset);
                }
            }
            Settle::Nack => drop(self.again.insert((part, offset, receipt), delivery)),
        }
    }

    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }

    /// Positions that the broker does not have: of these partitions, or of all.
    pub(super) fn to_commit(&self, of: Option<&[Part]>) -> Vec<(Part, i64)> {
        let wanted = self.parts.iter().filter(|(part, _)| of.is_none_or(|of| of.contains(part)));
        wanted.filter_map(|(part, prefix)| Some((part.clone(), prefix.to_commit()?))).collect()
    }

    /// The broker has a position.
    pub(super) fn committed(&mut self, part: &Part, offset: i64) {
        if let Some(prefix) = self.parts.get_mut(part) {
            prefix.committed(offset);
        }
    }

    /// The broker was told these, and may have them.
    pub(super) fn told(&mut self, positions: &[(Part, i64)]) {
        for (part, _) in positions {
            if let Some(prefix) = self.parts.get_mut(part) {
                prefix.told();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(offsets: &[i64]) -> InFlight {
        let mut held = InFlight::default();
        held.assigned(part(0));
        held.assigned(part(1));
        offsets.iter().for_each(|offset| come(&mut held, 0, *offset));
        held
    }

    fn part(partition: i32) -> Part {
        ("t".to_owned(), partition)
    }

    fn come(held: &mut InFlight, partition: i32, offset: i64) {
        let delivery = Delivery::new(Receipt(0), "t", format!("t/{partition}/{offset}"), "");
        held.came(part(partition), offset, delivery);
    }

    fn places(given: &[Delivery]) -> Vec<&str> {
        given.iter().map(|delivery| delivery.place.as_str()).collect()
    }

    #[test]
    fn what_comes_again_comes_in_order_before_what_was_never_given() {
        let mut held = held(&[1, 2, 3, 4]);
        let first = held.give(3);
        held.settle(first[2].receipt, Settle::Nack);
        held.settle(first[1].receipt, Settle::Nack);
        held.settle(first[0].receipt, Settle::Ack);
        assert_eq!(held.to_commit(None), [(part(0), 2)]);
        let second = held.give(10);
        assert_eq!(places(&second), ["t/0/2", "t/0/3", "t/0/4"]);
        assert!(second.iter().all(|delivery| first.iter().all(|other| other.receipt != delivery.receipt)));
        assert!(!held.has_waiting());
        // The old receipts are worth nothing.
        held.settle(first[1].receipt, Settle::Ack);
        assert_eq!(held.to_commit(None), [(part(0), 2)]);
        second.iter().for_each(|delivery| held.settle(delivery.receipt, Settle::Ack));
        assert_eq!(held.to_commit(None), [(part(0), 5)]);
    }

    #[test]
    fn what_was_taken_away_is_lost_and_settling_it_does_nothing() {
        let mut held = held(&[1, 2, 3]);
        come(&mut held, 1, 8);
        let given = held.give(2);
        held.revoked(&part(0));
        assert_eq!(held.lost().len(), 2);
        assert!(held.lost().is_empty(), "told once");
        held.settle(given[0].receipt, Settle::Ack);
        held.settle(given[1].receipt, Settle::Nack);
        assert_eq!(held.to_commit(None), []);
        come(&mut held, 0, 4);
        assert_eq!(places(&held.give(10)), ["t/1/8"], "the rest of it is for others");
        // Ours again, from where the other one stopped.
        held.assigned(part(0));
        come(&mut held, 0, 1);
        held.settle(given[0].receipt, Settle::Ack);
        assert_eq!(held.to_commit(None), []);
        assert_eq!(places(&held.give(10)), ["t/0/1"]);
    }
}
