//! How far a partition may be committed: never past a message that was given and is not done.

use std::collections::BTreeMap;

/// The offsets of one partition, as long as it is ours.
///
/// Offsets have gaps: the marks of transactions take places, and compaction takes messages away. What was never given is
/// in nobody's way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ContiguousOffsets {
    /// Given and not done. The same place twice is possible: after a broker lost its end, other messages are there.
    open: BTreeMap<i64, u32>,
    /// Behind what was given last.
    next: Option<i64>,
    /// What the broker was last known to have.
    committed: Option<i64>,
    /// It was told something since, and did not answer: what it has is not known.
    told: bool,
    /// A group without a place begins at the end of the partition.
    latest: bool,
}

impl ContiguousOffsets {
    pub(super) fn new(latest: bool) -> Self {
        Self { latest, ..Self::default() }
    }

    /// The message at that place is given, for the first time.
    pub(super) fn given(&mut self, offset: i64) {
        *self.open.entry(offset).or_default() += 1;
        // Not the furthest: a log that was cut off goes on from further back.
        self.next = Some(offset.saturating_add(1));
        // From here the broker gives it again by itself. One that begins at the end would not: it is told at once.
        if !self.told && !self.latest {
            self.committed.get_or_insert(offset);
        }
    }

    /// The message at that place is done.
    pub(super) fn done(&mut self, offset: i64) {
        if let Some(times) = self.open.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.open.remove(&offset);
            }
        }
    }

    /// Where whoever has the partition next has to begin.
    pub(super) fn position(&self) -> Option<i64> {
        let next = self.next?;
        Some(self.open.first_key_value().map_or(next, |(first, _)| next.min(*first)))
    }

    /// The position, where the broker does not have it.
    pub(super) fn to_commit(&self) -> Option<i64> {
        self.position().filter(|position| self.committed != Some(*position))
    }

    /// The broker has it.
    pub(super) fn committed(&mut self, offset: i64) {
        (self.committed, self.told) = (Some(offset), false);
    }

    /// The broker may have it.
    pub(super) fn told(&mut self) {
        (self.committed, self.told) = (None, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_prefix_that_is_done_counts() {
        let mut prefix = ContiguousOffsets::default();
        assert_eq!(prefix.to_commit(), None);
        [10, 11, 13, 20].into_iter().for_each(|offset| prefix.given(offset));
        assert_eq!(prefix.to_commit(), None, "nothing is done");
        prefix.done(11);
        assert_eq!(prefix.to_commit(), None, "10 is not done");
        prefix.done(10);
        assert_eq!(prefix.to_commit(), Some(13), "over what is not there");
        prefix.committed(13);
        assert_eq!(prefix.to_commit(), None);
        prefix.done(20);
        prefix.done(13);
        assert_eq!(prefix.to_commit(), Some(21));
    }

    #[test]
    fn where_a_group_begins_at_the_end_it_has_a_place_from_its_first_message_on() {
        let mut prefix = ContiguousOffsets::new(true);
        assert_eq!(prefix.to_commit(), None);
        [10, 11].into_iter().for_each(|offset| prefix.given(offset));
        assert_eq!(prefix.to_commit(), Some(10));
        prefix.committed(10);
        prefix.done(11);
        assert_eq!(prefix.to_commit(), None);
    }

    #[test]
    fn a_log_that_was_cut_off_is_followed_back() {
        let mut prefix = ContiguousOffsets::default();
        (10..15).for_each(|offset| prefix.given(offset));
        (10..15).for_each(|offset| prefix.done(offset));
        prefix.committed(15);
        prefix.given(12);
        assert_eq!(prefix.position(), Some(12));
        prefix.done(12);
        assert_eq!(prefix.to_commit(), Some(13), "what is new at 13 was not seen");
    }

    /// Else the broker would keep what it was told before, and whoever comes next would begin behind what was not done.
    #[test]
    fn a_log_that_was_cut_off_to_where_it_began_is_told_again() {
        let mut prefix = ContiguousOffsets::default();
        (10..15).for_each(|offset| prefix.given(offset));
        (10..15).for_each(|offset| prefix.done(offset));
        assert_eq!(prefix.to_commit(), Some(15));
        prefix.told();
        prefix.given(10);
        assert_eq!(prefix.to_commit(), Some(10));
    }

    #[test]
    fn a_place_that_is_given_twice_is_done_twice() {
        let mut prefix = ContiguousOffsets::default();
        prefix.given(7);
        prefix.given(7);
        prefix.done(7);
        assert_eq!(prefix.position(), Some(7));
        prefix.done(7);
        prefix.done(7);
        assert_eq!(prefix.position(), Some(8));
    }

    proptest! {
        /// Whatever is done in whatever order: what would be committed has everything before it done, and when all is done
        /// nothing is left out.
        #[test]
        fn never_past_what_is_not_done(
            gaps in prop::collection::vec(1_i64..5, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
            given_first in any::<prop::sample::Index>(),
        ) {
            let offsets: Vec<i64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let mut given = given_first.index(offsets.len()) + 1;
            let mut prefix = ContiguousOffsets::default();
            offsets[..given].iter().for_each(|offset| prefix.given(*offset));
            let mut open: Vec<i64> = offsets[..given].to_vec();
            for next in order {
                if !open.is_empty() {
                    let offset = open.remove(next.index(open.len()));
                    prefix.done(offset);
                }
                if given < offsets.len() {
                    prefix.given(offsets[given]);
                    open.push(offsets[given]);
                    given += 1;
                }
                let position = prefix.position().unwrap();
                prop_assert!(open.iter().all(|offset| position <= *offset), "{position} is past one of {open:?}");
                let done = offsets[..given].iter().take_while(|offset| !open.contains(offset)).last();
                prop_assert!(done.is_none_or(|last| position > *last), "{position} is behind {done:?}");
            }
            open.drain(..).for_each(|offset| prefix.done(offset));
            prop_assert_eq!(prefix.to_commit(), Some(offsets[given - 1] + 1));
        }
    }
}
