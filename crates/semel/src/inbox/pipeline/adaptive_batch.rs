//! How many messages are tried at once, and who is to blame when they fail.

use crate::inbox::consumer::HandlerErrorKind;

/// What a failure leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// The same again, after a pause.
    Again,
    /// Half of them, at once.
    Smaller,
    /// The only one that was tried is to blame.
    Blame,
}

/// With how many it begins: one who is slow with each of them is not to run out of time with the first.
const FIRST: usize = 2_000;
/// After so many full tries, more are tried again than were too many.
const TRIES_BEFORE_MORE: u32 = 64;

/// Always the first of what is held is tried, so that nothing is overtaken. What fails too often as many is tried as half as
/// many, until one is alone; what succeeds is followed by twice as many. By more than ever succeeded only if there were that
/// many, and if they did not take long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AdaptiveBatch {
    most: usize,
    /// As many as have succeeded at once, or the first.
    usual: usize,
    take: usize,
    tries: u32,
    tries_max: u32,
    /// So many full tries are still to come before more than usual are tried.
    not_more: u32,
}

impl AdaptiveBatch {
    pub(super) fn new(most: usize, tries_max: u32) -> Self {
        let usual = most.min(FIRST);
        Self { most, usual, take: usual, tries: 0, tries_max, not_more: 0 }
    }

    /// How many are to be tried at once.
    pub(super) fn take(&self) -> usize {
        self.take
    }

    /// How many may be, if these succeed.
    pub(super) fn then(&self) -> usize {
        self.take.saturating_mul(2).min(self.most)
    }

    /// So many succeeded; slowly, if twice as many might take too long.
    pub(super) fn succeeded(&mut self, taken: usize, slowly: bool) {
        self.tries = 0;
        self.usual = self.usual.max(taken);
        let more = taken >= self.usual && !slowly && self.not_more == 0;
        if taken >= self.usual {
            self.not_more = self.not_more.saturating_sub(1);
        }
        let at_most = if more { self.most } else { self.usual };
        self.take = self.then().min(at_most).max(self.take);
    }

    /// So many took longer than a transaction may: half of them are usual from now on.
    pub(super) fn too_slow(&mut self, taken: usize) {
        self.take = (taken / 2).max(1);
        self.usual = self.usual.min(self.take);
        self.not_more = TRIES_BEFORE_MORE;
    }

    /// Other messages than those that failed: their failures do not count.
    pub(super) fn others(&mut self) {
        self.tries = 0;
    }

