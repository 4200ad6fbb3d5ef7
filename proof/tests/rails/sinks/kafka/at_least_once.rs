//! What the laws do not ask, because only Kafka has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel::outbox::Event;
use semel::sink::kafka::{Compression, KafkaSink, MissingTopic};
use semel::sink::{Published, Sink};
use testkit::services::{Service, alone, require};

use super::{judge, reader};
use crate::sinks::{PATIENCE, confirmed, event, unique};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_goes_where_the_java_client_sends_it() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("murmur2");
    reader::topic(broker.url(), &topic, 7, &[]).await;
    // The hashes that Kafka's own tests of murmur2 have.
    let hashes: HashMap<&str, i32> = HashMap::from([
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ]);
    let events: Vec<_> = hashes.keys().enumerate().map(|(n, key)| event(&topic, key, n)).collect();
    let mut sink = KafkaSink::options(broker.url()).open().unwrap();
    assert!(confirmed(&sink.publish(&events).await));
    let found = reader::read(broker.url(), &topic, "read_committed");
    assert_eq!(found.len(), hashes.len());
    for found in found {
        let key = found.key.unwrap();
        assert_eq!(found.partition, (hashes[key.as_str()] & 0x7fff_ffff) % 7, "{key}");
    }
}

/// The smallest of topics, so that whole batches are refused, and one event in the middle that is too large for good.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_refused_batch_only_the_event_to_blame_is_refused() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("small");
    reader::topic(broker.url(), &topic, 2, &[("max.message.bytes", "3000")]).await;
    let mut sink = KafkaSink::options(broker.url()).open().unwrap();
    let text = |n: usize, len: usize| format!("{n}:{}", "x".repeat(len));
    let events: Vec<_> = (0..40)
        .map(|n| {
            let len = if n == 17 { 5_000 } else { 400 };
            Arc::new(
                Event::new(&topic, "number", text(n, len)).unwrap().key(&format!("key-{}", n % 4)).unwrap(),
            )
        })
        .collect();
    let answers = sink.publish(&events).await;
    for (n, answer) in answers.iter().enumerate() {
        let wanted = match n {
            17 => matches!(answer, Published::Refused(_)),
            // Of the same key and behind it.
            n if n > 17 && n % 4 == 1 => matches!(answer, Published::Failed(_)),
            _ => *answer == Published::Confirmed,
        };
        assert!(wanted, "{n}: {answer:?}");
    }
    let found: Vec<_> = reader::read(broker.url(), &topic, "read_committed");
    for key in 0..4 {
        let of_key = found.iter().filter(|found| found.key == Some(format!("key-{key}")));
        let numbers: Vec<usize> =
            of_key.map(|found| found.text().split_once(':').unwrap().0.parse().unwrap()).collect();
        let wanted: Vec<usize> = (0..40).filter(|n| n % 4 == key && !(key == 1 && *n >= 17)).collect();
        assert_eq!(numbers, wanted, "key-{key}");
    }
}

/// Small batches, so that what stands behind the refused event is in another one. The refused event is the first that the
/// partition hears of this producer, which is when a broker takes any number for the next.
#[tokio::test(flavor = "multi_thread")]
async fn no_batch_passes_a_refused_one() {
    let Some(broker) = require(Service::Kafka) else { return };
    for first in [0, 7] {
        let topic = unique("small");
        reader::topic(broker.url(), &topic, 1, &[("max.message.bytes", "3000")]).await;
        let mut sink = KafkaSink::options(broker.url()).batch_bytes(1_000).open().unwrap();
        let events: Vec<_> = (0..30)
            .map(|n| {
                let text = format!("{n}:{}", "x".repeat(if n == first { 5_000 } else { 700 }));
                Arc::new(Event::new(&topic, "number", text).unwrap().key("one").unwrap())
            })
            .collect();
        let answers = sink.publish(&events).await;
        assert!(confirmed(&answers[..first]), "{answers:?}");
        assert!(matches!(&answers[first], Published::Refused(_)), "{answers:?}");
        let behind =
            |answer: &Published| matches!(answer, Published::Failed(error) if !error.is_maybe_published());
        assert!(answers[first + 1..].iter().all(behind), "{answers:?}");
        assert_eq!(reader::read(broker.url(), &topic, "read_committed").len(), first);
    }
}

