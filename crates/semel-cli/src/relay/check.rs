//! `semel relay --check`: the guarantee, and whether this configuration can keep it.

use std::fmt::Write;

use semel::relay::OutboxReaderError;
use semel::sink::DeliverySemantics;
use semel::store::ErrorKind;
use serde::Serialize;

use super::args::{self, Mode, Prune, Relay};
use super::from::{Finding, From, Severity};
use super::to::To;
use crate::failure::Failed;
use crate::sink_probe::{Check, conclude, lines};
use crate::stdout;
use crate::url::without_password;

/// What `--check --json` prints. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    mode: &'static str,
    delivery: &'static str,
    guarantee: String,
    /// The guarantee can be kept.
    holds: bool,
    checks: Vec<Check>,
    /// Consequences of the chosen options.
    notes: Vec<String>,
}

pub(super) async fn run(args: &Relay, mut to: To, json: bool) -> Result<(), Failed> {
    let mut notes = notes(args);
    let mut checks = source(args, &mut notes).await;
    match to.probe().await {
        Ok(()) => checks.push(Check::fine("broker")),
        Err(error) => checks.push(Check::unknown("broker", error.to_string())),
    }
    let guarantee = to.guarantee();
    checks.extend(guarantee.violations.iter().map(|why| Check::broken("promise", why.clone())));
    let report = Report {
        from: without_password(&args.from),
        to: without_password(&args.to),
        mode: match args.mode {
            Mode::Poll => "poll",
            Mode::Cdc => "cdc",
        },
        delivery: match guarantee.delivery {
            DeliverySemantics::AtLeastOnce => "at_least_once",
            DeliverySemantics::Deduplicated => "deduplicated",
            DeliverySemantics::ExactlyOnce => "exactly_once",
            _ => "other",
        },
        guarantee: guarantee.sentence,
        holds: checks.iter().all(|check| check.ok),
        checks,
        notes,
    };
    match json {
        true => stdout::json(&report)?,
        false => stdout::text(&text(&report))?,
    }
    conclude(&report.checks)
}

/// Checks the database.
async fn source(args: &Relay, notes: &mut Vec<String>) -> Vec<Check> {
    let found = match From::open(args).await {
        Ok(from) => from.check(args).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(findings) => findings.into_iter().filter_map(|finding| to_check(finding, notes)).collect(),
        Err(error) => {
            let why = error.to_string();
            vec![match is_permanent(&error) {
                true => Check::broken("outbox", why),
                false => Check::unknown("outbox", why),
            }]
        }
    }
}

fn to_check(finding: Finding, notes: &mut Vec<String>) -> Option<Check> {
    let Finding { severity, about, says } = finding;
    match severity {
        Severity::Fine => Some(Check::found(about, says)),
        Severity::Error => Some(Check::broken(about, says)),
        Severity::Warning => {
            notes.push(format!("{about}: {says}"));
            None
        }
    }
}

/// Whether a retry would give the same error.
fn is_permanent(error: &OutboxReaderError) -> bool {
    match error {
        OutboxReaderError::OutboxLineage { .. } => true,
        OutboxReaderError::Store(error) => {
            matches!(error.kind(), ErrorKind::Misconfigured | ErrorKind::Lost | ErrorKind::Corrupt)
        }
        _ => false,
    }
}

fn notes(args: &Relay) -> Vec<String> {
    let mut notes = Vec::new();
    if args.bounds.poison == args::Poison::Event {
        notes.push("--poison event: later events of a key overtake a parked one".to_owned());
    }
    if args.bounds.prune == Prune::Never {
        notes.push(
            "--prune never: the outbox grows unless something else deletes published events".to_owned(),
        );
    }
    notes
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "from    {} ({})", report.from, report.mode);
    let _ = writeln!(text, "to      {}", report.to);
    lines(&mut text, &report.checks, &report.notes);
    let _ = write!(text, "\n{}\n", report.guarantee);
    text
}
