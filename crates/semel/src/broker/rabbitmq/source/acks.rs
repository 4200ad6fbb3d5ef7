//! Computes the acks for a set of delivery tags, using `multiple` where it is safe. Pure.

/// The fewest acks: one with `multiple` for everything before the first open tag, then one for each.
///
/// `multiple` acks everything up to its tag, so it must stay before any delivered message that is not done. Messages on
/// their way to us have higher tags than any we have.
pub(super) fn acks(mut done: Vec<u64>, open: impl Iterator<Item = u64>) -> Vec<(u64, bool)> {
    done.sort_unstable();
    let first_open = open.min().unwrap_or(u64::MAX);
    let before = done.partition_point(|tag| *tag < first_open);
    let prefix = done[..before].last().map(|tag| (*tag, true));
    prefix.into_iter().chain(done[before..].iter().map(|tag| (*tag, false))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_are_acknowledged_at_once_only_before_the_first_that_is_open() {
        assert_eq!(acks(vec![3, 1, 2], [].into_iter()), [(3, true)]);
        assert_eq!(acks(vec![1, 2, 4, 5], [3, 6].into_iter()), [(2, true), (4, false), (5, false)]);
        assert_eq!(acks(vec![2], [1].into_iter()), [(2, false)]);
        assert_eq!(acks(vec![], [1].into_iter()), []);
    }

    proptest! {
        #[test]
        fn exactly_what_is_done_is_acknowledged(is_done in prop::collection::vec(any::<bool>(), 0..40)) {
            let (mut done, mut open) = (Vec::new(), BTreeSet::new());
            for (tag, is_done) in (1..).zip(&is_done) {
                if *is_done {
                    done.push(tag);
                } else {
                    open.insert(tag);
                }
            }
            let mut unacked: BTreeSet<u64> = (1..=is_done.len() as u64).collect();
            for (tag, multiple) in acks(done, open.iter().copied()) {
                unacked.retain(|other| if multiple { *other > tag } else { *other != tag });
            }
            prop_assert_eq!(unacked, open);
        }
    }
}