/// Of each key the numbers in the order in which they came first.
fn firsts(bootstrap: &str, topic: &str) -> HashMap<String, Vec<usize>> {
    let mut firsts: HashMap<String, Vec<usize>> = HashMap::new();
    for found in reader::read(bootstrap, topic, "read_committed") {
        let number = found.text().split_once(':').unwrap().0.parse().unwrap();
        let of_key = firsts.entry(found.key.clone().unwrap()).or_default();
        if !of_key.contains(&number) {
            of_key.push(number);
        }
    }
    firsts
}

/// A refused event stops the producer, and a new one takes its place with several requests in flight, whose first may be
/// refused again: the broker does not know that one, and would take whatever comes after.
#[tokio::test(flavor = "multi_thread")]
async fn order_holds_over_producers_that_fail_one_after_the_other() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("replaced");
    reader::topic(broker.url(), &topic, 1, &[("max.message.bytes", "3000")]).await;
    let mut sink = KafkaSink::options(broker.url()).batch_bytes(1_000).open().unwrap();
    const KEYS: usize = 6;
    // The first key has its refused event first, the next one as its second, and so on.
    let refused = |n: usize| n / KEYS == n % KEYS;
    let events: Vec<_> = (0..KEYS * 10)
        .map(|n| {
            let text = format!("{n}:{}", "x".repeat(if refused(n) { 5_000 } else { 400 }));
            Arc::new(Event::new(&topic, "number", text).unwrap().key(&format!("key-{}", n % KEYS)).unwrap())
        })
        .collect();
    let answers = sink.publish(&events).await;
    for (n, answer) in answers.iter().enumerate() {
        let wanted = match (n / KEYS).cmp(&(n % KEYS)) {
            std::cmp::Ordering::Less => *answer == Published::Confirmed,
            std::cmp::Ordering::Equal => matches!(answer, Published::Refused(_)),
            std::cmp::Ordering::Greater => matches!(answer, Published::Failed(_)),
        };
        assert!(wanted, "{n}: {answer:?}");
    }
    let firsts = firsts(broker.url(), &topic);
    for key in 0..KEYS {
        let wanted: Vec<usize> = (0..key).map(|row| row * KEYS + key).collect();
        assert_eq!(firsts.get(&format!("key-{key}")).cloned().unwrap_or_default(), wanted, "key-{key}");
    }
}

