//! The arguments of `semel relay`.

use clap::{Args, ValueEnum};

use crate::duration::parse_ms;
use crate::flags::{AdminFlags, RunFlags};
use crate::keys::{KeySource, parse_source};
use crate::size::parse_bytes;

/// Publish the events that services have appended to the outbox, in order, without loss
///
/// Reads the outbox of a database and publishes to a broker. Events of one key stay in order; events that the broker
/// has not confirmed are sent again, with the same id. Run as many relays as you like: they share the work, and when
/// one dies the others take over. SIGTERM and SIGINT drain: the batch in flight is finished and the lease is released.
///
/// Brokers, with options after a `?`:
///   kafka://HOST:PORT,HOST:PORT   compression, cloudevents, missing_topic, linger, in_flight, batch_bytes,
///                                 message_bytes, queue_bytes, timeout, position_topic, transaction_timeout, and
///                                 librdkafka properties: client.id=…
///   amqp://USER@HOST/VHOST        exchange, unroutable, timeout
///   nats://HOST                   stream, cloudevents, timeout
///   redis://HOST                  prefix, entries_max, remember, timeout
///   sqs://HOST/ACCOUNT/NAME.fifo  region, message_bytes, in_doubt, timeout; {topic} in the name is replaced by the
///                                 event's topic; credentials are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
///   http://HOST/PATH              a webhook; options are flags
///
/// Do not put passwords and secrets on the command line, where every user of the machine can read them: set the URLs in
/// SEMEL_FROM and SEMEL_TO instead, a webhook's secret with --webhook-secret, Kafka's with --kafka-config.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    mut_arg("admin", |arg| arg.env("SEMEL_RELAY_ADMIN").hide_env(true)),
    mut_arg("ready_within", |arg| arg.env("SEMEL_RELAY_READY_WITHIN").hide_env(true)
        .help("/readyz fails once the database or the broker has not answered for this long")),
    after_help = "\
Examples:
  semel relay --from postgres://relay@db/payments --to kafka://kafka:9092 --admin 127.0.0.1:9091
  semel relay --from postgres://relay@db/payments --to 'kafka://k1:9092,k2:9092?compression=lz4' --check
  semel relay --from postgres://relay@db/payments --mode cdc --to kafka://kafka:9092 --exactly-once payments
  semel relay --from sqlite:app.db --to 'redis://127.0.0.1?prefix=events:'
  semel relay --from mysql://relay@db/shop --to http://hooks.internal/in --webhook-secret file:/etc/semel/hook"
)]
pub(crate) struct Relay {
    /// The database with the outbox: postgres://…, mysql://… or sqlite:PATH
    #[arg(long, value_name = "URL", env = "SEMEL_FROM", hide_env_values = true)]
    pub(crate) from: String,
    /// The broker: kafka://…, amqp://…, nats://…, redis://…, sqs://… or http://…
    #[arg(long, value_name = "URL", env = "SEMEL_TO", hide_env_values = true)]
    pub(crate) to: String,
    /// How the outbox is read
    #[arg(long, value_enum, default_value_t = Mode::Poll, env = "SEMEL_RELAY_MODE", hide_env = true)]
    pub(crate) mode: Mode,
    /// Publish exactly once for read_committed readers, with Kafka transactions under this id; one relay at a time
    #[arg(long, value_name = "ID", env = "SEMEL_RELAY_EXACTLY_ONCE", hide_env = true)]
    pub(crate) exactly_once: Option<String>,
    /// Print the guarantee of this configuration, check whether it can be kept, and exit; exit code 2 if it cannot
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) admin: AdminFlags,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    #[command(flatten)]
    pub(crate) sink: SinkFlags,
    #[command(flatten)]
    pub(crate) cdc: CdcFlags,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

/// How the outbox is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// Poll the tables, every few milliseconds
    Poll,
    /// Follow PostgreSQL's logical replication
    Cdc,
}

