//! What `semel outbox` can be told.

use clap::{Args, Subcommand};
use uuid::Uuid;

/// Look at events in an outbox, and decide about those that cannot be published
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox ls --from postgres://relay@db/payments --unpublished --oldest-first
  semel outbox parked --from postgres://relay@db/payments
  semel outbox retry --key account-7 --from postgres://relay@db/payments
With SEMEL_FROM in the environment --from need not be said.")]
pub(crate) struct Outbox {
    /// The database with the outbox: postgres://…, mysql://… or sqlite:PATH
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_FROM", hide_env_values = true)]
    pub(crate) from: Option<String>,
    #[command(subcommand)]
    pub(crate) command: OutboxCommand,
}

#[derive(Subcommand)]
pub(crate) enum OutboxCommand {
    Ls(Ls),
    Show(Show),
    Parked(Parked),
    Retry(Retry),
    Skip(Skip),
    Rebase(Rebase),
}

/// List events, newest first
///
/// STATE is how far the relay has come: waiting, sending (in the batch on its way), published, parked (it could not be
/// published), held (behind one of its key that is parked). What was published is forgotten after a day or what the relay
/// was told. Looks at 100,000 events at most.
///
/// With --json: {"events": [...]}
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox ls --limit 20
  semel outbox ls --unpublished --oldest-first             what is stuck
  semel outbox ls --topic payments --key account-7")]
pub(crate) struct Ls {
    /// Only those that the relay has before it
    #[arg(long)]
    pub(crate) unpublished: bool,
    /// The oldest instead of the newest
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// Only those for this topic
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only those whose order is kept by this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) limit: u64,
}

/// Show one event, and what can be done about it
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox show 018f3c1e-7b7a-7c3e-9d2f-0d5f4c1a2b3c
  semel outbox show 018f3c1e-7b7a-7c3e-9d2f-0d5f4c1a2b3c --payload > event.bin")]
pub(crate) struct Show {
    /// Its id
    pub(crate) id: Uuid,
    /// Write the payload to stdout, byte by byte, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) payload: bool,
}

/// List events that could not be published, and those held behind them
///
/// In the order in which they would be published.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox parked
  semel outbox parked --key account-7 --json")]
pub(crate) struct Parked {
    /// Only of this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) limit: u64,
}

/// Have parked events tried again
///
/// The relay sends them at its next look, in the order of their keys. How many keys that are is printed.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["key", "all"]),
          after_help = "\
Examples:
  semel outbox retry --key account-7
  semel outbox retry --all")]
pub(crate) struct Retry {
    /// This key, as `semel outbox parked` shows it
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
}

/// Give a parked event up for ever
///
/// It is deleted and will never be published; what is held behind it goes on. Keep a copy first: semel outbox show ID
/// --json.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel outbox skip 018f3c1e-7b7a-7c3e-9d2f-0d5f4c1a2b3c --yes")]
pub(crate) struct Skip {
    /// Its id
    pub(crate) id: Uuid,
    /// Its topic, where events with this id are parked on several
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Yes, for ever
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Say where to go on after the database was restored, upgraded or replaced
///
/// A relay whose cursor was written in another database stops and asks for this. Relays that run are stopped from going
/// on with the old cursor.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["everything", "from_now"]),
          after_help = "\
Examples:
  semel outbox rebase --everything           publish all that is in the outbox, again where need be: same ids
  semel outbox rebase --from-now --yes       take all that is in the outbox for published")]
pub(crate) struct Rebase {
    /// Publish all that is in the outbox, also what was published before
    #[arg(long)]
    pub(crate) everything: bool,
    /// Take all that is in the outbox for published; what was not never will be
    #[arg(long)]
    pub(crate) from_now: bool,
    /// Yes, with --from-now: what was not published is given up
    #[arg(long)]
    pub(crate) yes: bool,
}
