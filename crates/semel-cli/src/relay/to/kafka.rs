//! `kafka://HOST:PORT,HOST:PORT?…`

use semel::sink::kafka::{Compression, KafkaSink, MissingTopic};

use super::{AnySink, To, number, time, wrong};
use crate::failure::Failed;
use crate::kafka as properties;
use crate::relay::args::SinkFlags;
use crate::size::parse_bytes;
use crate::url::Address;

const KNOWN: &str = "compression, cloudevents, missing_topic, linger, in_flight, batch_bytes, message_bytes, \
                     queue_bytes, timeout, position_topic, transaction_timeout, and librdkafka properties, whose names \
                     have a dot";

pub(super) fn open(mut url: Address, flags: &SinkFlags, exactly_once: Option<&str>) -> Result<To, Failed> {
    let brokers = url.rest().trim_end_matches('/').to_owned();
    if brokers.contains(['/', '@']) {
        return Err(Failed::usage(
            "a kafka:// URL has only brokers, such as kafka://k1:9092,k2:9092; events have their own topics, and \
             passwords go into --kafka-config",
        ));
    }
    let mut options = KafkaSink::options(&brokers);
    if let Some(compression) = url.read_option("compression", compression)? {
        options = options.compression(compression);
    }
    if let Some(source) = url.take("cloudevents").or_else(|| flags.cloudevents.clone()) {
        options = options.cloud_events(&source);
    }
    if let Some(missing) = url.read_option("missing_topic", missing_topic)? {
        options = options.missing_topic(missing);
    }
    if let Some(linger) = url.read_option("linger", time)? {
        options = options.linger(linger);
    }
    if let Some(requests) = url.read_option("in_flight", number)? {
        options = options.in_flight(requests);
    }
    if let Some(bytes) = url.read_option("batch_bytes", parse_bytes)? {
        options = options.batch_bytes(bytes);
    }
    if let Some(bytes) = url.read_option("message_bytes", parse_bytes)? {
        options = options.message_bytes(bytes);
    }
    if let Some(bytes) = url.read_option("queue_bytes", parse_bytes)? {
        options = options.queue_bytes(bytes);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    if let Some(topic) = url.take("position_topic") {
        options = options.position_topic(&topic);
    }
    if let Some(timeout) = url.read_option("transaction_timeout", time)? {
        options = options.transaction_timeout(timeout);
    }
    let mut properties = properties::in_url(&mut url)?;
    url.finish(KNOWN)?;
    properties.extend(properties::in_file(flags.kafka_config.as_ref())?);
    for (property, value) in properties {
        options = options.set(&property, &value).map_err(wrong)?;
    }
    Ok(match exactly_once {
        None => To::AtLeastOnce(Box::new(AnySink::Kafka(options.open().map_err(wrong)?))),
        Some(id) => To::ExactlyOnce(Box::new(options.exactly_once(id).map_err(wrong)?)),
    })
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "snappy" => Ok(Compression::Snappy),
        _ => Err(format!("{text:?} is not a compression; use none, lz4, snappy")),
    }
}

fn missing_topic(text: &str) -> Result<MissingTopic, String> {
    match text {
        "create" => Ok(MissingTopic::Create),
        "wait" => Ok(MissingTopic::Wait),
        "refuse" => Ok(MissingTopic::Refuse),
        _ => Err(format!("{text:?} is not a way to handle a missing topic; use create, wait, refuse")),
    }
}
