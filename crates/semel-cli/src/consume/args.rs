//! The arguments of `semel consume`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use semel::Effect as Protects;
use semel::inbox::consumer;
use semel::source::Identify;

use crate::duration::parse_ms;
use crate::flags::{AdminFlags, RunFlags};
use crate::keys::{KeySource, parse_source};

/// Deliver messages from a broker to a service in any language, over HTTP, each with a stable Idempotency-Key
///
/// Reads from a broker and POSTs each message to --to, in the order of its key. A 2xx answer is recorded in --store
/// before the message is acked at the broker: it is not sent again, also after a restart, also if it was published
/// twice. After a crash or a lost answer a message is sent again with the same Idempotency-Key, so a service that
/// honours the key has each effect once. SIGTERM and SIGINT drain: requests in flight are finished, the rest goes back
/// to the broker.
///
/// Sources, with options after a `?`:
///   kafka://HOST:PORT,HOST:PORT/TOPIC,TOPIC   group (needed), begin (earliest, latest, refuse), session, queue_bytes,
///                                             timeout, and librdkafka's own: client.id=…, group.instance.id=…
///
/// Each request has the payload as its body; Idempotency-Key; semel-id and semel-type (event id and type); semel-source
/// and semel-key (topic and ordering key); semel-attempt; traceparent, content-type and the message's other headers.
///
/// Answers: 2xx means done, except a 202 from semel's own gateway or layer, which means in progress. 400, 410, 413, 415
/// and 422 mean refused, see --poison. 408, 425, 429, 503, such a 202, a 409 problem "in progress", and a failed
/// connection are retried without limit, and the key waits. Anything else, or a timeout, is retried up to --tries and
/// then counts as refused, unless eight keys or more fail and none succeeds: then the endpoint is taken to be down.
/// Retry-After is honoured, up to 5 minutes.
///
/// Run as many instances as you like with one name: the broker shares the work between them.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    mut_arg("admin", |arg| arg.env("SEMEL_CONSUME_ADMIN").hide_env(true)),
    mut_arg("ready_within", |arg| arg.env("SEMEL_CONSUME_READY_WITHIN").hide_env(true)
        .help("/readyz fails once the broker or the endpoint has failed for this long")),
    after_help = "\
Examples:
  semel consume --from 'kafka://kafka:9092/payments?group=mail' --to http://127.0.0.1:3000/paid --store sqlite:mail.db
  semel consume --from 'kafka://k1:9092,k2:9092/payments,refunds?group=books' --to https://books.internal/in \\
        --store postgres://semel@db/semel --admin 127.0.0.1:9092
  semel consume --from 'kafka://kafka:9092/orders?group=erp' --to http://erp.internal/orders --effect opaque --check"
)]
pub(crate) struct Consume {
    /// The broker: kafka://…/TOPIC?group=NAME
    #[arg(long, value_name = "URL", env = "SEMEL_FROM", hide_env_values = true)]
    pub(crate) from: String,
    /// The endpoint: http://… or https://…
    #[arg(long, value_name = "URL", env = "SEMEL_TO", hide_env_values = true)]
    pub(crate) to: String,
    /// The consumer's name, under which answered messages are recorded [default: the group]
    #[arg(long, value_name = "NAME", env = "SEMEL_CONSUME_NAME", hide_env = true)]
    pub(crate) name: Option<String>,
    /// What protects the endpoint's effect
    #[arg(long, value_enum, default_value_t = Effect::Keyed, env = "SEMEL_CONSUME_EFFECT", hide_env = true)]
    pub(crate) effect: Effect,
    /// Where a message's id is read from: event (semel-id, ce_id …), place (its offset), header:NAME or pointer:/PATH
    #[arg(long, value_name = "WHERE", default_value = "event", value_parser = parse_identify,
          env = "SEMEL_CONSUME_IDENTIFY", hide_env = true)]
    pub(crate) identify: Identify,
    /// Print the guarantee of this configuration, check whether it can be kept, and exit; exit code 2 if it cannot
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) admin: AdminFlags,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// librdkafka properties, one NAME=VALUE per line, such as sasl.password: file:PATH or env:NAME
    #[arg(long, value_name = "SOURCE", value_parser = parse_source, env = "SEMEL_CONSUME_KAFKA_CONFIG",
          hide_env = true)]
    pub(crate) kafka_config: Option<KeySource>,
    /// For https://, trust the CA certificates in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", env = "SEMEL_CONSUME_TRUST", hide_env = true)]
    pub(crate) trust: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

