//! `kafka://HOST:PORT,HOST:PORT/TOPIC,TOPIC?group=…`

use std::time::Duration;

use semel::source::SourceError;
use semel::source::kafka::{Begin, KafkaSource};

use super::{AnySource, From};
use crate::consume::args::Consume;
use crate::duration::parse_ms;
use crate::failure::Failed;
use crate::kafka as properties;
use crate::size::parse_bytes;
use crate::url::Address;

const KNOWN: &str =
    "group, begin, session, queue_bytes, timeout, and librdkafka properties, whose names have a dot";

pub(super) fn open(mut url: Address, args: &Consume) -> Result<From, Failed> {
    let rest = url.rest().to_owned();
    let (brokers, topics) = rest.split_once('/').unwrap_or((&rest, ""));
    if brokers.contains('@') {
        return Err(Failed::usage(
            "a kafka:// URL has only brokers and topics; give passwords with --kafka-config",
        ));
    }
    let topics: Vec<&str> = topics.split(',').map(str::trim).filter(|topic| !topic.is_empty()).collect();
    if topics.is_empty() || topics.iter().any(|topic| topic.contains('/')) {
        return Err(Failed::usage(
            "the URL has no topics; name the topics: kafka://HOST:PORT/payments,refunds?group=NAME",
        ));
    }
    let group = url.take("group").filter(|group| !group.is_empty()).ok_or_else(|| {
        Failed::usage(
            "kafka:// needs a group, under which Kafka stores the offsets: kafka://HOST:PORT/TOPIC?group=NAME",
        )
    })?;
    let mut options = KafkaSource::options(brokers, &group).topics(&topics);
    if let Some(begin) = url.read_option("begin", begin)? {
        options = options.begin(begin);
    }
    if let Some(session) = url.read_option("session", time)? {
        options = options.session(session);
    }
    if let Some(bytes) = url.read_option("queue_bytes", parse_bytes)? {
        options = options.queue_bytes(bytes);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    let mut given = properties::in_url(&mut url)?;
    url.finish(KNOWN)?;
    given.extend(properties::in_file(args.kafka_config.as_ref())?);
    for (property, value) in given {
        options = options.set(&property, &value).map_err(wrong)?;
    }
    Ok(From { source: AnySource::Kafka(options.open().map_err(wrong)?), group })
}

fn begin(text: &str) -> Result<Begin, String> {
    match text {
        "earliest" => Ok(Begin::Earliest),
        "latest" => Ok(Begin::Latest),
        "refuse" => Ok(Begin::Refuse),
        _ => Err(format!("{text:?} is not where a group can begin; use earliest, latest, refuse")),
    }
}

/// A duration in a URL.
fn time(text: &str) -> Result<Duration, String> {
    parse_ms(text).map(Duration::from_millis)
}

fn wrong(error: SourceError) -> Failed {
    Failed::usage(error.to_string())
}
