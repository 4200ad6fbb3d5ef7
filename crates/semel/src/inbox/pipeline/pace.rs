//! How many messages are tried at once, and who is to blame when they fail.

use crate::inbox::consumer::FailedKind;

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

/// Always the first of what is held is tried, so that nothing is overtaken. What fails too often as many is tried as half as
/// many, until one is alone; what succeeds is followed by twice as many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    most: usize,
    take: usize,
    tries: u32,
    tries_max: u32,
}

impl Pace {
    pub(super) fn new(most: usize, tries_max: u32) -> Self {
        Self { most, take: most, tries: 0, tries_max }
    }

    /// How many are to be tried at once.
    pub(super) fn take(&self) -> usize {
        self.take
    }

    pub(super) fn succeeded(&mut self) {
        self.tries = 0;
        self.take = self.take.saturating_mul(2).min(self.most);
    }

    /// Other messages than those that failed: their failures do not count.
    pub(super) fn others(&mut self) {
        self.tries = 0;
    }

    /// So many failed.
    pub(super) fn failed(&mut self, taken: usize, kind: FailedKind) -> Next {
        // Nobody's fault: it is tried for as long as it takes.
        if kind == FailedKind::Later {
            return Next::Again;
        }
        self.tries = self.tries.saturating_add(1);
        // Where somebody is being looked for, only the one who is alone gets all its tries.
        let looking = taken > 1 && self.take < self.most;
        if kind == FailedKind::Message && !looking && self.tries < self.tries_max {
            return Next::Again;
        }
        self.tries = 0;
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
    fn run(messages: usize, poison: &[usize], kind: FailedKind) -> (Vec<usize>, Vec<usize>, u32) {
        let mut pace = Pace::new(100, 3);
        let (mut done, mut blamed, mut calls, mut at) = (Vec::new(), Vec::new(), 0, 0);
        while at < messages {
            let end = messages.min(at + pace.take());
            calls += 1;
            assert!(calls < 1_000, "it does not end");
            if !(at..end).any(|n| poison.contains(&n)) {
                done.extend(at..end);
                at = end;
                pace.succeeded();
            } else if pace.failed(end - at, kind) == Next::Blame {
                blamed.push(at);
                at += 1;
                pace.succeeded();
            }
        }
        (done, blamed, calls)
    }

    #[test]
    fn only_the_poison_is_blamed_and_the_rest_keeps_its_order() {
        for poison in [vec![], vec![0], vec![57], vec![299], vec![3, 4, 200], (0..10).collect()] {
            for kind in [FailedKind::Message, FailedKind::Poison] {
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
        let mut pace = Pace::new(4, 3);
        assert_eq!(pace.failed(4, FailedKind::Message), Next::Again);
        assert_eq!(pace.failed(4, FailedKind::Message), Next::Again);
        assert_eq!(pace.failed(4, FailedKind::Message), Next::Smaller);
        assert_eq!((pace.take(), pace.failed(2, FailedKind::Message)), (2, Next::Smaller));
        assert_eq!((pace.take(), pace.failed(1, FailedKind::Message)), (1, Next::Again));
        assert_eq!(pace.failed(1, FailedKind::Message), Next::Again);
        assert_eq!(pace.failed(1, FailedKind::Message), Next::Blame);
    }

    #[test]
    fn what_is_nobodys_fault_is_tried_for_as_long_as_it_takes() {
        let mut pace = Pace::new(4, 1);
        for _ in 0..1_000 {
            assert_eq!(pace.failed(4, FailedKind::Later), Next::Again);
        }
        assert_eq!(pace.take(), 4);
        assert_eq!(pace.failed(4, FailedKind::Message), Next::Smaller);
    }
}
