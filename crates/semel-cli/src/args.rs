//! What the command line looks like.

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
  semel demo                                          what semel does, in fifteen seconds
  semel gateway --upstream http://127.0.0.1:3000 --single-tenant
  semel relay --from postgres://relay@db/app --to kafka://kafka:9092
  semel consume --from 'kafka://kafka:9092/payments?group=mail' --to http://127.0.0.1:3000/paid
  semel ls --state uncertain                          what needs a person
  semel show 9c8722d0f190                             one intent, and what can be done about it
  semel resolve 9c8722d0f190 --not-applied --by ana --why 'not in the provider dashboard'"
)]
pub(crate) struct Cli {
    /// Where intents are remembered [default: sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Where the keys are that outcomes are sealed with: file:PATH or env:NAME
    #[arg(long, global = true, value_name = "SOURCE", env = "SEMEL_KEYS", hide_env = true, hide_env_values = true,
          value_parser = parse_source)]
    pub(crate) keys: Option<KeySource>,
    /// A Redis in front of a SQL store: finished outcomes are replayed from there
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_CACHE", hide_env_values = true)]
    pub(crate) cache: Option<String>,
    /// JSON instead of text
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
    /// (not in this build: --features redis) Look after a store on Redis
    #[cfg(not(feature = "redis"))]
    Redis(crate::absent::Absent),
    Demo(Demo),
    /// The demo's payments service, on the database of --store
    #[command(hide = true)]
    DemoService(DemoService),
    Gateway(Box<Gateway>),
    Relay(Box<crate::relay::Relay>),
    #[cfg(feature = "consume")]
    Consume(Box<crate::consume::Consume>),
    /// (not in this build: --features consume,kafka) Messages from a broker to an HTTP endpoint
    #[cfg(not(feature = "consume"))]
    Consume(crate::absent::Absent),
    Outbox(crate::outbox::Outbox),
    Inbox(crate::inbox::Inbox),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// List intents, newest first
///
/// A state is the one that holds now: an opaque claim whose lease ran out is listed as uncertain. Raw keys may be
/// secrets; a short hash stands for them unless --show-keys is given.
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
    /// Only of this operation
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,
    /// Only of this tenant; '' for a service without tenants
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only those at least this long in their state: 30s, 5m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_ms)]
    pub(crate) older_than: Option<u64>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..=PAGE_RECORDS_MAX as u64))]
    pub(crate) limit: u64,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    /// All pages
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Show raw keys instead of a short hash
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Which intent: by id, or by the parts the id is made from.
#[derive(Args)]
pub(crate) struct Target {
    /// The id's 64 hex digits, or at least the first 8 of them
    #[arg(value_name = "ID", required_unless_present = "key", conflicts_with = "key")]
    pub(crate) id: Option<String>,
    /// Instead of the id: its key
    #[arg(long, requires = "operation")]
    pub(crate) key: Option<String>,
    /// With --key: its operation
    #[arg(long, value_name = "NAME", requires = "key")]
    pub(crate) operation: Option<String>,
    /// With --key: its tenant; without one, a service that has no tenants
    #[arg(long, requires = "key", conflicts_with = "scope")]
    pub(crate) tenant: Option<String>,
    /// With --key: its whole scope as ls shows it, such as acme/user-42
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
    /// Write the stored body to stdout, byte by byte, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) body: bool,
}

/// Who decides, why, and for how long it is remembered.
#[derive(Args)]
pub(crate) struct Decider {
    /// Who decides; recorded with the intent
    #[arg(long, value_name = "NAME", value_parser = parse_by)]
    pub(crate) by: String,
    /// Why; recorded with the intent
    #[arg(long, value_name = "TEXT", value_parser = parse_why)]
    pub(crate) why: String,
    /// How long it is remembered: 24h, 7d, forever
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_retention)]
    pub(crate) retention: Retention,
    /// Only if the intent still has this epoch, as show gave it
    #[arg(long, value_name = "N")]
    pub(crate) epoch: Option<u64>,
}

