use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use testkit::services::{Service, kafka, require};

use crate::servers::{SOON, unique};

fn producer(bootstrap: &str, transactional_id: &str) -> BaseProducer {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("transactional.id", transactional_id)
        .set("transaction.timeout.ms", "60000")
        .create()
        .expect("a producer");
    producer.init_transactions(SOON).expect("init_transactions");
    producer
}

fn send(producer: &BaseProducer, topic: &str, payload: &str) {
    producer.send(BaseRecord::<(), str>::to(topic).payload(payload)).expect("queued");
    // Flushed, so that it is in the log whatever becomes of its transaction.
    producer.flush(SOON).expect("delivered");
}

/// Reads partition 0 from the beginning to its end, under the given isolation.
fn read(bootstrap: &str, topic: &str, isolation: &str) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", unique("reader"))
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer");
    let mut partition = TopicPartitionList::new();
    partition.add_partition_offset(topic, 0, Offset::Beginning).expect("an offset");
    consumer.assign(&partition).expect("assigned");
    let mut payloads = Vec::new();
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        match consumer.poll(Duration::from_millis(500)) {
            Some(Ok(message)) => {
                payloads.push(message.payload_view::<str>().expect("a payload").expect("text").to_owned())
            }
            // The end of what this isolation may see, which is what ends the reading.
            Some(Err(KafkaError::PartitionEOF(_))) => return payloads,
            Some(Err(error)) => panic!("{topic}: {error}"),
            None => {}
        }
    }
    panic!("the end of {topic} was not reached");
}

/// What Kafka's own consumer sees.
fn consumed(bootstrap: &str, topic: &str, committed: bool, at_least: usize) -> Vec<String> {
    let ask = || kafka::console_consumer(bootstrap, topic, committed, 10);
    kafka::asked_until(ask, |lines| lines.len() >= at_least).expect("Kafka's own consumer runs")
}

/// Slow: asks the broker's own console consumer, a Java program, four times.
#[test]
fn read_committed_sees_the_committed_and_not_the_aborted() {
    let Some(broker) = require(Service::Kafka) else { return };
    let bootstrap = broker.url();
    let topic = unique("smoke");
    let producer = producer(bootstrap, &unique("relay"));
    for (payload, commit) in [("before", true), ("aborted", false), ("after", true)] {
        producer.begin_transaction().unwrap();
        send(&producer, &topic, payload);
        match commit {
            true => producer.commit_transaction(SOON).unwrap(),
            false => producer.abort_transaction(SOON).unwrap(),
        }
    }
    assert_eq!(read(bootstrap, &topic, "read_committed"), ["before", "after"]);
    // The aborted one is in the log: it was the isolation that hid it.
    assert_eq!(read(bootstrap, &topic, "read_uncommitted"), ["before", "aborted", "after"]);

    let judge = |committed, at_least| consumed(bootstrap, &topic, committed, at_least);
    assert_eq!(judge(true, 2), ["before", "after"]);
    assert_eq!(judge(false, 3), ["before", "aborted", "after"]);
}

#[test]
fn a_zombie_is_fenced_and_what_it_wrote_stays_uncommitted() {
    let Some(broker) = require(Service::Kafka) else { return };
    let bootstrap = broker.url();
    let (topic, id) = (unique("fenced"), unique("relay"));
    let zombie = producer(bootstrap, &id);
    zombie.begin_transaction().unwrap();
    send(&zombie, &topic, "zombie");

    let successor = producer(bootstrap, &id);
    successor.begin_transaction().unwrap();
    send(&successor, &topic, "successor");
    successor.commit_transaction(SOON).unwrap();

    let error = zombie.commit_transaction(SOON).unwrap_err();
    let KafkaError::Transaction(cause) = &error else { panic!("{error:?}") };
    assert!(cause.is_fatal(), "a zombie that may go on: {error:?}");
    let fenced =
        [RDKafkaErrorCode::Fenced, RDKafkaErrorCode::ProducerFenced, RDKafkaErrorCode::InvalidProducerEpoch];
    assert!(fenced.contains(&cause.code()), "{error:?}");
    assert_eq!(read(bootstrap, &topic, "read_committed"), ["successor"]);
    assert_eq!(read(bootstrap, &topic, "read_uncommitted"), ["zombie", "successor"]);
}
