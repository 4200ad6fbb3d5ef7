//! What the source for RabbitMQ promises, without a consumer around it.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use semel::conformance::source::{Abilities, Lease, Sent, SourceHarness};
use semel::source::rabbitmq::RabbitmqSource;
use semel::source::{Delivery, Receipt, Settle, Source};
use testkit::services::{self, Service, require};

use crate::broker::rabbitmq::{Rabbitmq, channel, table};
use crate::scene::Scene;
use crate::{SOON, unique};

const WAIT: Duration = Duration::from_millis(200);

fn open(scene: &Scene, prefetch: u16) -> RabbitmqSource {
    RabbitmqSource::options(&scene.brokers, &scene.topic).prefetch(prefetch).open().unwrap()
}

async fn receive(source: &mut RabbitmqSource, count: usize) -> Vec<Delivery> {
    let until = Instant::now() + SOON;
    let mut came = Vec::new();
    while came.len() < count {
        assert!(Instant::now() < until, "{} of {count} came", came.len());
        came.extend(source.receive(count - came.len(), WAIT).await.unwrap());
    }
    came
}

fn all(came: &[Delivery], settle: Settle) -> Vec<(Receipt, Settle)> {
    came.iter().map(|delivery| (delivery.receipt, settle)).collect()
}

fn ids(came: &[Delivery]) -> Vec<&str> {
    came.iter().map(|delivery| delivery.header("semel-id").unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_comes_again_and_what_is_done_does_not() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    for (kind, deliveries) in [("classic", 2), ("quorum", 2)] {
        let Some(mut scene) = Scene::of(rabbitmq.url(), kind).await else { return };
        // Forty messages: each third is there twice.
        scene.publish(30).await;
        let mut source = open(&scene, 30);
        let came = receive(&mut source, 30).await;
        let first = &came[0];
        assert_eq!((first.from.as_str(), first.deliveries), (scene.topic.as_str(), Some(1)));
        assert_eq!((first.key.as_deref(), first.header("semel-id")), (Some("key-0"), Some("key-0/1")));
        // Nothing beyond what may be out.
        assert!(source.receive(10, WAIT).await.unwrap().is_empty());
        // Given back it comes again in its order, before the next one.
        source.settle(&all(&came[20..], Settle::Again)).await.unwrap();
        source.settle(&all(&came[5..10], Settle::Done)).await.unwrap();
        let again = receive(&mut source, 15).await;
        assert_eq!(ids(&again[..10]), ids(&came[20..]));
        source.settle(&all(&came[15..20], Settle::Done)).await.unwrap();
        source.leave().await.unwrap();
        assert!(source.receive(1, WAIT).await.is_err_and(|error| !error.may_retry()));
        assert_eq!(scene.behind().await, 30);
        let mut next = open(&scene, 100);
        let rest = receive(&mut next, 30).await;
        let wanted: Vec<&str> = ids(&came[..5]).into_iter().chain(ids(&came[10..15])).collect();
        assert_eq!(ids(&rest[..10]), wanted, "{kind}");
        assert_eq!(rest[0].deliveries, Some(deliveries), "{kind}");
        assert!(rest.iter().all(|delivery| came.iter().all(|other| other.place != delivery.place)));
        next.settle(&all(&rest, Settle::Done)).await.unwrap();
        next.leave().await.unwrap();
        assert_eq!(scene.behind().await, 0);
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_queue_or_the_connection_everything_is_lost_and_told() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let Some(mut scene) = Scene::of(rabbitmq.url(), "classic").await else { return };
    scene.publish(30).await;
    let mut source = open(&scene, 100);
    let came = receive(&mut source, 10).await;
    source.settle(&all(&came[..2], Settle::Done)).await.unwrap();
    let (_connection, admin) = channel(rabbitmq.url()).await.unwrap();
    admin.queue_delete(scene.topic.as_str().into(), Default::default()).await.unwrap();
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
    source.settle(&all(&came[2..], Settle::Done)).await.unwrap();
    // There is no queue, and it says so; then there is one again.
    let missing = source.receive(10, WAIT).await.unwrap_err();
    assert!(missing.may_retry() && missing.to_string().contains("declare it"), "{missing}");
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    admin.queue_declare(scene.topic.as_str().into(), durable, FieldTable::default()).await.unwrap();
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
    for (name, options, word) in [
        ("transient", QueueDeclareOptions { durable: false, ..durable }, "durable"),
        ("deleted", QueueDeclareOptions { auto_delete: true, ..durable }, "auto-delete"),
    ] {
        let queue = format!("sources_{name}_{}", std::process::id());
        admin.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.unwrap();
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
        let messages = messages.iter().map(|message| {
            let mut headers: Vec<_> =
                message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            headers.extend(message.key.as_deref().map(|key| ("semel-key", key)));
            (table(&headers), message.payload.to_vec())
        });
        Rabbitmq::send(self.0.url(), queue, messages).await.unwrap();
    }

    async fn source(&self, queue: &str) -> RabbitmqSource {
        RabbitmqSource::options(self.0.url(), queue).open().unwrap()
    }

    /// It tells only of those that nobody has.
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
