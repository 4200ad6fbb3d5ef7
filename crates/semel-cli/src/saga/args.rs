//! The arguments of `semel saga`.

use clap::{ArgGroup, Args, Subcommand};
use semel::Retention;
use semel::saga::{ParkReason, Status};

use super::values::{StepName, parse_json, parse_reason, parse_signal_id, parse_status, parse_step};
use crate::duration::parse_retention;
use crate::values::{parse_by, parse_why};

/// List and show sagas, and decide about those that cannot go on by themselves
///
/// A saga runs several steps, each once, all or undone. It is parked when it is not known whether a step happened, or
/// when a step that has to succeed does not. A person finds out, and records it here; then the next free worker goes
/// on with it.
///
/// URL is the database with the journal: postgres://…, mysql://… or sqlite:PATH.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel saga ls sqlite:shop.db --status parked
  semel saga show sqlite:shop.db 7                    its journal, and what can be done about it
  semel saga resolve sqlite:shop.db 7 charge --applied '\"ch_81\"' --by ana --why 'in the dashboard'
  semel saga resolve sqlite:shop.db 7 charge --not-applied --by ana --why 'not in the dashboard'
  semel saga retry sqlite:shop.db --reason undo_stuck --plan
  semel saga approve sqlite:shop.db 7 manager --by ana --why 'within the budget'
A decision names who made it and why; both are kept in the journal.
If its values are sealed, --keys opens them; without the keys nothing is recorded.")]
pub(crate) struct Saga {
    #[command(subcommand)]
    pub(crate) command: SagaCommand,
}

#[derive(Subcommand)]
pub(crate) enum SagaCommand {
    Ls(Ls),
    Show(Show),
    Retry(Retry),
    Compensate(Compensate),
    Resolve(Resolve),
    Abandon(Abandon),
    Cancel(Cancel),
    Signal(Signal),
    Approve(Approve),
    Reject(Reject),
    Export(Export),
}

impl SagaCommand {
    /// The database that the command is about.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Ls(args) => &args.url,
            Self::Show(args) => &args.url,
            Self::Retry(args) => &args.which.url,
            Self::Compensate(args) => &args.which.url,
            Self::Resolve(args) => &args.url,
            Self::Abandon(args) => &args.which.url,
            Self::Cancel(args) => &args.url,
            Self::Signal(args) => &args.url,
            Self::Approve(Approve { which }) | Self::Reject(Reject { which }) => &which.url,
            Self::Export(args) => &args.url,
        }
    }
}

/// List sagas, newest first
///
/// STATUS is running, waiting (for a time or a signal), undoing, parked (with the reason: a person has to decide),
/// completed, undone (with the cause) or abandoned. STEP is the step that was begun last; for an ended saga it is not
/// looked up. DUE is when a worker goes on with it. Raw keys may be secrets, so a short hash is shown instead unless
/// --show-keys is given.
///
/// With --json: {"sagas": [...], "next": NUMBER or null}; continue with --before NUMBER.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel saga ls sqlite:shop.db
  semel saga ls sqlite:shop.db --status parked,undoing --name checkout
  semel saga ls sqlite:shop.db --status parked --json | jq -r '.sagas[].number'")]
pub(crate) struct Ls {
    /// The database with the journal
    pub(crate) url: String,
    /// Only with these statuses: running, waiting, undoing, parked, completed, undone, abandoned
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', value_parser = parse_status)]
    pub(crate) status: Vec<Status>,
    /// Only sagas of this name, such as checkout
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) limit: u64,
    /// Continue after a page: only sagas with a smaller number
    #[arg(long, value_name = "N")]
    pub(crate) before: Option<u64>,
    /// Show raw keys instead of a short hash
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Show one saga: its input, its journal, its signals, and what can be done about it
///
/// The journal has one line for each thing that happened, in order. STEP is the step's name and, counted from 0, which
/// use of it; OP is forward, pivot (after it nothing is undone) or undo; TRY is the attempt, 0 for a lookup or a
/// decision. SAFE UNTIL is until when the participant's own key protects the step.
#[derive(Args)]
#[command(after_help = "\
Examples:
  semel saga show sqlite:shop.db 7
  semel saga show sqlite:shop.db --name checkout --tenant acme --key order-1001
  semel saga show sqlite:shop.db 7 --json | jq .input")]
