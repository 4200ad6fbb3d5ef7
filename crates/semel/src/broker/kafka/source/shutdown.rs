//! Closes a client on a thread of its own, because closing waits for the broker. The caller waits up to a timeout. A
//! runtime that shuts down does not wait, as it would for its own blocking threads.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// Runs `work`, and returns whether it ended in time. It goes on in any case.
pub(crate) async fn close(within: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (sender, closed) = oneshot::channel();
    on_own_thread(move || {
        work();
        let _ = sender.send(());
    });
    matches!(tokio::time::timeout(within, closed).await, Ok(Ok(())))
}

/// Runs `work` without waiting. If no thread can be started, dropping the closure closes the client here.
pub(crate) fn on_own_thread(work: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().name("semel-kafka-end".to_owned()).spawn(work);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// With one of the runtime's blocking threads this would never end.
    #[test]
    fn a_broker_that_does_not_answer_holds_up_neither_who_leaves_nor_the_runtime() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (answers, answer) = mpsc::channel::<()>();
        let (sender, closed) = mpsc::channel();
        let closing = move || sender.send(answer.recv()).unwrap();
        assert!(!runtime.block_on(close(Duration::from_millis(10), closing)));
        drop(runtime);
        answers.send(()).unwrap();
        assert_eq!(closed.recv().unwrap(), Ok(()), "it goes on by itself");
    }

    #[tokio::test]
    async fn one_that_answers_is_waited_for() {
        assert!(close(Duration::from_secs(30), || ()).await);
    }
}
