//! What `semel relay` can be told.

use clap::{Args, ValueEnum};

use crate::duration::parse_ms;
use crate::flags::{AdminFlags, RunFlags};
use crate::keys::{KeySource, parse_source};
use crate::size::parse_bytes;

/// Publish what services have appended to the outbox, in order, nothing lost
///
/// Reads the outbox of a database and publishes to a broker. Events of one key stay in order; what the broker has not
/// confirmed is sent again, with the same id. Start as many as you like: they share the work, and when one dies the
/// others take over. SIGTERM and SIGINT end the batch on its way and give the work back.
///
/// Where to publish to, with options behind a `?`:
///   kafka://HOST:PORT,HOST:PORT   compression, cloudevents, missing_topic, linger, in_flight, batch_bytes,
///                                 message_bytes, queue_bytes, timeout, position_topic, transaction_timeout, and
///                                 librdkafka's own: client.id=…
///   amqp://USER@HOST/VHOST        exchange, unroutable, timeout
///   nats://HOST                   stream, cloudevents, timeout
///   redis://HOST                  prefix, entries_max, remember, timeout
///   sqs://HOST/ACCOUNT/NAME.fifo  region, message_bytes, in_doubt, timeout; {topic} in the name stands for the
///                                 event's; credentials are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
///   http://HOST/PATH              a webhook; options are flags
///
/// Passwords and secrets do not belong on a command line, where everybody on the machine can read them: name the URL in
/// SEMEL_FROM and SEMEL_TO instead, a webhook's secret with --webhook-secret, Kafka's with --kafka-config.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    mut_arg("admin", |arg| arg.env("SEMEL_RELAY_ADMIN").hide_env(true)),
    mut_arg("ready_within", |arg| arg.env("SEMEL_RELAY_READY_WITHIN").hide_env(true)
        .help("/readyz says no when database or broker have not answered for this long")),
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
    /// Exactly once for readers of committed data, by Kafka's transactions under this id; one relay at a time has it
    #[arg(long, value_name = "ID", env = "SEMEL_RELAY_EXACTLY_ONCE", hide_env = true)]
    pub(crate) exactly_once: Option<String>,
    /// Say what this configuration promises and whether it can be kept, and publish nothing; exit code 2 if it cannot
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
    /// Look at the tables, every few milliseconds
    Poll,
    /// Follow PostgreSQL's logical replication
    Cdc,
}

/// What is held back when an event cannot be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Poison {
    /// Its key, from it on: order is kept
    Key,
    /// Only the event: later ones overtake it
    Event,
}

/// Bounds of a relay.
#[derive(Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct Bounds {
    /// Most events of a batch
    #[arg(long, value_name = "N", default_value_t = 4_000, env = "SEMEL_RELAY_BATCH_EVENTS", hide_env = true,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch_events: u64,
    /// Most bytes of their payloads
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = parse_bytes,
          env = "SEMEL_RELAY_BATCH_BYTES", hide_env = true)]
    pub(crate) batch_bytes: usize,
    /// How long after a relay's death others take over; keep it well above your longest pause
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_ms, env = "SEMEL_RELAY_LEASE",
          hide_env = true)]
    pub(crate) lease: u64,
    /// How often an event may fail, while others get through, before it is parked
    #[arg(long, value_name = "N", default_value_t = 3, env = "SEMEL_RELAY_TRIES", hide_env = true,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) tries: u32,
    /// What is held back when an event cannot be published
    #[arg(long, value_enum, default_value_t = Poison::Key, env = "SEMEL_RELAY_POISON", hide_env = true)]
    pub(crate) poison: Poison,
    /// When a parked event that merely failed is tried again, at first; then ever later, up to a minute
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_ms,
          env = "SEMEL_RELAY_RETRY_AFTER", hide_env = true)]
    pub(crate) retry_after: u64,
    /// Forget what was published this long ago: 24h, 7d, never
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_prune, env = "SEMEL_RELAY_PRUNE",
          hide_env = true)]
    pub(crate) prune: Prune,
    /// For how long the oldest event may wait before the log warns of it, once a minute
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_ms, env = "SEMEL_RELAY_WARN_AGE",
          hide_env = true)]
    pub(crate) warn_age: u64,
    /// How long the batch on its way may take to end when the relay is stopped
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_ms, env = "SEMEL_RELAY_DRAIN",
          hide_env = true)]
    pub(crate) drain: u64,
}

/// When what was published is forgotten.
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

