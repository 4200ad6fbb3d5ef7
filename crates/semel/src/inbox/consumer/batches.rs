//! How calls are shared out, and which messages go into which. Pure.

use std::collections::{HashMap, HashSet};

use super::scheduler::Held;

/// How many calls may be begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// In all.
    pub(super) all: usize,
    /// With lines that fail.
    pub(super) retries: usize,
    /// Whether the last call that was begun was one of those.
    pub(super) retried_last: bool,
}

impl Slots {
    /// How many are for lines that do not fail and for those that do. Neither waits for the other for longer than a call
    /// takes.
    pub(super) fn split(self, any_fresh: bool, any_retry: bool) -> (usize, usize) {
        let retries = self.retries.min(self.all);
        match (any_fresh, any_retry) {
            (_, false) => (self.all, 0),
            (false, true) => (0, retries),
            (true, true) if self.all == 1 && self.retried_last => (1, 0),
            (true, true) if self.all == 1 => (1 - retries, retries),
            (true, true) => (self.all - retries.min(self.all / 2), retries.min(self.all / 2)),
        }
    }
}

/// Messages for one call.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) held: Vec<Held>,
    /// Whether they are of lines that fail.
    pub(super) retries: bool,
}

/// Spreads messages over at most so many batches: the lines by turns, each line in one batch, as much of it as has room.
pub(super) fn batches(all: &[&Held], most: usize, batch_max: usize, retries: bool) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut batch_of, mut full) = (HashMap::new(), HashSet::new());
    for held in all.iter().filter(|_| most > 0) {
        if full.contains(&held.line()) {
            continue;
        }
        let next = batch_of.len() % most;
        let at = *batch_of.entry(held.line()).or_insert(next);
        if at == batches.len() {
            batches.push(Batch { held: Vec::new(), retries });
        }
        let batch = &mut batches[at].held;
        if batch.len() >= batch_max {
            // Not this one, so none after it in its line.
            full.insert(held.line());
            continue;
        }
        batch.push((*held).clone());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_shared_between_lines_that_fail_and_the_others() {
        for (all, retries, retried_last, fresh, failing, wanted) in [
            (0, 3, false, true, true, (0, 0)),
            (4, 3, false, true, false, (4, 0)),
            (4, 3, false, false, true, (0, 3)),
            (4, 3, false, true, true, (2, 2)),
            (3, 3, false, true, true, (2, 1)),
            (2, 0, false, true, true, (2, 0)),
            // The last one by turns.
            (1, 1, false, true, true, (0, 1)),
            (1, 1, true, true, true, (1, 0)),
            (1, 1, true, false, true, (0, 1)),
            (1, 0, false, true, true, (1, 0)),
        ] {
            let slots = Slots { all, retries, retried_last };
            assert_eq!(slots.split(fresh, failing), wanted, "{slots:?}, {fresh}, {failing}");
        }
    }
}
