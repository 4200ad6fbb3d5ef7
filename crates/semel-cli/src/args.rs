//! The command line: subcommands, flags and their help texts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use semel::store::PAGE_RECORDS_MAX;
use semel::{Retention, State};

use crate::duration::{parse_ms, parse_retention};
use crate::keys::{KeySource, parse_source};
use crate::values::{parse_by, parse_header, parse_state, parse_why};

pub(crate) const STORE_DEFAULT: &str = "sqlite:semel.db";

/// Exactly-once effects on at-least-once rails.
#[derive(Parser)]
#[command(
    name = "semel",
    version,
    max_term_width = 100,
    after_help = "\
Data goes to stdout, everything else to stderr.
Exit codes: 0 done; 1 failed, not found or refused; 2 usage or configuration.

Examples:
  semel demo                                          see semel work, in about a quarter of a minute
  semel gateway --upstream http://127.0.0.1:3000 --single-tenant
  semel relay --from postgres://relay@db/app --to kafka://kafka:9092
  semel consume --from 'kafka://kafka:9092/payments?group=mail' --to http://127.0.0.1:3000/paid
  semel ls --state uncertain                          intents that need a person
  semel show 9c8722d0f190                             one intent, and what can be done about it
  semel resolve 9c8722d0f190 --not-applied --by ana --why 'not in the provider dashboard'"
)]
pub(crate) struct Cli {
    /// The store that records intents [default: sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// The keys that encrypt what is stored: file:PATH or env:NAME
    #[arg(long, global = true, value_name = "SOURCE", env = "SEMEL_KEYS", hide_env = true, hide_env_values = true,
          value_parser = parse_source)]
    pub(crate) keys: Option<KeySource>,
    /// A Redis cache in front of a SQL store; finished outcomes are replayed from it
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_CACHE", hide_env_values = true)]
    pub(crate) cache: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Show(Show),
    Resolve(Resolve),
    Release(Release),
    Sweep(Sweep),
    Migrate(Migrate),
    #[cfg(feature = "redis")]
    Redis(Redis),
    /// (not in this build: --features redis) Maintain a store in Redis
    #[cfg(not(feature = "redis"))]
    Redis(crate::absent::Absent),
    Demo(Demo),
    /// The demo's payments service, on the database of --store
    #[command(hide = true)]
    DemoService(DemoService),
    /// One process of the demo of sagas
    #[command(hide = true)]
    DemoSagaProcess(crate::demo::DemoSagaProcess),
    Gateway(Box<Gateway>),
    Relay(Box<crate::relay::Relay>),
    #[cfg(feature = "consume")]
    Consume(Box<crate::consume::Consume>),
    /// (not in this build: --features consume,kafka) Deliver messages from a broker to an HTTP endpoint
    #[cfg(not(feature = "consume"))]
    Consume(crate::absent::Absent),
    Outbox(crate::outbox::Outbox),
    Inbox(crate::inbox::Inbox),
    Saga(crate::saga::Saga),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// List intents, newest first
///
/// States are as of now: an opaque claim whose lease has expired is listed as uncertain. Raw keys may be secrets, so a
/// short hash is shown instead unless --show-keys is given.
///
/// With --json each page is one document on one line: {"records": [...], "next": "CURSOR" or null}.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel ls --state uncertain,in_progress --older-than 5m
  semel ls --operation payment.create --tenant acme --limit 20
  semel ls --all --json | jq -r '.records[].id'")]