/// How the log is read.
#[derive(Args)]
#[command(next_help_heading = "Logical replication (--mode cdc)")]
pub(crate) struct CdcFlags {
    /// The slot's name; one of this outbox's own unless given
    #[arg(long, value_name = "NAME", env = "SEMEL_RELAY_SLOT", hide_env = true)]
    pub(crate) slot: Option<String>,
    /// The publication's name; one of this outbox's own unless given
    #[arg(long, value_name = "NAME", env = "SEMEL_RELAY_PUBLICATION", hide_env = true)]
    pub(crate) publication: Option<String>,
    /// Make neither slot nor publication: an administrator has made them
    #[arg(long, env = "SEMEL_RELAY_NO_CREATE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) no_create: Option<bool>,
    /// Relay a table as Debezium's outbox router has it (id, aggregatetype, aggregateid, type, payload) instead
    #[arg(long, value_name = "TABLE", env = "SEMEL_RELAY_DEBEZIUM_TABLE", hide_env = true)]
    pub(crate) debezium_table: Option<String>,
    /// What a topic begins with, before the aggregate's type [default: outbox.event.]
    #[arg(
        long,
        value_name = "PREFIX",
        requires = "debezium_table",
        env = "SEMEL_RELAY_TOPIC_PREFIX",
        hide_env = true
    )]
    pub(crate) topic_prefix: Option<String>,
    /// Follow a standby that became the primary by itself, with repetitions; else a person decides
    #[arg(long, env = "SEMEL_RELAY_FOLLOW_PROMOTIONS", hide_env = true, num_args = 0..=1,
          default_missing_value = "true", value_name = "BOOL")]
    pub(crate) follow_promotions: Option<bool>,
    /// Warn when the slot keeps the server from forgetting more than this [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "SEMEL_RELAY_SLOT_WARN", hide_env = true)]
    pub(crate) slot_warn: Option<usize>,
    /// Let go of the slot when it keeps the server from forgetting more than this, and go on from the table
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "SEMEL_RELAY_SLOT_MAX", hide_env = true)]
    pub(crate) slot_max: Option<usize>,
}

impl CdcFlags {
    /// A flag that means nothing when polling.
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

/// What a sink is told beside its URL.
#[derive(Args)]
#[command(next_help_heading = "Brokers")]
pub(crate) struct SinkFlags {
    /// Also the attributes of CloudEvents, told by this source: Kafka, NATS, webhooks
    #[arg(long, value_name = "URI", env = "SEMEL_RELAY_CLOUDEVENTS", hide_env = true)]
    pub(crate) cloudevents: Option<String>,
    /// Properties of librdkafka's, NAME=VALUE a line, such as sasl.password: file:PATH or env:NAME
    #[arg(long, value_name = "SOURCE", value_parser = parse_source, env = "SEMEL_RELAY_KAFKA_CONFIG", hide_env = true)]
    pub(crate) kafka_config: Option<KeySource>,
    /// What webhooks are signed with (whsec_…): file:PATH or env:NAME
    #[arg(long, value_name = "SOURCE", value_parser = parse_source, env = "SEMEL_RELAY_WEBHOOK_SECRET",
          hide_env = true)]
    pub(crate) webhook_secret: Option<KeySource>,
    /// Events of a topic go there instead; may be given several times
    #[arg(long, value_name = "TOPIC=URL", value_parser = parse_endpoint)]
    pub(crate) webhook_endpoint: Vec<(String, String)>,
    /// Also connect to this machine and to private networks
    #[arg(long, env = "SEMEL_RELAY_WEBHOOK_ALLOW_PRIVATE", hide_env = true, num_args = 0..=1,
          default_missing_value = "true", value_name = "BOOL")]
    pub(crate) webhook_allow_private: Option<bool>,
    /// Requests under way at once
    #[arg(long, value_name = "N", env = "SEMEL_RELAY_WEBHOOK_CONCURRENCY", hide_env = true,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) webhook_concurrency: Option<u16>,
    /// How long a receiver may take to answer [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, env = "SEMEL_RELAY_WEBHOOK_TIMEOUT", hide_env = true)]
    pub(crate) webhook_timeout: Option<u64>,
}

fn parse_endpoint(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((topic, url)) if !topic.is_empty() && url.contains("://") => {
            Ok((topic.to_owned(), url.to_owned()))
        }
        _ => Err(format!("{text:?} is no endpoint; write it like payments=http://hooks.internal/payments")),
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
