//! Combines what many sagas write into transactions.
//!
//! ```text
//!  callers ──▶ queue ──▶ a free lane takes all that wait, at most one of each saga ──▶ one transaction ──▶ answers
//!                                                │ rows locked elsewhere, intents that have a saga,
//!                                                ▼ and all of a batch that failed
//!                                       each in a transaction of its own
//! ```
//!
//! A lone caller finds a free lane and does not wait. While all lanes are busy the next requests queue up, and the next
//! free lane takes them all. A saga's requests are carried out in their order.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;

use super::batch::{Answer, Request, run};
use super::operations;
use crate::database::Database;
use crate::fault::Hook;
use crate::intent::identity::IntentId;
use crate::saga::journal::SagaNumber;
use crate::saga::state::{RowDecider, step};
use crate::store::queue::{answer_lost, queue_full};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::DriverErrorKind;

/// Transactions of batches at the same time.
pub(super) const LANES: usize = 2;
/// Requests of one transaction, at most.
const BATCH_MAX: usize = 256;
/// A transaction takes no more requests after this many bytes of inputs, results and outcomes.
const BATCH_BYTES_MAX: usize = 2 << 20;
/// How long a transaction may take. Who waits for it asks again: what was written counts as written.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests that wait.
const QUEUE_MAX: usize = 20_000;

type Reply = oneshot::Sender<Result<Answer, StoreError>>;

pub(super) struct Coalescer(Arc<Shared>);

struct Shared {
    /// For batches alone: no other transaction makes them wait.
    lanes: Arc<Database>,
    /// For single requests, which may wait for a lock.
    alone: Arc<Database>,
    queue: Mutex<Queue>,
    planted: Hook<Planted>,
}

/// Bugs that tests plant.
#[derive(Clone, Copy, Default)]
pub(super) struct Planted {
    pub(super) decide: Option<RowDecider>,
    /// All requests of a batch that failed get its error.
    pub(super) fails_together: bool,
    /// The answers are in another order than the requests.
    pub(super) answers_by_position: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Asked>,
    size: BatchSize,
    /// Lanes at work.
    lanes: usize,
}

/// How many requests the next batch takes. One that took too long would do so again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BatchSize(usize);

impl Default for BatchSize {
    fn default() -> Self {
        Self(BATCH_MAX)
    }
}

impl BatchSize {
    /// After a batch of so many took too long.
    fn after_timeout(self, batch: usize) -> Self {
        Self((self.0.min(batch) / 2).max(1))
    }

    /// After a batch of so many was written. A smaller one than was allowed says nothing about larger ones.
    fn after_success(self, batch: usize) -> Self {
        if batch < self.0 { self } else { Self(self.0.saturating_mul(2).min(BATCH_MAX)) }
    }
}

struct Asked {
    request: Request,
    reply: Reply,
}

/// What a request is about: a batch has each once.
#[derive(PartialEq, Eq, Hash)]
enum Subject {
    Intent(IntentId),
    Saga(SagaNumber),
}

impl Request {
    fn subject(&self) -> Subject {
        match self {
            Self::Start(saga) => Subject::Intent(saga.intent.id()),
            Self::Change(number, _) => Subject::Saga(*number),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Start(saga) => saga.input.len(),
            Self::Change(_, change) => {
                let of_entries = change.entries.iter().flat_map(|entry| [&entry.input, &entry.body]);
                of_entries.chain([&change.outcome]).flatten().map(bytes::Bytes::len).sum()
            }
        }
    }
}

impl Coalescer {
    pub(super) fn new(lanes: Arc<Database>, alone: Arc<Database>, planted: Hook<Planted>) -> Self {
        Self(Arc::new(Shared { lanes, alone, queue: Mutex::default(), planted }))
    }

    /// The same with planted bugs.
    #[cfg(feature = "fault-injection")]
    pub(super) fn planted(&self, planted: Planted) -> Self {
        Self::new(Arc::clone(&self.0.lanes), Arc::clone(&self.0.alone), Hook::from(planted))
    }

    /// Carries out a request together with others. If the caller stops waiting, it is carried out, or not.
    pub(super) async fn ask(&self, request: Request) -> Result<Answer, StoreError> {
        let Ok(runtime) = Handle::try_current() else { return self.0.run_alone(request).await };
        let (reply, answer) = oneshot::channel();
        let free = {
            let mut queue = self.0.queue();
            if queue.waiting.len() >= QUEUE_MAX {
                return Err(queue_full(QUEUE_MAX));
            }
            queue.waiting.push_back(Asked { request, reply });
            let free = queue.lanes < LANES;
            queue.lanes += usize::from(free);
            free
        };
        if free {
            runtime.spawn(Lane { shared: Arc::clone(&self.0), ended: false }.work());
        }
        answer.await.unwrap_or_else(|_| Err(answer_lost()))
    }
}

