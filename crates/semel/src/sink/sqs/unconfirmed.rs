//! Which events may be there although nobody said so, and since when. Pure.
//!
//! SQS drops a repeat for five minutes after it took the first one. A repeat that may arrive later than that would be a
//! second message. The count begins with the first attempt, because SQS cannot have taken it before; it ends with the
//! moment in which the repeat is given up on, because it may be that late.
//!
//! **After a restart** nothing of this is known: a relay that begins, or takes over, is given the batch that was written
//! down and cannot tell whether and when it was sent before. The event's own time says only that it was not sent earlier
//! than that, so an event that is younger than the window is safe, and of an older one there is nothing to be known: most of
//! a backlog is old and was never sent. Setting all of it aside would turn each outage into work for people; not sending it
//! would lose it. So it is sent, at least once, with the same deduplication id and the same `semel-id`, by which an inbox
//! knows it. The sink's guarantee says so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most events whose first attempt is remembered. Beyond that the oldest are forgotten: those never came back here.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Unconfirmed {
    window: Duration,
    of: HashMap<String, First>,
}

#[derive(Debug)]
struct First {
    at: Instant,
    /// An attempt before the last one was not answered.
    before: bool,
}

impl Unconfirmed {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, of: HashMap::new() }
    }

    /// How long ago it was first sent, if a repeat that takes until then would not be known as one any more.
    pub(super) fn too_late(&self, id: &str, now: Instant, until: Instant) -> Option<Duration> {
        let first = self.of.get(id)?;
        (until > first.at + self.window).then(|| now.saturating_duration_since(first.at))
    }

    /// It is about to be sent. From now on it is in doubt until somebody knows better, also if nobody waits for that.
    pub(super) fn begun(&mut self, id: &str, now: Instant) {
        if let Some(first) = self.of.get_mut(id) {
            first.before = true;
            return;
        }
        if self.of.len() >= REMEMBERED_MAX {
            self.forget_oldest();
        }
        self.of.insert(id.to_owned(), First { at: now, before: false });
    }

    /// This attempt did not get there. Whether the event is there for an earlier one.
    pub(super) fn not_sent(&mut self, id: &str) -> bool {
        let before = self.of.get(id).is_some_and(|first| first.before);
        if !before {
            self.of.remove(id);
        }
        before
    }

    /// It is there, or it is in the hands of people, who may have it sent again.
    pub(super) fn known(&mut self, id: &str) {
        self.of.remove(id);
    }

    fn forget_oldest(&mut self) {
        let mut times: Vec<Instant> = self.of.values().map(|first| first.at).collect();
        let (_, middle, _) = times.select_nth_unstable(REMEMBERED_MAX / 2);
        let middle = *middle;
        self.of.retain(|_, first| first.at > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);
    const CALL: Duration = Duration::from_secs(30);

    #[test]
    fn a_repeat_has_to_arrive_within_the_window_of_the_first_attempt() {
        let (id, begin) = ("e-1", Instant::now());
        let mut doubts = Unconfirmed::new(WINDOW);
        let late = |doubts: &Unconfirmed, after: u64| {
            let now = begin + Duration::from_secs(after);
            doubts.too_late(id, now, now + CALL).is_some()
        };
        assert!(!late(&doubts, 10_000), "never sent");
        doubts.begun(id, begin);
        assert!(!late(&doubts, 0) && !late(&doubts, 270));
        assert!(late(&doubts, 271), "the call may last until the window is over");
        // A second attempt does not make it younger.
        doubts.begun(id, begin + Duration::from_secs(200));
        assert!(late(&doubts, 271));
        doubts.known(id);
        assert!(!late(&doubts, 10_000));
    }

    #[test]
    fn what_was_never_sent_is_not_in_doubt_but_what_was_once_stays_so() {
        let (id, begin) = ("e-1", Instant::now());
        let mut doubts = Unconfirmed::new(WINDOW);
        doubts.begun(id, begin);
        assert!(!doubts.not_sent(id));
        assert!(doubts.too_late(id, begin, begin + WINDOW * 2).is_none());
        doubts.begun(id, begin);
        doubts.begun(id, begin);
        assert!(doubts.not_sent(id), "the attempt before was not answered");
        assert!(doubts.too_late(id, begin, begin + WINDOW * 2).is_some());
    }

    #[test]
    fn no_more_is_remembered_than_that() {
        let mut doubts = Unconfirmed::new(WINDOW);
        let begin = Instant::now();
        let ids: Vec<String> = (0..=REMEMBERED_MAX).map(|n| n.to_string()).collect();
        for (n, id) in ids.iter().enumerate() {
            doubts.begun(id, begin + Duration::from_micros(n as u64));
        }
        assert!(doubts.of.len() <= REMEMBERED_MAX);
        assert!(doubts.of.contains_key(&ids[REMEMBERED_MAX]) && !doubts.of.contains_key(&ids[0]));
    }
}