pub(crate) struct Show {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number, as `semel saga ls` shows it
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    pub(crate) number: Option<u64>,
    /// The key it was started with, instead of its number
    #[arg(long, requires = "name")]
    pub(crate) key: Option<String>,
    /// With --key: the saga's name, such as checkout
    #[arg(long, requires = "key")]
    pub(crate) name: Option<String>,
    /// With --key: its tenant; leave it out for a service without tenants
    #[arg(long, requires = "key", conflicts_with = "scope")]
    pub(crate) tenant: Option<String>,
    /// With --key: its whole scope as ls shows it, such as acme/user-42
    #[arg(long, requires = "key")]
    pub(crate) scope: Option<String>,
    /// Show the raw key instead of a short hash
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Who decides, and why.
#[derive(Args)]
pub(crate) struct DecidedBy {
    /// Who decides; recorded with the saga
    #[arg(long, value_name = "NAME", value_parser = parse_by)]
    pub(crate) by: String,
    /// Why; recorded with the saga
    #[arg(long, value_name = "TEXT", value_parser = parse_why)]
    pub(crate) why: String,
}

/// One saga by its number, or many by filters.
#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["number", "status", "name", "reason"]))]
pub(crate) struct Which {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number; or choose many with --status, --name or --reason
    #[arg(conflicts_with_all = ["status", "name", "reason", "plan", "limit"])]
    pub(crate) number: Option<u64>,
    /// Decide only if the saga still has this epoch, as show printed it
    #[arg(long, value_name = "N", conflicts_with_all = ["status", "name", "reason", "plan"])]
    pub(crate) epoch: Option<u64>,
    /// All sagas with these statuses, newest first; parked if it is left out, because only those can be decided about
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', value_parser = parse_status)]
    pub(crate) status: Vec<Status>,
    /// All sagas of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// All sagas that are parked for these reasons: unknown_result, guard_expired, changed, no_handler, undo_stuck,
    /// forward_stuck, panicked, too_large, journal_refused
    #[arg(long, value_name = "REASON,…", value_delimiter = ',', value_parser = parse_reason)]
    pub(crate) reason: Vec<ParkReason>,
    /// With filters: print what would be done, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) plan: bool,
    /// Confirm: needed with filters, and to abandon
    #[arg(long)]
    pub(crate) yes: bool,
    /// With filters: decide about at most this many [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) limit: Option<u64>,
}

/// Have a parked saga go on
///
/// What failed is tried again, what was looked up is looked up again, and the bounds on attempts begin anew. Do it when
/// the cause is gone: the participant answers again, the code is repaired and deployed. A step whose result is unknown
/// and that nothing protects is not called again by this: record what happened with `semel saga resolve`.
///
/// With --json: {"number", "result", "status", "epoch"}; with filters {"sagas": [...], "done": N, "refused": N}.
#[derive(Args)]
#[command(
    override_usage = "semel saga retry <URL> <NUMBER> --by <NAME> --why <TEXT> [--epoch <N>]\n       \
                      semel saga retry <URL> [--status …] [--name …] [--reason …] --plan\n       \
                      semel saga retry <URL> [--status …] [--name …] [--reason …] --yes --by <NAME> --why <TEXT>",
    after_help = "\
Examples:
  semel saga retry sqlite:shop.db 7 --by ana --why 'the bank answers again'
  semel saga retry sqlite:shop.db --reason forward_stuck --plan
  semel saga retry sqlite:shop.db --reason forward_stuck --yes --by ana --why 'the bank answers'"
)]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) decider: BulkDecider,
}

/// Have a parked saga undone
///
/// What happened is undone in reverse. That is possible until the pivot has begun, the step after which nothing is
/// undone. A step whose result is unknown has to be found out first: the saga parks again if only a person can do that.
#[derive(Args)]
#[command(
    override_usage = "semel saga compensate <URL> <NUMBER> --by <NAME> --why <TEXT> [--epoch <N>]\n       \
                      semel saga compensate <URL> [--status …] [--name …] [--reason …] --plan\n       \
                      semel saga compensate <URL> [--status …] [--name …] [--reason …] --yes --by <NAME> --why <TEXT>",
    after_help = "\
Examples:
  semel saga compensate sqlite:shop.db 7 --by ana --why 'the customer gave up'
  semel saga compensate sqlite:shop.db --reason changed --name checkout --plan"
)]
pub(crate) struct Compensate {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) decider: BulkDecider,
}

/// End a parked saga as it is
///
/// Nothing is undone and nothing goes on, so what its steps did stays as it is: put that right by hand first. It cannot
/// be taken back.
#[derive(Args)]
#[command(
    override_usage = "semel saga abandon <URL> <NUMBER> --yes --by <NAME> --why <TEXT> [--epoch <N>]\n       \
                      semel saga abandon <URL> [--status …] [--name …] [--reason …] --plan\n       \
                      semel saga abandon <URL> [--status …] [--name …] [--reason …] --yes --by <NAME> --why <TEXT>",
    after_help = "\
Example:
  semel saga abandon sqlite:shop.db 7 --yes --by ana --why 'refunded by hand, ticket 4711'"
)]
pub(crate) struct Abandon {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) decider: BulkDecider,
    /// Retention, how long the abandoned saga is kept: 24h, 7d, forever
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_retention)]
    pub(crate) retention: Retention,
}

/// Who decides, and why; a plan decides nothing.
#[derive(Args)]
pub(crate) struct BulkDecider {
    /// Who decides; recorded with the saga
    #[arg(long, value_name = "NAME", required_unless_present = "plan", value_parser = parse_by)]
    pub(crate) by: Option<String>,
    /// Why; recorded with the saga
    #[arg(long, value_name = "TEXT", required_unless_present = "plan", value_parser = parse_why)]
    pub(crate) why: Option<String>,
}

