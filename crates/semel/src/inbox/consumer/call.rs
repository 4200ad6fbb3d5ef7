//! One call of other people's code.

use std::future::Future;
use std::time::Duration;

use super::handler::HandlerError;

pub(in crate::inbox) enum Called<T> {
    Done(T),
    Failed(HandlerError),
    /// It panicked: what it did is not known.
    Broke(HandlerError),
    TooLong(HandlerError),
}

/// One call, in a task of its own: what panics or hangs there fails, and nothing else. Dropped or too long, it
/// is broken off where it next waits for something.
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
        Ok(Err(broken)) => Called::Broke(HandlerError::retry(format!("{who} broke off: {broken}"))),
        Err(_) => Called::TooLong(HandlerError::retry(format!("{who} took longer than {limit:?}"))),
    }
}

/// A task that ends with whoever wants it.
pub(super) struct AbortOnDrop(pub(super) tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