/// A task that carries out batches until nothing waits.
struct Lane {
    shared: Arc<Shared>,
    ended: bool,
}

impl Lane {
    async fn work(mut self) {
        loop {
            let batch = {
                let mut queue = self.shared.queue();
                let batch = queue.take();
                if batch.is_empty() {
                    // Under the same lock: who asks after this finds a free lane.
                    queue.lanes -= 1;
                    self.ended = true;
                    return;
                }
                batch
            };
            self.shared.execute(batch).await;
        }
    }
}

impl Drop for Lane {
    /// Its runtime ended, or it panicked: those who wait get an answer, and ask again.
    fn drop(&mut self) {
        if !self.ended {
            let mut queue = self.shared.queue();
            queue.lanes -= 1;
            if queue.lanes == 0 {
                queue.waiting.clear();
            }
        }
    }
}

impl Queue {
    /// The next batch: what came first, each saga once. Later requests of a saga stay in their order.
    fn take(&mut self) -> Vec<Asked> {
        let (mut batch, mut later) = (Vec::new(), VecDeque::new());
        let (mut subjects, mut bytes) = (HashSet::new(), 0);
        while batch.len() < self.size.0
            && bytes < BATCH_BYTES_MAX
            && let Some(asked) = self.waiting.pop_front()
        {
            // Its caller has given up, or asks again.
            if asked.reply.is_closed() {
                continue;
            }
            if subjects.insert(asked.request.subject()) {
                bytes += asked.request.bytes();
                batch.push(asked);
            } else {
                later.push_back(asked);
            }
        }
        later.append(&mut self.waiting);
        self.waiting = later;
        batch
    }

    /// From how a batch went; an error that came in time says nothing about its size.
    fn learn<T>(&mut self, batch: usize, ran: &Result<Result<T, StoreError>, Elapsed>) {
        self.size = match ran {
            Ok(Ok(_)) => self.size.after_success(batch),
            Ok(Err(_)) => self.size,
            Err(_) => self.size.after_timeout(batch),
        };
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self) -> RowDecider {
        self.planted.get().and_then(|planted| planted.decide).unwrap_or(step)
    }

    fn fails_together(&self) -> bool {
        self.planted.get().is_some_and(|planted| planted.fails_together)
    }

    fn answers_by_position(&self) -> bool {
        self.planted.get().is_some_and(|planted| planted.answers_by_position)
    }

    async fn execute(self: &Arc<Self>, batch: Vec<Asked>) {
        let (requests, replies): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|asked| (asked.request, asked.reply)).unzip();
        let requests = Arc::new(requests);
        // The kind of the error by which the work itself failed: then nothing was committed.
        let failed = Arc::new(OnceLock::new());
        let ran = {
            let (requests, failed, decide) = (Arc::clone(&requests), Arc::clone(&failed), self.decide());
            let operation = self.lanes.run(move |tx| {
                Box::pin(async move {
                    let ran = run(tx, &requests, decide).await;
                    if let Err(error) = &ran {
                        let _ = failed.set(error.kind());
                    }
                    ran
                })
            });
            // Its connection is dropped then: no lane waits for a server that cannot be reached any more.
            tokio::time::timeout(BATCH_TIMEOUT, operation).await
        };
        self.queue().learn(requests.len(), &ran);
        let ran = ran.unwrap_or_else(|_| Err(no_answer()));
        match ran {
            Ok(mut answers) => {
                if self.answers_by_position() {
                    answers.reverse();
                }
                for ((reply, answer), at) in replies.into_iter().zip(answers).zip(0..) {
                    match answer {
                        Some(answer) => drop(reply.send(Ok(answer))),
                        None => self.spawn_alone(requests.get(at).cloned(), reply),
                    }
                }
            }
            // One of them may be the cause.
            Err(error)
                if error.fate() == Fate::NotApplied
                    && !self.fails_together()
                    && failed.get().is_some_and(|kind| *kind != DriverErrorKind::Lost) =>
            {
                for (at, reply) in replies.into_iter().enumerate() {
                    self.spawn_alone(requests.get(at).cloned(), reply);
                }
            }
            Err(error) => replies.into_iter().for_each(|reply| drop(reply.send(Err(error.again())))),
        }
    }

    /// In a task of its own: it may have to wait for a lock, and a lane must not.
    fn spawn_alone(self: &Arc<Self>, request: Option<Request>, mut reply: Reply) {
        let Some(request) = request else { return };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let answer = tokio::select! {
                biased;
                // Its caller has given up: it does not hold a session.
                () = reply.closed() => return,
                answer = shared.run_alone(request) => answer,
            };
            let _ = reply.send(answer);
        });
    }

    /// In a transaction of its own.
    async fn run_alone(&self, request: Request) -> Result<Answer, StoreError> {
        let decide = self.decide();
        match request {
            Request::Start(saga) => {
                let started = self.alone.run(move |tx| Box::pin(operations::start(tx, *saga))).await?;
                Ok(Answer::Started(started))
            }
            Request::Change(number, change) => {
                let changed = self
                    .alone
                    .run(move |tx| Box::pin(operations::change(tx, number, *change, decide)))
                    .await?;
                Ok(Answer::Changed(changed))
            }
        }
    }
}