/// Say what became of an uncertain intent
///
/// Look it up first (your database, the provider's dashboard), then say what you found. From then on the decision
/// holds: the last owner's late outcome is refused, and every later caller gets the same answer. An intent whose
/// owner is still believed alive cannot be decided.
///
/// Before you say --not-applied, be sure that nothing is still on its way: a process that hangs, a request in a
/// queue of the provider's. A decision fences what that process records, not what it does.
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
    /// It was refused for good: later callers get the failure given here
    #[arg(long)]
    pub(crate) failed: bool,
    /// It did not happen and will not any more: the same key may run again
    #[arg(long, conflicts_with_all = ["code", "body", "header"])]
    pub(crate) not_applied: bool,
    /// The outcome's status: 200 unless told otherwise; without --code, --body and --header there is no outcome
    /// to give and callers learn only that it is done
    #[arg(long, value_name = "STATUS")]
    pub(crate) code: Option<u16>,
    /// The outcome's body: TEXT, @FILE, or @- for stdin; without it callers learn that the body was not kept
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(crate) body: Option<String>,
    /// A header of the outcome; may be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    pub(crate) header: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) decider: Decider,
}

/// Withdraw a remembered outcome, so that the same key may run again
///
/// Dangerous for a completed intent: the next call with this key does the work once more.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel release 9c8722d0f190 --yes --by ana --why 'charge was refunded by hand, customer wants to retry'")]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) decider: Decider,
    /// Yes, also if the work was done and may be done again
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Forget outcomes whose retention is over
///
/// Intents in progress and uncertain ones stay, however old. The total is printed on stdout.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel sweep --limit 100000")]
pub(crate) struct Sweep {
    /// Stop after this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// How many to ask for at a time
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch: u64,
}

/// Create or upgrade the tables of a store, of an outbox, or of an inbox
///
/// With --outbox it is the tables that services append their events to, in the services' own database; `semel relay`
/// reads them. With --inbox it is the tables in which consumers mark what they have handled, and keep what they could not.
///
/// In Redis it makes the markers by which a loss of memory is noticed. Do that once, by hand: run at every deployment
/// it would make a new store of a server that has lost the old one, and nobody would notice.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel migrate --store sqlite:/var/lib/semel/semel.db
  semel migrate --store redis://127.0.0.1
  semel migrate --print > schema.sql
  semel migrate --outbox postgres://owner@db/payments
  semel migrate --outbox postgres://owner@db/payments --print > migrations/0007_outbox.sql
  semel migrate --outbox postgres://owner@db/payments --strict-order
  semel migrate --inbox postgres://owner@db/mail
  semel migrate --new-lineage                         after an older backup was restored behind a cache")]
