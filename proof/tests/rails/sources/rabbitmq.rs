//! RabbitMQ: a queue, for scenes and for the laws of all sources; and what its source promises besides.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel::conformance::source::{Abilities, Lease, Sent, SourceHarness};
use semel::source::rabbitmq::RabbitmqSource;
use semel::source::{Settle, Source};
use testkit::services::{self, Service, require};

use crate::sources::scene::{Broker, Scene};
use crate::sources::taken::{all, ids, receive};
use crate::sources::{SOON, unique};

const WAIT: Duration = Duration::from_millis(200);
/// A broker that is there confirms sooner; one that is not may never say so.
const CONFIRMED_IN: Duration = Duration::from_secs(20);

/// A kind of queues.
pub trait Kind: Send + Sync {
    const KIND: &'static str;
}

macro_rules! kinds {
    ($($kind:ident $text:literal)*) => {$(
        pub struct $kind;

        impl Kind for $kind {
            const KIND: &'static str = $text;
        }
    )*};
}

// The last is a classic one with one active consumer.
kinds! { Classic "classic" Quorum "quorum" Single "single" }

/// A queue of a kind.
pub struct Queue<K>(Rabbitmq, PhantomData<K>);

impl<K: Kind> Broker for Queue<K> {
    const NAME: &'static str = "rabbitmq";

    async fn make(url: &str, name: &str) -> Self {
        Self(Rabbitmq::new(url, name, K::KIND).await, PhantomData)
    }

    async fn publish(&self, messages: &[(String, usize)]) {
        self.0.publish(messages).await;
    }

    /// Those that somebody has are not counted.
    async fn behind(&self) -> usize {
        self.0.behind().await
    }
}

impl<K> Queue<K> {
    /// How many tries to publish one were not confirmed.
    pub fn again(&self) -> usize {
        self.0.again.load(Ordering::Relaxed)
    }
}

struct Rabbitmq {
    url: String,
    queue: String,
    /// How many tries to publish one were not confirmed.
    again: AtomicUsize,
}

async fn channel(url: &str) -> Result<(Connection, Channel), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn table(headers: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), text(value));
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