fn no_answer() -> StoreError {
    let message = format!(
        "the database did not answer within {} s; check its load, its locks and the network",
        BATCH_TIMEOUT.as_secs()
    );
    StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::saga::journal::SagaChange;
    use crate::saga::state::RowEvent;

    fn asked(
        queue: &mut Queue,
        number: u64,
        outcome: usize,
    ) -> oneshot::Receiver<Result<Answer, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let mut change = SagaChange::of(RowEvent::Signal);
        change.outcome = Some(Bytes::from(vec![b'x'; outcome]));
        let request = Request::Change(SagaNumber(number), Box::new(change));
        queue.waiting.push_back(Asked { request, reply });
        answer
    }

    fn taken(queue: &mut Queue) -> Vec<(u64, usize)> {
        let of = |asked: Asked| match asked.request {
            Request::Change(number, change) => (number.0, change.outcome.map_or(0, |outcome| outcome.len())),
            Request::Start(_) => unreachable!("nothing was started"),
        };
        queue.take().into_iter().map(of).collect()
    }

    #[test]
    fn a_batch_has_each_saga_once_and_its_requests_stay_in_order() {
        let mut queue = Queue::default();
        let _answers: Vec<_> =
            [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3)].map(|(saga, nth)| asked(&mut queue, saga, nth)).into();
        assert_eq!(taken(&mut queue), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(taken(&mut queue), [(1, 2)]);
        assert_eq!(taken(&mut queue), [(1, 3)]);
        assert_eq!(taken(&mut queue), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_took_too_long_is_followed_by_smaller_ones() {
        let mut queue = Queue::default();
        let late = || tokio::time::timeout(Duration::from_secs(1), std::future::pending());
        let (written, failed) = (Ok(Ok(())), Ok(Err(no_answer())));
        let mut sizes = Vec::new();
        for batch in [100, 50, 25, 12, 6, 3, 1, 1] {
            queue.learn::<()>(batch, &late().await);
            sizes.push(queue.size.0);
        }
        assert_eq!(sizes, [50, 25, 12, 6, 3, 1, 1, 1]);
        let _answers: Vec<_> = (0..1000).map(|saga| asked(&mut queue, saga, 0)).collect();
        let mut sizes = Vec::new();
        for _ in 0..10 {
            let batch = taken(&mut queue).len();
            sizes.push(batch);
            queue.learn(batch, &written);
            queue.learn::<()>(batch, &failed);
        }
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 128, BATCH_MAX, BATCH_MAX]);
        // Few requests say nothing.
        queue.learn(256, &late().await);
        queue.learn(3, &written);
        assert_eq!(queue.size, BatchSize(128));
    }

    #[test]
    fn a_batch_is_bounded_and_leaves_out_what_was_given_up() {
        let mut queue = Queue::default();
        let mut answers: Vec<_> = (0..=BATCH_MAX as u64).map(|saga| asked(&mut queue, saga, 0)).collect();
        answers.remove(0);
        assert_eq!(taken(&mut queue).len(), BATCH_MAX);
        assert_eq!(queue.waiting.len(), 0);
        let _answers: Vec<_> = (0..4).map(|saga| asked(&mut queue, saga, BATCH_BYTES_MAX / 2)).collect();
        assert_eq!(taken(&mut queue).len(), 2);
        assert_eq!(taken(&mut queue).len(), 2);
    }
}
