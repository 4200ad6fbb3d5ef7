//! Combines the requests of many callers into batches for a SQL server.
//!
//! ```text
//!  callers ──▶ queue ──▶ a free connection takes all waiting requests of one kind ──▶ one statement ──▶ answers
//!                ▲                                                              │
//!                └── after a backoff: requests the statement left unanswered ◀──┘
//! ```
//!
//! A commit costs the server a flush and the client a round trip, whatever is in it. While all connections are
//! busy the next requests queue up, and the next free connection takes them all. A lone caller finds a free
//! connection and does not wait.
//!
//! The [`Executor`] writes the statements; this module has the queues, the connections and the bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};

use super::batch::{Batch, Kind, Waiting};
use super::command::{Ask, Command};
use super::connect_backoff::ConnectBackoff;
use super::queue::Queue;
use super::{Claim, Claimed, Decide, Decided, ErrorKind, Fate, Finished, Renewed, StoreError, Ticket};
use crate::backoff::Backoff;
use crate::intent::identity::IntentId;
use crate::store::command::Finishing;

/// Backoff before an unanswered request is executed again.
const RETRY: Backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(16)).jitter(0.5);
/// An unanswered request is given up after this many attempts.
const ATTEMPTS_MAX: u32 = 40;

/// Why a batch failed. Each waiting caller gets it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) fate: Fate,
    pub(super) message: String,
    /// The server's own message.
    pub(super) source: Option<String>,
    /// The connection cannot be used any more.
    pub(super) lost: bool,
    /// One request of the batch may be the cause, so each is worth a try on its own.
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

