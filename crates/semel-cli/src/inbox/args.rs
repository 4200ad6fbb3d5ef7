//! The arguments of `semel inbox`.

use clap::{Args, Subcommand};
use semel::inbox::dead_letter::LISTED_LETTERS_MAX;

use crate::values::parse_why;

/// List messages that could not be handled (dead letters), and retry or drop them
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel inbox ls --inbox postgres://mail@db/mail
  semel inbox dead --consumer notifications --inbox postgres://mail@db/mail
  semel inbox retry 17 18 --inbox postgres://mail@db/mail
With SEMEL_INBOX in the environment, --inbox is not needed.")]
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

/// List dead letters, messages that could not be handled, oldest first
///
/// STATE is dead (a person has to decide) or retry (a consumer handles it at its next poll).
///
/// With --json: {"letters": [...], "next": NUMBER or null}; continue with --after NUMBER.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel inbox dead
  semel inbox dead --consumer notifications --source payments --limit 20
  semel inbox dead --dropped                     what was dropped, and why")]
pub(crate) struct Dead {
    /// Only this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Only from this source
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
    /// List dropped dead letters instead
    #[arg(long)]
    pub(crate) dropped: bool,
    /// Continue after this one
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub(crate) after: i64,
    /// List at most this many
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
    /// The dead letter's number, as `semel inbox dead` shows it
    pub(crate) id: i64,
    /// Write only the payload to stdout, unchanged
    #[arg(long, conflicts_with = "json")]
    pub(crate) payload: bool,
}

/// Retry dead letters
///
/// A consumer of the same name takes them at its next poll and handles them like any message: after what it already has
/// of their key, in one transaction with the dedup record. A message that was handled meanwhile has no second effect.
/// One that fails again is a dead letter again. Either all the given ones are retried or none.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "all"]),
          after_help = "\
Examples:
  semel inbox retry 17 18
  semel inbox retry --all --consumer notifications")]
pub(crate) struct Retry {
    /// The dead letters' numbers, as `semel inbox dead` shows them
    pub(crate) id: Vec<i64>,
    /// Retry all dead letters
    #[arg(long)]
    pub(crate) all: bool,
    /// With --all: only this consumer
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) consumer: Option<String>,
    /// With --all: only from this source
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) source: Option<String>,
}

/// Drop dead letters for good
///
/// Their contents are deleted and they are never retried from here. A message that the broker itself delivers again,
/// because it was published twice or the group was rewound, is handled like any other. That they existed, and why they
/// were dropped, is kept until the consumer deletes dedup records of that age: semel inbox dead --dropped. Keep a copy
/// first: semel inbox show ID --json.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel inbox drop 17 --why 'sent by a test' --yes")]
pub(crate) struct Drop {
    /// The dead letters' numbers
    #[arg(required = true)]
    pub(crate) id: Vec<i64>,
    /// Why; recorded with them
    #[arg(long, value_name = "TEXT", value_parser = parse_why)]
    pub(crate) why: String,
    /// Confirm; this cannot be undone
    #[arg(long)]
    pub(crate) yes: bool,
}
