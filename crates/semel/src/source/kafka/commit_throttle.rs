//! When offsets are told in the background. librdkafka does not say what became of such a commit.

use std::time::{Duration, Instant};

use super::Part;

/// Positions that move are told this often.
const EVERY: Duration = Duration::from_millis(200);
/// Those that stay are told again after this long: nobody said that they arrived.
const AGAIN: Duration = Duration::from_secs(10);

/// What was last told, and when.
#[derive(Debug, Default)]
pub(super) struct CommitThrottle(Option<(Instant, Vec<(Part, i64)>)>);

impl CommitThrottle {
    /// Whether these are to be told now.
    pub(super) fn is_due(&self, wanted: &[(Part, i64)], now: Instant) -> bool {
        let Some((at, told)) = &self.0 else { return !wanted.is_empty() };
        let moved = wanted.iter().any(|position| !told.contains(position));
        let pause = if moved { EVERY } else { AGAIN };
        !wanted.is_empty() && now.saturating_duration_since(*at) >= pause
    }

    /// These were told.
    pub(super) fn tell(&mut self, positions: Vec<(Part, i64)>, now: Instant) {
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
    fn what_moves_is_told_soon_and_what_stays_is_told_again_late() {
        let begun = Instant::now();
        let mut told = CommitThrottle::default();
        assert!(!told.is_due(&[], begun), "there is nothing to tell");
        assert!(told.is_due(&at(&[5]), begun), "the first is told at once");
        told.tell(at(&[5, 7]), begun);
        for (offsets, after, due) in [
            (&[5, 7][..], EVERY, false),
            (&[5], EVERY, false),
            (&[5, 7], AGAIN, true),
            (&[5, 8], EVERY / 2, false),
            (&[5, 8], EVERY, true),
            // A log that was cut off goes on from further back.
            (&[4, 7], EVERY, true),
            (&[], AGAIN, false),
        ] {
            assert_eq!(told.is_due(&at(offsets), begun + after), due, "{offsets:?} after {after:?}");
        }
    }
}
