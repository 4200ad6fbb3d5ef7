//! Requests that wait for a connection, queued by kind, and how a batch is taken from them.

use std::collections::VecDeque;

use super::coalesce::{Executor, Failure, given_up};
use super::command::{Ask, Command, Finishing};
use super::locked_elsewhere::{about_now, in_flight};
use super::{Claim, Claimed, Decide, Decided, Finished, Renewed, StoreError, Ticket};
use crate::intent::identity::IntentId;

/// A batch ends after this many bytes of outcomes, however few requests it has.
const OUTCOME_BYTES_MAX: usize = 8 << 20;

/// Requests of one kind, sorted by id: two batches lock rows in the same order, so they do not deadlock.
pub(super) enum Batch {
    Claims(Vec<Ask<Claim, Claimed>>),
    Finishes(Vec<Ask<Finishing, Finished>>),
    Renews(Vec<Ask<(Ticket, u64), Renewed>>),
    Decides(Vec<Ask<(IntentId, Decide), Decided>>),
}

/// A kind of request.
pub(super) trait Kind<E: Executor>: Send {
    type Q: Send;
    type A: Send;

    fn run(
        executor: &E,
        connection: &mut E::Connection,
        asks: &mut [Ask<Self::Q, Self::A>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    fn command(ask: Ask<Self::Q, Self::A>) -> Command;

    /// The answer to a request that got none within the max attempts.
    fn given_up(request: &Self::Q) -> Result<Self::A, StoreError>;
}

macro_rules! kinds {
    ($($kind:ident $q:ty, $a:ty, $run:ident, $command:ident, $given_up:expr;)*) => {$(
        pub(super) struct $kind;

        impl<E: Executor> Kind<E> for $kind {
            type Q = $q;
            type A = $a;

            fn run(
                executor: &E,
                connection: &mut E::Connection,
                asks: &mut [Ask<$q, $a>],
            ) -> impl Future<Output = Result<(), Failure>> + Send {
                executor.$run(connection, asks)
            }

            fn command(ask: Ask<$q, $a>) -> Command {
                Command::$command(ask)
            }

            fn given_up(request: &$q) -> Result<$a, StoreError> {
                ($given_up)(request)
            }
        }
    )*};
}

kinds! {
    Claims Claim, Claimed, claims, Claim, |claim: &Claim| Ok(in_flight(claim, about_now()));
    Finishes Finishing, Finished, finishes, Finish, |_: &Finishing| Err(given_up());
    Renews (Ticket, u64), Renewed, renews, Renew, |_: &(Ticket, u64)| Err(given_up());
    Decides (IntentId, Decide), Decided, decides, Decide, |_: &(IntentId, Decide)| Err(given_up());
}

/// Waiting requests by kind, each in order of arrival.
#[derive(Default)]
pub(super) struct Waiting {
    claims: VecDeque<Ask<Claim, Claimed>>,
    finishes: VecDeque<Ask<Finishing, Finished>>,
    renews: VecDeque<Ask<(Ticket, u64), Renewed>>,
    decides: VecDeque<Ask<(IntentId, Decide), Decided>>,
    /// The kind whose turn it is (round robin).
    turn: usize,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.finishes.len() + self.renews.len() + self.decides.len()
    }

    pub(super) fn put(&mut self, command: Command) {
        match command {
            Command::Claim(ask) => self.claims.push_back(ask),
            Command::Finish(ask) => self.finishes.push_back(ask),
            Command::Renew(ask) => self.renews.push_back(ask),
            Command::Decide(ask) => self.decides.push_back(ask),
        }
    }

    /// A batch of the kind whose turn it is, or of the next that has requests.
    pub(super) fn take(&mut self, batch_max: usize, claims_may_repeat: bool) -> Option<Batch> {
        for _ in 0..4 {
            let turn = self.turn;
            self.turn = (turn + 1) % 4;
            let batch = match turn {
                0 if !self.claims.is_empty() => Batch::Claims(take_batch(
                    &mut self.claims,
                    batch_max,
                    |claim| claim.intent.id(),
                    |_| 0,
                    claims_may_repeat,
                )),
                1 if !self.finishes.is_empty() => Batch::Finishes(take_batch(
                    &mut self.finishes,
                    batch_max,
                    |finishing| finishing.ticket.id,
                    |finishing| finishing.outcome.as_ref().map_or(0, bytes::Bytes::len),
                    false,
                )),
                2 if !self.renews.is_empty() => Batch::Renews(take_batch(
                    &mut self.renews,
                    batch_max,
                    |(ticket, _)| ticket.id,
                    |_| 0,
                    false,
                )),
                3 if !self.decides.is_empty() => {
                    Batch::Decides(take_batch(&mut self.decides, 1, |(id, _)| *id, |_| 0, false))
                }
                _ => continue,
            };
            return Some(batch);
        }
        None
    }
}

/// The oldest requests that fit into one batch, sorted by id. A second request for an id waits for the next batch.
fn take_batch<Q, A>(
    waiting: &mut VecDeque<Ask<Q, A>>,
    batch_max: usize,
    id: impl Fn(&Q) -> IntentId,
    bytes: impl Fn(&Q) -> usize,
    may_repeat: bool,
) -> Vec<Ask<Q, A>> {
    let mut left = OUTCOME_BYTES_MAX;
    let mut count = 0;
    while count < waiting.len().min(batch_max.max(1)) {
        let next = bytes(&waiting[count].request);
        if next > left && count > 0 {
            break;
        }
        left = left.saturating_sub(next);
        count += 1;
    }
    let mut batch: Vec<_> = waiting.drain(..count).collect();
    // Stable: of several requests for one id the oldest comes first.
    batch.sort_by_key(|ask| id(&ask.request));
    if may_repeat || batch.is_sorted_by(|one, two| id(&one.request) != id(&two.request)) {
        return batch;
    }
    let mut unique: Vec<Ask<Q, A>> = Vec::with_capacity(batch.len());
    let mut later = Vec::new();
    for ask in batch {
        match unique.last() {
            Some(last) if id(&last.request) == id(&ask.request) => later.push(ask),
            _ => unique.push(ask),
        }
    }
    for ask in later.into_iter().rev() {
        waiting.push_front(ask);
    }
    unique
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::intent::identity::{Epoch, Owner};
    use crate::intent::outcome::Verdict;
    use crate::intent::policy::{Retention, StoreTime};

    fn ticket(first: u8, attempt: u32) -> Ticket {
        Ticket {
            id: IntentId::from_bytes([first; 32]),
            owner: Owner::NONE,
            epoch: Epoch(1),
            attempt,
            lease_until: StoreTime(0),
            safe_until: None,
            other_recipe: false,
        }
    }

    fn renewal(first: u8, attempt: u32) -> Command {
        Command::Renew(Ask::new((ticket(first, attempt), 0), oneshot::channel().0))
    }

    fn outcome(first: u8, bytes: usize) -> Command {
        let finishing = Finishing {
            ticket: ticket(first, 1),
            verdict: Verdict::Completed,
            retention: Retention::Forever,
            outcome: Some(Bytes::from(vec![0; bytes])),
        };
        Command::Finish(Ask::new(finishing, oneshot::channel().0))
    }

    fn renewed(batch: Option<Batch>) -> Vec<(u8, u32)> {
        let Some(Batch::Renews(asks)) = batch else { return Vec::new() };
        asks.iter().map(|ask| (ask.request.0.id.as_bytes()[0], ask.request.0.attempt)).collect()
    }

    #[test]
    fn a_batch_is_sorted_and_has_each_id_once_the_oldest_first() {
        let mut waiting = Waiting::default();
        for (first, attempt) in [(3, 1), (1, 1), (3, 2), (2, 1), (3, 3), (1, 2)] {
            waiting.put(renewal(first, attempt));
        }
        assert_eq!(renewed(waiting.take(10, false)), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(renewed(waiting.take(10, false)), [(1, 2), (3, 2)]);
        assert_eq!(renewed(waiting.take(10, false)), [(3, 3)]);
        assert!(waiting.take(10, false).is_none());
    }

    #[test]
    fn a_batch_is_bounded_by_number_and_by_bytes() {
        let mut waiting = Waiting::default();
        (0..5).for_each(|first| waiting.put(renewal(first, 1)));
        assert_eq!(renewed(waiting.take(2, false)), [(0, 1), (1, 1)]);
        assert_eq!(waiting.len(), 3);

        let mut waiting = Waiting::default();
        for (first, bytes) in [(1, OUTCOME_BYTES_MAX + 1), (2, OUTCOME_BYTES_MAX), (3, 1), (4, 1)] {
            waiting.put(outcome(first, bytes));
        }
        let mut sizes = Vec::new();
        while let Some(Batch::Finishes(asks)) = waiting.take(10, false) {
            sizes.push(asks.len());
        }
        // A request above the limit still goes out, alone in its batch.
        assert_eq!(sizes, [1, 1, 2]);
    }

    #[test]
    fn the_kinds_take_turns() {
        let mut waiting = Waiting::default();
        for first in 0..4 {
            waiting.put(renewal(first, 1));
            waiting.put(outcome(first, 1));
        }
        let mut turns = Vec::new();
        while let Some(batch) = waiting.take(2, false) {
            turns.push(matches!(batch, Batch::Renews(_)));
        }
        assert_eq!(turns, [false, true, false, true]);
    }
}
