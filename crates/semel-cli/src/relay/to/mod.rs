//! The sink of a relay: the broker in its URL.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(feature = "webhook")]
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use semel::outbox::Event;
use semel::sink::{Guarantee, Published, Sink, SinkError};

use super::args::SinkFlags;
use crate::absent::absent;
use crate::duration::parse_ms;
use crate::failure::Failed;
use crate::url::Address;

const KNOWN: &str = "use kafka://…, amqp://…, nats://…, redis://…, sqs://… or http://…";

/// Where events go, and the delivery semantics.
pub(super) enum To {
    AtLeastOnce(Box<AnySink>),
    #[cfg(feature = "kafka")]
    ExactlyOnce(Box<semel::sink::kafka::KafkaTransactions>),
}

impl To {
    pub(super) fn guarantee(&self) -> Guarantee {
        match self {
            Self::AtLeastOnce(sink) => sink.guarantee(),
            #[cfg(feature = "kafka")]
            Self::ExactlyOnce(sink) => sink.guarantee(),
        }
    }

    pub(super) async fn probe(&mut self) -> Result<(), SinkError> {
        match self {
            Self::AtLeastOnce(sink) => sink.probe().await,
            #[cfg(feature = "kafka")]
            Self::ExactlyOnce(sink) => sink.probe().await,
        }
    }
}

/// A sink that publishes at least once.
// Always boxed by its user.
#[allow(clippy::large_enum_variant)]
pub(super) enum AnySink {
    #[cfg(feature = "kafka")]
    Kafka(semel::sink::kafka::KafkaSink),
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(semel::sink::rabbitmq::RabbitmqSink),
    #[cfg(feature = "nats")]
    Nats(semel::sink::nats::NatsSink),
    #[cfg(feature = "redis")]
    Redis(semel::sink::redis_stream::RedisStreamSink),
    #[cfg(feature = "sqs")]
    Sqs(semel::sink::sqs::SqsSink),
    #[cfg(feature = "webhook")]
    Webhook(semel::sink::webhook::WebhookSink),
    /// A build may have none.
    #[allow(dead_code)]
    None(std::convert::Infallible),
}

/// The sink at the URL. Does not connect yet.
pub(super) fn open(url: &str, flags: &SinkFlags, exactly_once: Option<&str>) -> Result<To, Failed> {
    let address = Address::read(url).map_err(|why| Failed::usage(format!("--to: {why}; {KNOWN}")))?;
    let scheme = address.scheme.clone();
    let (broker, feature) = match scheme.as_str() {
        "kafka" => ("Kafka", "kafka"),
        "amqp" => ("RabbitMQ", "rabbitmq"),
        "nats" => ("NATS", "nats"),
        "redis" | "rediss" => ("Redis Streams", "redis"),
        "sqs" | "sqs+http" => ("SQS", "sqs"),
        "http" | "https" => ("webhooks", "webhook"),
        "amqps" | "kafka+ssl" | "kafkas" | "tls" => {
            return Err(Failed::usage(format!(
                "{scheme}:// is not supported yet: terminate TLS outside for now; {KNOWN}"
            )));
        }
        _ => return Err(Failed::usage(format!("{scheme:?} is not a supported broker; {KNOWN}"))),
    };
    if exactly_once.is_some() && feature != "kafka" {
        return Err(Failed::usage(format!(
            "--exactly-once needs a broker that stores the position together with the events, and {broker} cannot; use \
             kafka://, or leave --exactly-once out"
        )));
    }
    fits(flags, feature)?;
    match feature {
        #[cfg(feature = "kafka")]
        "kafka" => kafka::open(address, flags, exactly_once),
        #[cfg(feature = "rabbitmq")]
        "rabbitmq" => rabbitmq::open(address),
        #[cfg(feature = "nats")]
        "nats" => nats::open(address, flags),
        #[cfg(feature = "redis")]
        "redis" => redis::open(address),
        #[cfg(feature = "sqs")]
        "sqs" => sqs::open(address),
        #[cfg(feature = "webhook")]
        "webhook" => webhook::open(url, flags),
        _ => Err(absent(format!("publishing to {broker}"), feature)),
    }
}

/// Refuses flags that this broker would ignore: they were meant for something.
fn fits(flags: &SinkFlags, feature: &str) -> Result<(), Failed> {
    let webhook = flags.webhook_secret.is_some()
        || !flags.webhook_endpoint.is_empty()
        || flags.webhook_allow_private.is_some()
        || flags.webhook_concurrency.is_some()
        || flags.webhook_timeout.is_some();
    let wrong = [
        (webhook && feature != "webhook", "--webhook-… is for http://"),
        (flags.kafka_config.is_some() && feature != "kafka", "--kafka-config is for kafka://"),
        (
            flags.cloudevents.is_some() && !matches!(feature, "kafka" | "nats" | "webhook"),
            "--cloudevents is for kafka://, nats:// and http://",
        ),
    ];
    match wrong.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(Failed::usage(format!("{why}; leave it out, or use such a URL"))),
        None => Ok(()),
    }
}

/// A duration in a URL.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis", feature = "sqs"))]
fn time(text: &str) -> Result<Duration, String> {
    parse_ms(text).map(Duration::from_millis)
}

/// A number in a URL.
#[cfg(any(feature = "kafka", feature = "redis"))]
fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number, or too large"))
}

#[cfg(any(feature = "kafka", feature = "redis", feature = "sqs", feature = "webhook"))]
fn wrong(error: SinkError) -> Failed {
    Failed::usage(error.to_string())
}

macro_rules! each {
    ($this:ident, $sink:ident => $work:expr) => {
        match $this {
            #[cfg(feature = "kafka")]
            Self::Kafka($sink) => $work,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq($sink) => $work,
            #[cfg(feature = "nats")]
            Self::Nats($sink) => $work,
            #[cfg(feature = "redis")]
            Self::Redis($sink) => $work,
            #[cfg(feature = "sqs")]
            Self::Sqs($sink) => $work,
            #[cfg(feature = "webhook")]
            Self::Webhook($sink) => $work,
            Self::None(never) => match *never {},
        }
    };
}

impl Sink for AnySink {
    fn guarantee(&self) -> Guarantee {
        each!(self, sink => sink.guarantee())
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        each!(self, sink => sink.probe().await)
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        each!(self, sink => sink.publish(events).await)
    }
}
