//! Messages in flight: those ready to deliver, and those delivered. Pure.
//!
//! A nacked message waits here, and comes again before what was never delivered; the broker does not get the nack. It
//! would put the message behind its successors, and some brokers count nacks and then drop the message.

use std::collections::BTreeMap;

use super::{Delivery, Receipt, Settle};

/// Messages by their positions, in the broker's order. `T` is what else a broker needs to know of one.
pub(crate) struct InFlight<P, T = ()> {
    /// To be delivered, for the first time or again.
    pub(crate) ready: BTreeMap<P, (Delivery, T)>,
    /// Delivered, and not acked.
    pub(crate) out: BTreeMap<Receipt, (P, (Delivery, T))>,
    lost: Vec<Receipt>,
    last: u64,
}

impl<P, T> Default for InFlight<P, T> {
    fn default() -> Self {
        Self { ready: BTreeMap::new(), out: BTreeMap::new(), lost: Vec::new(), last: 0 }
    }
}

impl<P: Ord, T> InFlight<P, T> {
    /// A message arrived.
    pub(crate) fn arrived(&mut self, position: P, delivery: Delivery, with: T) {
        self.ready.insert(position, (delivery, with));
    }

    /// Delivers up to `most`, in the broker's order, up to the first position that may not be delivered.
    pub(crate) fn give(&mut self, most: usize, may: impl Fn(&P) -> bool) -> Vec<Delivery> {
        let mut given = Vec::new();
        while given.len() < most
            && let Some(next) = self.ready.first_entry().filter(|next| may(next.key()))
        {
            let (position, (mut delivery, with)) = next.remove_entry();
            self.last += 1;
            delivery.receipt = Receipt(self.last);
            given.push(delivery.clone());
            self.out.insert(delivery.receipt, (position, (delivery, with)));
        }
        given
    }

    /// Acks or nacks a message. Returns its position if the broker has to get an ack; `None` also if it was lost.
    pub(crate) fn settle(&mut self, receipt: Receipt, settle: Settle) -> Option<P> {
        let (position, (mut delivery, with)) = self.out.remove(&receipt)?;
        match settle {
            Settle::Ack => Some(position),
            Settle::Nack => {
                delivery.deliveries = delivery.deliveries.map(|count| count.saturating_add(1));
                self.ready.insert(position, (delivery, with));
                None
            }
        }
    }

    /// The positions of everything that is not acked.
    #[cfg(any(test, feature = "rabbitmq", feature = "redis"))]
    pub(crate) fn open(&self) -> impl Iterator<Item = &P> {
        self.ready.keys().chain(self.out.values().map(|(position, _)| position))
    }

    /// Drops messages that are no longer ours.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&P) -> bool) {
        self.ready.retain(|position, _| !is_lost(position));
        self.lose_delivered(is_lost);
    }

    /// Drops delivered messages that are no longer ours.
    pub(crate) fn lose_delivered(&mut self, is_lost: impl Fn(&P) -> bool) {
        let lost = self.out.extract_if(.., |_, (position, _)| is_lost(position));
        self.lost.extend(lost.map(|(receipt, _)| receipt));
    }

    /// Receipts lost since the last call.
    pub(crate) fn lost(&mut self) -> Vec<Receipt> {
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
            in_flight.arrived(*position, Delivery { deliveries: Some(1), ..delivery }, ());
        }
        in_flight
    }

    fn positions(given: &[Delivery]) -> Vec<&str> {
        given.iter().map(|delivery| delivery.place.as_str()).collect()
    }

    #[test]
    fn what_is_given_back_comes_again_before_what_was_never_given() {
        let mut in_flight = in_flight(&[1, 2, 3, 4]);
        let first = in_flight.give(3, |_| true);
        assert_eq!(in_flight.settle(first[2].receipt, Settle::Nack), None);
        assert_eq!(in_flight.settle(first[1].receipt, Settle::Nack), None);
        assert_eq!(in_flight.settle(first[0].receipt, Settle::Ack), Some(1));
        assert_eq!(in_flight.open().count(), 3);
        let second = in_flight.give(10, |_| true);
        assert_eq!(positions(&second), ["2", "3", "4"]);
        let counted: Vec<_> = second.iter().map(|delivery| delivery.deliveries).collect();
        assert_eq!(counted, [Some(2), Some(2), Some(1)]);
        assert!(second.iter().all(|delivery| delivery.receipt > first[2].receipt));
        assert_eq!(in_flight.settle(first[1].receipt, Settle::Ack), None, "an old receipt is invalid");
    }

    #[test]
    fn what_is_lost_is_reported_once_and_settling_it_does_nothing() {
        let mut in_flight = in_flight(&[1, 2, 3]);
        let given = in_flight.give(2, |_| true);
        in_flight.lose(|position| *position != 2);
        assert_eq!(in_flight.lost(), [given[0].receipt]);
        assert!(in_flight.lost().is_empty() && in_flight.ready.is_empty());
        assert_eq!(in_flight.settle(given[0].receipt, Settle::Ack), None);
        assert_eq!(in_flight.settle(given[1].receipt, Settle::Ack), Some(2));
    }
}
