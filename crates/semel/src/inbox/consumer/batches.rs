//! How many calls may start, and which messages share a call. Pure.

use std::collections::{HashMap, HashSet};

use super::scheduler::QueuedMessage;

/// How many calls may start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// In all.
    pub(super) all: usize,
    /// For failing key queues.
    pub(super) retries: usize,
    /// Whether the last call started was for a failing key queue.
    pub(super) retried_last: bool,
}

impl Slots {
    /// Slots for healthy and for failing key queues. Neither waits for the other longer than one call takes.
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
    pub(super) messages: Vec<QueuedMessage>,
    /// Whether they belong to failing key queues.
    pub(super) retries: bool,
}

/// Spreads messages over at most `most` batches, round robin by key queue. A key queue is in one batch only, with as
/// many of its messages as fit.
pub(super) fn batches(all: &[&QueuedMessage], most: usize, batch_max: usize, retries: bool) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut batch_of, mut full) = (HashMap::new(), HashSet::new());
    for queued in all.iter().filter(|_| most > 0) {
        if full.contains(&queued.queue()) {
            continue;
        }
        let next = batch_of.len() % most;
        let at = *batch_of.entry(queued.queue()).or_insert(next);
        if at == batches.len() {
            batches.push(Batch { messages: Vec::new(), retries });
        }
        let batch = &mut batches[at].messages;
        if batch.len() >= batch_max {
            // This one does not fit, so nothing behind it in its queue may go either.
            full.insert(queued.queue());
            continue;
        }
        batch.push((*queued).clone());
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
            // They take turns for the last slot.
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