impl Rabbitmq {
    async fn new(url: &str, queue: &str, kind: &str) -> Self {
        let (_connection, channel) = channel(url).await.unwrap();
        let mut arguments = FieldTable::default();
        match kind {
            "single" => arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true)),
            kind => arguments.insert("x-queue-type".into(), text(kind)),
        };
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), durable, arguments).await.unwrap();
        Self { url: url.to_owned(), queue: queue.to_owned(), again: AtomicUsize::new(0) }
    }

    /// Publishes anything, and waits for the confirms. Tells of each whether the broker has taken it.
    async fn send(
        url: &str,
        queue: &str,
        messages: impl Iterator<Item = (FieldTable, Vec<u8>)>,
    ) -> Result<Vec<bool>, lapin::Error> {
        let (_connection, channel) = channel(url).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut confirms = Vec::new();
        for (headers, payload) in messages {
            let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
            let options = BasicPublishOptions::default();
            match channel.basic_publish("".into(), queue.into(), options, &payload, properties).await {
                Ok(confirm) => confirms.push(confirm),
                // What went before may be there.
                Err(_) => break,
            }
        }
        let mut taken = Vec::new();
        for confirm in confirms {
            taken.push(confirm.await.is_ok_and(|confirm| confirm.is_ack()));
        }
        Ok(taken)
    }

    /// Until each is confirmed: what was refused, and what was on its way when the broker went, is published again.
    async fn publish(&self, sent: &[(String, usize)]) {
        let until = Instant::now() + SOON;
        for some in sent.chunks(1_000) {
            let mut left = some.to_vec();
            while !left.is_empty() {
                let messages = left.iter().map(|(key, n)| {
                    let id = format!("{key}/{n}");
                    (table(&[("semel-id", &id), ("semel-key", key)]), n.to_string().into_bytes())
                });
                let sending = Self::send(&self.url, &self.queue, messages);
                match tokio::time::timeout(CONFIRMED_IN, sending).await {
                    Ok(Ok(taken)) => {
                        let mut taken = taken.into_iter();
                        left.retain(|_| taken.next() != Some(true));
                    }
                    why => assert!(Instant::now() < until, "{why:?}"),
                }
                if !left.is_empty() {
                    self.again.fetch_add(left.len(), Ordering::Relaxed);
                    assert!(Instant::now() < until, "{} messages are not confirmed", left.len());
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    /// A queue whose broker has just come back may not be there yet.
    async fn behind(&self) -> usize {
        let until = Instant::now() + SOON;
        loop {
            match self.try_behind().await {
                Ok(behind) => return behind,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn try_behind(&self) -> Result<usize, lapin::Error> {
        let (_connection, channel) = channel(&self.url).await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.queue.as_str().into();
        let declared = channel.queue_declare(queue, passive, FieldTable::default()).await?;
        Ok(usize::try_from(declared.message_count()).unwrap())
    }
}

fn open<B>(url: &str, scene: &Scene<B>, prefetch: u16) -> RabbitmqSource {
    RabbitmqSource::options(url, &scene.name).prefetch(prefetch).open().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_comes_again_and_what_is_done_does_not() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    what_is_not_done_comes_again::<Classic>(&rabbitmq).await;
    what_is_not_done_comes_again::<Quorum>(&rabbitmq).await;
}

async fn what_is_not_done_comes_again<K: Kind>(rabbitmq: &services::Lease) {
    let kind = K::KIND;
    let Some(mut scene) = Scene::<Queue<K>>::new(rabbitmq.url()).await else { return };
    // Forty messages: each third is there twice.
    scene.publish(30).await;
    let mut source = open(rabbitmq.url(), &scene, 30);
    let came = receive(&mut source, 30).await;
    let first = &came[0];
    assert_eq!((first.from.as_str(), first.deliveries), (scene.name.as_str(), Some(1)));
    assert_eq!((first.key.as_deref(), first.header("semel-id")), (Some("key-0"), Some("key-0/1")));
    // Nothing beyond what may be out.
    assert!(source.receive(10, WAIT).await.unwrap().is_empty());
    // Given back it comes again in its order, before the next one.
    source.settle(&all(&came[20..], Settle::Nack)).await.unwrap();
    source.settle(&all(&came[5..10], Settle::Ack)).await.unwrap();
    let again = receive(&mut source, 15).await;
    assert_eq!(ids(&again[..10]), ids(&came[20..]));
    source.settle(&all(&came[15..20], Settle::Ack)).await.unwrap();
    source.leave().await.unwrap();
    assert!(source.receive(1, WAIT).await.is_err_and(|error| !error.may_retry()));
    // What was out is back when the broker has seen the connection close.
    let until = Instant::now() + SOON;
    while scene.behind().await != 30 {
        assert!(Instant::now() < until, "{kind}: {} are there", scene.behind().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut next = open(rabbitmq.url(), &scene, 100);
    let rest = receive(&mut next, 30).await;
    let wanted: Vec<&str> = ids(&came[..5]).into_iter().chain(ids(&came[10..15])).collect();
    assert_eq!(ids(&rest[..10]), wanted, "{kind}");
    assert_eq!(rest[0].deliveries, Some(2), "{kind}");
    assert!(rest.iter().all(|delivery| came.iter().all(|other| other.place != delivery.place)));
    next.settle(&all(&rest, Settle::Ack)).await.unwrap();
    next.leave().await.unwrap();
    assert_eq!(scene.behind().await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_queue_or_the_connection_everything_is_lost_and_reported() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let Some(mut scene) = Scene::<Queue<Classic>>::new(rabbitmq.url()).await else { return };
    scene.publish(30).await;
    let mut source = open(rabbitmq.url(), &scene, 100);
    let came = receive(&mut source, 10).await;
    source.settle(&all(&came[..2], Settle::Ack)).await.unwrap();
    let (_connection, admin) = channel(rabbitmq.url()).await.unwrap();
    admin.queue_delete(scene.name.as_str().into(), Default::default()).await.unwrap();
    let until = Instant::now() + SOON;
    let error = loop {
        assert!(Instant::now() < until);
        // What was sent ahead may still be given.
        match source.receive(10, WAIT).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.may_retry(), "{error}");
    let lost = source.lost();
    assert!(came[2..].iter().all(|delivery| lost.contains(&delivery.receipt)));
    assert!(came[..2].iter().all(|delivery| !lost.contains(&delivery.receipt)));
    source.settle(&all(&came[2..], Settle::Ack)).await.unwrap();
    // There is no queue, and it says so; then there is one again.
    let missing = source.receive(10, WAIT).await.unwrap_err();
    assert!(missing.may_retry() && missing.to_string().contains("declare it"), "{missing}");
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    admin.queue_declare(scene.name.as_str().into(), durable, FieldTable::default()).await.unwrap();
    scene.publish(3).await;
    let until = Instant::now() + SOON;
    while source.receive(10, WAIT).await.unwrap_or_default().is_empty() {
        assert!(Instant::now() < until);
    }
    source.leave().await.unwrap();
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_keep_messages_is_refused() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let (_connection, admin) = channel(rabbitmq.url()).await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let plain = FieldTable::default;
    let mut stream = plain();
    stream.insert("x-queue-type".into(), AMQPValue::LongString("stream".into()));
    for (name, options, arguments, word) in [
        ("transient", QueueDeclareOptions { durable: false, ..durable }, plain(), "durable"),
        ("deleted", QueueDeclareOptions { auto_delete: true, ..durable }, plain(), "auto-delete"),
        ("stream", durable, stream, "is a stream"),
    ] {
        let queue = format!("sources_{name}_{}", std::process::id());
        admin.queue_declare(queue.as_str().into(), options, arguments).await.unwrap();
        let mut source = RabbitmqSource::options(rabbitmq.url(), &queue).open().unwrap();
        let refused = source.receive(1, WAIT).await.unwrap_err();
        assert!(!refused.may_retry() && refused.to_string().contains(word), "{refused}");
        admin.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    }
}

/// The broker, for the laws: queues of a kind.
struct Law(services::Lease, &'static str);

impl SourceHarness for Law {
    type Source = RabbitmqSource;

    async fn queue(&self, _: Lease) -> String {
        let name = unique(self.1);
        Rabbitmq::new(self.0.url(), &name, self.1).await;
        name
    }

    async fn publish(&self, queue: &str, messages: &[Sent]) {
        let count = messages.len();
        let messages = messages.iter().map(|message| {
            let mut headers: Vec<_> =
                message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            headers.extend(message.key.as_deref().map(|key| ("semel-key", key)));
            (table(&headers), message.payload.to_vec())
        });
        let taken = Rabbitmq::send(self.0.url(), queue, messages).await.unwrap();
        assert_eq!(taken, vec![true; count]);
    }

    async fn source(&self, queue: &str) -> RabbitmqSource {
        RabbitmqSource::options(self.0.url(), queue).open().unwrap()
    }

    /// It counts only those that no consumer has.
    async fn left(&self, _: &str) -> Option<usize> {
        None
    }

    fn abilities(&self) -> Abilities {
        Abilities { places: false, lease: None, ..Abilities::default() }
    }
}

mod laws_of_classic_queues {
    semel::source_conformance!(
        testkit::services::require(testkit::services::Service::Rabbitmq)
            .map(|broker| super::Law(broker, "classic"))
    );
}

mod laws_of_quorum_queues {
    semel::source_conformance!(
        testkit::services::require(testkit::services::Service::Rabbitmq)
            .map(|broker| super::Law(broker, "quorum"))
    );
}
