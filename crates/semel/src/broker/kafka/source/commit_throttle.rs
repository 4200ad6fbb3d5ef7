//! Rate limit of background offset commits. librdkafka does not report their result.

use std::time::{Duration, Instant};

use super::Part;

/// Changed positions are committed this often.
const EVERY: Duration = Duration::from_millis(200);
/// Unchanged positions are committed again after this long: the first commit may have failed.
const AGAIN: Duration = Duration::from_secs(10);

/// The last committed positions, and when.
#[derive(Debug, Default)]
pub(super) struct CommitThrottle(Option<(Instant, Vec<(Part, i64)>)>);

impl CommitThrottle {
    /// Whether these are to be committed now.
    pub(super) fn is_due(&self, wanted: &[(Part, i64)], now: Instant) -> bool {
        let Some((at, last)) = &self.0 else { return !wanted.is_empty() };
        let moved = wanted.iter().any(|position| !last.contains(position));
        let pause = if moved { EVERY } else { AGAIN };
        !wanted.is_empty() && now.saturating_duration_since(*at) >= pause
    }

    /// These were sent to the broker.
    pub(super) fn sent(&mut self, positions: Vec<(Part, i64)>, now: Instant) {
        self.0 = Some((now, positions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offsets: &[i64]) -> Vec<(Part, i64)> {
        (0..).zip(offsets).map(|(partition, offset)| (("t".to_owned(), partition), *offset)).collect()
    }

    #[test]
    fn offsets_that_move_are_committed_soon_and_others_again_late() {
        let begun = Instant::now();
        let mut throttle = CommitThrottle::default();
        assert!(!throttle.is_due(&[], begun), "there is nothing to commit");
        assert!(throttle.is_due(&at(&[5]), begun), "the first commit is sent at once");
        throttle.sent(at(&[5, 7]), begun);
        for (offsets, after, due) in [
            (&[5, 7][..], EVERY, false),
            (&[5], EVERY, false),
            (&[5, 7], AGAIN, true),
            (&[5, 8], EVERY / 2, false),
            (&[5, 8], EVERY, true),
            // A truncated log continues from an earlier offset.
            (&[4, 7], EVERY, true),
            (&[], AGAIN, false),
        ] {
            assert_eq!(throttle.is_due(&at(offsets), begun + after), due, "{offsets:?} after {after:?}");
        }
    }
}
