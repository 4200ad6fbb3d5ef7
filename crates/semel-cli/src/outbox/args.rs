//! The arguments of `semel outbox`.

use clap::{Args, Subcommand};
use uuid::Uuid;

/// List events in an outbox, and decide about those that could not be published
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox ls --from postgres://relay@db/payments --unpublished --oldest-first
  semel outbox parked --from postgres://relay@db/payments
  semel outbox retry --key account-7 --from postgres://relay@db/payments
With SEMEL_FROM in the environment, --from is not needed.")]
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
/// STATE is how far the relay has come: waiting, sending (in the batch in flight), published, parked (it could not be
/// published), held (behind a parked event of the same key). Published events are deleted after a day, or after the
/// retention the relay was given. Searches at most 100,000 events.
///
/// With --json: {"events": [...]}
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox ls --limit 20
  semel outbox ls --unpublished --oldest-first             what is stuck
  semel outbox ls --topic payments --key account-7")]
pub(crate) struct Ls {
    /// Only events that are not published yet
    #[arg(long)]
    pub(crate) unpublished: bool,
    /// List the oldest first instead of the newest
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// Only events of this topic
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only events of this ordering key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// List at most this many
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
    /// The event's id
    pub(crate) id: Uuid,
    /// Write only the payload to stdout, unchanged
    #[arg(long, conflicts_with = "json")]
    pub(crate) payload: bool,
}

/// List parked events, which could not be published, and those held behind them
///
/// In the order in which they would be published.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel outbox parked
  semel outbox parked --key account-7 --json")]
pub(crate) struct Parked {
    /// Only this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) limit: u64,
}

/// Retry parked events
///
/// The relay sends them at its next poll, in the order of their keys. Prints the number of keys.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["key", "all"]),
          after_help = "\
Examples:
  semel outbox retry --key account-7
  semel outbox retry --all")]
pub(crate) struct Retry {
    /// Retry this key, as `semel outbox parked` shows it
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Retry all keys
    #[arg(long)]
    pub(crate) all: bool,
}

/// Skip a parked event for good
///
/// It is deleted and will never be published; the events held behind it continue. Keep a copy first: semel outbox show
/// ID --json.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel outbox skip 018f3c1e-7b7a-7c3e-9d2f-0d5f4c1a2b3c --yes")]
pub(crate) struct Skip {
    /// The event's id
    pub(crate) id: Uuid,
    /// The event's topic, if events with this id are parked on several
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Confirm; this cannot be undone
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Set where the relay continues after the database was restored, upgraded or replaced
///
/// A relay whose cursor was written in another database stops and asks for this. Running relays cannot continue with
/// the old cursor.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["everything", "from_now"]),
          after_help = "\
Examples:
  semel outbox rebase --everything           publish everything in the outbox, some of it again: same ids
  semel outbox rebase --from-now --yes       treat everything in the outbox as published")]
pub(crate) struct Rebase {
    /// Publish everything in the outbox, also what was published before
    #[arg(long)]
    pub(crate) everything: bool,
    /// Treat everything in the outbox as published; what was not published never will be
    #[arg(long)]
    pub(crate) from_now: bool,
    /// With --from-now, confirm: what was not published never will be
    #[arg(long)]
    pub(crate) yes: bool,
}
