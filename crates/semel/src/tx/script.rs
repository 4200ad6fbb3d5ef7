//! Logic written once for every driver: a script that asks for statements and knows no driver.
//!
//! A script is an ordinary `async fn` with a [`Port`]. It asks the port for rows; its player runs the statement in
//! the caller's transaction and hands the rows back. An asynchronous driver plays it with [`play`], rusqlite with
//! `play_now`, on the caller's thread. The script never holds the transaction, so it is `Send` whatever the driver's
//! types are.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::driver::{Dialect, DriverError, DriverErrorKind, Rows, Sql, Statement, Tx, Value};

/// What a script asks of its player.
pub(crate) enum Request {
    Run(Statement),
    Pause(Duration),
}

enum Slot {
    Idle,
    Requested(Request),
    /// Taken by the player, not answered yet.
    Taken,
    Answered(Result<Rows, DriverError>),
}

/// A script's access to the database.
#[derive(Clone)]
pub(crate) struct Port {
    dialect: Dialect,
    slot: Arc<Mutex<Slot>>,
}

impl Port {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, slot: Arc::new(Mutex::new(Slot::Idle)) }
    }

    /// The SQL dialect of the other side.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Runs a statement in the caller's transaction. One at a time.
    pub(crate) async fn run(&self, sql: &Sql, values: Vec<Value>) -> Result<Rows, DriverError> {
        let text = sql.text(self.dialect);
        self.request(Request::Run(Statement { text, values })).await
    }

    /// Waits without touching the database.
    pub(crate) async fn pause(&self, pause: Duration) {
        let _ = self.request(Request::Pause(pause)).await;
    }

    async fn request(&self, request: Request) -> Result<Rows, DriverError> {
        *self.slot() = Slot::Requested(request);
        poll_fn(|_| {
            let mut slot = self.slot();
            match std::mem::replace(&mut *slot, Slot::Idle) {
                Slot::Answered(answer) => Poll::Ready(answer),
                // The player polls again as soon as it has the answer; no waker is needed.
                unanswered => {
                    *slot = unanswered;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// For players: the script's next request, if there is one.
    fn take(&self) -> Option<Request> {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Requested(request) => Some(request),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// For players: the result of the statement.
    pub(crate) fn answer(&self, answer: Result<Rows, DriverError>) {
        *self.slot() = Slot::Answered(answer);
    }

    /// For players: the pause is over.
    pub(crate) fn paused(&self) {
        self.answer(Ok(Rows::default()));
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the script until it has ended or requests something.
    fn poll<F: Future>(
        &self,
        script: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Request>> {
        match script.poll(context) {
            Poll::Ready(ended) => Poll::Ready(Ok(ended)),
            Poll::Pending => match self.take() {
                Some(request) => Poll::Ready(Err(request)),
                None => Poll::Pending,
            },
        }
    }
}

/// Plays a script in the caller's transaction.
pub(crate) async fn play<X, T, F>(tx: &mut X, script: impl FnOnce(Port) -> F) -> Result<T, DriverError>
where
    X: Tx,
    F: Future<Output = T>,
{
    if !tx.is_open() {
        let message = "no transaction is open on this connection; begin one with the driver's own `begin`";
        return Err(DriverError::new(DriverErrorKind::NoTransaction, message));
    }
    let port = Port::new(X::DIALECT);
    let mut script = std::pin::pin!(script(port.clone()));
    loop {
        let polled = poll_fn(|context| port.poll(script.as_mut(), context)).await;
        match polled {
            Ok(ended) => return Ok(ended),
            Err(Request::Run(statement)) => {
                let answer = tx.run(statement).await;
                port.answer(answer);
            }
            Err(Request::Pause(pause)) => {
                tokio::time::sleep(pause).await;
                port.paused();
            }
        }
    }
}

/// For a player without a runtime: the script's end or its next request, on this thread.
#[cfg(feature = "sqlite")]
pub(crate) fn wait_here<F: Future>(port: &Port, mut script: Pin<&mut F>) -> Result<F::Output, Request> {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        match port.poll(script.as_mut(), &mut context) {
            Poll::Ready(reached) => return reached,
            Poll::Pending => std::thread::park(),
        }
    }
}
