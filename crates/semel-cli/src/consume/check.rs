//! `semel consume --check`: the guarantee, and whether this configuration can keep it.

use std::fmt::Write;
use std::time::Duration;

use semel::inbox::forward::Forward;
use semel::source::Source;
use semel::store::{ErrorKind, Store};
use serde::Serialize;

use super::args::{Consume, Effect, Poison};
use super::from::From;
use crate::args::Cli;
use crate::duration::shown;
use crate::failure::Failed;
use crate::sink_probe::{Check, conclude, lines};
use crate::stdout;
use crate::store_url;
use crate::url::without_password;

/// What `--check --json` prints. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    store: String,
    name: String,
    delivery: &'static str,
    guarantee: &'static str,
    /// The guarantee can be kept.
    holds: bool,
    checks: Vec<Check>,
    /// Consequences of the chosen options.
    notes: Vec<String>,
}

/// The guarantee, in one sentence.
pub(super) fn guarantee(effect: Effect) -> &'static str {
    match effect {
        Effect::Keyed => {
            "HTTP: every message at least once, in the order of its key. A 2xx answer is recorded before the message \
             is acked, and the message is not sent again; after a crash or a lost answer it is sent again with the \
             same Idempotency-Key: one effect, if the endpoint honours that."
        }
        Effect::Opaque => {
            "HTTP: every message in the order of its key, and none is sent again unless it is known that it did not \
             happen: after a crash or a lost answer it is in doubt, and a person decides."
        }
    }
}

pub(super) async fn run(
    cli: &Cli,
    args: &Consume,
    from: From,
    to: &Forward,
    poison: Poison,
) -> Result<(), Failed> {
    let url = store_url(cli);
    let name = args.name.clone().unwrap_or_else(|| from.group.clone());
    let mut checks = vec![store(url).await, source(from, args.bounds.window).await];
    checks.push(match to.reach().await {
        Ok(()) => Check::fine("endpoint"),
        Err(error) => Check::unknown("endpoint", error.to_string()),
    });
    let report = Report {
        from: without_password(&args.from),
        to: without_password(&args.to),
        store: without_password(url),
        name,
        delivery: match args.effect {
            Effect::Keyed => "at_least_once_keyed",
            Effect::Opaque => "at_most_once_in_doubt_held",
        },
        guarantee: guarantee(args.effect),
        holds: checks.iter().all(|check| check.ok),
        checks,
        notes: notes(args, poison),
    };
    match cli.json {
        true => stdout::json(&report)?,
        false => stdout::text(&text(&report))?,
    }
    conclude(&report.checks)
}

/// Whether the store is durable.
async fn store(url: &str) -> Check {
    match semel::store::open(url).await {
        Ok(store) if store.capabilities().durable => Check::fine("store"),
        Ok(_) => Check::broken("store", not_durable(url)),
        Err(error) if error.kind() == ErrorKind::Misconfigured => Check::broken("store", error.to_string()),
        Err(error) => Check::unknown("store", error.to_string()),
    }
}

pub(super) fn not_durable(url: &str) -> String {
    format!(
        "{} loses its records in a crash, and answered messages would be sent again; use sqlite:PATH, postgres://… or \
         a Redis that writes to disk",
        without_password(url)
    )
}

/// Whether the broker is reachable, and keeps messages for less than the dedup window.
async fn source(mut from: From, window_ms: u64) -> Check {
    // It has not joined the group, so it need not leave it.
    match from.source.retention().await {
        None => Check::unknown(
            "source",
            "the broker did not say how long it keeps messages; check that it is reachable and the topics exist"
                .to_owned(),
        ),
        Some(kept) => match too_long(kept, window_ms) {
            Some(why) => Check::broken("window", why),
            None => Check::fine("source"),
        },
    }
}

/// Why the dedup window is too short for a broker that keeps messages this long.
pub(super) fn too_long(kept: Duration, window_ms: u64) -> Option<String> {
    if kept <= Duration::from_millis(window_ms) {
        return None;
    }
    let kept = match u64::try_from(kept.as_millis()) {
        Ok(ms) if kept != Duration::MAX => shown(ms),
        _ => "ever".to_owned(),
    };
    Some(format!(
        "the broker keeps messages for {kept}, but answered messages are recorded for only {}: one that is delivered \
         again later would be sent again; make --window longer, or shorten the broker's retention",
        shown(window_ms)
    ))
}

fn notes(args: &Consume, poison: Poison) -> Vec<String> {
    let mut notes = vec![match poison {
        Poison::Park => {
            "a message that cannot be delivered becomes a dead letter (semel inbox); later ones of its key overtake it"
        }
        Poison::Stop => "a message that cannot be delivered stops its key until the cause is fixed",
    }
    .to_owned()];
    if matches!(args.identify, semel::source::Identify::ByPlace) {
        notes.push(
            "--identify place: a message published twice, or moved to another topic, counts as two messages"
                .to_owned(),
        );
    }
    notes
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "from    {} (as {})", report.from, report.name);
    let _ = writeln!(text, "to      {}", report.to);
    let _ = writeln!(text, "store   {}", report.store);
    lines(&mut text, &report.checks, &report.notes);
    let _ = write!(text, "\n{}\n", report.guarantee);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_longer_than_the_broker_keeps_messages() {
        let day = 86_400_000;
        assert_eq!(too_long(Duration::from_millis(day), day), None);
        assert!(too_long(Duration::from_millis(day + 1), day).unwrap().contains("for 1d0h"));
        assert!(too_long(Duration::MAX, day).unwrap().contains("for ever"));
    }
}