    /// So many failed.
    pub(super) fn failed(&mut self, taken: usize, kind: HandlerErrorKind) -> Next {
        // Nobody's fault: it is tried for as long as it takes. But not more of them than ever succeeded.
        if kind == HandlerErrorKind::Transient {
            if taken > self.usual {
                (self.take, self.not_more) = (self.usual, TRIES_BEFORE_MORE);
            }
            return Next::Again;
        }
        self.tries = self.tries.saturating_add(1);
        // Where somebody is being looked for, only the one who is alone gets all its tries.
        let looking = taken > 1 && self.take < self.usual;
        if kind == HandlerErrorKind::Retry && !looking && self.tries < self.tries_max {
            return Next::Again;
        }
        self.tries = 0;
        if taken > self.usual {
            self.not_more = TRIES_BEFORE_MORE;
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

    /// Runs over messages of which some are poison, and tells what was committed, who was blamed, and the calls it took.
    fn run(messages: usize, poison: &[usize], kind: HandlerErrorKind) -> (Vec<usize>, Vec<usize>, u32) {
        let mut pace = AdaptiveBatch::new(100, 3);
        let (mut done, mut blamed, mut calls, mut at) = (Vec::new(), Vec::new(), 0, 0);
        while at < messages {
            let end = messages.min(at + pace.take());
            calls += 1;
            assert!(calls < 1_000, "it does not end");
            if !(at..end).any(|n| poison.contains(&n)) {
                done.extend(at..end);
                pace.succeeded(end - at, false);
                at = end;
            } else if pace.failed(end - at, kind) == Next::Blame {
                blamed.push(at);
                at += 1;
                pace.succeeded(1, false);
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
        let mut pace = AdaptiveBatch::new(4, 3);
        assert_eq!(pace.failed(4, HandlerErrorKind::Retry), Next::Again);
        assert_eq!(pace.failed(4, HandlerErrorKind::Retry), Next::Again);
        assert_eq!(pace.failed(4, HandlerErrorKind::Retry), Next::Smaller);
        assert_eq!((pace.take(), pace.failed(2, HandlerErrorKind::Retry)), (2, Next::Smaller));
        assert_eq!((pace.take(), pace.failed(1, HandlerErrorKind::Retry)), (1, Next::Again));
        assert_eq!(pace.failed(1, HandlerErrorKind::Retry), Next::Again);
        assert_eq!(pace.failed(1, HandlerErrorKind::Retry), Next::Blame);
    }

    #[test]
    fn what_is_nobodys_fault_is_not_tried_as_more_than_ever_succeeded() {
        let mut pace = AdaptiveBatch::new(10_000, 3);
        pace.succeeded(FIRST, false);
        assert_eq!(pace.failed(2 * FIRST, HandlerErrorKind::Transient), Next::Again);
        assert_eq!(pace.take(), FIRST);
    }

    #[test]
    fn what_is_nobodys_fault_is_tried_for_as_long_as_it_takes() {
        let mut pace = AdaptiveBatch::new(4, 1);
        for _ in 0..1_000 {
            assert_eq!(pace.failed(4, HandlerErrorKind::Transient), Next::Again);
        }
        assert_eq!(pace.take(), 4);
        assert_eq!(pace.failed(4, HandlerErrorKind::Retry), Next::Smaller);
    }

    #[test]
    fn it_grows_only_by_full_tries_that_do_not_take_long() {
        let mut pace = AdaptiveBatch::new(10_000, 3);
        assert_eq!((pace.take(), pace.then()), (FIRST, 2 * FIRST));
        assert_eq!(
            pace.failed(FIRST, HandlerErrorKind::Retry),
            Next::Again,
            "nobody is being looked for yet"
        );
        pace.succeeded(FIRST, true);
        pace.succeeded(FIRST - 1, false);
        assert_eq!(pace.take(), FIRST);
        for _ in 0..3 {
            pace.succeeded(pace.take(), false);
        }
        assert_eq!(pace.take(), 10_000);
    }

    #[test]
    fn what_is_slow_gets_back_to_what_was_usual() {
        let mut pace = AdaptiveBatch::new(10_000, 1);
        while pace.take() > 1 {
            assert_eq!(pace.failed(pace.take(), HandlerErrorKind::Permanent), Next::Smaller);
        }
        assert_eq!(pace.failed(1, HandlerErrorKind::Permanent), Next::Blame);
        for _ in 0..20 {
            pace.succeeded(pace.take(), true);
        }
        assert_eq!(pace.take(), FIRST);
    }

    #[test]
    fn more_than_ever_succeeded_is_seldom_tried_where_it_fails() {
        let mut pace = AdaptiveBatch::new(10_000, 3);
        let (mut failed, mut done) = (0, 0);
        while done < 200 * FIRST {
            let take = pace.take();
            // So many are too many, whoever is among them.
            if take > FIRST {
                failed += 1;
                pace.failed(take, HandlerErrorKind::Retry);
            } else {
                done += take;
                pace.succeeded(take, false);
            }
        }
        assert!((3..=12).contains(&failed), "{failed}");
    }

    #[test]
    fn what_a_transaction_had_no_time_for_is_halved_for_a_while() {
        let mut pace = AdaptiveBatch::new(10_000, 3);
        pace.succeeded(FIRST, false);
        assert_eq!(pace.take(), 2 * FIRST);
        pace.too_slow(2 * FIRST);
        assert_eq!(pace.take(), FIRST);
        for _ in 0..TRIES_BEFORE_MORE {
            pace.succeeded(FIRST, false);
            assert_eq!(pace.take(), FIRST);
        }
        pace.succeeded(FIRST, false);
        assert_eq!(pace.take(), 2 * FIRST);
        for _ in 0..50 {
            pace.too_slow(pace.take());
        }
        assert_eq!(pace.take(), 1);
    }
}
