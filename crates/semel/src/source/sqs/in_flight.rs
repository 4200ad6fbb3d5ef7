//! What was received and is not settled, and for how long it is ours. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::source::{Delivery, Receipt};

/// Messages under their receipts.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    given: u64,
    of: BTreeMap<Receipt, Ours>,
    /// Received and not yet given: a call that was left, or one that brought more than was asked for.
    waiting: VecDeque<Delivery>,
    /// SQS said that these are not ours any more.
    taken: Vec<Receipt>,
}

#[derive(Debug)]
struct Ours {
    handle: String,
    /// By a clock that began before SQS's did.
    until: Instant,
    /// Of a FIFO queue: what keeps its order.
    group: Option<String>,
}

impl InFlight {
    /// A message came, and nobody else gets it until then.
    pub(super) fn came(&mut self, mut delivery: Delivery, handle: String, until: Instant, fifo: bool) {
        self.given += 1;
        delivery.receipt = Receipt(self.given);
        let group = delivery.key.clone().filter(|_| fifo);
        self.of.insert(delivery.receipt, Ours { handle, until, group });
        self.waiting.push_back(delivery);
    }

    /// Whether it was never given.
    pub(super) fn waits(&self, receipt: Receipt) -> bool {
        self.waiting.iter().any(|delivery| delivery.receipt == receipt)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Up to so many of those that wait and are still ours.
    pub(super) fn give(&mut self, most: usize, now: Instant) -> Vec<Delivery> {
        self.run_out(now);
        self.waiting.drain(..most.min(self.waiting.len())).collect()
    }

    /// Drops what waited for too long, which is nobody's loss: it comes again. So does what is behind it in its group, and
    /// must not overtake it. To be done before more comes: that is in its order again.
    pub(super) fn run_out(&mut self, now: Instant) {
        let is_over = |receipt: &Receipt| self.of.get(receipt).is_none_or(|ours| ours.until <= now);
        let over: Vec<Receipt> =
            self.waiting.iter().map(|delivery| delivery.receipt).filter(is_over).collect();
        for receipt in self.behind(&over) {
            self.taken(receipt);
        }
        over.into_iter().for_each(|receipt| self.forget(receipt));
    }

    /// The handle of a message that is still ours.
    pub(super) fn handle(&self, receipt: Receipt, now: Instant) -> Option<&str> {
        self.of.get(&receipt).filter(|ours| ours.until > now).map(|ours| ours.handle.as_str())
    }

    /// These, and those that wait.
    pub(super) fn with_waiting(&self, held: &[Receipt]) -> Vec<Receipt> {
        let waiting = self.waiting.iter().map(|delivery| delivery.receipt);
        held.iter().copied().chain(waiting).collect()
    }

    /// What is held behind these in their groups, those that wait included: it must not overtake them.
    pub(super) fn behind(&self, given_back: &[Receipt]) -> Vec<Receipt> {
        let before = |receipt: &Receipt, group: &Option<String>| {
            given_back
                .iter()
                .any(|back| back < receipt && self.of.get(back).is_some_and(|ours| ours.group == *group))
        };
        let behind = self.of.iter().filter(|(receipt, ours)| {
            ours.group.is_some() && !given_back.contains(receipt) && before(receipt, &ours.group)
        });
        behind.map(|(receipt, _)| *receipt).collect()
    }

    /// It is ours until then.
    pub(super) fn kept(&mut self, receipt: Receipt, until: Instant) {
        if let Some(ours) = self.of.get_mut(&receipt) {
            ours.until = ours.until.max(until);
        }
    }

    /// It is settled, or was never given.
    pub(super) fn forget(&mut self, receipt: Receipt) {
        self.of.remove(&receipt);
        self.waiting.retain(|delivery| delivery.receipt != receipt);
    }

    /// It is not ours any more, and whoever works on it is to hear of it.
    pub(super) fn taken(&mut self, receipt: Receipt) {
        let waited = self.waits(receipt);
        self.forget(receipt);
        if !waited {
            self.taken.push(receipt);
        }
    }

    /// What was given and is not ours any more, each told once.
    pub(super) fn lost(&mut self, now: Instant) -> Vec<Receipt> {
        let over = self.of.iter().filter(|(receipt, ours)| ours.until <= now && !self.waits(**receipt));
        let mut lost: Vec<Receipt> = over.map(|(receipt, _)| *receipt).collect();
        // What waits behind them is not given before them: it comes again when its time is over.
        for receipt in self.behind(&lost) {
            if self.waits(receipt) {
                self.forget(receipt);
            }
        }
        lost.iter().for_each(|receipt| drop(self.of.remove(receipt)));
        lost.append(&mut self.taken);
        lost
    }

    /// Everything, in order.
    pub(super) fn all(&self) -> Vec<Receipt> {
        self.of.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: std::time::Duration = std::time::Duration::from_secs(30);

    fn held(messages: usize, now: Instant) -> InFlight {
        let mut held = InFlight::default();
        for n in 0..messages {
            let delivery = Delivery::new(Receipt(0), "q", format!("m{n}"), "{}");
            held.came(delivery, format!("h{n}"), now + LEASE, false);
        }
        held
    }

    #[test]
    fn what_is_over_by_our_clock_is_lost_once_and_has_no_handle() {
        let now = Instant::now();
        let mut held = held(3, now);
        let given: Vec<Receipt> = held.give(2, now).iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(held.handle(given[0], now), Some("h0"));
        held.kept(given[0], now + LEASE * 2);
        let over = now + LEASE;
        assert_eq!(held.handle(given[1], over), None, "the moment itself is too late");
        assert_eq!(held.lost(over), [given[1]]);
        assert!(held.lost(over).is_empty());
        // The third one was never given: it is not given any more, and not missed.
        assert!(held.give(9, over).is_empty());
        assert_eq!(held.all(), [given[0]]);
    }

    #[test]
    fn what_sqs_took_away_is_lost_and_what_was_settled_is_not() {
        let now = Instant::now();
        let mut held = held(3, now);
        let given: Vec<Receipt> = held.give(2, now).iter().map(|delivery| delivery.receipt).collect();
        held.forget(given[0]);
        held.taken(given[1]);
        held.taken(Receipt(3));
        assert_eq!(held.lost(now), [given[1]]);
        assert!(held.all().is_empty() && held.give(9, now).is_empty());
    }

    #[test]
    fn what_waits_is_kept_with_what_is_worked_on() {
        let now = Instant::now();
        let mut held = held(3, now);
        let given: Vec<Receipt> = held.give(1, now).iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(held.with_waiting(&given), [Receipt(1), Receipt(2), Receipt(3)]);
    }

    #[test]
    fn nothing_of_a_group_overtakes_what_is_given_back() {
        let now = Instant::now();
        let mut held = InFlight::default();
        for (n, group) in ["a", "b", "a", "a", "b"].into_iter().enumerate() {
            let mut delivery = Delivery::new(Receipt(0), "q", format!("m{n}"), "{}");
            delivery.key = Some(group.to_owned());
            held.came(delivery, format!("h{n}"), now + LEASE, true);
        }
        held.give(3, now);
        assert_eq!(held.behind(&[Receipt(1)]), [Receipt(3), Receipt(4)]);
        assert_eq!(held.behind(&[Receipt(3)]), [Receipt(4)]);
        assert!(held.behind(&[Receipt(4), Receipt(5)]).is_empty());
        // The first of a group is lost: what waits behind it is not given.
        held.kept(Receipt(2), now + LEASE * 2);
        held.kept(Receipt(4), now + LEASE * 2);
        held.kept(Receipt(5), now + LEASE * 2);
        assert_eq!(held.lost(now + LEASE), [Receipt(1), Receipt(3)]);
        let given = held.give(9, now + LEASE);
        assert_eq!(given.iter().map(|delivery| delivery.receipt).collect::<Vec<_>>(), [Receipt(5)]);
    }

    #[test]
    fn what_waited_for_too_long_is_not_overtaken_in_its_group() {
        let now = Instant::now();
        let mut held = InFlight::default();
        let come = |held: &mut InFlight, group: &str, until| {
            let mut delivery = Delivery::new(Receipt(0), "q", "m".to_owned(), "{}");
            delivery.key = Some(group.to_owned());
            held.came(delivery, "h".to_owned(), until, true);
        };
        let (over, later) = (now + LEASE, now + LEASE * 2);
        for (group, until) in [("a", later), ("a", over), ("b", later), ("a", later)] {
            come(&mut held, group, until);
        }
        held.run_out(over);
        // The same message again, and ours for long.
        come(&mut held, "a", later);
        let given = held.give(9, over);
        assert_eq!(
            given.iter().map(|delivery| delivery.receipt).collect::<Vec<_>>(),
            [Receipt(1), Receipt(3), Receipt(5)]
        );
        assert!(held.lost(over).is_empty(), "nobody had them");
    }
}
