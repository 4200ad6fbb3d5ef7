//! Both sinks pass the laws, and a sink of Kafka's with a planted bug does not.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::sink::ExactlyOnce;
use semel::sink::kafka::{KafkaSink, KafkaTransactions};
use testkit::services::{Lease, Service, require};

use super::reader;
use crate::sinks::planted::{Bug, are_caught};
use crate::sinks::unique;

struct Broker(Lease);

impl Broker {
    async fn topic(&self) -> String {
        let topic = unique("law");
        reader::topic(self.0.url(), &topic, 3, &[]).await;
        topic
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        let topic = unique("small");
        reader::topic(self.0.url(), &topic, 3, &[("max.message.bytes", "2000")]).await;
        Some((topic, vec![b'x'; 5_000].into()))
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        let (bootstrap, topic) = (self.0.url().to_owned(), topic.to_owned());
        let read = move || {
            reader::wait_for_transactions(&bootstrap, &topic);
            reader::read(&bootstrap, &topic, "read_committed")
        };
        let found = tokio::task::spawn_blocking(read).await.unwrap();
        found.into_iter().map(|found| found.seen).collect()
    }
}

struct AtLeastOnce(Broker);

impl AtLeastOnce {
    fn new() -> Option<Self> {
        require(Service::Kafka).map(|broker| Self(Broker(broker)))
    }
}

impl SinkHarness for AtLeastOnce {
    type Sink = KafkaSink;

    async fn sink(&self) -> KafkaSink {
        KafkaSink::options(self.0.0.url()).open().unwrap()
    }

    async fn sink_at(&self, address: SocketAddr) -> KafkaSink {
        KafkaSink::options(&address.to_string()).timeout(Duration::from_secs(1)).open().unwrap()
    }

    async fn topic(&self) -> String {
        self.0.topic().await
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        self.0.refusing().await
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.0.read(topic).await
    }
}

struct InTransactions(Broker);

impl InTransactions {
    fn new() -> Option<Self> {
        require(Service::Kafka).map(|broker| Self(Broker(broker)))
    }
}

impl SinkHarness for InTransactions {
    type Sink = KafkaTransactions;

    async fn sink(&self) -> KafkaTransactions {
        let options = KafkaSink::options(self.0.0.url()).position_topic("sink-law-positions");
        let mut sink = options.exactly_once(&unique("relay")).unwrap();
        assert_eq!(sink.begin().await.unwrap(), None);
        sink
    }

    async fn sink_at(&self, address: SocketAddr) -> KafkaTransactions {
        let options = KafkaSink::options(&address.to_string()).timeout(Duration::from_secs(1));
        let mut sink = options.exactly_once(&unique("relay")).unwrap();
        sink.begin().await.unwrap_err();
        sink
    }

    async fn topic(&self) -> String {
        self.0.topic().await
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        self.0.refusing().await
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.0.read(topic).await
    }
}

mod at_least_once {
    semel::sink_conformance!(super::AtLeastOnce::new());
}

mod in_transactions {
    semel::sink_conformance!(super::InTransactions::new());
}

#[test]
fn planted_bugs_are_caught_on_the_real_broker() {
    let bugs = [
        (Bug::ConfirmsWhatWasSent, "a_broker_that_is_gone_confirms_nothing"),
        (Bug::ConfirmsWhatWasSent, "a_refused_event_is_reported_and_holds_back_its_key"),
        (Bug::GoesOnPastARefusedEvent, "a_refused_event_is_reported_and_holds_back_its_key"),
    ];
    are_caught(AtLeastOnce::new, &bugs);
}
