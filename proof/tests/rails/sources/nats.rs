//! NATS JetStream: a stream and a durable consumer of its name, for scenes and for the laws of all sources.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use semel::conformance::source::{Abilities, Lease, Sent, SourceHarness};
use semel::outbox::Event;
use semel::sink::nats::NatsSink;
use semel::sink::{Published, Sink};
use semel::source::nats::NatsSource;
use semel::source::{Settle, Source};
use testkit::services::{self, Service, require};

use crate::sources::scene::{Broker, Scene, stop};
use crate::sources::{SOON, crash, outage, planted, unique};

pub struct JetStream {
    context: jetstream::Context,
    name: String,
}

impl JetStream {
    async fn at(url: &str, name: &str) -> Self {
        let mut context = jetstream::new(async_nats::connect(url).await.unwrap());
        context.set_timeout(SOON);
        Self { context, name: name.to_owned() }
    }

    async fn send(&self, headers: &[(&str, &str)], payload: Bytes) {
        self.begin(headers, payload).await.await.unwrap();
    }

    /// On its way, and to be waited for.
    async fn begin(&self, headers: &[(&str, &str)], payload: Bytes) -> PublishAckFuture {
        let mut all = HeaderMap::new();
        for (name, text) in headers {
            all.insert(*name, *text);
        }
        self.context.publish_with_headers(self.name.clone(), all, payload).await.unwrap()
    }

    /// As the server has the consumer, if there is one.
    async fn info(&self) -> Option<consumer::Info> {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        stream.consumer_info(&self.name).await.ok()
    }

    async fn left(&self) -> usize {
        match self.info().await {
            Some(info) => info.num_ack_pending + usize::try_from(info.num_pending).unwrap(),
            // No consumer has read yet.
            None => {
                let stream = self.context.get_stream(&self.name).await.unwrap();
                usize::try_from(stream.cached_info().state.messages).unwrap()
            }
        }
    }
}

impl Broker for JetStream {
    const NAME: &'static str = "nats";

    async fn make(url: &str, name: &str) -> Self {
        let made = Self::at(url, name).await;
        let config = stream::Config {
            name: name.to_owned(),
            subjects: vec![name.to_owned()],
            max_age: Duration::from_secs(3_600),
            ..stream::Config::default()
        };
        made.context.create_stream(config).await.unwrap();
        made
    }

    async fn publish(&self, messages: &[(String, usize)]) {
        for some in messages.chunks(100) {
            let mut under_way = Vec::new();
            for (key, n) in some {
                let id = format!("{key}/{n}");
                under_way
                    .push(self.begin(&[("semel-id", &id), ("semel-key", key)], n.to_string().into()).await);
            }
            for taken in under_way {
                taken.await.unwrap();
            }
        }
    }

    async fn behind(&self) -> usize {
        self.left().await
    }
}

struct Law(services::Lease);

const SHORT: Duration = Duration::from_secs(2);

impl SourceHarness for Law {
    type Source = NatsSource;

    async fn queue(&self, lease: Lease) -> String {
        let name = unique(if lease == Lease::Long { "long" } else { "short" });
        JetStream::make(self.0.url(), &name).await;
        name
    }

    async fn publish(&self, queue: &str, messages: &[Sent]) {
        let stream = JetStream::at(self.0.url(), queue).await;
        for message in messages {
            let key = message.key.as_deref().map(|key| ("semel-key", key));
            let headers = message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
            stream.send(&headers.chain(key).collect::<Vec<_>>(), message.payload.clone()).await;
        }
    }

    async fn source(&self, queue: &str) -> NatsSource {
        let wait = if queue.starts_with("short") { SHORT } else { Duration::from_secs(120) };
        NatsSource::options(self.0.url(), queue, queue).ack_wait(wait).open().unwrap()
    }

    async fn left(&self, queue: &str) -> Option<usize> {
        Some(JetStream::at(self.0.url(), queue).await.left().await)
    }

    fn abilities(&self) -> Abilities {
        Abilities { lease: Some(SHORT), ..Abilities::default() }
    }
}