pub(crate) struct Ls {
    /// Only in these states: in_progress, uncertain, completed, failed_final, failed_retryable
    #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = parse_state)]
    pub(crate) state: Vec<State>,
    /// Only this operation
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,
    /// Only this tenant; '' for a service without tenants
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only intents that have been in their state for at least this long: 30s, 5m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_ms)]
    pub(crate) older_than: Option<u64>,
    /// Only unfinished intents whose key the other side may forget within this time, or may have forgotten: 30m, 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_ms)]
    pub(crate) expiring: Option<u64>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..=PAGE_RECORDS_MAX as u64))]
    pub(crate) limit: u64,
    /// Continue after a page: the cursor that page ended with
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    /// List all pages
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Show raw keys instead of a short hash
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Which intent: by id, or by the operation, scope and key that the id is derived from.
#[derive(Args)]
pub(crate) struct Target {
    /// The intent id: 64 hex digits, or at least the first 8 of them
    #[arg(value_name = "ID", required_unless_present = "key", conflicts_with = "key")]
    pub(crate) id: Option<String>,
    /// The intent's key, instead of its id
    #[arg(long, requires = "operation")]
    pub(crate) key: Option<String>,
    /// With --key: the intent's operation
    #[arg(long, value_name = "NAME", requires = "key")]
    pub(crate) operation: Option<String>,
    /// With --key: the intent's tenant; leave it out for a service without tenants
    #[arg(long, requires = "key", conflicts_with = "scope")]
    pub(crate) tenant: Option<String>,
    /// With --key: the intent's whole scope as ls shows it, such as acme/user-42
    #[arg(long, requires = "key")]
    pub(crate) scope: Option<String>,
}

/// Show one intent, and what can be done about it
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel show 9c8722d0f190
  semel show --tenant acme --operation payment.create --key order-1001
  semel show 9c8722d0f190 --body > answer.bin")]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Show the raw key instead of a short hash
    #[arg(long)]
    pub(crate) show_keys: bool,
    /// Write only the stored body to stdout, unchanged
    #[arg(long, conflicts_with = "json")]
    pub(crate) body: bool,
}

/// Who decides, why, and how long the decision is kept.
#[derive(Args)]
pub(crate) struct Decider {
    /// Who decides; recorded with the intent
    #[arg(long, value_name = "NAME", value_parser = parse_by)]
    pub(crate) by: String,
    /// Why; recorded with the intent
    #[arg(long, value_name = "TEXT", value_parser = parse_why)]
    pub(crate) why: String,
    /// Retention, how long the decision is kept: 24h, 7d, forever
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_retention)]
    pub(crate) retention: Retention,
    /// Decide only if the intent still has this epoch, as show printed it
    #[arg(long, value_name = "N")]
    pub(crate) epoch: Option<u64>,
}

/// Record what happened to an uncertain intent
///
/// First look it up (in your database, in the provider's dashboard), then record what you found. The decision is final:
/// a late outcome from the last owner is refused, and every later caller gets the same answer. An intent whose lease
/// has not expired cannot be decided, because its owner may still be working.
///
/// Before you use --not-applied, make sure that nothing is still in flight: a process that hangs, a request in a queue
/// of the provider. A decision stops that process from recording an outcome, not from acting.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("found").required(true).args(["applied", "failed", "not_applied"]),
          after_help = "\
Examples:
  semel resolve 9c8722d0f190 --applied --code 201 --header 'content-type: application/json' \\
        --body '{\"id\":7}' --by ana --why 'charge ch_7 is in the dashboard'
  semel resolve 9c8722d0f190 --failed --code 402 --body 'card declined' --by ana --why 'declined at 3:04'
  semel resolve 9c8722d0f190 --not-applied --by ana --why 'no charge in the dashboard'")]
pub(crate) struct Resolve {
    #[command(flatten)]
    pub(crate) target: Target,
    /// It happened: later callers get the outcome given here
    #[arg(long)]
    pub(crate) applied: bool,
    /// It failed permanently: later callers get the failure given here
    #[arg(long)]
    pub(crate) failed: bool,
    /// It did not happen and never will: the same key may run again
    #[arg(long, conflicts_with_all = ["code", "body", "header"])]
    pub(crate) not_applied: bool,
    /// The outcome's status, 200 by default; without --code, --body and --header no outcome is stored, and callers
    /// learn only that the work is done
    #[arg(long, value_name = "STATUS")]
    pub(crate) code: Option<u16>,
    /// The outcome's body: TEXT, @FILE, or @- for stdin; without it, callers learn that the body was not kept
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(crate) body: Option<String>,
    /// A header of the outcome; can be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    pub(crate) header: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) decider: Decider,
}