/// A call that is left leaves requests in flight. The producer that comes then sends all of it again.
#[tokio::test(flavor = "multi_thread")]
async fn order_holds_over_producers_that_are_left_in_the_middle() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("left");
    reader::topic(broker.url(), &topic, 2, &[]).await;
    let mut sink = KafkaSink::options(broker.url()).batch_bytes(1_000).open().unwrap();
    let text = |n: usize| format!("{n}:{}", "x".repeat(400));
    let events: Vec<_> = (0..120)
        .map(|n| {
            Arc::new(Event::new(&topic, "number", text(n)).unwrap().key(&format!("key-{}", n % 4)).unwrap())
        })
        .collect();
    for round in 0..6 {
        let some = &events[..20 * (round + 1)];
        // Queued and on its way, and then given up.
        {
            let mut publish = std::pin::pin!(sink.publish(some));
            for _ in 0..=round {
                if publish.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert!(confirmed(&sink.publish(some).await));
    }
    let firsts = firsts(broker.url(), &topic);
    for key in 0..4 {
        let wanted: Vec<usize> = (0..120).filter(|n| n % 4 == key).collect();
        assert_eq!(firsts[&format!("key-{key}")], wanted, "key-{key}");
    }
}

/// Slow: a sink that waits for a topic waits for its whole timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_refused_or_waited_for_as_configured() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("missing");
    let options = || KafkaSink::options(broker.url()).timeout(Duration::from_secs(12));
    let one = [event(&topic, "a", 0)];
    let mut refusing = options().missing_topic(MissingTopic::Refuse).open().unwrap();
    let answers = refusing.publish(&one).await;
    assert!(matches!(&answers[0], Published::Refused(error) if !error.is_maybe_published()), "{answers:?}");
    let mut waiting = options().missing_topic(MissingTopic::Wait).open().unwrap();
    let answers = waiting.publish(&one).await;
    assert!(matches!(&answers[0], Published::Failed(_)), "{answers:?}");
    let mut making = options().timeout(Duration::from_secs(20)).open().unwrap();
    assert!(confirmed(&making.publish(&one).await));
    assert!(confirmed(&waiting.publish(&one).await));
    assert_eq!(judge(broker.url(), &topic, 2), ["0", "0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_events_and_compression_by_choice() {
    let Some(broker) = require(Service::Kafka) else { return };
    for compression in [Compression::Lz4, Compression::Snappy] {
        let topic = unique("cloud");
        let options = KafkaSink::options(broker.url()).compression(compression).cloud_events("/payments");
        let mut sink = options.open().unwrap();
        let sent = Event::new(&topic, "payment.completed", "{}".repeat(1_000)).unwrap();
        let sent = Arc::new(sent.aggregate("payment", "7").unwrap());
        assert!(confirmed(&sink.publish(std::slice::from_ref(&sent)).await));
        let found = &reader::read(broker.url(), &topic, "read_committed")[0];
        assert_eq!(found.seen.payload, *sent.payload());
        let id = sent.id().to_string();
        for (name, wanted) in [
            ("ce_specversion", "1.0"),
            ("ce_id", &id),
            ("ce_source", "/payments"),
            ("ce_type", "payment.completed"),
            ("ce_subject", "payment/7"),
            ("content-type", "application/json"),
            ("semel-id", &id),
        ] {
            assert_eq!(found.seen.header(name), Some(wanted), "{name}");
        }
    }
}

/// More than fits into the queue at once: it drains and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_larger_than_the_queue_is_published_all_the_same() {
    let Some(broker) = require(Service::Kafka) else { return };
    let topic = unique("queue");
    let mut sink = KafkaSink::options(broker.url()).queue_bytes(0).open().unwrap();
    let payload = "x".repeat(100_000);
    let events: Vec<_> = (0..60)
        .map(|n| {
            Arc::new(Event::new(&topic, "large", format!("{n:03}{payload}")).unwrap().key("one").unwrap())
        })
        .collect();
    assert!(confirmed(&sink.publish(&events).await));
    let found = reader::read(broker.url(), &topic, "read_committed");
    let numbers: Vec<usize> = found.iter().map(|found| found.text()[..3].parse().unwrap()).collect();
    assert_eq!(numbers, (0..60).collect::<Vec<_>>());
}

/// The broker dies under the sink and comes back: what was confirmed is there, what was not is published again, and no
/// event is overtaken.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn a_killed_broker_loses_nothing_that_was_confirmed() {
    let Some(mut broker) = alone(Service::Kafka) else { return };
    let topic = unique("killed");
    reader::topic(broker.url(), &topic, 3, &[]).await;
    let mut sink = KafkaSink::options(broker.url()).timeout(PATIENCE).open().unwrap();
    let events: Vec<_> = (0..90).map(|n| event(&topic, &format!("key-{}", n % 9), n)).collect();
    let mut open: Vec<_> = events.clone();
    assert!(confirmed(&sink.publish(&open[..30]).await));
    open.drain(..30);
    broker.kill().unwrap();
    let answers = sink.publish(&open).await;
    assert!(answers.iter().all(|answer| matches!(answer, Published::Failed(_))), "{answers:?}");
    broker.start().unwrap();
    for _ in 0..30 {
        let answers = sink.publish(&open).await;
        let mut answers = answers.into_iter();
        open.retain(|_| answers.next() != Some(Published::Confirmed));
        if open.is_empty() {
            break;
        }
    }
    assert!(open.is_empty(), "{} events are still open", open.len());
    let found = reader::read(broker.url(), &topic, "read_committed");
    for key in 0..9 {
        let mut numbers: Vec<usize> = Vec::new();
        for found in found.iter().filter(|found| found.key == Some(format!("key-{key}"))) {
            let number = found.text().parse().unwrap();
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        assert_eq!(numbers, (0..90).filter(|n| n % 9 == key).collect::<Vec<_>>(), "key-{key}");
    }
}
