//! Adaptive batch size: how many messages are tried at once, and which is to blame when they fail (bisect).

use crate::inbox::consumer::HandlerErrorKind;

/// What to do after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Retry the same batch after a backoff.
    Retry,
    /// Try half of it at once.
    Smaller,
    /// The only message tried is to blame: a poison message.
    Blame,
}

/// First batch size: a slow transform must not time out on its first batch.
const FIRST: usize = 2_000;
/// After so many full batches a larger size that failed is tried again.
const ATTEMPTS_BEFORE_MORE: u32 = 64;

/// The front of the buffer is tried first, so that no message overtakes another. A batch that fails too often is
/// halved, down to one message; after a success the size doubles. It grows beyond the largest success only if the batch
/// was full and fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AdaptiveBatch {
    most: usize,
    /// The largest batch that succeeded, or the first size.
    usual: usize,
    take: usize,
    attempts: u32,
    attempts_max: u32,
    /// How many full batches to wait before a larger one than usual.
    not_more: u32,
}

impl AdaptiveBatch {
    pub(super) fn new(most: usize, attempts_max: u32) -> Self {
        let usual = most.min(FIRST);
        Self { most, usual, take: usual, attempts: 0, attempts_max, not_more: 0 }
    }

    /// Size of the next batch.
    pub(super) fn take(&self) -> usize {
        self.take
    }

    /// Size of the batch after that, if this one succeeds.
    pub(super) fn then(&self) -> usize {
        self.take.saturating_mul(2).min(self.most)
    }

    /// A batch of `taken` succeeded. `slowly`: twice as many might time out.
    pub(super) fn succeeded(&mut self, taken: usize, slowly: bool) {
        self.attempts = 0;
        self.usual = self.usual.max(taken);
        let more = taken >= self.usual && !slowly && self.not_more == 0;
        if taken >= self.usual {
            self.not_more = self.not_more.saturating_sub(1);
        }
        let at_most = if more { self.most } else { self.usual };
        self.take = self.then().min(at_most).max(self.take);
    }

    /// A batch of `taken` took longer than a transaction may: half of it is usual from now on.
    pub(super) fn too_slow(&mut self, taken: usize) {
        self.take = (taken / 2).max(1);
        self.usual = self.usual.min(self.take);
        self.not_more = ATTEMPTS_BEFORE_MORE;
    }

    /// The next batch has other messages: earlier failures do not count.
    pub(super) fn others(&mut self) {
        self.attempts = 0;
    }