/// Executes batches on one kind of server.
///
/// Each of the four methods gets requests of one kind, sorted by id, each id once (claims: see
/// [`CLAIMS_MAY_REPEAT`](Self::CLAIMS_MAY_REPEAT)). It answers each request it has settled durably, or sets an error
/// that concerns this request alone, with its fate. Requests left without either were not applied; they are
/// executed again shortly after, with [`Ask::attempts`] one higher. If the method returns an error, the answers it has
/// set do not count.
pub(super) trait Executor: Send + Sync + 'static {
    /// A connection to the server.
    type Connection: Send;

    /// Whether a batch may hold several claims of one id. Callers that claim the same intent are then answered
    /// together instead of one after the other.
    const CLAIMS_MAY_REPEAT: bool;

    /// Opens a connection, with a timeout of its own. If it fails, nothing was applied.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Whether anything can still be sent. A request sent on a connection known to be closed would be in doubt
    /// without need.
    fn is_open(&self, connection: &Self::Connection) -> bool;

    fn claims(
        &self,
        connection: &mut Self::Connection,
        asks: &mut [Ask<Claim, Claimed>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    fn finishes(
        &self,
        connection: &mut Self::Connection,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    fn renews(
        &self,
        connection: &mut Self::Connection,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Records a decision. Always one at a time: decisions are few, and made by people.
    fn decides(
        &self,
        connection: &mut Self::Connection,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Bounds of a [`Coalescer`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections that carry batches.
    pub(super) connections: usize,
    pub(super) batch_max: usize,
    /// Requests that may wait.
    pub(super) queue_max: usize,
    /// How long a caller waits for room in the queue.
    pub(super) queue_wait: Duration,
}

enum Work {
    Command(Box<Command>),
    /// Accept nothing more, and end when everything is answered.
    Close,
}

/// The callers' handle. Its tasks live on the runtime it was started on; dropping it closes the connections once all
/// is answered.
pub(super) struct Coalescer {
    queue: Queue<Work>,
    ended: watch::Receiver<()>,
}

impl Coalescer {
    /// Starts a task per connection. The first may get an open one; the others connect when needed.
    pub(super) fn start<E: Executor>(executor: Arc<E>, first: Option<E::Connection>, bounds: Bounds) -> Self {
        let (queue, requests) = Queue::new(bounds.queue_max, bounds.queue_wait);
        let (retries, to_retry) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(());
        let shared = Arc::new(Shared {
            executor,
            bounds,
            intake: Mutex::new(Intake {
                requests,
                retries: to_retry,
                waiting: Waiting::default(),
                closed: false,
            }),
            retries,
            retries_pending: AtomicUsize::new(0),
            connect_backoff: ConnectBackoff::default(),
            _end: end,
        });
        let mut first = first;
        for _ in 0..bounds.connections.max(1) {
            tokio::spawn(run(Arc::clone(&shared), first.take()));
        }
        Self { queue, ended }
    }

    /// Queues a request and waits for its answer.
    pub(super) async fn ask<Q, A>(
        &self,
        request: Q,
        kind: impl FnOnce(Ask<Q, A>) -> Command,
    ) -> Result<A, StoreError> {
        self.queue.ask(|reply| Work::Command(Box::new(kind(Ask::new(request, reply))))).await
    }

    /// Drains: accepts nothing more, and returns when everything asked before is answered.
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
    /// Requests to execute again. Bounded by what the queue let in.
    retries: mpsc::UnboundedSender<Command>,
    retries_pending: AtomicUsize,
    connect_backoff: ConnectBackoff,
    /// Dropped with the last connection's task.
    _end: watch::Sender<()>,
}

/// Waiting requests. One task at a time locks it.
struct Intake {
    requests: mpsc::Receiver<Work>,
    retries: mpsc::UnboundedReceiver<Command>,
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

    /// Takes in the requests that have already arrived, as long as there is room.
    fn gather(&mut self, room: usize, retries_pending: &AtomicUsize) {
        while let Ok(command) = self.retries.try_recv() {
            retries_pending.fetch_sub(1, Ordering::SeqCst);
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

/// One connection's task, until the store is closed or dropped and everything asked before is answered.
async fn run<E: Executor>(shared: Arc<Shared<E>>, mut connection: Option<E::Connection>) {
    while let Some(batch) = shared.next().await {
        match batch {
            Batch::Claims(asks) => shared.execute::<super::batch::Claims>(&mut connection, asks).await,
            Batch::Finishes(asks) => shared.execute::<super::batch::Finishes>(&mut connection, asks).await,
            Batch::Renews(asks) => shared.execute::<super::batch::Renews>(&mut connection, asks).await,
            Batch::Decides(asks) => shared.execute::<super::batch::Decides>(&mut connection, asks).await,
        }
    }
}

impl<E: Executor> Shared<E> {
    async fn next(&self) -> Option<Batch> {
        let mut intake = self.intake.lock().await;
        let intake = &mut *intake;
        loop {
            intake.gather(self.bounds.queue_max, &self.retries_pending);
            if let Some(batch) = intake.waiting.take(self.bounds.batch_max, E::CLAIMS_MAY_REPEAT) {
                return Some(batch);
            }
            if intake.closed && self.retries_pending.load(Ordering::SeqCst) == 0 {
                return None;
            }
            tokio::select! {
                biased;
                Some(command) = intake.retries.recv() => {
                    self.retries_pending.fetch_sub(1, Ordering::SeqCst);
                    intake.waiting.put(command);
                }
                work = intake.requests.recv(), if !intake.closed => intake.accept(work),
            }
        }
    }

    async fn execute<K: Kind<E>>(&self, current: &mut Option<E::Connection>, mut asks: Vec<Ask<K::Q, K::A>>) {
        let connection = match self.connected(current).await {
            Ok(connection) => connection,
            Err(failure) => return refuse_all(asks, &failure),
        };
        let Err(failure) = K::run(&self.executor, connection, &mut asks).await else {
            return asks.into_iter().for_each(|ask| self.settle::<K>(ask));
        };
        if failure.lost {
            *current = None;
        }
        // Requests that may have been applied are not retried here: their caller decides whether to ask again.
        if !failure.of_one || failure.fate != Fate::NotApplied || asks.len() == 1 {
            return refuse_all(asks, &failure);
        }
        for ask in asks {
            self.execute_alone::<K>(current, ask).await;
        }
    }

    /// One request of a failed batch on its own, so that a bad request fails alone.
    async fn execute_alone<K: Kind<E>>(&self, current: &mut Option<E::Connection>, mut ask: Ask<K::Q, K::A>) {
        ask.answer = None;
        let connection = match self.connected(current).await {
            Ok(connection) => connection,
            Err(failure) => return ask.refuse(failure.error()),
        };
        match K::run(&self.executor, connection, std::slice::from_mut(&mut ask)).await {
            Ok(()) => self.settle::<K>(ask),
            Err(failure) => {
                if failure.lost {
                    *current = None;
                }
                ask.refuse(failure.error());
            }
        }
    }

    fn settle<K: Kind<E>>(&self, mut ask: Ask<K::Q, K::A>) {
        if ask.answer.is_some() {
            return ask.send_answer();
        }
        ask.attempts += 1;
        if ask.attempts >= ATTEMPTS_MAX {
            ask.answer = Some(K::given_up(&ask.request));
            return ask.send_answer();
        }
        let attempts = ask.attempts;
        let command = K::command(ask);
        self.retries_pending.fetch_add(1, Ordering::SeqCst);
        if attempts == 1 {
            // Most often it lost a race, and the row exists now.
            let _ = self.retries.send(command);
            return;
        }
        let retries = self.retries.clone();
        tokio::spawn(async move {
            tokio::time::sleep(RETRY.delay(attempts)).await;
            let _ = retries.send(command);
        });
    }

    /// The current connection, or a new one. While the server is down, only the task that tries to connect waits.
    async fn connected<'a>(
        &self,
        current: &'a mut Option<E::Connection>,
    ) -> Result<&'a mut E::Connection, Failure> {
        let connection = match current.take().filter(|connection| self.executor.is_open(connection)) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(current.insert(connection))
    }

    async fn connect(&self) -> Result<E::Connection, Failure> {
        if let Some(failure) = self.connect_backoff.recent_failure() {
            return Err(failure);
        }
        let connected = self.executor.connect().await;
        let connection = connected.map_err(|failure| self.connect_backoff.record_failure(failure))?;
        self.connect_backoff.reset();
        Ok(connection)
    }
}

fn refuse_all<Q, A>(asks: Vec<Ask<Q, A>>, failure: &Failure) {
    for ask in asks {
        ask.refuse(failure.error());
    }
}

/// The error of a request that found its row locked, or changed meanwhile, too many times.
pub(super) fn given_up() -> StoreError {
    let message = "another transaction holds the record; retry later, or end that transaction";
    StoreError::new(ErrorKind::Busy, Fate::NotApplied, message)
}

#[cfg(test)]
#[path = "coalesce_tests.rs"]
mod tests;
