//! `kafka://HOST:PORT,HOST:PORT?…`

use semel::sink::kafka::{Compression, KafkaOptions, KafkaSink, MissingTopic};

use super::{AnySink, To, number, time, wrong};
use crate::failure::Failed;
use crate::relay::args::SinkFlags;
use crate::size::parse_bytes;
use crate::url::Address;

const KNOWN: &str = "compression, cloudevents, missing_topic, linger, in_flight, batch_bytes, message_bytes, \
                     queue_bytes, timeout, position_topic, transaction_timeout, and librdkafka's own, whose names have a \
                     dot";

/// What is a secret is not for a command line.
const SECRET: [&str; 5] = [
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.client.secret",
];

pub(super) fn open(mut url: Address, flags: &SinkFlags, exactly_once: Option<&str>) -> Result<To, Failed> {
    let brokers = url.rest().trim_end_matches('/').to_owned();
    if brokers.contains(['/', '@']) {
        return Err(Failed::usage(
            "kafka:// has brokers only, such as kafka://k1:9092,k2:9092; topics are the events' own, and passwords are in \
             --kafka-config",
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
    for (property, value) in url.take_where(|name| name.contains('.')) {
        if SECRET.contains(&property.as_str()) {
            return Err(Failed::usage(format!(
                "{property} in a URL could be read by others; put it into a file and say --kafka-config file:PATH"
            )));
        }
        options = options.set(&property, &value).map_err(wrong)?;
    }
    url.finish(KNOWN)?;
    options = configured(options, flags)?;
    Ok(match exactly_once {
        None => To::AtLeastOnce(Box::new(AnySink::Kafka(options.open().map_err(wrong)?))),
        Some(id) => To::ExactlyOnce(Box::new(options.exactly_once(id).map_err(wrong)?)),
    })
}

/// The properties in a file or in the environment. None of its values is ever repeated.
fn configured(mut options: KafkaOptions, flags: &SinkFlags) -> Result<KafkaOptions, Failed> {
    let Some(source) = &flags.kafka_config else { return Ok(options) };
    let (text, warning) = source.text("properties").map_err(Failed::usage)?;
    if let Some(warning) = warning {
        eprintln!("semel: {warning}");
    }
    let lines = text.lines().map(str::trim).enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let Some((property, value)) = line.split_once('=') else {
            return Err(Failed::usage(format!("line {} of {source} is not NAME=VALUE", at + 1)));
        };
        options = options.set(property.trim(), value.trim()).map_err(wrong)?;
    }
    Ok(options)
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "snappy" => Ok(Compression::Snappy),
        _ => Err(format!("{text:?} is no compression; use none, lz4, snappy")),
    }
}

fn missing_topic(text: &str) -> Result<MissingTopic, String> {
    match text {
        "create" => Ok(MissingTopic::Create),
        "wait" => Ok(MissingTopic::Wait),
        "refuse" => Ok(MissingTopic::Refuse),
        _ => Err(format!(
            "{text:?} is not what can be done about a topic that is missing; use create, wait, refuse"
        )),
    }
}
