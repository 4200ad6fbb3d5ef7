//! Closing waits for the broker, on a thread of its own: whoever leaves waits for as long as was said, and a runtime that
//! shuts down not at all, as it would for its own blocking threads.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// Does it, and says whether it was done within this time. It goes on in any case.
pub(crate) async fn close(within: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (tells, closed) = oneshot::channel();
    aside(move || {
        work();
        let _ = tells.send(());
    });
    matches!(tokio::time::timeout(within, closed).await, Ok(Ok(())))
}

/// Does it, and nobody waits. Where there is no thread to be had, it is done here when the work is dropped.
pub(crate) fn aside(work: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().name("semel-kafka-end".to_owned()).spawn(work);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// With a blocking thread of the runtime's this would never end.
    #[test]
    fn a_broker_that_does_not_answer_holds_up_neither_who_leaves_nor_the_runtime() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (answers, answer) = mpsc::channel::<()>();
        let (tells, told) = mpsc::channel();
        let closing = move || tells.send(answer.recv()).unwrap();
        assert!(!runtime.block_on(close(Duration::from_millis(10), closing)));
        drop(runtime);
        answers.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), Ok(()), "it goes on by itself");
    }

    #[tokio::test]
    async fn one_that_answers_is_waited_for() {
        assert!(close(Duration::from_secs(30), || ()).await);
    }
}
