//! What the two ends do by themselves.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use uuid::Uuid;

use super::broker::Broker;
use super::place::{KEYS, NAME, PAYLOAD_BYTES, Place, TOPIC};
use crate::Failed;

pub(super) type Bare = ThreadedProducer<DefaultProducerContext>;

const FLUSH: Duration = Duration::from_secs(60);

/// Events per second that `pg_recvlogical` reads from the backlog's slot, to nowhere.
pub(super) async fn reading(place: &Place, events: u64) -> Result<f64, Failed> {
    let end = place.end_of_wal().await?;
    let mut command = Command::new("pg_recvlogical");
    command.args(["--start", "--no-loop", "--file", "/dev/null", "--fsync-interval", "0"]);
    command.args(["--slot", &Place::slot("floor"), "--endpos", &end, "--dbname", place.server()]);
    command.args(["-o", "proto_version=1", "-o", &format!("publication_names={NAME}")]);
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("pg_recvlogical: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(events as f64 / begin.elapsed().as_secs_f64())
}

/// Events per second that a producer brings to the broker, from memory.
pub(super) async fn producing(broker: &Broker, events: u64) -> Result<f64, Failed> {
    broker.fresh_topic().await?;
    let producer: Bare = broker.producer().create()?;
    let payload = vec![b'x'; PAYLOAD_BYTES];
    let begin = Instant::now();
    for n in 0..events {
        send(&producer, n, &payload)?;
    }
    producer.flush(FLUSH)?;
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    let there = broker.records()?;
    if there == events { Ok(rate) } else { Err(format!("{there} records instead of {events}").into()) }
}

/// The record that the sink makes of an event of the backlog.
pub(super) fn send(producer: &Bare, n: u64, payload: &[u8]) -> Result<(), Failed> {
    let (key, id) = (format!("account-{}", n % KEYS), Uuid::from_u128(u128::from(n)).to_string());
    let headers = OwnedHeaders::new_with_capacity(3)
        .insert(Header { key: "semel-id", value: Some(&id) })
        .insert(Header { key: "semel-type", value: Some("payment.completed") })
        .insert(Header { key: "content-type", value: Some("application/json") });
    let mut record = BaseRecord::to(TOPIC).key(&key).payload(payload).headers(headers);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                record = back;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}
