//! Messages in flight from a broker that acks each message by itself: those ready to deliver, and those delivered.
//!
//! A nacked message waits here; the broker does not get the nack. It would put the message behind its successors, and
//! some brokers count nacks and then drop the message.

use std::collections::{BTreeMap, HashMap};

use super::{Delivery, Receipt, Settle};

/// Messages by their positions, in the broker's order.
pub(super) struct InFlight<P> {
    /// To be delivered, for the first time or again.
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
    /// A message arrived.
    pub(super) fn arrived(&mut self, position: P, delivery: Delivery) {
        self.ready.insert(position, delivery);
    }

    /// How many wait to be delivered.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Delivers up to `most`, in the broker's order.
    pub(super) fn give(&mut self, most: usize) -> Vec<Delivery> {
        let mut given = Vec::new();
        while given.len() < most {
            let Some((position, mut delivery)) = self.ready.pop_first() else { break };
            self.last += 1;
            delivery.receipt = Receipt(self.last);
            self.out.insert(delivery.receipt, (position, delivery.clone()));
            given.push(delivery);
        }
        given
    }

    /// Acks or nacks a message. Returns its position if the broker has to get an ack; `None` also if it was lost.
    pub(super) fn settle(&mut self, receipt: Receipt, settle: Settle) -> Option<P> {
        let (position, mut delivery) = self.out.remove(&receipt)?;
        match settle {
            Settle::Ack => Some(position),
            Settle::Nack => {
                delivery.deliveries = delivery.deliveries.map(|count| count.saturating_add(1));
                self.ready.insert(position, delivery);
                None
            }
        }
    }

    /// The positions of everything that is not acked.
    pub(super) fn open(&self) -> impl Iterator<Item = &P> {
        self.ready.keys().chain(self.out.values().map(|(position, _)| position))
    }

    /// Drops messages that are no longer ours.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&P) -> bool) {
        self.ready.retain(|position, _| !is_lost(position));
        let lost = &mut self.lost;
        self.out.retain(|receipt, (position, _)| {
            let gone = is_lost(position);
            if gone {
                lost.push(*receipt);
            }
            !gone
        });
    }

    /// Receipts lost since the last call.
    pub(super) fn lost(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(numbers: &[u64]) -> InFlight<u64> {
        let mut in_flight = InFlight::default();
        for position in numbers {
            let delivery = Delivery::new(Receipt(0), "q", position.to_string(), "");
            in_flight.arrived(*position, Delivery { deliveries: Some(1), ..delivery });
        }
        in_flight
    }

    fn positions(given: &[Delivery]) -> Vec<&str> {
        given.iter().map(|delivery| delivery.place.as_str()).collect()
    }

    #[test]
    fn what_is_given_back_comes_again_before_what_was_never_given() {
        let mut in_flight = in_flight(&[1, 2, 3, 4]);
        let first = in_flight.give(3);
        assert_eq!(in_flight.settle(first[2].receipt, Settle::Nack), None);
        assert_eq!(in_flight.settle(first[1].receipt, Settle::Nack), None);
        assert_eq!(in_flight.settle(first[0].receipt, Settle::Ack), Some(1));
        assert_eq!(in_flight.open().count(), 3);
        let second = in_flight.give(10);
        assert_eq!(positions(&second), ["2", "3", "4"]);
        let counted: Vec<_> = second.iter().map(|delivery| delivery.deliveries).collect();
        assert_eq!(counted, [Some(2), Some(2), Some(1)]);
        assert!(second.iter().all(|delivery| delivery.receipt > first[2].receipt));
        assert_eq!(in_flight.settle(first[1].receipt, Settle::Ack), None, "an old receipt is invalid");
    }

    #[test]
    fn what_is_lost_is_reported_once_and_settling_it_does_nothing() {
        let mut in_flight = in_flight(&[1, 2, 3]);
        let given = in_flight.give(2);
        in_flight.lose(|position| *position != 2);
        assert_eq!(in_flight.lost(), [given[0].receipt]);
        assert!(in_flight.lost().is_empty() && in_flight.ready() == 0);
        assert_eq!(in_flight.settle(given[0].receipt, Settle::Ack), None);
        assert_eq!(in_flight.settle(given[1].receipt, Settle::Ack), Some(2));
    }
}
