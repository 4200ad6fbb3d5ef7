//! The smallest plan that still breaks the same law.

use crate::play::{Played, play};
use crate::world::World;

/// Plans tried before the smallest so far has to do.
const TRIES_MAX: usize = 2_000;

/// Makes a failing plan smaller for as long as it breaks the same law. Returns it with its history.
pub fn minimise<W: World>(seed: u64, plan: W::Plan, planted: Option<&'static str>) -> (W::Plan, Played) {
    let (mut plan, mut played) = (plan.clone(), play::<W>(seed, &plan, planted));
    let Err(violation) = played.verdict.clone() else { return (plan, played) };
    let mut tries = 0;
    'smaller: loop {
        for candidate in W::smaller(&plan) {
            tries += 1;
            if tries > TRIES_MAX {
                return (plan, played);
            }
            let again = play::<W>(seed, &candidate, planted);
            if again.verdict.as_ref().is_err_and(|other| other.law == violation.law) {
                (plan, played) = (candidate, again);
                continue 'smaller;
            }
        }
        return (plan, played);
    }
}

/// A list without one of its halves, quarters, …, single items: the boldest cuts first.
pub fn shorter<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    let mut cuts = Vec::new();
    let mut size = items.len();
    while size > 0 {
        size = if size == items.len() { size.div_ceil(2) } else { size / 2 };
        for begin in (0..items.len()).step_by(size.max(1)) {
            let end = (begin + size.max(1)).min(items.len());
            cuts.push([&items[..begin], &items[end..]].concat());
        }
        if size <= 1 {
            break;
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_cut_from_halves_to_single_items() {
        assert_eq!(shorter(&[1, 2]), [vec![2], vec![1]]);
        let cuts = shorter(&[1, 2, 3, 4]);
        assert_eq!(cuts[..2], [vec![3, 4], vec![1, 2]]);
        assert_eq!(cuts[2..], [vec![2, 3, 4], vec![1, 3, 4], vec![1, 2, 4], vec![1, 2, 3]]);
        assert_eq!(shorter::<u8>(&[]), Vec::<Vec<u8>>::new());
        assert_eq!(shorter(&[1]), [Vec::<i32>::new()]);
    }
}
