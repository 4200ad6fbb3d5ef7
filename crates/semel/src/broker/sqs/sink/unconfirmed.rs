//! Events in doubt: sent but not confirmed, and since when. Pure.
//!
//! SQS drops duplicates for five minutes after it accepted the first message. A repeat that arrives later would be a
//! second message. The window is counted from the first attempt, because SQS cannot have accepted the event earlier, to
//! the timeout of the repeat, because it may arrive that late.
//!
//! **After a restart** this record is empty: a relay that starts, or takes over, gets the recorded batch without
//! knowing whether and when it was sent before. It only knows that no event was sent before it was created. So an event
//! younger than the window is safe. An older one may have been sent or not: most events of a backlog are old and were
//! never sent. Parking them all would make every outage work for an operator; not sending them would lose events. So
//! they are sent, at least once, with the same deduplication id and the same `semel-id`, by which an inbox deduplicates
//! them. The sink's guarantee says so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most events whose first attempt is remembered. Beyond that the oldest are dropped: those were never sent again.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Unconfirmed {
    window: Duration,
    of: HashMap<String, First>,
}

#[derive(Debug)]
struct First {
    at: Instant,
    /// An attempt before the last one got no answer.
    before: bool,
}

impl Unconfirmed {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, of: HashMap::new() }
    }

    /// How long ago the event was first sent, if a repeat that takes until `until` could miss the deduplication window.
    pub(super) fn too_late(&self, id: &str, now: Instant, until: Instant) -> Option<Duration> {
        let first = self.of.get(id)?;
        (until > first.at + self.window).then(|| now.saturating_duration_since(first.at))
    }

    /// The event is about to be sent. It is in doubt from now on until there is a result, also if the call is
    /// cancelled.
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

    /// This attempt was not published. Returns whether an earlier attempt may have been.
    pub(super) fn not_sent(&mut self, id: &str) -> bool {
        let before = self.of.get(id).is_some_and(|first| first.before);
        if !before {
            self.of.remove(id);
        }
        before
    }

    /// No longer in doubt: the event is confirmed or refused, or parked for a person.
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
        let mut unconfirmed = Unconfirmed::new(WINDOW);
        let late = |unconfirmed: &Unconfirmed, after: u64| {
            let now = begin + Duration::from_secs(after);
            unconfirmed.too_late(id, now, now + CALL).is_some()
        };
        assert!(!late(&unconfirmed, 10_000), "never sent");
        unconfirmed.begun(id, begin);
        assert!(!late(&unconfirmed, 0) && !late(&unconfirmed, 270));
        assert!(late(&unconfirmed, 271), "the call may last until the window is over");
        // A second attempt does not make it younger.
        unconfirmed.begun(id, begin + Duration::from_secs(200));
        assert!(late(&unconfirmed, 271));
        unconfirmed.known(id);
        assert!(!late(&unconfirmed, 10_000));
    }

    #[test]
    fn what_was_never_sent_is_not_in_doubt_but_what_was_once_stays_so() {
        let (id, begin) = ("e-1", Instant::now());
        let mut unconfirmed = Unconfirmed::new(WINDOW);
        unconfirmed.begun(id, begin);
        assert!(!unconfirmed.not_sent(id));
        assert!(unconfirmed.too_late(id, begin, begin + WINDOW * 2).is_none());
        unconfirmed.begun(id, begin);
        unconfirmed.begun(id, begin);
        assert!(unconfirmed.not_sent(id), "the attempt before was not answered");
        assert!(unconfirmed.too_late(id, begin, begin + WINDOW * 2).is_some());
    }

    #[test]
    fn no_more_is_remembered_than_that() {
        let mut unconfirmed = Unconfirmed::new(WINDOW);
        let begin = Instant::now();
        let ids: Vec<String> = (0..=REMEMBERED_MAX).map(|n| n.to_string()).collect();
        for (n, id) in ids.iter().enumerate() {
            unconfirmed.begun(id, begin + Duration::from_micros(n as u64));
        }
        assert!(unconfirmed.of.len() <= REMEMBERED_MAX);
        assert!(unconfirmed.of.contains_key(&ids[REMEMBERED_MAX]) && !unconfirmed.of.contains_key(&ids[0]));
    }
}
