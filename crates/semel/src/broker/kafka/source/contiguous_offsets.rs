//! Computes the offset up to which a partition may be committed: never past a delivered message that is not acked.

use std::collections::BTreeMap;

/// The offsets of one partition, as long as it is ours.
///
/// Offsets have gaps: transaction markers take offsets, and compaction removes messages. An offset that was never
/// delivered does not hold the commit back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ContiguousOffsets {
    /// Delivered and not acked. An offset may occur twice: a broker that lost the end of its log reuses offsets.
    open: BTreeMap<i64, u32>,
    /// The offset after the last delivered one.
    next: Option<i64>,
    /// The last offset the broker is known to have.
    committed: Option<i64>,
    /// A later commit got no answer, so the broker may have that one or `committed`.
    in_doubt: bool,
    /// A group without a committed offset begins at the end of the partition.
    latest: bool,
}

impl ContiguousOffsets {
    pub(super) fn new(latest: bool) -> Self {
        Self { latest, ..Self::default() }
    }

    /// The message at this offset is delivered for the first time.
    pub(super) fn given(&mut self, offset: i64) {
        *self.open.entry(offset).or_default() += 1;
        // Not the maximum: a truncated log continues from an earlier offset.
        self.next = Some(offset.saturating_add(1));
        // Without a commit the group restarts here anyway. A group that begins at the end would not: commit at once.
        if !self.in_doubt && !self.latest {
            self.committed.get_or_insert(offset);
        }
    }

    /// The message at this offset is acked.
    pub(super) fn done(&mut self, offset: i64) {
        if let Some(times) = self.open.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.open.remove(&offset);
            }
        }
    }

    /// Where the next owner of the partition has to begin.
    pub(super) fn position(&self) -> Option<i64> {
        let next = self.next?;
        Some(self.open.first_key_value().map_or(next, |(first, _)| next.min(*first)))
    }

    /// The position, unless the broker has it.
    pub(super) fn to_commit(&self) -> Option<i64> {
        self.position().filter(|position| self.committed != Some(*position))
    }

    /// The broker confirmed the commit.
    pub(super) fn committed(&mut self, offset: i64) {
        (self.committed, self.in_doubt) = (Some(offset), false);
    }

    /// A commit was sent, without an answer.
    pub(super) fn commit_sent(&mut self) {
        (self.committed, self.in_doubt) = (None, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_prefix_that_is_done_counts() {
        let mut offsets = ContiguousOffsets::default();
        assert_eq!(offsets.to_commit(), None);
        [10, 11, 13, 20].into_iter().for_each(|offset| offsets.given(offset));
        assert_eq!(offsets.to_commit(), None, "nothing is acked");
        offsets.done(11);
        assert_eq!(offsets.to_commit(), None, "10 is not acked");
        offsets.done(10);
        assert_eq!(offsets.to_commit(), Some(13), "skips the gap");
        offsets.committed(13);
        assert_eq!(offsets.to_commit(), None);
        offsets.done(20);
        offsets.done(13);
        assert_eq!(offsets.to_commit(), Some(21));
    }

    #[test]
    fn where_a_group_begins_at_the_end_it_has_a_place_from_its_first_message_on() {
        let mut offsets = ContiguousOffsets::new(true);
        assert_eq!(offsets.to_commit(), None);
        [10, 11].into_iter().for_each(|offset| offsets.given(offset));
        assert_eq!(offsets.to_commit(), Some(10));
        offsets.committed(10);
        offsets.done(11);
        assert_eq!(offsets.to_commit(), None);
    }

    #[test]
    fn a_log_that_was_cut_off_is_followed_back() {
        let mut offsets = ContiguousOffsets::default();
        (10..15).for_each(|offset| offsets.given(offset));
        (10..15).for_each(|offset| offsets.done(offset));
        offsets.committed(15);
        offsets.given(12);
        assert_eq!(offsets.position(), Some(12));
        offsets.done(12);
        assert_eq!(offsets.to_commit(), Some(13), "the new message at 13 was not delivered");
    }

    /// Without a new commit the broker would keep the earlier one, and the next owner would skip unacked messages.
    #[test]
    fn a_log_that_was_cut_off_to_where_it_began_is_committed_again() {
        let mut offsets = ContiguousOffsets::default();
        (10..15).for_each(|offset| offsets.given(offset));
        (10..15).for_each(|offset| offsets.done(offset));
        assert_eq!(offsets.to_commit(), Some(15));
        offsets.commit_sent();
        offsets.given(10);
        assert_eq!(offsets.to_commit(), Some(10));
    }

    #[test]
    fn a_place_that_is_given_twice_is_done_twice() {
        let mut offsets = ContiguousOffsets::default();
        offsets.given(7);
        offsets.given(7);
        offsets.done(7);
        assert_eq!(offsets.position(), Some(7));
        offsets.done(7);
        offsets.done(7);
        assert_eq!(offsets.position(), Some(8));
    }

    proptest! {
        /// For any order of acks: everything before the position is acked, and once all is acked nothing is left out.
        #[test]
        fn never_past_what_is_not_done(
            gaps in prop::collection::vec(1_i64..5, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
            given_first in any::<prop::sample::Index>(),
        ) {
            let all: Vec<i64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let mut given = given_first.index(all.len()) + 1;
            let mut offsets = ContiguousOffsets::default();
            all[..given].iter().for_each(|offset| offsets.given(*offset));
            let mut open: Vec<i64> = all[..given].to_vec();
            for next in order {
                if !open.is_empty() {
                    let offset = open.remove(next.index(open.len()));
                    offsets.done(offset);
                }
                if given < all.len() {
                    offsets.given(all[given]);
                    open.push(all[given]);
                    given += 1;
                }
                let position = offsets.position().unwrap();
                prop_assert!(open.iter().all(|offset| position <= *offset), "{position} is past one of {open:?}");
                let done = all[..given].iter().take_while(|offset| !open.contains(offset)).last();
                prop_assert!(done.is_none_or(|last| position > *last), "{position} is not after {done:?}");
            }
            open.drain(..).for_each(|offset| offsets.done(offset));
            prop_assert_eq!(offsets.to_commit(), Some(all[given - 1] + 1));
        }
    }
}
