//! One call of user code, with its timeout.

use std::future::Future;
use std::time::Duration;

use super::handler::HandlerError;

pub(in crate::inbox) enum Called<T> {
    Done(T),
    Failed(HandlerError),
    /// Its effect is unknown.
    Panicked(HandlerError),
    TimedOut(HandlerError),
}

/// One call, in a task of its own: a panic or a hang fails this call only. When dropped or timed out, the task is
/// aborted at its next await.
pub(in crate::inbox) async fn call<T: Send + 'static>(
    who: &str,
    work: impl Future<Output = Result<T, HandlerError>> + Send + 'static,
    limit: Duration,
) -> Called<T> {
    let mut task = tokio::spawn(work);
    let _abort = AbortOnDrop(task.abort_handle());
    match tokio::time::timeout(limit, &mut task).await {
        Ok(Ok(Ok(done))) => Called::Done(done),
        Ok(Ok(Err(failed))) => Called::Failed(failed),
        Ok(Err(panicked)) => {
            Called::Panicked(HandlerError::retry(format!("{who} did not finish: {panicked}")))
        }
        Err(_) => Called::TimedOut(HandlerError::retry(format!("{who} took longer than {limit:?}"))),
    }
}

/// Aborts its task when dropped.
pub(super) struct AbortOnDrop(pub(super) tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
