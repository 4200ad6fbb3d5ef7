//! Work that runs in its caller's task, and goes on in one of its own when the caller leaves.
//!
//! A task of its own from the start costs a hop to it and one back. Where the caller is known to go on polling
//! until it gets its answer or is dropped (an HTTP server does), both can be saved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Spawn;

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls the work; if dropped before the work has ended, hands it over to be run to its end.
pub(super) struct Attached<T: Send + 'static> {
    task: Option<Task<T>>,
    spawner: Arc<dyn Spawn>,
}

impl<T: Send + 'static> Attached<T> {
    pub(super) fn new(task: Task<T>, spawner: Arc<dyn Spawn>) -> Self {
        Self { task: Some(task), spawner }
    }
}

impl<T: Send + 'static> Future for Attached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(task) = &mut self.task else { return Poll::Pending };
        let polled = task.as_mut().poll(context);
        if polled.is_ready() {
            self.task = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Attached<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.spawner.spawn(Box::pin(async move { drop(task.await) }));
        }
    }
}
