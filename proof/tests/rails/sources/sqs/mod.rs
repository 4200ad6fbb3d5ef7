//! Amazon SQS, as ElasticMQ speaks it: queues, for scenes and for the laws of all sources.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proof::bare_sqs::BareSqs;
use semel::conformance::source::{Abilities, Lease, Sent, SourceHarness};
use semel::source::sqs::{SqsSource, SqsSourceOptions};
use testkit::services::{self, Service, require};

use crate::sources::crash::killed_at_every_point;
use crate::sources::planted::acknowledged_before_the_effect;
use crate::sources::scene::Broker;
use crate::sources::unique;

mod promises;

/// A queue of a new name.
pub struct Queue {
    server: BareSqs,
    url: String,
    lease: services::Lease,
}

impl Queue {
    fn new(fifo: bool) -> Option<Self> {
        let lease = require(Service::Elasticmq)?;
        let server = BareSqs::new(lease.url());
        let url = server.make(&unique_name(fifo), &[]);
        Some(Self { server, url, lease })
    }

    /// A standard one and a FIFO one.
    fn both() -> impl Iterator<Item = Self> {
        [false, true].into_iter().filter_map(Self::new)
    }

    fn fifo(&self) -> bool {
        self.url.ends_with(".fifo")
    }

    fn push(&self, group: &str, id: &str) {
        let group = self.fifo().then_some(group);
        self.server.send(&self.url, group, &[("semel-id", id)], id, &format!("payload of {id}"));
    }

    fn source(&self, visibility: Duration) -> SqsSource {
        options(&self.url).visibility(visibility).open().unwrap()
    }

    fn len(&self) -> usize {
        self.server.len(&self.url)
    }
}

fn unique_name(fifo: bool) -> String {
    format!("{}{}", unique("sources"), if fifo { ".fifo" } else { "" })
}

fn options(url: &str) -> SqsSourceOptions {
    SqsSource::options(url).credentials("somebody", "secret", None).region("elasticmq")
}

/// A FIFO queue, for scenes.
pub struct Fifo {
    server: BareSqs,
    url: String,
    sent: AtomicUsize,
}

impl Broker for Fifo {
    const NAME: &'static str = "sqs";

    async fn make(url: &str, name: &str) -> Self {
        let server = BareSqs::new(url);
        let url = server.make(&format!("{name}.fifo"), &[]);
        Self { server, url, sent: AtomicUsize::new(0) }
    }

    async fn publish(&self, messages: &[(String, usize)]) {
        for (key, n) in messages {
            // Another id each time: what is published twice is to be there twice, as after more than five minutes.
            let sent = self.sent.fetch_add(1, Ordering::SeqCst).to_string();
            let id = format!("{key}/{n}");
            self.server.send(&self.url, Some(key), &[("semel-id", &id)], &sent, &n.to_string());
        }
    }

    async fn behind(&self) -> usize {
        self.server.len(&self.url)
    }
}

/// The server, for the laws.
struct Law {
    fifo: bool,
    lease: services::Lease,
}

impl Law {
    fn new(fifo: bool) -> Option<Self> {
        require(Service::Elasticmq).map(|lease| Self { fifo, lease })
    }

    fn server(&self) -> BareSqs {
        BareSqs::new(self.lease.url())
    }
}

impl SourceHarness for Law {
    type Source = SqsSource;

    async fn queue(&self, lease: Lease) -> String {
        let name = unique(if lease == Lease::Long { "long" } else { "short" });
        self.server().make(&format!("{name}{}", if self.fifo { ".fifo" } else { "" }), &[])
    }

    async fn publish(&self, queue: &str, messages: &[Sent]) {
        let server = self.server();
        for message in messages {
            let attributes: Vec<_> =
                message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            // A FIFO queue has no message without a group; one of its own is as good as none.
            let once = unique("once");
            let group = self.fifo.then(|| message.key.as_deref().unwrap_or(&once));
            let body = String::from_utf8(message.payload.to_vec()).unwrap();
            server.send(queue, group, &attributes, &once, &body);
        }
    }

    async fn source(&self, queue: &str) -> SqsSource {
        let visibility = if queue.contains("/short") { SHORT } else { Duration::from_secs(120) };
        options(queue).visibility(visibility).open().unwrap()
    }

    async fn left(&self, queue: &str) -> Option<usize> {
        Some(self.server().len(queue))
    }

    /// Texts: other bytes are an agreement between sink and source, which the sink's laws and `record` look at.
    fn abilities(&self) -> Abilities {
        let (order, keys) = (self.fifo, self.fifo);
        Abilities { order, keys, bytes: false, lease: Some(SHORT), ..Abilities::default() }
    }
}

/// Nearly the shortest there is.
const SHORT: Duration = Duration::from_secs(3);

mod laws_of_a_standard_queue {
    semel::source_conformance!(super::Law::new(false));
}

mod laws_of_a_fifo_queue {
    semel::source_conformance!(super::Law::new(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_point_each_message_has_its_effect_once() {
    let Some(sqs) = require(Service::Elasticmq) else { return };
    killed_at_every_point::<Fifo>(sqs.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_deleted_before_the_effect_is_lost() {
    let Some(sqs) = require(Service::Elasticmq) else { return };
    acknowledged_before_the_effect::<Fifo>(sqs.url()).await;
}
