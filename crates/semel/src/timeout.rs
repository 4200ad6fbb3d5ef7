//! Timeouts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

/// The result, or the error of `late` when it takes longer than `limit`.
pub(crate) fn bounded<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
    late: impl FnOnce() -> E,
) -> impl Future<Output = Result<T, E>> {
    tokio::time::timeout(limit, work).map(|done| done.unwrap_or_else(|_| Err(late())))
}

/// The output, if the future is ready at its first poll.
pub(crate) fn at_once<F: Future>(mut future: Pin<&mut F>) -> impl Future<Output = Option<F::Output>> {
    poll_fn(move |cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
}

/// The output, or `None` when it takes longer than `limit`; without a timer when the future is ready at once, which is
/// the usual case. Takes a pinned future because an async function that takes one by value holds it twice.
///
/// A timer costs more than a store in memory, or an answer a cache already has: the clock is read, the timer is made
/// and removed, and the future that may hold it is larger at every level it is moved through. So the future is polled
/// once first, and only then a timer is made, on the heap.
pub(crate) async fn within<F: Future>(limit: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
    if let Some(output) = at_once(future.as_mut()).await {
        return Some(output);
    }
    Box::pin(tokio::time::timeout(limit, future)).await.ok()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_needs_no_time_and_what_is_not_is_bounded() {
        let second = Duration::from_secs(1);
        assert_eq!(within(Duration::ZERO, pin!(async { 7 })).await, Some(7));
        assert_eq!(within(second * 2, pin!(tokio::time::sleep(second))).await, Some(()));
        assert_eq!(within(second, pin!(tokio::time::sleep(second * 2))).await, None);
        assert_eq!(bounded(second, async { Err::<(), _>("done") }, || "late").await, Err("done"));
        assert_eq!(bounded(second, std::future::pending::<Result<(), _>>(), || "late").await, Err("late"));
    }
}