mod laws {
    semel::source_conformance!(testkit::services::require(testkit::services::Service::Nats).map(super::Law));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: half a minute of waiting for redelivery"]
async fn killed_at_every_point_each_message_of_a_stream_has_its_effect_once() {
    let Some(nats) = require(Service::Nats) else { return };
    crash::killed_at_every_point::<JetStream>(nats.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn the_server_is_killed_and_each_message_of_a_stream_has_its_effect_once() {
    outage::the_broker_is_killed::<JetStream>(Service::Nats, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_before_the_effect_loses_messages() {
    let Some(nats) = require(Service::Nats) else { return };
    planted::acknowledged_before_the_effect::<JetStream>(nats.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for leases to pass"]
async fn work_that_takes_longer_than_the_lease_is_not_delivered_again() {
    let Some(nats) = require(Service::Nats) else { return };
    let mut delivered = Vec::new();
    // A machine that stands still for as long cannot prolong the lease: what is wrong is wrong each time.
    while delivered.len() < 3 && delivered.last() != Some(&(0, 80)) {
        let Some(mut scene) = Scene::<JetStream>::new(nats.url()).await else { return };
        scene.publish(60).await;
        let worker = scene.worker("slow", "-", None);
        scene.reach_all().await;
        scene.behind_at_most(0).await;
        let info = scene.broker.info().await.unwrap();
        delivered.push((info.num_redelivered, info.delivered.consumer_sequence));
        stop(worker);
        assert_eq!(scene.judge().await, Vec::<String>::new());
        scene.end().await;
    }
    // Each third of 60 was published twice.
    assert_eq!(delivered.last(), Some(&(0, 80)), "{delivered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_would_lose_messages_is_refused() {
    let Some(nats) = require(Service::Nats) else { return };
    let name = unique("refused");
    let stream = JetStream::make(nats.url(), &name).await;
    let made = stream.context.get_stream(&name).await.unwrap();
    for (consumer, config, why) in [
        ("all", pull::Config { ack_policy: AckPolicy::All, ..pull::Config::default() }, "explicit"),
        ("few", pull::Config { max_deliver: 3, ..pull::Config::default() }, "max_deliver"),
    ] {
        let durable_name = Some(consumer.to_owned());
        made.create_consumer(pull::Config { durable_name, ..config }).await.unwrap();
        let mut source = NatsSource::options(nats.url(), &name, consumer).open().unwrap();
        let error = source.receive(1, Duration::ZERO).await.unwrap_err();
        assert!(!error.may_retry() && error.to_string().contains(why), "{error}");
    }
    // One that is not there is not made by who may not.
    let mut source = NatsSource::options(nats.url(), &name, "none").create(false).open().unwrap();
    let error = source.receive(1, Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("create it first"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_anew_is_another_lineage() {
    let Some(nats) = require(Service::Nats) else { return };
    let name = unique("anew");
    let mut lineages = Vec::new();
    for _ in 0..2 {
        let stream = JetStream::make(nats.url(), &name).await;
        stream.send(&[("semel-id", "e-1")], "{}".into()).await;
        let mut source = NatsSource::options(nats.url(), &name, "reader").open().unwrap();
        assert_eq!(source.retention().await, Some(Duration::from_secs(3_600)));
        let came = source.receive(1, SOON).await.unwrap();
        source.settle(&[(came[0].receipt, Settle::Ack)]).await.unwrap();
        assert_eq!((came[0].from.as_str(), came[0].place.clone()), (name.as_str(), format!("{name}/1")));
        assert_eq!(came[0].key.as_deref(), Some(name.as_str()), "without a key the subject is it");
        lineages.push(came[0].lineage.clone().unwrap());
        source.leave().await.unwrap();
        stream.context.delete_stream(&name).await.unwrap();
    }
    assert_ne!(lineages[0], lineages[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sink_wrote_the_source_reads() {
    let Some(nats) = require(Service::Nats) else { return };
    let name = unique("both");
    JetStream::make(nats.url(), &name).await;
    let event = Event::new(&name, "payment.completed", "{}").unwrap().key("account-7").unwrap();
    let id = event.id().to_string();
    let published = NatsSink::options(nats.url()).open().publish(&[event.into()]).await;
    assert_eq!(published, [Published::Confirmed]);
    let mut source = NatsSource::options(nats.url(), &name, "reader").open().unwrap();
    let came = source.receive(1, SOON).await.unwrap();
    assert_eq!(came[0].key.as_deref(), Some("account-7"));
    assert_eq!(came[0].header("semel-id"), Some(id.as_str()));
    source.leave().await.unwrap();
}
