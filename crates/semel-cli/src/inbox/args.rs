//! What `semel inbox` can be told.

use clap::{Args, Subcommand};
use semel::inbox::dead_letter::LISTED_LETTERS_MAX;

use crate::values::parse_why;

/// Look at messages that could not be handled, and decide about them
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel inbox ls --inbox postgres://mail@db/mail
  semel inbox dead --consumer notifications --inbox postgres://mail@db/mail
  semel inbox retry 17 18 --inbox postgres://mail@db/mail
With SEMEL_INBOX in the environment --inbox need not be said.")]
pub(crate) struct Inbox {
    /// The database with the inbox: postgres://…, mysql://… or sqlite:PATH
    #[arg(long, global = true, value_name = "URL", env = "SEMEL_INBOX", hide_env_values = true)]
    pub(crate) inbox: Option<String>,
    #[command(subcommand)]
    pub(crate) command: InboxCommand,
}

#[derive(Subcommand)]
pub(crate) enum InboxCommand {
    /// Count dead letters by consumer and source
    Ls,
    Dead(Dead),
    Show(Show),
    Retry(Retry),
    Drop(Drop),
}

/// List messages that could not be handled, in the order in which they were given up
///
/// STATE is dead (a person decides) or retry (a consumer handles it at its next look).
///
/// With --json: {"letters": [...], "next": NUMBER or null}; go on with --after NUMBER.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel inbox dead
  semel inbox dead --consumer notifications --source payments --limit 20
  semel inbox dead --dropped                     what was given up, and why")]
pub(crate) struct Dead {
    /// Only of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Only from this source
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
    /// Those that were dropped, instead
    #[arg(long)]
    pub(crate) dropped: bool,
    /// Go on behind this one
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub(crate) after: i64,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..=LISTED_LETTERS_MAX as u64))]
    pub(crate) limit: u64,
}

/// Show one dead letter, and what can be done about it
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel inbox show 17
  semel inbox show 17 --payload > message.bin")]
pub(crate) struct Show {
    /// Its number, as `semel inbox dead` shows it
    pub(crate) id: i64,
    /// Write the payload to stdout, byte by byte, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) payload: bool,
}

/// Have dead letters handled again
///
/// A consumer of that name takes them at its next look, and handles them as any message: behind what it holds of their
/// key, in one transaction with the mark. What was handled meanwhile has no second effect. One that fails again is dead
/// again. All that are named, or none.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "all"]),
          after_help = "\
Examples:
  semel inbox retry 17 18
  semel inbox retry --all --consumer notifications")]
pub(crate) struct Retry {
    /// Their numbers, as `semel inbox dead` shows them
    pub(crate) id: Vec<i64>,
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
    /// With --all: only of this consumer
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) consumer: Option<String>,
    /// With --all: only from this source
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) source: Option<String>,
}

/// Give dead letters up for ever
///
/// What they say is deleted, and they are not handled from here. A message that the broker itself delivers once more, because
/// it was published twice or the group goes back, is handled like any other. That they were there, and why they were given up, is kept until the
/// consumer forgets marks of that age: semel inbox dead --dropped. Keep a copy first: semel inbox show ID --json.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel inbox drop 17 --why 'sent by a test' --yes")]
pub(crate) struct Drop {
    /// Their numbers
    #[arg(required = true)]
    pub(crate) id: Vec<i64>,
    /// Why; recorded with them
    #[arg(long, value_name = "TEXT", value_parser = parse_why)]
    pub(crate) why: String,
    /// Yes, for ever
    #[arg(long)]
    pub(crate) yes: bool,
}
