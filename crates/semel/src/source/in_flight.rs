//! What was taken from a broker that hears of each message by itself: what waits to be given, and what is out.
//!
//! What is given back waits here and not at the broker, which has not been told anything of it: there it would come behind
//! its successors, and some brokers count how often it was given back and then drop it.

use std::collections::{BTreeMap, HashMap};

use super::{Delivery, Receipt, Settle};

/// Messages by their places, in the broker's order.
pub(super) struct InFlight<P> {
    /// To be given, for the first time or again.
    ready: BTreeMap<P, Delivery>,
    out: HashMap<Receipt, (P, Delivery)>,
    lost: Vec<Receipt>,
    last: u64,
}

impl<P> Default for InFlight<P> {
    fn default() -> Self {
        Self { ready: BTreeMap::new(), out: HashMap::new(), lost: Vec::new(), last: 0 }
    }
}

impl<P: Ord + Clone> InFlight<P> {
    /// A message came.
    pub(super) fn came(&mut self, place: P, delivery: Delivery) {
        self.ready.insert(place, delivery);
    }

    /// How many wait to be given.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Gives up to so many, in the broker's order.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        while given.len() < most {
            let Some((place, mut delivery)) = self.ready.pop_first() else { break };
            self.last += 1;
            delivery.receipt = Receipt(self.last);
            self.out.insert(delivery.receipt, (place, delivery.clone()));
            given.push(delivery);
        }
        given
    }

    /// What became of a message: its place, where the broker is to hear that it is done. Of one that was lost, nothing.
    pub(super) fn settle(&mut self, receipt: Receipt, settle: Settle) -> Option<P> {
        let (place, mut delivery) = self.out.remove(&receipt)?;
        match settle {
            Settle::Ack => Some(place),
            Settle::Nack => {
                delivery.deliveries = delivery.deliveries.map(|count| count.saturating_add(1));
                self.ready.insert(place, delivery);
                None
            }
        }
    }

    /// The places of all that is not done.
    pub(super) fn open(&self) -> impl Iterator<Item = &P> {
        self.ready.keys().chain(self.out.values().map(|(place, _)| place))
    }

    /// These are not ours any more.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&P) -> bool) {
        self.ready.retain(|place, _| !is_lost(place));
        let lost = &mut self.lost;
        self.out.retain(|receipt, (place, _)| {
            let gone = is_lost(place);
            if gone {
                lost.push(*receipt);
            }
            !gone
        });
    }

    /// What was lost since this was asked last.
    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(places: &[u64]) -> InFlight<u64> {
        let mut taken = InFlight::default();
        for place in places {
            let delivery = Delivery::new(Receipt(0), "q", place.to_string(), "");
            taken.came(*place, Delivery { deliveries: Some(1), ..delivery });
        }
        taken
    }

    fn places(given: &[Delivery]) -> Vec<&str> {
        given.iter().map(|delivery| delivery.place.as_str()).collect()
    }

    #[test]
    fn what_is_given_back_comes_again_before_what_was_never_given() {
        let mut taken = taken(&[1, 2, 3, 4]);
        let first = taken.give(3);
        assert_eq!(taken.settle(first[2].receipt, Settle::Nack), None);
        assert_eq!(taken.settle(first[1].receipt, Settle::Nack), None);
        assert_eq!(taken.settle(first[0].receipt, Settle::Ack), Some(1));
        assert_eq!(taken.open().count(), 3);
        let second = taken.give(10);
        assert_eq!(places(&second), ["2", "3", "4"]);
        let counted: Vec<_> = second.iter().map(|delivery| delivery.deliveries).collect();
        assert_eq!(counted, [Some(2), Some(2), Some(1)]);
        assert!(second.iter().all(|delivery| delivery.receipt > first[2].receipt));
        assert_eq!(taken.settle(first[1].receipt, Settle::Ack), None, "an old receipt is worth nothing");
    }

    #[test]
    fn what_is_lost_is_told_once_and_settling_it_does_nothing() {
        let mut taken = taken(&[1, 2, 3]);
        let given = taken.give(2);
        taken.lose(|place| *place != 2);
        assert_eq!(taken.lost(), [given[0].receipt]);
        assert!(taken.lost().is_empty() && taken.ready() == 0);
        assert_eq!(taken.settle(given[0].receipt, Settle::Ack), None);
        assert_eq!(taken.settle(given[1].receipt, Settle::Ack), Some(2));
    }
}
