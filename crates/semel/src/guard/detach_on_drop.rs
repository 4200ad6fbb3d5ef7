//! Work that runs in its caller's task, and moves to a task of its own when the caller is dropped (cancelled).
//!
//! Spawning a task from the start costs a hop to it and one back. A caller that polls until it has its answer or
//! is dropped, as an HTTP server does, can save both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Spawn;

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls the work. If dropped before the work has ended, spawns it so that it runs to its end.
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
