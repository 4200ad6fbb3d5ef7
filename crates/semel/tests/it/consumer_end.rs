//! How a consumer ends: what is under way is not thrown away with the source, nor the other way round.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::inbox::consumer::{Consumer, ConsumerOptions, Handler, HandlerError, Message};
use semel::source::memory::{MemoryQueue, MemorySource};
use semel::source::{Delivery, Receipt, Settle, Source, SourceError};
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);

/// What a source is made to say, and what it was asked.
#[derive(Default)]
struct Says {
    no_receive: AtomicBool,
    no_keep: AtomicBool,
    refused: Notify,
    /// Asked for messages.
    asked: AtomicUsize,
    /// Handlers there were when it was left.
    handlers_at_leave: Mutex<Option<usize>>,
    poll_interval: Duration,
}

impl Says {
    fn refuse(&self, refuse: &AtomicBool) -> Result<(), SourceError> {
        if !refuse.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.refused.notify_waiters();
        self.refused.notify_one();
        Err(SourceError::for_good("the queue is gone"))
    }
}

/// A source that fails where `Says` asks for it, and the handler's calls it looks at.
struct FailingSource(MemorySource, Arc<Says>, Work);

impl Source for FailingSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        self.1.refuse(&self.1.no_receive)?;
        self.1.asked.fetch_add(1, Ordering::SeqCst);
        self.0.receive(most, wait).await
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.0.settle(settled).await
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.1.refuse(&self.1.no_keep)?;
        self.0.keep(held).await
    }

    fn renew_after(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn poll_interval(&self) -> Duration {
        self.1.poll_interval
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        *self.1.handlers_at_leave.lock().unwrap() = Some(self.2.under_way.load(Ordering::SeqCst));
        self.0.leave().await
    }
}

/// Does what the payload says.
#[derive(Clone, Default)]
struct Work {
    says: Arc<Says>,
    begun: Arc<Notify>,
    go: Arc<Notify>,
    done: Arc<Mutex<Vec<String>>>,
    under_way: Arc<AtomicUsize>,
}

/// Counts a call until its future is gone.
struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler for Work {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(Arc::clone(&self.under_way));
        for message in messages {
            let text = String::from_utf8(message.payload().to_vec()).unwrap();
            self.begun.notify_one();
            match text.as_str() {
                "until refused" => self.says.refused.notified().await,
                "until released" => self.go.notified().await,
                "for ever" => pending().await,
                _ => {}
            }
            self.done.lock().unwrap().push(text);
        }
        Ok(())
    }
}

impl Work {
    fn consumer(
        &self,
        queue: &MemoryQueue,
        options: fn(ConsumerOptions) -> ConsumerOptions,
    ) -> Consumer<FailingSource, Self> {
        let source = FailingSource(queue.source(), Arc::clone(&self.says), self.clone());
        Consumer::new("mail", source, self.clone(), options(ConsumerOptions::default().batch_max(1)))
    }

    async fn has_done(&self, calls: usize) {
        let done = async {
            while self.done.lock().unwrap().len() < calls {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.expect("it is never done");
    }
}

fn queue(texts: &[&str]) -> MemoryQueue {
    let queue = MemoryQueue::with_lease("payments", Duration::from_secs(3_600));
    for text in texts {
        queue.push(Some(text), &[("semel-id", text)], (*text).to_owned());
    }
    queue
}

#[tokio::test]
async fn a_source_that_fails_for_good_does_not_break_off_what_is_under_way() {
    let (queue, work) = (queue(&["until refused"]), Work::default());
    let run = tokio::spawn(work.consumer(&queue, |options| options).run());
    work.begun.notified().await;
    work.says.no_receive.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(PATIENCE, run).await.expect("it never ends").unwrap();
    assert_eq!(ended.unwrap_err().to_string(), "the queue is gone");
    assert_eq!(*work.done.lock().unwrap(), ["until refused"]);
    assert!(queue.is_empty(), "it was not acked");
}

#[tokio::test]
async fn and_does_not_wait_for_ever_for_it() {
    let (queue, work) = (queue(&["for ever"]), Work::default());
    let consumer = work.consumer(&queue, |options| options.drain_timeout(Duration::from_millis(20)));
    let run = tokio::spawn(consumer.run());
    work.begun.notified().await;
    work.says.no_receive.store(true, Ordering::SeqCst);
    assert!(tokio::time::timeout(PATIENCE, run).await.expect("it never ends").unwrap().is_err());
    assert_eq!(queue.source().receive(1, Duration::ZERO).await.unwrap().len(), 1, "it is given back");
}

#[tokio::test]
async fn what_has_ended_is_settled_although_the_source_cannot_be_kept_any_more() {
    let (queue, work) = (queue(&["until released", "until refused"]), Work::default());
    let consumer = work.consumer(&queue, |options| options);
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    while work.under_way.load(Ordering::SeqCst) < 2 {
        work.begun.notified().await;
    }
    stop.stop();
    // Long enough that it waits for its last calls by now. If it does not, it has to end the same way.
    tokio::time::sleep(Duration::from_millis(300)).await;
    work.go.notify_one();
    work.has_done(1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    work.says.no_keep.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(PATIENCE, run).await.expect("it never ends").unwrap();
    assert!(ended.is_err(), "and it is said that the source failed");
    assert_eq!(*work.done.lock().unwrap(), ["until released", "until refused"]);
    assert!(queue.is_empty(), "{} were not acked", queue.len());
}

#[tokio::test]
async fn nothing_is_given_back_before_the_handlers_that_were_broken_off_are_gone() {
    let (queue, work) = (queue(&["for ever"]), Work::default());
    let consumer = work.consumer(&queue, |options| options.drain_timeout(Duration::from_millis(20)));
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    work.begun.notified().await;
    stop.stop();
    tokio::time::timeout(PATIENCE, run).await.expect("it never ends").unwrap().unwrap();
    assert_eq!(*work.says.handlers_at_leave.lock().unwrap(), Some(0));
}

#[tokio::test]
async fn a_source_that_had_nothing_is_not_asked_each_time_that_a_call_ends() {
    let texts: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let queue = queue(&["for ever"]);
    for text in &texts {
        queue.push(Some("one by one"), &[("semel-id", text)], text.clone());
    }
    let says = Arc::new(Says { poll_interval: Duration::from_secs(3_600), ..Says::default() });
    let work = Work { says, ..Work::default() };
    let consumer =
        work.consumer(&queue, |options| options.concurrency(2).drain_timeout(Duration::from_millis(20)));
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    work.has_done(20).await;
    let asked = work.says.asked.load(Ordering::SeqCst);
    stop.stop();
    run.await.unwrap().unwrap();
    // Once for all of them, and once more, in vain.
    assert!(asked <= 2, "it was asked {asked} times");
}