/// Withdraw a stored outcome, so that the same key may run again
///
/// Dangerous for a completed intent: the next call with this key does the work again.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel release 9c8722d0f190 --yes --by ana --why 'charge was refunded by hand, customer wants to retry'")]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) decider: Decider,
    /// Confirm, also if the work was done and may be done again
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Delete outcomes whose retention is over
///
/// Intents in progress and uncertain ones stay, however old. The number of deleted outcomes is printed on stdout.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel sweep --limit 100000")]
pub(crate) struct Sweep {
    /// Delete at most this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Batch size: delete this many at a time
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch: u64,
}

/// Create or upgrade the tables of a store, of an outbox, of an inbox, or of sagas
///
/// With --outbox: the tables that services append their events to, in the services' own database; `semel relay` reads
/// them. With --inbox: the tables in which consumers record handled messages (dedup) and dead letters.
/// With --saga: the journal of sagas, their workers and signals, in the services' own database.
///
/// Only adds to existing tables, so processes of the previous version keep working, and processes of this version will
/// keep working when the next one has migrated. Tables and columns that only the previous version used are removed by
/// --contract. docs/upgrading.md has the order of an upgrade.
///
/// In Redis it creates the markers that reveal a loss of data. Do that once, by hand: run at every deployment, it would
/// turn a server that has lost its data into a new store, and the loss would go unnoticed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel migrate --store sqlite:/var/lib/semel/semel.db
  semel migrate --store redis://127.0.0.1
  semel migrate --dry-run                             what would be done, and what it means for running processes
  semel migrate --contract                            when the last process of the version before has ended
  semel migrate --print > schema.sql
  semel migrate --outbox postgres://owner@db/payments
  semel migrate --outbox postgres://owner@db/payments --print > migrations/0007_outbox.sql
  semel migrate --outbox postgres://owner@db/payments --strict-order
  semel migrate --inbox postgres://owner@db/mail
  semel migrate --saga postgres://owner@db/shop
  semel migrate --new-lineage                         after an older backup was restored behind a cache")]
