//! NATS JetStream, read message by message by a bare client.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::outbox::Event;
use semel::sink::nats::NatsSink;
use semel::sink::{Published, Sink};
use testkit::proxy::Proxy;
use testkit::services::{Lease, Service, require};

use crate::sinks::{PATIENCE, confirmed, event, lose_an_answer, texts, unique};

async fn make(url: &str, name: &str, message_bytes_max: i32) {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![name.to_owned()],
        max_message_size: message_bytes_max,
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
}

async fn read(url: &str, name: &str) -> Vec<ReadMessage> {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let mut stream = context.get_stream(name).await.unwrap();
    let last = stream.info().await.unwrap().state.last_sequence;
    let mut all = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let mut pairs = Vec::new();
        for (name, values) in message.headers.iter() {
            pairs.push((name.to_string(), values[0].as_str().to_owned()));
        }
        all.push(ReadMessage::new(
            message.payload,
            pairs.iter().map(|(name, text)| (name.as_str(), text.as_str())),
        ));
    }
    all
}

struct JetStream(Lease);

impl JetStream {
    fn new() -> Option<Self> {
        require(Service::Nats).map(Self)
    }
}

impl SinkHarness for JetStream {
    type Sink = NatsSink;

    async fn sink(&self) -> NatsSink {
        NatsSink::options(self.0.url()).open()
    }

    async fn sink_at(&self, address: SocketAddr) -> NatsSink {
        NatsSink::options(&format!("nats://{address}")).timeout(Duration::from_secs(1)).open()
    }

    async fn topic(&self) -> String {
        let name = unique("law");
        make(self.0.url(), &name, -1).await;
        name
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        let name = unique("small");
        make(self.0.url(), &name, 2_000).await;
        Some((name, vec![b'x'; 5_000].into()))
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        read(self.0.url(), topic).await
    }
}

mod laws {
    semel::sink_conformance!(super::JetStream::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_stream_nothing_is_confirmed() {
    let Some(server) = require(Service::Nats) else { return };
    let name = unique("later");
    let one = [event(&name, "a", 1)];
    let mut sink = NatsSink::options(server.url()).open();
    let answers = sink.publish(&one).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    make(server.url(), &name, -1).await;
    // Another stream than the expected one listens.
    let mut other = NatsSink::options(server.url()).stream(&unique("other")).open();
    let answers = other.publish(&one).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    let mut right = NatsSink::options(server.url()).stream(&name).cloud_events("/payments").open();
    assert!(confirmed(&right.publish(&one).await));
    let seen = read(server.url(), &name).await;
    assert_eq!(texts(&seen), ["1"]);
    assert_eq!(seen[0].header("ce-source"), Some("/payments"));
    let known_by = seen[0].header("nats-msg-id").unwrap();
    assert!(known_by.starts_with(&format!("{}.", seen[0].id().unwrap())), "{known_by}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_does_not_give_orders_to_the_server() {
    let Some(server) = require(Service::Nats) else { return };
    let name = unique("orders");
    make(server.url(), &name, -1).await;
    let mut sink = NatsSink::options(server.url()).open();
    let rollup = Event::new(&name, "k", "{}").unwrap().header("Nats-Rollup", "all").unwrap();
    let wild = Event::new("orders.>", "k", "{}").unwrap();
    let answers = sink.publish(&[rollup.into(), wild.into(), event(&name, "a", 1)]).await;
    assert!(matches!(&answers[0], Published::Refused(_)), "{answers:?}");
    assert!(matches!(&answers[1], Published::Refused(_)), "{answers:?}");
    assert_eq!(answers[2], Published::Confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_is_none_and_the_repeat_is_stored_once() {
    let Some(server) = require(Service::Nats) else { return };
    let name = unique("lost");
    make(server.url(), &name, -1).await;
    let address = server.url().trim_start_matches("nats://");
    let proxy = Proxy::start(address).unwrap();
    let url = format!("nats://{}", proxy.addr());
    let mut sink = NatsSink::options(&url).timeout(PATIENCE).open();
    lose_an_answer(&mut sink, &proxy, &name).await;
    let seen = read(server.url(), &name).await;
    assert_eq!(texts(&seen), ["1", "2", "3"]);
    assert_eq!(seen.len(), 3);
}

/// One stream listens for both topics.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_on_two_topics_is_two_messages() {
    let Some(server) = require(Service::Nats) else { return };
    let name = unique("twins");
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let subjects = vec![format!("{name}.*")];
    let config = stream::Config { name: name.clone(), subjects, ..stream::Config::default() };
    context.create_stream(config).await.unwrap();
    let one = Event::new(&format!("{name}.paid"), "k", "paid").unwrap();
    let other = Event::new(&format!("{name}.mail"), "k", "mail").unwrap().with_id(one.id());
    let both = [one.into(), other.into()];
    let mut sink = NatsSink::options(server.url()).open();
    assert!(confirmed(&sink.publish(&both).await));
    // A repeat is still one.
    assert!(confirmed(&sink.publish(&both).await));
    let seen = read(server.url(), &name).await;
    assert_eq!(texts(&seen), ["paid", "mail"]);
    assert_eq!(seen.len(), 2);
}
