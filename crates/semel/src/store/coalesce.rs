//! Requests of many callers, carried to a SQL server together.
//!
//! ```text
//!  callers ──▶ queue ──▶ whichever lane is free takes all that wait, of one kind ──▶ one statement ──▶ answers
//!                ▲                                                      │
//!                └── a little later: those the statement left unanswered ┘
//! ```
//!
//! A commit costs the server a flush and the client a round trip, whatever is in it. While the lanes are on
//! their way the next requests queue up, and the next free lane takes them all. A lone caller finds a free
//! lane and waits for nobody.
//!
//! What a statement looks like is the [`Executor`]'s business; this module knows queues, lanes and bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};

use super::batch::{Batch, Kind, Waiting};
use super::command::{Ask, Command};
use super::connect_backoff::Outage;
use super::queue::Queue;
use super::{Claim, Claimed, Decide, Decided, ErrorKind, Fate, Finished, Renewed, StoreError, Ticket};
use crate::intent::identity::IntentId;
use crate::store::command::Finishing;

/// Pause before a request without an answer is carried out again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_micros(500);
const AGAIN_MAX: Duration = Duration::from_millis(16);
/// How often a request is carried out before its lack of an answer is the answer.
const TRIES_MAX: u32 = 40;

/// Why a batch was not carried out. Said to each who waits.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) fate: Fate,
    pub(super) message: String,
    /// The server's own words.
    pub(super) source: Option<String>,
    /// The lane is of no use any more.
    pub(super) lost: bool,
    /// It may be about one request of the batch; the others deserve another try.
    pub(super) of_one: bool,
}

impl Failure {
    pub(super) fn error(&self) -> StoreError {
        let error = StoreError::new(self.kind, self.fate, self.message.clone());
        match &self.source {
            Some(source) => error.with_source(source.clone()),
            None => error,
        }
    }
}

