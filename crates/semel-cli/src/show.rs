//! `semel show`

use std::fmt::Write;

use semel::store::{AnyStore, Record, Store};
use semel::{Body, Outcome, State, StoreTime};
use serde::Serialize;

use crate::advice::Advice;
use crate::args::Show;
use crate::duration;
use crate::failure::Failed;
use crate::moment::rfc3339;
use crate::stdout;
use crate::table::printable;
use crate::target;
use crate::view::{OutcomeView, RecordView, lossy, state};

/// Longest body that is shown as text.
const BODY_SHOWN_BYTES_MAX: usize = 2_000;

const SEALED: &str = "this outcome is sealed; name its keys with --keys file:PATH or env:NAME";

/// What `show`, `resolve` and `release` print with `--json`.
#[derive(Serialize)]
pub(crate) struct ShowView {
    #[serde(flatten)]
    record: RecordView,
    outcome: Option<OutcomeView>,
    next: Advice,
}

impl ShowView {
    pub(crate) fn new(record: &Record, now: StoreTime, show_keys: bool, url: &str) -> Self {
        Self {
            record: RecordView::new(record, now, show_keys),
            outcome: record.outcome.as_ref().map(OutcomeView::new),
            next: Advice::new(record, now, url),
        }
    }
}

pub(crate) async fn run(store: &AnyStore, args: &Show, url: &str, json: bool) -> Result<(), Failed> {
    let record = target::find(store, &args.target).await?.record;
    if args.body {
        return match record.outcome.as_ref().map(|outcome| &outcome.body) {
            Some(Body::Kept(bytes)) => stdout::bytes(bytes),
            Some(Body::NotKept) => Err(Failed::not_done("the body of this outcome was not kept")),
            Some(Body::Reference(_)) => Err(Failed::not_done(
                "only a reference to the result is kept; `semel show` without --body prints it",
            )),
            Some(Body::Sealed(_)) => Err(Failed::usage(SEALED)),
            None => Err(Failed::not_done(
                "this intent has no outcome yet; `semel show` without --body prints its state",
            )),
        };
    }
    let now = store.now().await?;
    if json {
        return stdout::json(&ShowView::new(&record, now, args.show_keys, url));
    }
    stdout::text(&text(&record, now, args.show_keys, url))
}

fn text(record: &Record, now: StoreTime, show_keys: bool, url: &str) -> String {
    let (intent, head) = (&record.intent, &record.head);
    let ago = |time: StoreTime| format!("{}, {} ago", rfc3339(time), duration::shown(now.since_ms(time)));
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("intent", intent.id().to_string());
    let since = duration::shown(now.since_ms(record.since(now)));
    line("state", format!("{}, for {since}", state(record, now).as_str()));
    line("operation", intent.operation().as_str().to_owned());
    line(
        "scope",
        match intent.scope().as_str() {
            "" => "- (single tenant)".to_owned(),
            scope => printable(scope),
        },
    );
    line(
        "key",
        match show_keys {
            true => intent.key().as_str().to_owned(),
            false => format!("#{} (--show-keys shows it)", intent.key().short_hash()),
        },
    );
    line("effect", head.effect.as_str().to_owned());
    line("attempts", record.attempts.to_string());
    line("epoch", head.epoch.0.to_string());
    line("created", ago(record.created_at));
    line("changed", ago(record.changed_at));
    if head.state == State::InProgress {
        line(
            "lease",
            match now < head.lease_until {
                true => format!("until {}, {} left", rfc3339(head.lease_until), left(now, head.lease_until)),
                false => format!("expired {}", ago(head.lease_until)),
            },
        );
    }
    if let Some(until) = head.safe_until {
        let left = match now < until {
            true => format!("remembered until {}, {} left", rfc3339(until), left(now, until)),
            false => format!("may be forgotten since {}", ago(until)),
        };
        line("key guard", left);
    }
    if head.state.is_finished() && head.safe_until.is_none() {
        line(
            "expires",
            match head.expires_at {
                Some(at) => format!("{}, in {}", rfc3339(at), left(now, at)),
                None => "never".to_owned(),
            },
        );
    }
    match &record.outcome {
        None => line("outcome", "none".to_owned()),
        Some(outcome) => line("outcome", outcome_text(outcome)),
    }
    if let Some(decision) = &record.decision {
        let (by, why) = (printable(&decision.by), printable(&decision.why));
        line("decision", format!("{} by {by}, {}: {why}", decision.ruling, ago(decision.at)));
    }
    let _ = write!(text, "\n{}", Advice::new(record, now, url));
    text
}

fn left(now: StoreTime, until: StoreTime) -> String {
    duration::shown(until.since_ms(now))
}

/// Code, headers and body, indented below the first line.
fn outcome_text(outcome: &Outcome) -> String {
    let (size, body) = match &outcome.body {
        Body::NotKept => ("body not kept".to_owned(), None),
        Body::Reference(reference) => (format!("kept as {:?}", printable(&lossy(reference))), None),
        Body::Sealed(_) => ("sealed; --keys opens it".to_owned(), None),
        Body::Kept(bytes) => (format!("body of {} bytes", bytes.len()), shown_body(bytes)),
    };
    let mut text = format!("{}, {size}", outcome.code);
    for (name, value) in &outcome.headers {
        let _ = write!(text, "\n    {}: {}", printable(name), printable(&lossy(value)));
    }
    match body {
        Some(body) => {
            for line in body.lines() {
                let _ = write!(text, "\n    {}", printable(line));
            }
        }
        None if outcome.body_bytes().is_some_and(|bytes| !bytes.is_empty()) => {
            text.push_str(" (too long or not text; --body writes it)");
        }
        None => {}
    }
    text
}

/// The bytes as text, if they are short and printable.
pub(crate) fn shown_body(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    (!text.is_empty() && text.len() <= BODY_SHOWN_BYTES_MAX && text.chars().all(plain)).then_some(text)
}
