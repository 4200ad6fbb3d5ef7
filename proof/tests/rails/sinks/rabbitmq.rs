//! RabbitMQ, with quorum queues, read by a bare client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::outbox::Event;
use semel::sink::rabbitmq::{RabbitmqSink, Unroutable};
use semel::sink::{Published, Sink};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Lease, Service, alone, require};
use tokio::sync::Mutex;

use crate::sinks::{PATIENCE, confirmed, event, lose_an_answer, texts, unique};

async fn channel(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

async fn declare(url: &str, queue: &str, arguments: &[(&str, AMQPValue)]) {
    let (_connection, channel) = channel(url).await;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, table).await.unwrap();
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Takes out what is in the queue.
async fn drain(url: &str, queue: &str) -> Vec<ReadMessage> {
    let (_connection, channel) = channel(url).await;
    let mut all = Vec::new();
    while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        let delivery = message.delivery;
        let table = delivery.properties.headers().clone().unwrap_or_default();
        let headers: Vec<(String, String)> = table
            .inner()
            .iter()
            .filter_map(|(name, value)| match value {
                AMQPValue::LongString(text) => Some((name.to_string(), text.to_string())),
                // A quorum queue adds numbers of its own.
                _ => None,
            })
            .collect();
        let id = delivery.properties.message_id().as_ref().map(ToString::to_string);
        let seen = ReadMessage::new(
            delivery.data,
            headers.iter().map(|(name, text)| (name.as_str(), text.as_str())),
        );
        assert_eq!(seen.id(), id.as_deref());
        assert_eq!(*delivery.properties.delivery_mode(), Some(2));
        all.push(seen);
    }
    all
}

struct Quorum {
    broker: Lease,
    /// Reading takes out, so what was read is kept.
    read: Mutex<HashMap<String, Vec<ReadMessage>>>,
}

impl Quorum {
    fn new() -> Option<Self> {
        Some(Self { broker: require(Service::Rabbitmq)?, read: Mutex::default() })
    }
}

impl SinkHarness for Quorum {
    type Sink = RabbitmqSink;

    async fn sink(&self) -> RabbitmqSink {
        RabbitmqSink::options(self.broker.url()).open()
    }

    async fn sink_at(&self, address: SocketAddr) -> RabbitmqSink {
        let url = format!("amqp://guest:guest@{address}/%2f");
        RabbitmqSink::options(&url).timeout(Duration::from_secs(1)).open()
    }

    async fn topic(&self) -> String {
        let queue = unique("law");
        declare(self.broker.url(), &queue, &[("x-queue-type", text("quorum"))]).await;
        queue
    }

    /// A queue refuses nothing for ever.
    async fn refusing(&self) -> Option<(String, Bytes)> {
        None
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        let mut read = self.read.lock().await;
        let all = read.entry(topic.to_owned()).or_default();
        all.extend(drain(self.broker.url(), topic).await);
        all.clone()
    }
}

mod laws {
    semel::sink_conformance!(super::Quorum::new());
}

/// A full queue rejects one event and would take the next as soon as somebody reads: it must not get the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_rejects_does_not_reorder() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let queue = unique("full");
    let full = [("x-max-length", AMQPValue::LongInt(5)), ("x-overflow", text("reject-publish"))];
    declare(broker.url(), &queue, &full).await;
    let mut sink = RabbitmqSink::options(broker.url()).open();
    let mut open: Vec<_> = (0..20).map(|n| event(&queue, "one", n)).collect();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let answers = sink.publish(&open).await;
        let taken = answers.iter().take_while(|answer| **answer == Published::Confirmed).count();
        assert!(answers[taken..].iter().all(|answer| matches!(answer, Published::Failed(_))), "{answers:?}");
        open.drain(..taken);
        seen.extend(drain(broker.url(), &queue).await);
        if open.is_empty() {
            break;
        }
    }
    assert_eq!(texts(&seen), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_be_routed_nowhere_waits_or_is_refused_as_configured() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let queue = unique("later");
    let one = [event(&queue, "a", 1)];
    let mut refusing = RabbitmqSink::options(broker.url()).unroutable(Unroutable::Refuse).open();
    let answers = refusing.publish(&one).await;
    assert!(matches!(&answers[0], Published::Refused(_)), "{answers:?}");
    let mut waiting = RabbitmqSink::options(broker.url()).open();
    let answers = waiting.publish(&one).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    declare(broker.url(), &queue, &[]).await;
    assert!(confirmed(&waiting.publish(&one).await));
    assert_eq!(texts(&drain(broker.url(), &queue).await), ["1"]);
    // An exchange that is not there closes the channel: not confirmed, and the next call has a new one.
    let mut nowhere = RabbitmqSink::options(broker.url()).exchange(&unique("none")).open();
    for _ in 0..2 {
        let answers = nowhere.publish(&one).await;
        assert!(matches!(&answers[0], Published::Failed(_)), "{answers:?}");
    }
}

