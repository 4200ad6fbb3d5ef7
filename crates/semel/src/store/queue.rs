//! The bounded queue of requests, in front of SQLite's threads or a SQL server's connections.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::command::Reply;
use super::{ErrorKind, Fate, StoreError};

pub(super) struct Queue<T> {
    sender: mpsc::Sender<T>,
    wait: Duration,
}

impl<T> Queue<T> {
    pub(super) fn new(requests_max: usize, wait: Duration) -> (Self, mpsc::Receiver<T>) {
        let (sender, receiver) = mpsc::channel(requests_max);
        (Self { sender, wait }, receiver)
    }

    /// Queues a request and waits for its answer. If the caller stops waiting, the request is still carried out, or
    /// not; other callers do not notice.
    pub(super) async fn ask<A>(&self, request: impl FnOnce(Reply<A>) -> T) -> Result<A, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.put(request(reply)).await?;
        answer.await.unwrap_or_else(|_| Err(answer_lost()))
    }

    async fn put(&self, request: T) -> Result<(), StoreError> {
        match self.sender.try_send(request) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(closed()),
            // Only here is a timer needed: a runtime without one works until the queue is full.
            Err(TrySendError::Full(request)) => {
                match tokio::time::timeout(self.wait, self.sender.send(request)).await {
                    Ok(sent) => sent.map_err(|_| closed()),
                    Err(_) => Err(queue_full(self.sender.max_capacity())),
                }
            }
        }
    }

    pub(super) async fn put_last(&self, request: T) {
        let _ = self.sender.send(request).await;
    }
}

/// The thread or task that had the request ended without an answer.
pub(crate) fn answer_lost() -> StoreError {
    let message = "the store stopped working in the middle of a request; restart the process";
    StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
}

/// The store accepts no more requests.
pub(super) fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, Fate::NotApplied, "the store is closed; open it again")
}

/// A queue was full for too long.
pub(crate) fn queue_full(requests: usize) -> StoreError {
    let message = format!("{requests} requests are waiting for the store; retry later, or send fewer");
    StoreError::new(ErrorKind::Busy, Fate::NotApplied, message)
}