/// What protects the endpoint's effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Effect {
    /// The endpoint honours the Idempotency-Key: messages in doubt are sent again
    Keyed,
    /// Nothing: messages in doubt are not sent again, a person has to decide (semel ls --state uncertain)
    Opaque,
}

impl From<Effect> for Protects {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Keyed => Self::Keyed,
            Effect::Opaque => Self::Opaque,
        }
    }
}

/// What happens to a poison message, one that cannot be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Poison {
    /// Its key waits while it is retried now and then: order is kept
    Stop,
    /// It becomes a dead letter in the store and its key continues: semel inbox lists, retries or drops it
    Park,
}

/// Default of `--tries`: more than for a handler in Rust, because an endpoint answers the same 500 whether the message is
/// to blame or something that it needs is down for a moment.
const ATTEMPTS_MAX: u32 = 2 * consumer::ATTEMPTS_MAX;

/// Bounds of a consumer.
#[derive(Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct Bounds {
    /// Most requests in flight at once; never two of one key
    #[arg(long, value_name = "N", default_value_t = 16, env = "SEMEL_CONSUME_CONCURRENCY", hide_env = true,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) concurrency: u16,
    /// Timeout for the endpoint's answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_ms, env = "SEMEL_CONSUME_TIMEOUT",
          hide_env = true)]
    pub(crate) timeout: u64,
    /// Max attempts before a message counts as refused; not counted while eight keys or more fail and none succeeds
    #[arg(long, value_name = "N", default_value_t = ATTEMPTS_MAX, env = "SEMEL_CONSUME_TRIES", hide_env = true,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) tries: u32,
    /// The longest backoff between two attempts
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_ms, env = "SEMEL_CONSUME_PAUSE_MAX",
          hide_env = true)]
    pub(crate) pause_max: u64,
    /// What happens to a poison message, one that was refused [default: park in a SQL store, else stop]
    #[arg(long, value_enum, env = "SEMEL_CONSUME_POISON", hide_env = true)]
    pub(crate) poison: Option<Poison>,
    /// The lease: how long after a crash others take over the requests that were in flight
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_ms, env = "SEMEL_CONSUME_LEASE",
          hide_env = true)]
    pub(crate) lease: u64,
    /// The dedup window: how long answered messages are recorded; must be longer than the broker keeps messages
    #[arg(long, value_name = "DURATION", default_value = "14d", value_parser = parse_ms, env = "SEMEL_CONSUME_WINDOW",
          hide_env = true)]
    pub(crate) window: u64,
    /// The drain timeout: how long requests in flight may take to finish at shutdown
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_ms, env = "SEMEL_CONSUME_DRAIN",
          hide_env = true)]
    pub(crate) drain: u64,
}

fn parse_identify(text: &str) -> Result<Identify, String> {
    match text.split_once(':') {
        None if text == "event" => Ok(Identify::ByEvent),
        None if text == "place" => Ok(Identify::ByPlace),
        Some(("header", name)) if !name.is_empty() => Ok(Identify::ByHeader(name.to_owned())),
        Some(("pointer", pointer)) if pointer.starts_with('/') => Ok(Identify::ByPointer(pointer.to_owned())),
        _ => {
            Err(format!("{text:?} is not where an id can be; use event, place, header:NAME or pointer:/PATH"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_id_is() {
        let read = |text| parse_identify(text).map(|identify| format!("{identify:?}"));
        assert_eq!(read("event").unwrap(), "ByEvent");
        assert_eq!(read("header:x-id").unwrap(), "ByHeader(\"x-id\")");
        assert_eq!(read("pointer:/event/id").unwrap(), "ByPointer(\"/event/id\")");
        for bad in ["", "offset", "header:", "pointer:id"] {
            assert!(read(bad).unwrap_err().contains("use event"), "{bad}");
        }
    }
}