pub(crate) struct Migrate {
    /// Print the SQL that creates new tables and change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Print what would be done to the tables that are there, and change nothing
    #[arg(long, conflicts_with_all = ["print", "new_lineage", "strict_order"])]
    pub(crate) dry_run: bool,
    /// Also remove what only the version before uses. Run it when no process of that version is left
    #[arg(long, conflicts_with_all = ["print", "new_lineage", "strict_order"])]
    pub(crate) contract: bool,
    /// Migrate the outbox in this database, instead of a store
    #[arg(long, value_name = "URL", conflicts_with = "new_lineage")]
    pub(crate) outbox: Option<String>,
    /// Migrate the inbox in this database, instead of a store
    #[arg(long, value_name = "URL", conflicts_with_all = ["new_lineage", "outbox"])]
    pub(crate) inbox: Option<String>,
    /// Migrate the journal of sagas in this database, instead of a store
    #[arg(long, value_name = "URL", conflicts_with_all = ["new_lineage", "outbox", "inbox"])]
    pub(crate) saga: Option<String>,
    /// Have PostgreSQL keep the order of a key even if a transaction appends before it locks the row, by a lock on the
    /// key until the commit; `--strict-order=off` removes that again
    #[arg(long, value_name = "on|off", value_enum, requires = "outbox", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub(crate) strict_order: Option<Switch>,
    /// Start a new lineage after an older backup was restored: everything cached before becomes invalid
    #[arg(long, conflicts_with = "print")]
    pub(crate) new_lineage: bool,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Maintain a store in Redis
#[derive(Args)]
pub(crate) struct Redis {
    #[command(subcommand)]
    pub(crate) command: RedisCommand,
}

#[derive(Subcommand)]
pub(crate) enum RedisCommand {
    /// Continue although Redis has lost data
    ///
    /// A Redis that was flushed or started empty refuses all claims, because work that was done before could run again.
    /// This shows what is missing and, with --yes, writes a new generation of markers: from then on unknown keys run.
    /// First find out what was lost: wait until clients have stopped retrying, or reconcile with the service's own
    /// records.
    #[command(after_help = "\
Examples:
  semel redis accept-loss --store redis://127.0.0.1          show what is missing; change nothing
  semel redis accept-loss --store redis://127.0.0.1 --yes    continue without it")]
    AcceptLoss {
        /// Confirm: what Redis has lost may run again
        #[arg(long)]
        yes: bool,
    },
}

/// Guard a service in any language, as a reverse proxy in front of it
///
/// Requests with an Idempotency-Key reach the service once; every retry gets the same answer. Everything else passes
/// through untouched. Operations, limits and timeouts are set in a file; see docs/gateway.md.
///
/// The environment overrides the file, and a flag overrides both. The addresses it listens on are printed on stdout,
/// one per line; the log goes to stderr. SIGTERM and SIGINT drain: exit code 0 if every request was finished, 1 if some
/// were still in flight.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel gateway --upstream http://127.0.0.1:3000 --single-tenant
  semel gateway --upstream http://127.0.0.1:3000 --tenant header:X-Tenant-Id --require-key
  semel gateway --upstream http://127.0.0.1:3000 --authorize 'GET /whoami' --tenant auth:X-User-Id
  semel gateway --config gateway.toml --check
  semel gateway --config gateway.toml --shadow")]
pub(crate) struct Gateway {
    /// The service: http://HOST:PORT
    #[arg(long, value_name = "URL", env = "SEMEL_UPSTREAM", hide_env = true)]
    pub(crate) upstream: Option<String>,
    /// Listen for clients on this address [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "SEMEL_LISTEN", hide_env = true)]
    pub(crate) listen: Option<SocketAddr>,
    /// Serve health, metrics and the API description on this address [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", env = "SEMEL_ADMIN", hide_env = true)]
    pub(crate) admin: Option<SocketAddr>,
    /// Allow an admin address that other machines can reach; it asks for no password
    #[arg(long, env = "SEMEL_ADMIN_INSECURE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) admin_insecure: Option<bool>,
    /// The configuration file: operations, limits and timeouts, in TOML
    #[arg(long, value_name = "FILE", env = "SEMEL_CONFIG", hide_env = true)]
    pub(crate) config: Option<PathBuf>,
    /// Check the settings and exit: print what is wrong, or all of them
    #[arg(long)]
    pub(crate) check: bool,
    /// Forward everything, block nothing, and report what the gateway would have done
    #[arg(long, env = "SEMEL_SHADOW", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) shadow: Option<bool>,
    /// Refuse POST and PATCH without a key
    #[arg(long, env = "SEMEL_REQUIRE_KEY", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) require_key: Option<bool>,
    /// All requests belong to one tenant
    #[arg(long, env = "SEMEL_SINGLE_TENANT", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) single_tenant: Option<bool>,
    /// Where a request's tenant is read from: header:X-Tenant-Id, or auth:X-User-Id from the answer to --authorize
    #[arg(long, value_name = "WHERE", env = "SEMEL_TENANT", hide_env = true)]
    pub(crate) tenant: Option<String>,
    /// Ask the service with the caller's credentials before anything is claimed or replayed: 'GET /whoami'
    #[arg(long, value_name = "QUESTION", env = "SEMEL_AUTHORIZE", hide_env = true)]
    pub(crate) authorize: Option<String>,
    /// The style of answers to clients: classic, ietf or stripe [default: classic]
    #[arg(long, env = "SEMEL_PROFILE", hide_env = true)]
    pub(crate) profile: Option<String>,
    /// The log level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", env = "SEMEL_LOG", hide_env = true)]
    pub(crate) log: Option<String>,
    /// Stop when stdin ends, which means that the parent process is gone
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

/// See semel work: an unreliable service, careless clients and a killed gateway, checked against a ledger
///
/// A sample payments service loses answers, fails and is slow. Its clients send requests several times, at the same
/// time, hang up, and reuse keys: once directly, and once through `semel gateway`, which is killed with SIGKILL halfway
/// and started again on the same store. Every charge appends a line to the service's ledger file and fsyncs it; the
/// table is counted from that file. Exit code 1 if a single charge is missing or was made twice. Everything happens on
/// this machine, in a temporary directory.
///
/// With --store postgres://… the gateway uses that store, and a third column shows the same clients with the reference
/// service (examples/payments), which claims in its own transactions on that server and is killed halfway; its result
/// is counted from its tables. The demo creates two schemas of its own there and removes them. --cache redis://… is put
/// in front of both. Only the flags count here, not SEMEL_STORE and SEMEL_CACHE.
///
/// With --saga it shows sagas instead: clients place orders, and an order is four steps: a row in a table, a reservation
/// at a stock service, a charge at a payment provider, a mail. Stock, provider and mail are processes that lose answers,
/// fail, are slow, and refuse some orders; the workers that carry out the orders are killed with SIGKILL at random moments.
/// This is done twice, by a service that retries each step, and by sagas in a SQLite file. The table is counted from the
/// ledgers of the participants and the table of orders. Where a lookup does not say whether a card was charged, the saga is
/// parked; the demo then reads the provider's ledger and records what it says, as `semel saga resolve` does. Exit code 1
/// if with sagas an order is neither complete nor undone, or if anything happened twice.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel demo
  semel demo --saga
  semel demo --saga --orders 100 --seed 7 --json
  semel demo --store postgres://postgres@127.0.0.1/postgres --cache redis://127.0.0.1")]
pub(crate) struct Demo {
    /// How many different payments to make
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) intents: u32,
    /// How many requests to send in total, without retries
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) sends: u32,
    /// How many clients send at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) tasks: u32,
    /// Seed of everything random: order, failures, delays, who hangs up [default: a new one each time]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Draw the result as an SVG, one square per payment
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Keep the store, the ledgers and the gateway's log, and print where they are
    #[arg(long)]
    pub(crate) keep: bool,
    /// Keep the service and the gateway running until Ctrl-C, and print requests to try
    #[arg(long)]
    pub(crate) stay: bool,
    /// Show sagas: orders of several steps that are done or undone, however often workers are killed
    #[arg(long, conflicts_with_all = ["intents", "sends", "svg", "stay"])]
    pub(crate) saga: bool,
    /// With --saga: how many orders to place
    #[arg(long, value_name = "N", default_value_t = 300, requires = "saga", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) orders: u32,
    /// Plant a bug, to see that the demo detects it
    #[arg(long = "break", value_name = "BUG", hide = true)]
    pub(crate) bug: Option<Bug>,
}

/// One process of the demo.
#[derive(Args)]
pub(crate) struct DemoService {
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// As for the gateway.
    #[arg(long)]
    pub(crate) until_stdin_ends: bool,
    #[arg(long)]
    pub(crate) seed: u64,
}

/// Bugs that can be planted in the demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bug {
    /// Some requests bypass the gateway. With sagas: a charge in doubt is made again.
    Twice,
    /// Some payments are answered but not charged. With sagas: reservations are not released.
    Lost,
    /// The lookup asks in the wrong place and never finds anything.
    Blind,
}

impl Bug {
    /// As `--break` takes it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Twice => "twice",
            Self::Lost => "lost",
            Self::Blind => "blind",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