pub(crate) struct Migrate {
    /// Show the SQL and touch nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// The tables of the outbox, in the database this URL names, instead of a store's
    #[arg(long, value_name = "URL", conflicts_with = "new_lineage")]
    pub(crate) outbox: Option<String>,
    /// The tables of the inbox, in the database this URL names, instead of a store's
    #[arg(long, value_name = "URL", conflicts_with_all = ["new_lineage", "outbox"])]
    pub(crate) inbox: Option<String>,
    /// Whether PostgreSQL keeps the order of a key although a transaction appends before it locks the row: a lock on the key
    /// until the commit; `--strict-order=off` takes it away again
    #[arg(long, value_name = "on|off", value_enum, requires = "outbox", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub(crate) strict_order: Option<Switch>,
    /// The data are others now (an older backup was restored): what a cache has of them does not count any more
    #[arg(long, conflicts_with = "print")]
    pub(crate) new_lineage: bool,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Look after a store in Redis
#[derive(Args)]
pub(crate) struct Redis {
    #[command(subcommand)]
    pub(crate) command: RedisCommand,
}

#[derive(Subcommand)]
pub(crate) enum RedisCommand {
    /// Go on although Redis has lost what it knew
    ///
    /// A Redis that was flushed or started empty refuses all claims, because whatever ran before could run again. This
    /// says what is missing and, with --yes, makes a new generation of markers: from then on unknown keys run. First
    /// find out what was lost: wait until clients have stopped retrying, or reconcile with the service's own records.
    #[command(after_help = "\
Examples:
  semel redis accept-loss --store redis://127.0.0.1          what is missing; nothing is changed
  semel redis accept-loss --store redis://127.0.0.1 --yes    go on without it")]
    AcceptLoss {
        /// Yes, what was forgotten may run again
        #[arg(long)]
        yes: bool,
    },
}

/// Guard a service in any language, as a reverse proxy in front of it
///
/// Requests with an Idempotency-Key reach the service once; every retry gets the same answer. Everything else passes
/// through untouched. Operations, limits and timeouts are set in a file; see docs/gateway.md.
///
/// A setting of the file is overridden by the environment, and that by a flag. The addresses that are listened on are
/// printed on stdout, one a line; the log goes to stderr. SIGTERM and SIGINT drain: exit code 0 if nothing was left
/// under way, 1 if something was.
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
    /// Where clients connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "SEMEL_LISTEN", hide_env = true)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where health, metrics and the API's description are [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", env = "SEMEL_ADMIN", hide_env = true)]
    pub(crate) admin: Option<SocketAddr>,
    /// Yes, listen for admin requests beyond this machine, although nobody is asked for a password
    #[arg(long, env = "SEMEL_ADMIN_INSECURE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) admin_insecure: Option<bool>,
    /// Operations, limits and timeouts, in TOML
    #[arg(long, value_name = "FILE", env = "SEMEL_CONFIG", hide_env = true)]
    pub(crate) config: Option<PathBuf>,
    /// Say what is wrong with the settings, or print them all, and do nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Forward everything, block nothing, and report what would have become of it
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
    /// Whose a request is: header:X-Tenant-Id, or auth:X-User-Id from the answer to --authorize
    #[arg(long, value_name = "WHERE", env = "SEMEL_TENANT", hide_env = true)]
    pub(crate) tenant: Option<String>,
    /// Ask the service with the caller's credentials before anything is claimed or replayed: 'GET /whoami'
    #[arg(long, value_name = "QUESTION", env = "SEMEL_AUTHORIZE", hide_env = true)]
    pub(crate) authorize: Option<String>,
    /// How clients are answered: classic, ietf or stripe [default: classic]
    #[arg(long, env = "SEMEL_PROFILE", hide_env = true)]
    pub(crate) profile: Option<String>,
    /// What is logged: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", env = "SEMEL_LOG", hide_env = true)]
    pub(crate) log: Option<String>,
    /// Stop when stdin ends: whoever started it is gone then, however that came about
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

/// See it work: a service with bad days, careless clients and a killed gateway, judged by a ledger
///
/// A sample payments service that loses answers, fails and is slow; clients that send several times over, at the same
/// time, hang up, and use keys twice; once directly, and once with `semel gateway` between, which is killed by SIGKILL
/// half way and started again on the same store. Every charge appends a line to the service's ledger file and fsyncs
/// it; the table is counted from that file. Exit code 1 if a single charge is missing or was made twice. All of it
/// happens on this machine, in a temporary directory.
///
/// With --store postgres://… the gateway remembers there, and a third column shows the same clients at the reference
/// service (examples/payments), which claims in its own transactions on that server and is killed half way; it is
/// judged by its tables. The demo makes two schemas of its own there and removes them. --cache redis://… stands in
/// front of both. Only flags count here, not SEMEL_STORE and SEMEL_CACHE.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel demo
  semel demo --store postgres://postgres@127.0.0.1/postgres --cache redis://127.0.0.1")]
pub(crate) struct Demo {
    /// How many different payments are to be made
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) intents: u32,
    /// How many times they are sent altogether, retries aside
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) sends: u32,
    /// Clients that send at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) tasks: u32,
    /// What is random: order, failures, delays, who hangs up. A new one each time unless given
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Draw the result as an SVG, a square for each payment
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Leave store, ledgers and the gateway's log behind, and say where
    #[arg(long)]
    pub(crate) keep: bool,
    /// Leave service and gateway running, with something to try, until Ctrl-C
    #[arg(long)]
    pub(crate) stay: bool,
    /// Plant a bug, to see that the demo notices
    #[arg(long = "break", value_name = "BUG", hide = true)]
    pub(crate) bug: Option<Bug>,
}

/// One process of the demo's.
#[derive(Args)]
pub(crate) struct DemoService {
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// As the gateway's.
    #[arg(long)]
    pub(crate) until_stdin_ends: bool,
    #[arg(long)]
    pub(crate) seed: u64,
}

/// Bugs the demo can be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bug {
    /// Some requests go past the gateway.
    Twice,
    /// Some payments are answered but not charged.
    Lost,
    /// The gateway's lookup asks in the wrong place and never finds anything.
    Blind,
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