/// Carries out batches on one kind of server.
///
/// Each of the four is given requests of one kind, sorted by id, and each id once (claims: see
/// [`CLAIMS_MAY_REPEAT`](Self::CLAIMS_MAY_REPEAT)). It puts an answer into each it settled, durably, or an
/// error that is this one's alone, with its fate; those without either were not applied, and are given again a
/// little later, with [`Ask::tries`] one higher. On an error of the batch nothing it put there counts.
pub(super) trait Executor: Send + Sync + 'static {
    /// A connection.
    type Lane: Send;

    /// Whether a batch may hold several claims of one id. Callers that all want the same thing are then
    /// answered together and not one after the other.
    const CLAIMS_MAY_REPEAT: bool;

    /// Opens a connection, within a bound of its own. Nothing was applied when it fails.
    fn connect(&self) -> impl Future<Output = Result<Self::Lane, Failure>> + Send;

    /// Whether anything can still be sent. What is sent on a lane known to be closed would be in doubt for
    /// nothing.
    fn is_open(&self, lane: &Self::Lane) -> bool;

    /// Claims.
    fn claims(
        &self,
        lane: &mut Self::Lane,
        asks: &mut [Ask<Claim, Claimed>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Records outcomes.
    fn finishes(
        &self,
        lane: &mut Self::Lane,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Extends leases.
    fn renews(
        &self,
        lane: &mut Self::Lane,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Records a decision. Always given one at a time: decisions are few, and people's.
    fn decides(
        &self,
        lane: &mut Self::Lane,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Bounds of a [`Coalescer`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections that carry batches.
    pub(super) lanes: usize,
    /// Requests in one batch.
    pub(super) batch_max: usize,
    /// Requests that may wait.
    pub(super) queue_max: usize,
    /// How long a caller waits for room in the queue.
    pub(super) queue_wait: Duration,
}

enum Work {
    Command(Box<Command>),
    /// Take nothing more, and end when everything is answered.
    Close,
}

/// The callers' end. Lives on the runtime it was started on; dropping it ends the lanes once all is answered.
pub(super) struct Coalescer {
    queue: Queue<Work>,
    ended: watch::Receiver<()>,
}

impl Coalescer {
    /// Starts the lanes. The first may bring its connection; the others connect when they are needed.
    pub(super) fn start<E: Executor>(executor: Arc<E>, first: Option<E::Lane>, bounds: Bounds) -> Self {
        let (queue, requests) = Queue::new(bounds.queue_max, bounds.queue_wait);
        let (again, to_do_again) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(());
        let shared = Arc::new(Shared {
            executor,
            bounds,
            intake: Mutex::new(Intake {
                requests,
                again: to_do_again,
                waiting: Waiting::default(),
                closed: false,
            }),
            again,
            to_come_again: AtomicUsize::new(0),
            outage: Outage::default(),
            _end: end,
        });
        let mut first = first;
        for _ in 0..bounds.lanes.max(1) {
            tokio::spawn(run(Arc::clone(&shared), first.take()));
        }
        Self { queue, ended }
    }

    /// Hands over a request and waits for its answer.
    pub(super) async fn ask<Q, A>(
        &self,
        request: Q,
        kind: impl FnOnce(Ask<Q, A>) -> Command,
    ) -> Result<A, StoreError> {
        self.queue.ask(|reply| Work::Command(Box::new(kind(Ask::new(request, reply))))).await
    }

    /// Takes nothing more, and returns when everything asked before is answered.
    pub(super) async fn close(&self) {
        self.queue.put_last(Work::Close).await;
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

struct Shared<E> {
    executor: Arc<E>,
    bounds: Bounds,
    intake: Mutex<Intake>,
    /// Back into the queue, bounded by what was in it.
    again: mpsc::UnboundedSender<Command>,
    to_come_again: AtomicUsize,
    outage: Outage,
    /// Dropped with the last lane.
    _end: watch::Sender<()>,
}

/// What waits. One lane at a time looks at it.
struct Intake {
    requests: mpsc::Receiver<Work>,
    again: mpsc::UnboundedReceiver<Command>,
    waiting: Waiting,
    closed: bool,
}

impl Intake {
    fn accept(&mut self, work: Option<Work>) {
        match work {
            Some(Work::Command(command)) => self.waiting.put(*command),
            Some(Work::Close) => self.requests.close(),
            None => self.closed = true,
        }
    }

    /// Takes in what is there already, as long as there is room.
    fn gather(&mut self, room: usize, to_come_again: &AtomicUsize) {
        while let Ok(command) = self.again.try_recv() {
            to_come_again.fetch_sub(1, Ordering::SeqCst);
            self.waiting.put(command);
        }
        while self.waiting.len() < room {
            match self.requests.try_recv() {
                Ok(work) => self.accept(Some(work)),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.closed = true;
                    break;
                }
            }
        }
    }
}

/// A lane's life, until the store is closed or dropped, and what was asked before that is answered.
async fn run<E: Executor>(shared: Arc<Shared<E>>, mut lane: Option<E::Lane>) {
    while let Some(batch) = shared.next().await {
        match batch {
            Batch::Claims(asks) => shared.carry::<super::batch::Claims>(&mut lane, asks).await,
            Batch::Finishes(asks) => shared.carry::<super::batch::Finishes>(&mut lane, asks).await,
            Batch::Renews(asks) => shared.carry::<super::batch::Renews>(&mut lane, asks).await,
            Batch::Decides(asks) => shared.carry::<super::batch::Decides>(&mut lane, asks).await,
        }
    }
}

impl<E: Executor> Shared<E> {
    async fn next(&self) -> Option<Batch> {
        let mut intake = self.intake.lock().await;
        let intake = &mut *intake;
        loop {
            intake.gather(self.bounds.queue_max, &self.to_come_again);
            if let Some(batch) = intake.waiting.take(self.bounds.batch_max, E::CLAIMS_MAY_REPEAT) {
                return Some(batch);
            }
            if intake.closed && self.to_come_again.load(Ordering::SeqCst) == 0 {
                return None;
            }
            tokio::select! {
                biased;
                Some(command) = intake.again.recv() => {
                    self.to_come_again.fetch_sub(1, Ordering::SeqCst);
                    intake.waiting.put(command);
                }
                work = intake.requests.recv(), if !intake.closed => intake.accept(work),
            }
        }
    }

    async fn carry<K: Kind<E>>(&self, lane: &mut Option<E::Lane>, mut asks: Vec<Ask<K::Q, K::A>>) {
        let connection = match self.connected(lane).await {
            Ok(connection) => connection,
            Err(failure) => return refuse_all(asks, &failure),
        };
        let Err(failure) = K::run(&self.executor, connection, &mut asks).await else {
            return asks.into_iter().for_each(|ask| self.settle::<K>(ask));
        };
        if failure.lost {
            *lane = None;
        }
        // What may have been applied is not repeated by machinery; the one who asked knows how to ask again.
        if !failure.of_one || failure.fate != Fate::NotApplied || asks.len() == 1 {
            return refuse_all(asks, &failure);
        }
        for ask in asks {
            self.carry_alone::<K>(lane, ask).await;
        }
    }

    /// One request of a batch that failed: one bad one fails alone.
    async fn carry_alone<K: Kind<E>>(&self, lane: &mut Option<E::Lane>, mut ask: Ask<K::Q, K::A>) {
        ask.answer = None;
        let connection = match self.connected(lane).await {
            Ok(connection) => connection,
            Err(failure) => return ask.refuse(failure.error()),
        };
        match K::run(&self.executor, connection, std::slice::from_mut(&mut ask)).await {
            Ok(()) => self.settle::<K>(ask),
            Err(failure) => {
                if failure.lost {
                    *lane = None;
                }
                ask.refuse(failure.error());
            }
        }
    }

    fn settle<K: Kind<E>>(&self, mut ask: Ask<K::Q, K::A>) {
        if ask.answer.is_some() {
            return ask.tell();
        }
        ask.tries += 1;
        if ask.tries >= TRIES_MAX {
            ask.answer = Some(K::given_up(&ask.request));
            return ask.tell();
        }
        let pause = AGAIN_MIN.saturating_mul(1 << ask.tries.min(10)).min(AGAIN_MAX) / 2;
        let first = ask.tries == 1;
        let command = K::command(ask);
        self.to_come_again.fetch_add(1, Ordering::SeqCst);
        if first {
            // Most often a lost race: the row is there now.
            let _ = self.again.send(command);
            return;
        }
        let again = self.again.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause + pause.mul_f64(fastrand::f64())).await;
            let _ = again.send(command);
        });
    }

    /// The lane's connection, a new one if need be. While a server cannot be reached, nobody waits for it
    /// longer than the one who tries.
    async fn connected<'a>(&self, lane: &'a mut Option<E::Lane>) -> Result<&'a mut E::Lane, Failure> {
        let connection = match lane.take().filter(|lane| self.executor.is_open(lane)) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(lane.insert(connection))
    }

    async fn connect(&self) -> Result<E::Lane, Failure> {
        if let Some(failure) = self.outage.told() {
            return Err(failure);
        }
        let connection = self.executor.connect().await.map_err(|failure| self.outage.goes_on(failure))?;
        self.outage.is_over();
        Ok(connection)
    }
}

fn refuse_all<Q, A>(asks: Vec<Ask<Q, A>>, failure: &Failure) {
    for ask in asks {
        ask.refuse(failure.error());
    }
}

/// What is said when a request found its row locked, or changed under it, so often that it is given up.
pub(super) fn given_up() -> StoreError {
    let message = "another transaction holds the record; retry later, or end that transaction";
    StoreError::new(ErrorKind::Busy, Fate::NotApplied, message)
}

#[cfg(test)]
#[path = "coalesce_tests.rs"]
mod tests;