/// One confirm covers several events, and what comes back is kept apart from them: each event has its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_a_queue_is_found_among_others() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let (queue, nowhere) = (unique("somewhere"), unique("nowhere"));
    declare(broker.url(), &queue, &[("x-queue-type", text("quorum"))]).await;
    let mut sink = RabbitmqSink::options(broker.url()).open();
    let has_a_queue = |n: usize| n % 5 != 3;
    let mut wanted = Vec::new();
    for round in 0..5 {
        let numbers = round * 400..(round + 1) * 400;
        let topic = |n| if has_a_queue(n) { &queue } else { &nowhere };
        let events: Vec<_> = numbers.clone().map(|n| event(topic(n), &format!("k{n}"), n)).collect();
        let answers = sink.publish(&events).await;
        for (n, answer) in numbers.clone().zip(&answers) {
            match answer {
                Published::Confirmed => assert!(has_a_queue(n), "{n} is nowhere, and was confirmed"),
                Published::Failed(error) => {
                    assert!(!has_a_queue(n) && error.is_destination_down(), "{n}: {error}");
                }
                other => panic!("{n}: {other:?}"),
            }
        }
        wanted.extend(numbers.filter(|n| has_a_queue(*n)).map(|n| n.to_string()));
    }
    assert_eq!(texts(&drain(broker.url(), &queue).await), wanted);
}

/// The broker closes the channel over a header that means something to it: the others get there, and only that one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_closes_the_channel_does_not_hold_up_the_others() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let queue = unique("others");
    declare(broker.url(), &queue, &[("x-queue-type", text("quorum"))]).await;
    let mut sink = RabbitmqSink::options(broker.url()).open();
    let made = |n: usize| {
        let event = Event::new(&queue, "number", n.to_string()).unwrap().key(&format!("k{n}")).unwrap();
        // A list of routing keys, says RabbitMQ; this is none.
        Arc::new(if n == 20 { event.header("CC", "everybody").unwrap() } else { event })
    };
    let events: Vec<_> = (0..40).map(made).collect();
    let answers = sink.publish(&events).await;
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Published::Confirmed => assert_ne!(n, 20, "it cannot be taken"),
            Published::Refused(error) => assert_eq!(n, 20, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    let mut seen = texts(&drain(broker.url(), &queue).await);
    seen.sort_by_key(|text| text.parse::<usize>().unwrap());
    seen.dedup();
    assert_eq!(seen, (0..40).filter(|n| *n != 20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_confirm_is_no_confirm() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let queue = unique("lost");
    declare(broker.url(), &queue, &[("x-queue-type", text("quorum"))]).await;
    let address = broker.url().rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(address).unwrap();
    let url = broker.url().replace(address, &proxy.addr().to_string());
    let mut sink = RabbitmqSink::options(&url).timeout(PATIENCE).open();
    lose_an_answer(&mut sink, &proxy, &queue).await;
    assert_eq!(texts(&drain(broker.url(), &queue).await), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn a_killed_broker_keeps_what_it_confirmed() {
    let Some(mut broker) = alone(Service::Rabbitmq) else { return };
    let queue = unique("killed");
    // A durable queue of the classic kind: a quorum queue of one node finds no leader after a kill in its first seconds.
    declare(broker.url(), &queue, &[]).await;
    // RabbitMQ writes down late, or when it ends in order, what queues there are (rabbitmq-server#15725).
    broker.stop().unwrap();
    broker.start().unwrap();
    let mut sink = RabbitmqSink::options(broker.url()).timeout(PATIENCE).open();
    assert!(confirmed(&sink.publish(&[event(&queue, "a", 1), event(&queue, "a", 2)]).await));
    broker.kill().unwrap();
    let third = [event(&queue, "a", 3)];
    let answers = sink.publish(&third).await;
    assert!(matches!(&answers[0], Published::Failed(_)), "{answers:?}");
    broker.start().unwrap();
    let mut answers = sink.publish(&third).await;
    for _ in 0..20 {
        if confirmed(&answers) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        answers = sink.publish(&third).await;
    }
    assert!(confirmed(&answers), "the broker is back and takes nothing: {answers:?}");
    assert_eq!(texts(&drain(broker.url(), &queue).await), ["1", "2", "3"]);
}

/// Wherever the connection is cut while it is asked: it could not be asked, and nothing is said of the exchange.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_is_no_missing_exchange() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let behind = broker.url().rsplit_once('@').unwrap().1;
    let (address, _) = behind.split_once('/').unwrap();
    let proxy = Proxy::start(address).unwrap();
    let url = broker.url().replace(address, &proxy.addr().to_string());
    let mut sink = RabbitmqSink::options(&url).exchange("amq.topic").timeout(Duration::from_secs(5)).open();
    let (mut cut, mut asked) = (0, false);
    for bytes in (0..).step_by(4) {
        assert!(bytes < 10_000, "it is never asked");
        proxy.next(1, Fault::CutAnswerAfter(bytes));
        match sink.probe().await {
            Err(_) => cut += 1,
            Ok(()) => asked = true,
        }
        assert_eq!(sink.guarantee().violations, Vec::<String>::new(), "cut after {bytes} bytes");
        if asked {
            break;
        }
    }
    assert!(cut > 50, "only {cut} places to cut it");
}

/// One of two events with one id comes back: that says nothing of the other.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_on_two_topics_is_judged_by_topic() {
    let Some(broker) = require(Service::Rabbitmq) else { return };
    let (there, nowhere) = (unique("there"), unique("nowhere"));
    declare(broker.url(), &there, &[("x-queue-type", text("quorum"))]).await;
    let one = Event::new(&there, "k", "1").unwrap();
    let other = Event::new(&nowhere, "k", "2").unwrap().with_id(one.id());
    let mut sink = RabbitmqSink::options(broker.url()).unroutable(Unroutable::Refuse).open();
    let answers = sink.publish(&[one.into(), other.into()]).await;
    assert_eq!(answers[0], Published::Confirmed, "{answers:?}");
    assert!(matches!(&answers[1], Published::Refused(_)), "{answers:?}");
    assert_eq!(texts(&drain(broker.url(), &there).await), ["1"]);
}
