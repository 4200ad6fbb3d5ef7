//! Messages in flight, and when their leases (SQS: visibility timeout) expire. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::source::{Delivery, Receipt};

/// Messages by their receipts.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    given: u64,
    leases: BTreeMap<Receipt, Lease>,
    /// Received and not yet delivered: the call was cancelled, or SQS sent more than was asked for.
    waiting: VecDeque<Delivery>,
    /// Delivered, and no longer ours according to SQS.
    lost: Vec<Receipt>,
}

#[derive(Debug)]
struct Lease {
    handle: String,
    /// Counted from before SQS's own clock started.
    until: Instant,
    /// The message group of a FIFO queue: it keeps its order.
    group: Option<String>,
}

impl InFlight {
    /// A message arrived. It is invisible to others until then.
    pub(super) fn arrived(&mut self, mut delivery: Delivery, handle: String, until: Instant, fifo: bool) {
        self.given += 1;
        delivery.receipt = Receipt(self.given);
        let group = delivery.key.clone().filter(|_| fifo);
        self.leases.insert(delivery.receipt, Lease { handle, until, group });
        self.waiting.push_back(delivery);
    }

    /// Whether it was never delivered.
    pub(super) fn is_waiting(&self, receipt: Receipt) -> bool {
        self.waiting.iter().any(|delivery| delivery.receipt == receipt)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Delivers up to `most` waiting messages whose lease has not expired.
    pub(super) fn give(&mut self, most: usize, now: Instant) -> Vec<Delivery> {
        self.drop_expired(now);
        self.waiting.drain(..most.min(self.waiting.len())).collect()
    }

    /// Drops waiting messages whose lease expired: SQS redelivers them. Also drops what is behind them in their group,
    /// which must not overtake them. Call this before taking in more messages: those are in order again.
    pub(super) fn drop_expired(&mut self, now: Instant) {
        let is_over = |receipt: &Receipt| self.leases.get(receipt).is_none_or(|lease| lease.until <= now);
        let over: Vec<Receipt> =
            self.waiting.iter().map(|delivery| delivery.receipt).filter(is_over).collect();
        for receipt in self.behind(&over) {
            self.mark_lost(receipt);
        }
        over.into_iter().for_each(|receipt| self.forget(receipt));
    }

    /// The receipt handle of a message whose lease has not expired.
    pub(super) fn handle(&self, receipt: Receipt, now: Instant) -> Option<&str> {
        self.leases.get(&receipt).filter(|lease| lease.until > now).map(|lease| lease.handle.as_str())
    }

    /// These, and those that wait to be delivered.
    pub(super) fn with_waiting(&self, in_flight: &[Receipt]) -> Vec<Receipt> {
        let waiting = self.waiting.iter().map(|delivery| delivery.receipt);
        in_flight.iter().copied().chain(waiting).collect()
    }

    /// Messages in flight behind these in their groups, including waiting ones: they must not overtake them.
    pub(super) fn behind(&self, given_back: &[Receipt]) -> Vec<Receipt> {
        let before = |receipt: &Receipt, group: &Option<String>| {
            given_back.iter().any(|back| {
                back < receipt && self.leases.get(back).is_some_and(|lease| lease.group == *group)
            })
        };
        let behind = self.leases.iter().filter(|(receipt, lease)| {
            lease.group.is_some() && !given_back.contains(receipt) && before(receipt, &lease.group)
        });
        behind.map(|(receipt, _)| *receipt).collect()
    }

    /// The lease was extended.
    pub(super) fn extended(&mut self, receipt: Receipt, until: Instant) {
        if let Some(lease) = self.leases.get_mut(&receipt) {
            lease.until = lease.until.max(until);
        }
    }

    /// It is settled, or was never delivered.
    pub(super) fn forget(&mut self, receipt: Receipt) {
        self.leases.remove(&receipt);
        self.waiting.retain(|delivery| delivery.receipt != receipt);
    }

    /// It is no longer ours. If it was delivered, `lost` reports it.
    pub(super) fn mark_lost(&mut self, receipt: Receipt) {
        let was_waiting = self.is_waiting(receipt);
        self.forget(receipt);
        if !was_waiting {
            self.lost.push(receipt);
        }
    }

    /// Delivered messages that are no longer ours, each reported once.
    pub(super) fn lost(&mut self, now: Instant) -> Vec<Receipt> {
        let over =
            self.leases.iter().filter(|(receipt, lease)| lease.until <= now && !self.is_waiting(**receipt));
        let mut lost: Vec<Receipt> = over.map(|(receipt, _)| *receipt).collect();
        // What waits behind them must not overtake them: SQS redelivers it when its lease expires.
        for receipt in self.behind(&lost) {
            if self.is_waiting(receipt) {
                self.forget(receipt);
            }
        }
        lost.iter().for_each(|receipt| drop(self.leases.remove(receipt)));
        lost.append(&mut self.lost);
        lost
    }

    /// All receipts, in order.
    pub(super) fn all(&self) -> Vec<Receipt> {
        self.leases.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: std::time::Duration = std::time::Duration::from_secs(30);

    fn in_flight(messages: usize, now: Instant) -> InFlight {
        let mut in_flight = InFlight::default();
        for n in 0..messages {
            let delivery = Delivery::new(Receipt(0), "q", format!("m{n}"), "{}");
            in_flight.arrived(delivery, format!("h{n}"), now + LEASE, false);
        }
        in_flight
    }

    #[test]
    fn what_is_over_by_our_clock_is_lost_once_and_has_no_handle() {
        let now = Instant::now();
        let mut in_flight = in_flight(3, now);
        let given: Vec<Receipt> = in_flight.give(2, now).iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(in_flight.handle(given[0], now), Some("h0"));
        in_flight.extended(given[0], now + LEASE * 2);
        let over = now + LEASE;
        assert_eq!(in_flight.handle(given[1], over), None, "the lease ends at this very moment");
        assert_eq!(in_flight.lost(over), [given[1]]);
        assert!(in_flight.lost(over).is_empty());
        // The third one was never delivered: it is dropped, and not reported as lost.
        assert!(in_flight.give(9, over).is_empty());
        assert_eq!(in_flight.all(), [given[0]]);
    }

    #[test]
    fn what_sqs_took_away_is_lost_and_what_was_settled_is_not() {
        let now = Instant::now();
        let mut in_flight = in_flight(3, now);
        let given: Vec<Receipt> = in_flight.give(2, now).iter().map(|delivery| delivery.receipt).collect();
        in_flight.forget(given[0]);
        in_flight.mark_lost(given[1]);
        in_flight.mark_lost(Receipt(3));
        assert_eq!(in_flight.lost(now), [given[1]]);
        assert!(in_flight.all().is_empty() && in_flight.give(9, now).is_empty());
    }

    #[test]
    fn what_waits_is_kept_with_what_is_worked_on() {
        let now = Instant::now();
        let mut in_flight = in_flight(3, now);
        let given: Vec<Receipt> = in_flight.give(1, now).iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(in_flight.with_waiting(&given), [Receipt(1), Receipt(2), Receipt(3)]);
    }

    #[test]
    fn nothing_of_a_group_overtakes_what_is_given_back() {
        let now = Instant::now();
        let mut in_flight = InFlight::default();
        for (n, group) in ["a", "b", "a", "a", "b"].into_iter().enumerate() {
            let mut delivery = Delivery::new(Receipt(0), "q", format!("m{n}"), "{}");
            delivery.key = Some(group.to_owned());
            in_flight.arrived(delivery, format!("h{n}"), now + LEASE, true);
        }
        in_flight.give(3, now);
        assert_eq!(in_flight.behind(&[Receipt(1)]), [Receipt(3), Receipt(4)]);
        assert_eq!(in_flight.behind(&[Receipt(3)]), [Receipt(4)]);
        assert!(in_flight.behind(&[Receipt(4), Receipt(5)]).is_empty());
        // The first of a group is lost: what is_waiting behind it is not delivered.
        in_flight.extended(Receipt(2), now + LEASE * 2);
        in_flight.extended(Receipt(4), now + LEASE * 2);
        in_flight.extended(Receipt(5), now + LEASE * 2);
        assert_eq!(in_flight.lost(now + LEASE), [Receipt(1), Receipt(3)]);
        let given = in_flight.give(9, now + LEASE);
        assert_eq!(given.iter().map(|delivery| delivery.receipt).collect::<Vec<_>>(), [Receipt(5)]);
    }

    #[test]
    fn what_waited_for_too_long_is_not_overtaken_in_its_group() {
        let now = Instant::now();
        let mut in_flight = InFlight::default();
        let receive = |in_flight: &mut InFlight, group: &str, until| {
            let mut delivery = Delivery::new(Receipt(0), "q", "m".to_owned(), "{}");
            delivery.key = Some(group.to_owned());
            in_flight.arrived(delivery, "h".to_owned(), until, true);
        };
        let (over, later) = (now + LEASE, now + LEASE * 2);
        for (group, until) in [("a", later), ("a", over), ("b", later), ("a", later)] {
            receive(&mut in_flight, group, until);
        }
        in_flight.drop_expired(over);
        // The same message again, with a long lease.
        receive(&mut in_flight, "a", later);
        let given = in_flight.give(9, over);
        assert_eq!(
            given.iter().map(|delivery| delivery.receipt).collect::<Vec<_>>(),
            [Receipt(1), Receipt(3), Receipt(5)]
        );
        assert!(in_flight.lost(over).is_empty(), "they were never delivered");
    }
}
