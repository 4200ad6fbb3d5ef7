//! `semel relay --check`: what is promised, and whether this configuration can keep it.

use std::fmt::Write;

use semel::relay::SourceError;
use semel::sink::Delivery;
use semel::store::ErrorKind;
use serde::Serialize;

use super::args::{self, Mode, Prune, Relay};
use super::to::To;
use crate::failure::Failed;
use crate::outbox::AnyOutbox;
use crate::stdout;
use crate::table::printable;
use crate::url::without_password;

/// What `--check --json` prints. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    mode: &'static str,
    delivery: &'static str,
    guarantee: String,
    /// It can be kept.
    holds: bool,
    checks: Vec<Check>,
    /// What was asked for and is worth knowing.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Check {
    what: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip)]
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Nobody could be asked.
    Unknown,
    Broken,
}

impl Check {
    fn fine(what: &'static str) -> Self {
        Self { what, ok: true, why: None, verdict: Verdict::Fine }
    }

    fn broken(what: &'static str, why: String) -> Self {
        Self { what, ok: false, why: Some(why), verdict: Verdict::Broken }
    }

    fn unknown(what: &'static str, why: String) -> Self {
        Self { what, ok: false, why: Some(why), verdict: Verdict::Unknown }
    }
}

pub(super) async fn run(args: &Relay, mut to: To, json: bool) -> Result<(), Failed> {
    let mut checks = source(args).await;
    match to.probe().await {
        Ok(()) => checks.push(Check::fine("the broker answers")),
        Err(error) => checks.push(Check::unknown("the broker answers", error.to_string())),
    }
    let guarantee = to.guarantee();
    checks.extend(guarantee.broken_by.iter().map(|why| Check::broken("the promise is kept", why.clone())));
    let report = Report {
        from: without_password(&args.from),
        to: without_password(&args.to),
        mode: match args.mode {
            Mode::Poll => "poll",
            Mode::Cdc => "cdc",
        },
        delivery: match guarantee.delivery {
            Delivery::AtLeastOnce => "at_least_once",
            Delivery::Deduplicated => "deduplicated",
            Delivery::ExactlyOnce => "exactly_once",
            _ => "other",
        },
        guarantee: guarantee.sentence,
        holds: checks.iter().all(|check| check.ok),
        checks,
        notes: notes(args),
    };
    match json {
        true => stdout::json(&report)?,
        false => stdout::text(&text(&report))?,
    }
    let worst = |verdict| report.checks.iter().find(|check| check.verdict == verdict);
    let why = |check: &Check| check.why.clone().unwrap_or_default();
    match (worst(Verdict::Broken), worst(Verdict::Unknown)) {
        (Some(check), _) => {
            Err(Failed::usage(format!("this configuration cannot keep what it promises: {}", why(check))))
        }
        (None, Some(check)) => Err(Failed::not_done(format!(
            "it could not be found out whether the promise is kept: {}",
            why(check)
        ))),
        (None, None) => Ok(()),
    }
}

/// Tables, version, lineage and primary are seen when it is opened.
async fn source(args: &Relay) -> Vec<Check> {
    const OPENS: &str = "the outbox is there";
    const RIGHTS: &str = "the relay may do what it has to";
    let lacking = match AnyOutbox::open_with(&args.from, &args.bounds.outbox()).await {
        Ok(outbox) => outbox.check().await,
        Err(error) => Err(error),
    };
    let lacking = match lacking {
        Ok(lacking) => lacking,
        Err(error) => {
            let told = error.to_string();
            return vec![match of_configuration(&error) {
                true => Check::broken(OPENS, told),
                false => Check::unknown(OPENS, told),
            }];
        }
    };
    let prunes = args.bounds.prune != Prune::Never;
    let lacking: Vec<&str> = lacking
        .iter()
        .filter(|lacking| prunes || !lacking.only_to_prune)
        .map(|lacking| lacking.right.as_str())
        .collect();
    let rights = match lacking.is_empty() {
        true => Check::fine(RIGHTS),
        false => Check::broken(RIGHTS, format!("it lacks {}; grant that to its user", lacking.join(", "))),
    };
    vec![Check::fine(OPENS), rights]
}

/// Whether it would be the same tomorrow.
fn of_configuration(error: &SourceError) -> bool {
    match error {
        SourceError::Lineage { .. } => true,
        SourceError::Store(error) => {
            matches!(error.kind(), ErrorKind::Misconfigured | ErrorKind::Lost | ErrorKind::Corrupt)
        }
        _ => false,
    }
}

fn notes(args: &Relay) -> Vec<String> {
    let mut notes = Vec::new();
    if args.bounds.poison == args::Poison::Event {
        notes.push("--poison event: later events of a key overtake one that is parked".to_owned());
    }
    if args.bounds.prune == Prune::Never {
        notes.push("--prune never: the outbox grows until somebody else empties it".to_owned());
    }
    notes
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "from    {} ({})", report.from, report.mode);
    let _ = writeln!(text, "to      {}", report.to);
    for check in &report.checks {
        let mark = match check.verdict {
            Verdict::Fine => "ok",
            Verdict::Unknown => "?",
            Verdict::Broken => "BROKEN",
        };
        let why = check.why.as_ref().map_or_else(String::new, |why| format!(": {}", printable(why)));
        let _ = writeln!(text, "{mark:<7} {}{why}", check.what);
    }
    for note in &report.notes {
        let _ = writeln!(text, "note    {note}");
    }
    let _ = write!(text, "\n{}\n", report.guarantee);
    text
}