    /// A batch of `taken` failed.
    pub(super) fn failed(&mut self, taken: usize, kind: HandlerErrorKind) -> Next {
        // Transient: retried without limit, but not with more messages than ever succeeded.
        if kind == HandlerErrorKind::Transient {
            if taken > self.usual {
                (self.take, self.not_more) = (self.usual, ATTEMPTS_BEFORE_MORE);
            }
            return Next::Retry;
        }
        self.attempts = self.attempts.saturating_add(1);
        // While bisecting, only a single message gets all its attempts.
        let bisecting = taken > 1 && self.take < self.usual;
        if kind == HandlerErrorKind::Retry && !bisecting && self.attempts < self.attempts_max {
            return Next::Retry;
        }
        self.attempts = 0;
        if taken > self.usual {
            self.not_more = ATTEMPTS_BEFORE_MORE;
        }
        if taken > 1 {
            self.take = taken / 2;
            return Next::Smaller;
        }
        Next::Blame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs over messages of which some are poison. Returns what was committed, what was blamed, and the number of
    /// calls.
    fn run(messages: usize, poison: &[usize], kind: HandlerErrorKind) -> (Vec<usize>, Vec<usize>, u32) {
        let mut batch = AdaptiveBatch::new(100, 3);
        let (mut done, mut blamed, mut calls, mut at) = (Vec::new(), Vec::new(), 0, 0);
        while at < messages {
            let end = messages.min(at + batch.take());
            calls += 1;
            assert!(calls < 1_000, "too many calls");
            if !(at..end).any(|n| poison.contains(&n)) {
                done.extend(at..end);
                batch.succeeded(end - at, false);
                at = end;
            } else if batch.failed(end - at, kind) == Next::Blame {
                blamed.push(at);
                at += 1;
                batch.succeeded(1, false);
            }
        }
        (done, blamed, calls)
    }

    #[test]
    fn only_the_poison_is_blamed_and_the_rest_keeps_its_order() {
        for poison in [vec![], vec![0], vec![57], vec![299], vec![3, 4, 200], (0..10).collect()] {
            for kind in [HandlerErrorKind::Retry, HandlerErrorKind::Permanent] {
                let (done, blamed, calls) = run(300, &poison, kind);
                assert_eq!(blamed, poison);
                let rest: Vec<usize> = (0..300).filter(|n| !poison.contains(n)).collect();
                assert_eq!(done, rest);
                assert!(
                    calls < 10 + 25 * u32::try_from(poison.len()).unwrap(),
                    "{calls} calls for {poison:?}"
                );
            }
        }
    }

    #[test]
    fn a_failure_is_tried_again_before_somebody_is_looked_for() {
        let mut batch = AdaptiveBatch::new(4, 3);
        assert_eq!(batch.failed(4, HandlerErrorKind::Retry), Next::Retry);
        assert_eq!(batch.failed(4, HandlerErrorKind::Retry), Next::Retry);
        assert_eq!(batch.failed(4, HandlerErrorKind::Retry), Next::Smaller);
        assert_eq!((batch.take(), batch.failed(2, HandlerErrorKind::Retry)), (2, Next::Smaller));
        assert_eq!((batch.take(), batch.failed(1, HandlerErrorKind::Retry)), (1, Next::Retry));
        assert_eq!(batch.failed(1, HandlerErrorKind::Retry), Next::Retry);
        assert_eq!(batch.failed(1, HandlerErrorKind::Retry), Next::Blame);
    }

    #[test]
    fn what_is_nobodys_fault_is_not_tried_as_more_than_ever_succeeded() {
        let mut batch = AdaptiveBatch::new(10_000, 3);
        batch.succeeded(FIRST, false);
        assert_eq!(batch.failed(2 * FIRST, HandlerErrorKind::Transient), Next::Retry);
        assert_eq!(batch.take(), FIRST);
    }

    #[test]
    fn what_is_nobodys_fault_is_tried_for_as_long_as_it_takes() {
        let mut batch = AdaptiveBatch::new(4, 1);
        for _ in 0..1_000 {
            assert_eq!(batch.failed(4, HandlerErrorKind::Transient), Next::Retry);
        }
        assert_eq!(batch.take(), 4);
        assert_eq!(batch.failed(4, HandlerErrorKind::Retry), Next::Smaller);
    }

    #[test]
    fn it_grows_only_by_full_tries_that_do_not_take_long() {
        let mut batch = AdaptiveBatch::new(10_000, 3);
        assert_eq!((batch.take(), batch.then()), (FIRST, 2 * FIRST));
        assert_eq!(batch.failed(FIRST, HandlerErrorKind::Retry), Next::Retry, "not bisecting yet");
        batch.succeeded(FIRST, true);
        batch.succeeded(FIRST - 1, false);
        assert_eq!(batch.take(), FIRST);
        for _ in 0..3 {
            batch.succeeded(batch.take(), false);
        }
        assert_eq!(batch.take(), 10_000);
    }

    #[test]
    fn what_is_slow_gets_back_to_what_was_usual() {
        let mut batch = AdaptiveBatch::new(10_000, 1);
        while batch.take() > 1 {
            assert_eq!(batch.failed(batch.take(), HandlerErrorKind::Permanent), Next::Smaller);
        }
        assert_eq!(batch.failed(1, HandlerErrorKind::Permanent), Next::Blame);
        for _ in 0..20 {
            batch.succeeded(batch.take(), true);
        }
        assert_eq!(batch.take(), FIRST);
    }

    #[test]
    fn more_than_ever_succeeded_is_seldom_tried_where_it_fails() {
        let mut batch = AdaptiveBatch::new(10_000, 3);
        let (mut failed, mut done) = (0, 0);
        while done < 200 * FIRST {
            let take = batch.take();
            // A batch of this size always fails.
            if take > FIRST {
                failed += 1;
                batch.failed(take, HandlerErrorKind::Retry);
            } else {
                done += take;
                batch.succeeded(take, false);
            }
        }
        assert!((3..=12).contains(&failed), "{failed}");
    }

    #[test]
    fn what_a_transaction_had_no_time_for_is_halved_for_a_while() {
        let mut batch = AdaptiveBatch::new(10_000, 3);
        batch.succeeded(FIRST, false);
        assert_eq!(batch.take(), 2 * FIRST);
        batch.too_slow(2 * FIRST);
        assert_eq!(batch.take(), FIRST);
        for _ in 0..ATTEMPTS_BEFORE_MORE {
            batch.succeeded(FIRST, false);
            assert_eq!(batch.take(), FIRST);
        }
        batch.succeeded(FIRST, false);
        assert_eq!(batch.take(), 2 * FIRST);
        for _ in 0..50 {
            batch.too_slow(batch.take());
        }
        assert_eq!(batch.take(), 1);
    }
}