/// The choice of what to park when an event cannot be published (poison message).
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Poison {
    /// Its key, from this event on: order is kept
    Key,
    /// Only the event: later ones of its key overtake it
    Event,
}

/// Bounds of a relay.
#[derive(Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct Bounds {
    /// Most events in a batch
    #[arg(long, value_name = "N", default_value_t = 4_000, env = "SEMEL_RELAY_BATCH_EVENTS", hide_env = true,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch_events: u64,
    /// Most bytes of payloads in a batch
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = parse_bytes,
          env = "SEMEL_RELAY_BATCH_BYTES", hide_env = true)]
    pub(crate) batch_bytes: usize,
    /// The lease: how long after a relay dies others take over; keep it well above your longest process pause
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_ms, env = "SEMEL_RELAY_LEASE",
          hide_env = true)]
    pub(crate) lease: u64,
    // Fewer than those of `semel consume`: all other events of the batch wait until then.
    /// Max attempts of an event before it is parked; counted only while other events succeed
    #[arg(long, value_name = "N", default_value_t = semel::relay::ATTEMPTS_MAX, env = "SEMEL_RELAY_TRIES", hide_env = true,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) tries: u32,
    /// What is parked when an event cannot be published (poison message)
    #[arg(long, value_enum, default_value_t = Poison::Key, env = "SEMEL_RELAY_POISON", hide_env = true)]
    pub(crate) poison: Poison,
    /// First backoff before a parked event that merely failed is retried; it grows up to a minute
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_ms,
          env = "SEMEL_RELAY_RETRY_AFTER", hide_env = true)]
    pub(crate) retry_after: u64,
    /// Retention: delete events this long after they were published: 24h, 7d, never
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_prune, env = "SEMEL_RELAY_PRUNE",
          hide_env = true)]
    pub(crate) prune: Prune,
    /// Log a warning, once a minute, while the oldest event has waited for longer than this
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_ms, env = "SEMEL_RELAY_WARN_AGE",
          hide_env = true)]
    pub(crate) warn_age: u64,
    /// The drain timeout: how long the batch in flight may take to finish at shutdown
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_ms, env = "SEMEL_RELAY_DRAIN",
          hide_env = true)]
    pub(crate) drain: u64,
}

/// When published events are deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prune {
    After(u64),
    Never,
}

fn parse_prune(text: &str) -> Result<Prune, String> {
    match text {
        "never" => Ok(Prune::Never),
        _ => parse_ms(text).map(Prune::After),
    }
}

/// How PostgreSQL's log is read.
#[derive(Args)]
#[command(next_help_heading = "Logical replication (--mode cdc)")]
pub(crate) struct CdcFlags {
    /// The replication slot's name [default: derived from the outbox]
    #[arg(long, value_name = "NAME", env = "SEMEL_RELAY_SLOT", hide_env = true)]
    pub(crate) slot: Option<String>,
    /// The publication's name [default: derived from the outbox]
    #[arg(long, value_name = "NAME", env = "SEMEL_RELAY_PUBLICATION", hide_env = true)]
    pub(crate) publication: Option<String>,
    /// Create neither slot nor publication: an administrator has created them
    #[arg(long, env = "SEMEL_RELAY_NO_CREATE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) no_create: Option<bool>,
    /// Relay a table laid out for Debezium's outbox router instead (id, aggregatetype, aggregateid, type, payload)
    #[arg(long, value_name = "TABLE", env = "SEMEL_RELAY_DEBEZIUM_TABLE", hide_env = true)]
    pub(crate) debezium_table: Option<String>,
    /// The prefix of topics, before the aggregate's type [default: outbox.event.]
    #[arg(
        long,
        value_name = "PREFIX",
        requires = "debezium_table",
        env = "SEMEL_RELAY_TOPIC_PREFIX",
        hide_env = true
    )]
    pub(crate) topic_prefix: Option<String>,
    /// After a standby was promoted, continue on it, with repeated events; without this, a person decides
    #[arg(long, env = "SEMEL_RELAY_FOLLOW_PROMOTIONS", hide_env = true, num_args = 0..=1,
          default_missing_value = "true", value_name = "BOOL")]
    pub(crate) follow_promotions: Option<bool>,
    /// Warn when the slot makes the server retain more WAL than this [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "SEMEL_RELAY_SLOT_WARN", hide_env = true)]
    pub(crate) slot_warn: Option<usize>,
    /// Drop the slot when it makes the server retain more WAL than this, and continue from the table
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "SEMEL_RELAY_SLOT_MAX", hide_env = true)]
    pub(crate) slot_max: Option<usize>,
}

