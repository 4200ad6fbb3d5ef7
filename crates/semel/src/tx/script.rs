//! What is written once over every driver: a script that asks for statements and knows no driver.
//!
//! A script is an ordinary `async fn` that is given a [`Port`]. It asks the port for rows; whoever plays it
//! carries the statement out in the caller's transaction and hands the rows back. An asynchronous driver
//! plays it with [`play`], rusqlite with `play_now`, on the caller's thread. The script never holds the
//! transaction, so it is `Send` whatever the driver's types are.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::driver::{Dialect, DriverError, DriverErrorKind, Rows, Sql, Statement, Tx, Value};

/// What a script asks of its player.
pub(crate) enum Wish {
    Run(Statement),
    Pause(Duration),
}

enum Slot {
    Idle,
    Wished(Wish),
    /// Taken by the player, not answered yet.
    Taken,
    Answered(Result<Rows, DriverError>),
}

/// A script's way to the database.
#[derive(Clone)]
pub(crate) struct Port {
    dialect: Dialect,
    slot: Arc<Mutex<Slot>>,
}

impl Port {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, slot: Arc::new(Mutex::new(Slot::Idle)) }
    }

    /// What SQL the other side speaks.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Runs a statement in the caller's transaction. One at a time.
    pub(crate) async fn run(&self, sql: &Sql, values: Vec<Value>) -> Result<Rows, DriverError> {
        let text = sql.text(self.dialect);
        self.wish(Wish::Run(Statement { text, values })).await
    }

    /// Waits without touching the database.
    pub(crate) async fn pause(&self, pause: Duration) {
        let _ = self.wish(Wish::Pause(pause)).await;
    }

    async fn wish(&self, wish: Wish) -> Result<Rows, DriverError> {
        *self.slot() = Slot::Wished(wish);
        poll_fn(|_| {
            let mut slot = self.slot();
            match std::mem::replace(&mut *slot, Slot::Idle) {
                Slot::Answered(answer) => Poll::Ready(answer),
                // The player polls again as soon as it has the answer; nobody needs to be woken.
                unanswered => {
                    *slot = unanswered;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// For players: what the script wants, if it wants something.
    fn take(&self) -> Option<Wish> {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Wished(wish) => Some(wish),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// For players: what the statement gave.
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

    /// Polls the script until it has ended or wishes for something.
    fn poll<F: Future>(
        &self,
        script: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Wish>> {
        match script.poll(context) {
            Poll::Ready(ended) => Poll::Ready(Ok(ended)),
            Poll::Pending => match self.take() {
                Some(wish) => Poll::Ready(Err(wish)),
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
            Err(Wish::Run(statement)) => {
                let answer = tx.run(statement).await;
                port.answer(answer);
            }
            Err(Wish::Pause(pause)) => {
                tokio::time::sleep(pause).await;
                port.paused();
            }
        }
    }
}

/// For a player without a runtime: the script's end or its next wish, on this thread.
#[cfg(feature = "sqlite")]
pub(crate) fn wait_here<F: Future>(port: &Port, mut script: Pin<&mut F>) -> Result<F::Output, Wish> {
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
