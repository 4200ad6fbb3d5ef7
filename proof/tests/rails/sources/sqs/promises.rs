//! What the source promises beside the laws of all, on a standard and on a FIFO queue.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel::inbox::consumer::{Consumer, ConsumerOptions, Handler, HandlerError, Message};
use semel::source::sqs::SqsSource;
use semel::source::{Delivery, Identify, Receipt, Settle, Source, SourceError};
use serde_json::json;
use testkit::proxy::{Fault, Proxy};

use super::{Queue, options, unique_name};
use crate::sources::SOON;
use crate::sources::taken::{all, ids, receive};

const WAIT: Duration = Duration::from_millis(300);
/// Nearly the shortest there is.
const SHORT: Duration = Duration::from_secs(6);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_is_deleted_and_what_is_given_back_comes_again() {
    for queue in Queue::both() {
        (1..=3).for_each(|n| queue.push("a", &format!("e-{n}")));
        let mut source = queue.source(LONG);
        let came = receive(&mut source, 3).await;
        if queue.fifo() {
            assert_eq!(ids(&came), ["e-1", "e-2", "e-3"]);
            assert_eq!(came[0].key.as_deref(), Some("a"));
            let by_sqs = Identify::ByHeader("MessageDeduplicationId".into()).identify(&came[0]).unwrap();
            assert_eq!(by_sqs.id(), "e-1");
        }
        assert_eq!(came[0].deliveries, Some(1));
        assert!(queue.url.ends_with(&came[0].from) && came[0].lineage.is_some(), "{:?}", came[0]);
        assert_eq!(queue.len(), 3, "nothing is deleted before it is done");
        source.settle(&[(came[0].receipt, Settle::Ack), (came[1].receipt, Settle::Nack)]).await.unwrap();
        assert_eq!(queue.len(), 2);
        // What is behind it in its group goes back with it, and who works on it hears of it.
        let lost = source.lost();
        assert_eq!(lost, if queue.fifo() { vec![came[2].receipt] } else { Vec::new() });
        source.settle(&[(came[2].receipt, Settle::Nack)]).await.unwrap();
        let again = receive(&mut source, 2).await;
        let mut places: Vec<&str> = again.iter().map(|delivery| delivery.place.as_str()).collect();
        let mut wanted = [came[1].place.as_str(), came[2].place.as_str()];
        if !queue.fifo() {
            places.sort_unstable();
            wanted.sort_unstable();
        }
        assert_eq!(places, wanted, "the same messages, in their order");
        assert_eq!(again[0].deliveries, Some(2));
        assert!(again[0].receipt > came[2].receipt);
        // Acked again, the same and more.
        let acks = [all(&came, Settle::Ack), all(&again, Settle::Ack)].concat();
        source.settle(&acks).await.unwrap();
        assert_eq!(queue.len(), 0);
        assert!(source.lost().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for visibility timeouts to pass"]
async fn who_is_kept_stays_and_who_is_silent_loses_its_messages() {
    for queue in Queue::both() {
        (1..=8).for_each(|n| queue.push(&format!("group-{}", n % 4), &format!("e-{n}")));
        // As many as one request brings: a group holds back what follows one in flight.
        let (mut source, mut other) = (queue.source(SHORT), queue.source(LONG));
        let came = receive(&mut source, 8).await;
        let held: Vec<Receipt> = came.iter().map(|delivery| delivery.receipt).collect();
        let begun = Instant::now();
        while begun.elapsed() < SHORT * 2 {
            tokio::time::sleep(source.renew_after()).await;
            source.keep(&held).await.unwrap();
            assert!(source.lost().is_empty(), "it was kept");
            assert!(other.receive(10, Duration::ZERO).await.unwrap().is_empty(), "it was kept");
        }
        // Silent for too long: another one gets all of it, with one request: a group holds back what follows.
        tokio::time::sleep(SHORT + Duration::from_secs(2)).await;
        let others = receive(&mut other, 8).await;
        assert_eq!(source.lost().len(), 8);
        assert!(source.lost().is_empty(), "each is reported once");
        // What was lost is settled and kept for nothing.
        source.settle(&all(&came, Settle::Ack)).await.unwrap();
        source.keep(&held).await.unwrap();
        assert_eq!(queue.len(), 8);
        other.settle(&all(&others, Settle::Ack)).await.unwrap();
        assert_eq!(queue.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_leaves_gives_back_at_once_also_what_was_not_waited_for() {
    for queue in Queue::both() {
        queue.push("a", "e-1");
        let (mut source, mut other) = (queue.source(LONG), queue.source(LONG));
        assert_eq!(receive(&mut source, 1).await.len(), 1);
        // Left while SQS is asked: the message that comes then is taken for us.
        let waiting = source.receive(10, Duration::from_secs(15));
        assert!(tokio::time::timeout(WAIT, waiting).await.is_err(), "there is nothing to come");
        queue.push("b", "e-2");
        source.leave().await.unwrap();
        let came = receive(&mut other, 2).await;
        other.settle(&all(&came, Settle::Ack)).await.unwrap();
        assert_eq!(queue.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_waited_for_is_not_lost() {
    for queue in Queue::both() {
        queue.push("a", "e-0");
        let mut source = queue.source(LONG);
        let first = receive(&mut source, 1).await;
        let waiting = source.receive(10, Duration::from_secs(15));
        assert!(tokio::time::timeout(WAIT, waiting).await.is_err(), "there is nothing to come");
        queue.push("b", "e-1");
        let came = receive(&mut source, 1).await;
        assert_eq!(ids(&came), ["e-1"]);
        source.settle(&[all(&first, Settle::Ack), all(&came, Settle::Ack)].concat()).await.unwrap();
        assert_eq!(queue.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_fifo_queue_is_asked_for_again() {
    let Some(queue) = Queue::new(true) else { return };
    queue.push("a", "e-1");
    let proxy = Proxy::start(queue.lease.url().trim_start_matches("http://")).unwrap();
    let through =
        queue.url.replace(queue.lease.url().trim_end_matches('/'), &format!("http://{}", proxy.addr()));
    let mut source = options(&through).visibility(LONG).open().unwrap();
    assert!(source.check().await.unwrap().is_empty());
    proxy.set(Fault::DropResponse);
    assert!(source.receive(10, WAIT).await.unwrap_err().may_retry());
    proxy.set(Fault::Pass);
    // Invisible for ten minutes to all but who asks under the same name.
    let came = receive(&mut source, 1).await;
    proxy.set(Fault::DropResponse);
    let done = all(&came, Settle::Ack);
    assert!(source.settle(&done).await.unwrap_err().may_retry(), "the queue did not say that it was deleted");
    proxy.set(Fault::Pass);
    source.settle(&done).await.unwrap();
    assert_eq!(queue.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_takes_messages_away_is_warned_of() {
    let Some(queue) = Queue::new(true) else { return };
    let dead = unique_name(true);
    queue.server.make(&dead, &[]);
    let arn = format!("arn:aws:sqs:elasticmq:000000000000:{dead}");
    let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": "3" }).to_string();
    let url = queue.server.make(&unique_name(true), &[("RedrivePolicy", &policy)]);
    let warnings = options(&url).open().unwrap().check().await.unwrap();
    assert!(warnings[0].contains("after 3 receives") && warnings[0].contains(&arn), "{warnings:?}");
    assert!(options(&queue.url).open().unwrap().check().await.unwrap().is_empty());
}

/// Counts how often it was called, and takes longer than the visibility timeout.
struct Slow {
    calls: Arc<AtomicUsize>,
}

impl Handler for Slow {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        self.calls.fetch_add(messages.len(), Ordering::SeqCst);
        tokio::time::sleep(SHORT * 3).await;
        Ok(())
    }
}

/// How often a message is handled whose handler takes longer than the visibility timeout, by two consumers.
async fn handled_slowly<S: Source>(queue: &Queue, mut open: impl FnMut() -> S) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    queue.push("a", "e-1");
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let handler = Slow { calls: Arc::clone(&calls) };
            let consumer = Consumer::new("slow", open(), handler, ConsumerOptions::default());
            (consumer.stop_handle(), tokio::spawn(consumer.run()))
        })
        .collect();
    let until = Instant::now() + SOON;
    while queue.len() > 0 {
        assert!(Instant::now() < until, "it was never done");
        tokio::time::sleep(Duration::from_millis(100)).await;
        if calls.load(Ordering::SeqCst) > 1 {
            break;
        }
    }
    for (stop, running) in consumers {
        stop.stop();
        running.await.unwrap().unwrap();
    }
    calls.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for visibility timeouts to pass"]
async fn a_handler_that_takes_longer_than_the_visibility_timeout_is_called_once() {
    // A machine that stands still for as long cannot prolong it: what is wrong is wrong each time.
    for fifo in [false, true] {
        let mut calls = Vec::new();
        while calls.len() < 3 && calls.last() != Some(&1) {
            let Some(queue) = Queue::new(fifo) else { return };
            calls.push(handled_slowly(&queue, || queue.source(SHORT)).await);
        }
        assert_eq!(calls.last(), Some(&1), "{calls:?}");
    }
}

/// A known mistake: the visibility timeout is not prolonged.
struct Unkept(SqsSource);

impl Source for Unkept {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        self.0.receive(most, wait).await
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.0.settle(settled).await
    }

    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for visibility timeouts to pass"]
async fn without_prolonging_two_work_on_one_message() {
    let Some(queue) = Queue::new(true) else { return };
    assert!(handled_slowly(&queue, || Unkept(queue.source(SHORT))).await > 1);
}

/// ElasticMQ does not tell it, so the answer here is one of Amazon's.
#[tokio::test(flavor = "multi_thread")]
async fn how_long_a_queue_keeps_messages_is_known_where_it_tells() {
    for queue in Queue::both() {
        assert_eq!(queue.source(LONG).retention().await, None);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let attributes = json!({ "Attributes": {
            "QueueArn": "arn:aws:sqs:eu-west-1:123456789012:payments",
            "MessageRetentionPeriod": "1209600",
            "VisibilityTimeout": "30",
        } });
        for stream in listener.incoming() {
            answer(stream.unwrap(), &attributes.to_string());
        }
    });
    let queue = |server| format!("http://{server}/123456789012/payments");
    let mut source = options(&queue(server)).open().unwrap();
    assert_eq!(source.retention().await, Some(Duration::from_secs(14 * 24 * 3_600)));
    // No server there: not known, and no error.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut source = options(&queue(unused)).timeout(Duration::from_secs(1)).open().unwrap();
    assert_eq!(source.retention().await, None);
}

/// Reads a request and answers it.
fn answer(stream: TcpStream, json: &str) {
    let mut reader = BufReader::new(stream);
    let (mut bytes, mut asked) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(length) = line.strip_prefix("content-length:") {
            bytes = length.trim().parse().unwrap();
        }
        if let Some(target) = line.strip_prefix("x-amz-target:") {
            target.trim().clone_into(&mut asked);
        }
        if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; bytes]).unwrap();
    assert_eq!(asked, "amazonsqs.getqueueattributes");
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-amz-json-1.0";
    write!(reader.get_mut(), "{head}\r\ncontent-length: {}\r\n\r\n{json}", json.len()).unwrap();
}
