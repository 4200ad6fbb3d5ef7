//! Events and position in one transaction: seen once by readers of committed data, judged by Kafka's own consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::outbox::Event;
use semel::sink::kafka::{KafkaOptions, KafkaSink, KafkaTransactions};
use semel::sink::{DeliverySemantics, ExactlyOnce, Sink};
use testkit::services::{Service, alone, require};

use super::{judge, reader};
use crate::sinks::{SOON, event, unique};

fn options(bootstrap: &str, positions: &str) -> KafkaOptions {
    KafkaSink::options(bootstrap).position_topic(positions)
}

async fn begun(bootstrap: &str, positions: &str, id: &str) -> (KafkaTransactions, Option<Vec<u8>>) {
    let mut sink = options(bootstrap, positions).exactly_once(id).unwrap();
    let position = sink.begin().await.unwrap();
    (sink, position)
}

/// Begins as often as a busy machine needs for it.
async fn begun_at_last(sink: &mut KafkaTransactions) -> Option<Vec<u8>> {
    let until = Instant::now() + SOON;
    loop {
        match sink.begin().await {
            Ok(position) => return position,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn text(position: Option<&[u8]>) -> Option<&str> {
    position.map(|bytes| std::str::from_utf8(bytes).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_position_comes_back_and_is_each_relays_own() {
    let Some(broker) = require(Service::Kafka) else { return };
    let (positions, topic) = (unique("positions"), unique("events"));
    let (one, other) = (unique("relay"), unique("relay"));
    let (mut sink, position) = begun(broker.url(), &positions, &one).await;
    assert_eq!(position, None);
    assert_eq!(sink.guarantee().delivery, DeliverySemantics::ExactlyOnce);
    // It is asked apart, and a busy machine may not have answered in time.
    let until = Instant::now() + SOON;
    while sink.transaction_version().is_none() && Instant::now() < until {
        sink.probe().await.unwrap();
    }
    assert_eq!(sink.transaction_version(), Some(2), "the broker of the tests is of Kafka 4");
    assert_eq!(sink.guarantee().violations, Vec::<String>::new());
    sink.publish_at(&[event(&topic, "a", 1)], b"1").await.unwrap();
    sink.publish_at(&[event(&topic, "a", 2), event(&topic, "b", 3)], b"3").await.unwrap();
    // No event at all, and the position moves all the same: rows that are published nowhere.
    sink.publish_at(&[], b"4").await.unwrap();
    let (mut another, position) = begun(broker.url(), &positions, &other).await;
    assert_eq!(position, None);
    another.publish_at(&[], b"other").await.unwrap();
    assert_eq!(text(begun(broker.url(), &positions, &one).await.1.as_deref()), Some("4"));
    assert_eq!(text(begun(broker.url(), &positions, &other).await.1.as_deref()), Some("other"));
    assert_eq!(judge(broker.url(), &topic, 3), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: many records"]
async fn the_position_is_found_far_from_the_end() {
    let Some(broker) = require(Service::Kafka) else { return };
    let positions = unique("positions");
    let (quiet, busy) = (unique("quiet"), unique("busy"));
    begun(broker.url(), &positions, &quiet).await.0.publish_at(&[], b"long ago").await.unwrap();
    let (mut sink, _) = begun(broker.url(), &positions, &busy).await;
    // Each takes two places: the record and its commit.
    for n in 0..1_100 {
        sink.publish_at(&[], n.to_string().as_bytes()).await.unwrap();
    }
    assert_eq!(text(begun(broker.url(), &positions, &quiet).await.1.as_deref()), Some("long ago"));
    assert_eq!(text(begun(broker.url(), &positions, &busy).await.1.as_deref()), Some("1099"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_is_fenced_and_its_events_are_not_seen() {
    let Some(broker) = require(Service::Kafka) else { return };
    let (positions, topic, id) = (unique("positions"), unique("events"), unique("relay"));
    let (mut zombie, _) = begun(broker.url(), &positions, &id).await;
    zombie.publish_at(&[event(&topic, "a", 1)], b"1").await.unwrap();
    let (mut successor, position) = begun(broker.url(), &positions, &id).await;
    assert_eq!(text(position.as_deref()), Some("1"));
    let error = zombie.publish_at(&[event(&topic, "a", 666)], b"666").await.unwrap_err();
    assert!(error.is_fenced(), "{error}");
    successor.publish_at(&[event(&topic, "a", 2)], b"2").await.unwrap();
    // A sink that was fenced once stays out until it begins, which it must not without being asked.
    let error = zombie.publish_at(&[event(&topic, "a", 667)], b"667").await.unwrap_err();
    assert!(error.is_maybe_published(), "{error}");
    assert_eq!(judge(broker.url(), &topic, 2), ["1", "2"]);
    assert_eq!(text(begun(broker.url(), &positions, &id).await.1.as_deref()), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_is_named_nothing_is_seen_and_the_sink_goes_on() {
    let Some(broker) = require(Service::Kafka) else { return };
    let (positions, topic, id) = (unique("positions"), unique("small"), unique("relay"));
    reader::topic(broker.url(), &topic, 1, &[("max.message.bytes", "2000")]).await;
    let (mut sink, _) = begun(broker.url(), &positions, &id).await;
    let large = |n: usize| Arc::new(Event::new(&topic, "number", "x".repeat(n)).unwrap());
    // Refused by the broker, and by librdkafka already.
    for large in [large(5_000), large(1_000_000)] {
        let mut small = options(broker.url(), &positions).message_bytes(500_000).exactly_once(&id).unwrap();
        small.begin().await.unwrap();
        let error = small.publish_at(std::slice::from_ref(&large), b"1").await.unwrap_err();
        assert_eq!(error.refused_event(), Some(large.id()), "{error}");
        assert!(!error.is_maybe_published(), "{error}");
        small.publish_at(&[event(&topic, "a", 1)], b"1").await.unwrap();
        sink = small;
    }
    // In one transaction with others it takes them along.
    let batch = [event(&topic, "a", 2), large(5_000), event(&topic, "a", 3)];
    let error = sink.publish_at(&batch, b"3").await.unwrap_err();
    assert!(!error.is_maybe_published() && !error.is_fenced(), "{error}");
    sink.publish_at(&[batch[0].clone(), batch[2].clone()], b"3").await.unwrap();
    assert_eq!(judge(broker.url(), &topic, 4), ["1", "1", "2", "3"]);
    assert_eq!(text(begun(broker.url(), &positions, &id).await.1.as_deref()), Some("3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_would_forget_the_position_is_refused() {
    let Some(broker) = require(Service::Kafka) else { return };
    let (forgetful, many) = (unique("forgetful"), unique("many"));
    reader::topic(broker.url(), &forgetful, 1, &[("cleanup.policy", "delete")]).await;
    reader::topic(broker.url(), &many, 2, &[("cleanup.policy", "compact")]).await;
    for (topic, expected) in [(forgetful, "cleanup.policy"), (many, "2 partitions")] {
        let mut sink = options(broker.url(), &topic).exactly_once(&unique("relay")).unwrap();
        let error = sink.begin().await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Another relay's transaction is open on the position topic, and began before our last commit: what readers of
/// committed data may see ends before our position. Taken for the end, events would be published again.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_of_another_relays_does_not_hide_the_position() {
    use rdkafka::ClientConfig;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    let Some(broker) = require(Service::Kafka) else { return };
    let (positions, id) = (unique("positions"), unique("relay"));
    let (mut sink, _) = begun(broker.url(), &positions, &id).await;
    sink.publish_at(&[], b"old").await.unwrap();
    let other: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker.url())
        .set("transactional.id", unique("other"))
        .set("transaction.timeout.ms", "600000")
        .create()
        .unwrap();
    other.init_transactions(SOON).unwrap();
    other.begin_transaction().unwrap();
    other.send(BaseRecord::to(&positions).key("other").payload("open")).unwrap();
    other.flush(SOON).unwrap();
    sink.publish_at(&[], b"new").await.unwrap();

    let mut hasty =
        options(broker.url(), &positions).timeout(Duration::from_secs(3)).exactly_once(&id).unwrap();
    let until = Instant::now() + SOON;
    loop {
        let error = hasty.begin().await.unwrap_err();
        if error.to_string().contains("open transaction") {
            break;
        }
        assert!(Instant::now() < until, "{error}");
    }
    other.abort_transaction(SOON).unwrap();
    assert_eq!(text(begun_at_last(&mut hasty).await.as_deref()), Some("new"));
}

/// A broker that stops answering leaves a commit in doubt. The position decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_in_doubt_is_decided_by_the_position() {
    let Some(broker) = alone(Service::Kafka) else { return };
    let (positions, topic, id) = (unique("positions"), unique("events"), unique("relay"));
    let mut sink =
        options(broker.url(), &positions).timeout(Duration::from_secs(8)).exactly_once(&id).unwrap();
    begun_at_last(&mut sink).await;
    sink.publish_at(&[event(&topic, "a", 1)], b"1").await.unwrap();
    let second = event(&topic, "a", 2);
    broker.pause().unwrap();
    let answer = sink.publish_at(std::slice::from_ref(&second), b"2").await;
    broker.resume().unwrap();
    let error = answer.unwrap_err();
    assert!(error.is_maybe_published() && !error.is_fenced(), "{error}");
    let error = sink.publish_at(std::slice::from_ref(&second), b"2").await.unwrap_err();
    assert!(error.to_string().contains("begin"), "{error}");
    let position = begun_at_last(&mut sink).await;
    if text(position.as_deref()) == Some("1") {
        sink.publish_at(&[second], b"2").await.unwrap();
    }
    sink.publish_at(&[event(&topic, "a", 3)], b"3").await.unwrap();
    assert_eq!(judge(broker.url(), &topic, 3), ["1", "2", "3"]);
}