impl CdcFlags {
    /// The first flag given that has no meaning when polling.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (self.slot.is_some(), "--slot"),
            (self.publication.is_some(), "--publication"),
            (self.no_create.is_some(), "--no-create"),
            (self.debezium_table.is_some(), "--debezium-table"),
            (self.follow_promotions.is_some(), "--follow-promotions"),
            (self.slot_warn.is_some(), "--slot-warn"),
            (self.slot_max.is_some(), "--slot-max"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }
}

/// Settings of a sink beside its URL.
#[derive(Args)]
#[command(next_help_heading = "Brokers")]
pub(crate) struct SinkFlags {
    /// Add CloudEvents attributes with this source: Kafka, NATS, webhooks
    #[arg(long, value_name = "URI", env = "SEMEL_RELAY_CLOUDEVENTS", hide_env = true)]
    pub(crate) cloudevents: Option<String>,
    /// librdkafka properties, one NAME=VALUE per line, such as sasl.password: file:PATH or env:NAME
    #[arg(long, value_name = "SOURCE", value_parser = parse_source, env = "SEMEL_RELAY_KAFKA_CONFIG", hide_env = true)]
    pub(crate) kafka_config: Option<KeySource>,
    /// The secret that webhooks are signed with (whsec_…): file:PATH or env:NAME
    #[arg(long, value_name = "SOURCE", value_parser = parse_source, env = "SEMEL_RELAY_WEBHOOK_SECRET",
          hide_env = true)]
    pub(crate) webhook_secret: Option<KeySource>,
    /// Send events of this topic to this URL instead; can be repeated
    #[arg(long, value_name = "TOPIC=URL", value_parser = parse_endpoint)]
    pub(crate) webhook_endpoint: Vec<(String, String)>,
    /// Allow endpoints on this machine and in private networks
    #[arg(long, env = "SEMEL_RELAY_WEBHOOK_ALLOW_PRIVATE", hide_env = true, num_args = 0..=1,
          default_missing_value = "true", value_name = "BOOL")]
    pub(crate) webhook_allow_private: Option<bool>,
    /// Most requests in flight at once
    #[arg(long, value_name = "N", env = "SEMEL_RELAY_WEBHOOK_CONCURRENCY", hide_env = true,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) webhook_concurrency: Option<u16>,
    /// Timeout for a receiver's answer [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, env = "SEMEL_RELAY_WEBHOOK_TIMEOUT", hide_env = true)]
    pub(crate) webhook_timeout: Option<u64>,
}

fn parse_endpoint(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((topic, url)) if !topic.is_empty() && url.contains("://") => {
            Ok((topic.to_owned(), url.to_owned()))
        }
        _ => {
            Err(format!("{text:?} is not an endpoint; write it like payments=http://hooks.internal/payments"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_pruning() {
        let read = parse_endpoint("payments=http://h/a?b=c");
        assert_eq!(read, Ok(("payments".into(), "http://h/a?b=c".into())));
        assert!(parse_endpoint("=http://h").is_err() && parse_endpoint("payments").is_err());
        assert_eq!(parse_prune("never"), Ok(Prune::Never));
        assert_eq!(parse_prune("24h"), Ok(Prune::After(86_400_000)));
        assert!(parse_prune("24").is_err());
    }
}
