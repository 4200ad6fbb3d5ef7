//! Debezium's engine with its outbox event router, on the same table, from a slot of the same WAL, to the same broker.
//!
//! It needs a JDK (its harness is a source file) and jars of Maven Central. Where they cannot be had it is left out, and
//! that is said.

use std::path::PathBuf;
use std::time::Duration;

use testkit::child::Child;
use testkit::services::debezium::class_path;

use super::broker::Broker;
use super::place::{NAME, Place};
use crate::Failed;
use crate::java::Harness;
use crate::table::Table;
use crate::usage::high_water;

const DRAIN: Duration = Duration::from_secs(1_200);
const HARNESS: &str = include_str!("Debezium.java");

pub(super) async fn measure(
    place: &Place,
    broker: &Broker,
    events: u64,
    table: &mut Table,
) -> Result<(), Failed> {
    let Some(harness) = Harness::make("Debezium", HARNESS, class_path)? else { return Ok(()) };
    broker.fresh_topic().await?;
    let settings = [engine(place, &harness)?, producer(broker, &harness)?];
    let mut java = harness.command(&["-Xmx512m"]);
    java.args(settings).arg(events.to_string());
    let mut child = Child::spawn(java, None)?;
    let line = match child.next_line(DRAIN) {
        Ok(line) => line,
        Err(error) => {
            let ended = child.wait(Duration::from_secs(5));
            return Err(format!("Debezium: {error}; {ended:?}").into());
        }
    };
    let seconds = line.rsplit(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    let seconds = seconds.ok_or_else(|| format!("Debezium said {line:?}"))?;
    let peak = high_water(child.id())?;
    child.wait(Duration::from_secs(30))?;
    let there = broker.records()?;
    if there != events {
        return Err(format!("Debezium: {there} records instead of {events}").into());
    }
    let note = "engine and outbox event router, from its first event on, -Xmx512m";
    table.row("debezium: drain", events as f64 / seconds, "/s", note);
    table.row("debezium: peak memory", peak as f64 / 1_048_576.0, "MiB", "");
    Ok(())
}

/// Debezium's settings. The slot and the publication are there.
fn engine(place: &Place, harness: &Harness) -> Result<PathBuf, Failed> {
    let config: tokio_postgres::Config = place.server().parse()?;
    let host = match config.get_hosts().first() {
        Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
        _ => return Err("Debezium reaches PostgreSQL by TCP only".into()),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let password = config.get_password().map(|password| String::from_utf8_lossy(password).into_owned());
    let (slot, offsets) =
        (Place::slot("debezium"), harness.directory().join("offsets").display().to_string());
    let table = place.table();
    let settings = [
        ("name", NAME),
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("topic.prefix", NAME),
        ("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"),
        ("offset.storage.file.filename", &offsets),
        ("offset.flush.interval.ms", "1000"),
        ("database.hostname", &host),
        ("database.port", &port),
        ("database.user", config.get_user().unwrap_or("postgres")),
        ("database.password", password.as_deref().unwrap_or("none")),
        ("database.dbname", config.get_dbname().unwrap_or("postgres")),
        ("plugin.name", "pgoutput"),
        ("slot.name", &slot),
        ("publication.name", NAME),
        ("publication.autocreate.mode", "disabled"),
        ("snapshot.mode", "no_data"),
        ("table.include.list", &table),
        ("tombstones.on.delete", "false"),
        ("transforms", "outbox"),
        ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
        ("transforms.outbox.table.field.event.id", "id"),
        ("transforms.outbox.table.field.event.key", "key"),
        ("transforms.outbox.table.field.event.payload", "payload"),
        ("transforms.outbox.route.by.field", "topic"),
        ("transforms.outbox.route.topic.replacement", "${routedByValue}"),
        (
            "transforms.outbox.table.fields.additional.placement",
            "type:header:semel-type,content_type:header:content-type",
        ),
    ];
    harness.write("engine.properties", &settings)
}

/// As far as the Java client has the same settings.
fn producer(broker: &Broker, harness: &Harness) -> Result<PathBuf, Failed> {
    let settings = [
        ("bootstrap.servers", broker.bootstrap()),
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("max.in.flight.requests.per.connection", "1"),
        ("linger.ms", "1"),
        ("batch.size", "1000000"),
        ("buffer.memory", "16777216"),
    ];
    harness.write("producer.properties", &settings)
}