/// Record what became of a step of a parked saga, and have it go on
///
/// First look it up where the effect would be: in your database, in the participant's dashboard. Before you use
/// --not-applied, make sure that nothing is still in flight: the step is called again, or the saga is undone without
/// it.
///
/// The result has to be what the step's code returns, because the saga goes on with it and it cannot be replaced. A saga
/// whose code cannot read it parks again, as changed. Leave it out only for an undo, or for a step that returns nothing.
#[derive(Args)]
#[command(group = ArgGroup::new("found").required(true).args(["applied", "not_applied"]),
          after_help = "\
Examples:
  semel saga resolve sqlite:shop.db 7 charge --applied '\"ch_81\"' --by ana --why 'in the dashboard'
  semel saga resolve sqlite:shop.db 7 charge#1 --not-applied --by ana --why 'not in the dashboard'
  semel saga resolve sqlite:shop.db 7 reserve --applied --undo --by ana --why 'released by hand'")]
pub(crate) struct Resolve {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number
    pub(crate) number: u64,
    /// The step: its name, or its name and which use of it: charge, charge#0
    #[arg(value_parser = parse_step)]
    pub(crate) step: StepName,
    /// It happened, with this result as the step would have returned it; null if it is left out
    #[arg(long, value_name = "JSON", num_args = 0..=1, default_missing_value = "null",
          allow_negative_numbers = true, value_parser = parse_json)]
    pub(crate) applied: Option<String>,
    /// It did not happen, and cannot any more
    #[arg(long)]
    pub(crate) not_applied: bool,
    /// It is about the step's undo, not about the step
    #[arg(long)]
    pub(crate) undo: bool,
    /// Decide only if the saga still has this epoch, as show printed it
    #[arg(long, value_name = "N")]
    pub(crate) epoch: Option<u64>,
    #[command(flatten)]
    pub(crate) decider: DecidedBy,
}

/// Ask for a saga to be undone, whatever it is doing
///
/// It is undone unless its pivot, the step after which nothing is undone, has begun by then and happens. A saga that is
/// undone already, or has ended, refuses. A parked saga is woken; if its open step has to be found out first, it parks
/// again.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel saga cancel sqlite:shop.db 7 --by ana --why 'the customer called'")]
pub(crate) struct Cancel {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number
    pub(crate) number: u64,
    #[command(flatten)]
    pub(crate) decider: DecidedBy,
}

/// Tell a saga something that it waits for, an approval for example
///
/// A signal that comes before the saga waits for it is kept. The same id again is the same signal, so the command can
/// be repeated.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel saga signal sqlite:shop.db 7 approval '{\"by\":\"ana\"}' --id ticket-4711")]
pub(crate) struct Signal {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number
    pub(crate) number: u64,
    /// What the saga waits for it by
    pub(crate) name: String,
    /// What it says
    #[arg(value_name = "JSON", default_value = "null", allow_negative_numbers = true, value_parser = parse_json)]
    pub(crate) body: String,
    /// Its id: a signal with the same id is the same signal
    #[arg(long, value_parser = parse_signal_id)]
    pub(crate) id: String,
}

/// Say yes to what a saga waits for
///
/// For a saga that waits by `approval`: who and why is recorded. The first decision counts: the same one again changes
/// nothing (exit code 0), and after a no this is refused (exit code 1).
#[derive(Args)]
#[command(after_help = "\
Example:
  semel saga approve sqlite:shop.db 7 manager --by ana --why 'within the budget'")]
pub(crate) struct Approve {
    #[command(flatten)]
    pub(crate) which: Approval,
}

/// Say no to what a saga waits for
///
/// For a saga that waits by `approval`: who and why is recorded, and the saga's code decides what follows; mostly what
/// happened is undone. The first decision counts: the same one again changes nothing (exit code 0), and after a yes this is
/// refused (exit code 1).
#[derive(Args)]
#[command(after_help = "\
Example:
  semel saga reject sqlite:shop.db 7 manager --by ana --why 'too expensive'")]
pub(crate) struct Reject {
    #[command(flatten)]
    pub(crate) which: Approval,
}

/// Which approval, who decides, and why.
#[derive(Args)]
pub(crate) struct Approval {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number
    pub(crate) number: u64,
    /// What the saga waits for it by
    pub(crate) name: String,
    /// Its id, for a saga that asks twice by one name: the same id is the same decision [default: approval-NAME]
    #[arg(long, value_parser = parse_signal_id)]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) decider: DecidedBy,
}

/// Print a saga with its journal, to run tomorrow's code on it
///
/// The output is JSON in a form of its own: `semel::saga::test::replay` runs a saga's code on a folder of such files and
/// reports what a deploy would change. It has the saga's key, its inputs and its results: keep it as you keep those.
#[derive(Args)]
#[command(after_help = "\
Example:
  semel saga export sqlite:shop.db 7 > tests/journals/checkout-7.json")]
pub(crate) struct Export {
    /// The database with the journal
    pub(crate) url: String,
    /// The saga's number
    pub(crate) number: u64,
}
