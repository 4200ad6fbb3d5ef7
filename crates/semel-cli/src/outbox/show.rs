//! `semel outbox show`

use std::fmt::Write;

use semel::outbox::Event;
use semel::relay::{EventDetail, EventStatus, LOOKED_EVENTS_MAX};
use serde::Serialize;
use serde_json::{Map, Value};

use super::any_outbox::AnyOutbox;
use super::args::Show;
use crate::failure::Failed;
use crate::moment::{age, when};
use crate::show::shown_body;
use crate::stdout;
use crate::table::{printable, thousands};

/// What `--json` shows of an event. Names here are an interface: add, never rename.
#[derive(Serialize)]
pub(super) struct EventView<'a> {
    id: String,
    topic: &'a str,
    r#type: &'a str,
    key: Option<&'a str>,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    content_type: &'a str,
    headers: Map<String, Value>,
    trace_parent: Option<&'a str>,
    intent: Option<String>,
    payload_bytes: usize,
    /// `None` when it is not text; `show --payload` gives the bytes.
    payload: Option<&'a str>,
}

#[derive(Serialize)]
struct ShowView<'a> {
    #[serde(flatten)]
    event: EventView<'a>,
    state: &'static str,
    made_at: String,
    error: Option<&'a str>,
    parked_key: Option<&'a str>,
    next: Vec<String>,
}

impl<'a> EventView<'a> {
    pub(super) fn new(event: &'a Event) -> Self {
        let (aggregate_type, aggregate_id) = event.subject().unzip();
        Self {
            id: event.id().to_string(),
            topic: event.topic(),
            r#type: event.kind(),
            key: event.ordered_by(),
            aggregate_type,
            aggregate_id,
            content_type: event.media_type(),
            headers: event.headers().map(|(name, text)| (name.to_owned(), text.into())).collect(),
            trace_parent: event.trace(),
            intent: event.intent().map(ToString::to_string),
            payload_bytes: event.payload().len(),
            payload: std::str::from_utf8(event.payload()).ok(),
        }
    }
}

pub(super) async fn run(outbox: &AnyOutbox, args: &Show, json: bool) -> Result<(), Failed> {
    let Some(stored) = outbox.find(args.id).await? else {
        return Err(Failed::not_done(format!(
            "event {} is neither parked nor among the newest {} events of this outbox; it may be published and deleted",
            args.id,
            thousands(LOOKED_EVENTS_MAX as u64)
        )));
    };
    if args.payload {
        return stdout::bytes(stored.event.payload());
    }
    if json {
        return stdout::json(&ShowView {
            event: EventView::new(&stored.event),
            state: stored.standing.as_str(),
            made_at: when(stored.made_at),
            error: stored.error.as_deref(),
            parked_key: stored.parked_key.as_deref(),
            next: next(&stored),
        });
    }
    stdout::text(&text(&stored))
}

/// The commands that apply now.
fn next(stored: &EventDetail) -> Vec<String> {
    let Some(key) = &stored.parked_key else { return Vec::new() };
    let key = shell(key);
    match stored.standing {
        EventStatus::Parked => {
            vec![
                format!("semel outbox retry --key {key}"),
                format!("semel outbox skip {} --yes", stored.event.id()),
            ]
        }
        EventStatus::Held => vec![format!("semel outbox parked --key {key}")],
        _ => Vec::new(),
    }
}

/// Quotes text so that it can be pasted into a shell.
fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@');
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn text(stored: &EventDetail) -> String {
    let event = &stored.event;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {}", printable(value));
    };
    line("event", &event.id().to_string());
    line("state", stored.standing.as_str());
    line("topic", event.topic());
    line("type", event.kind());
    line("key", event.ordered_by().unwrap_or("- (no order)"));
    if let Some((kind, id)) = event.subject() {
        line("aggregate", &format!("{kind} {id}"));
    }
    line("made", &format!("{}, {} ago", when(stored.made_at), age(stored.made_at)));
    if let Some(error) = &stored.error {
        line("error", error);
    }
    if let Some(trace) = event.trace() {
        line("trace", trace);
    }
    if let Some(intent) = event.intent() {
        line("intent", &intent.to_string());
    }
    for (name, value) in event.headers() {
        line("header", &format!("{name}: {value}"));
    }
    let bytes = thousands(event.payload().len() as u64);
    line("payload", &format!("{bytes} bytes, {}", event.media_type()));
    match shown_body(event.payload()) {
        Some(body) => {
            for line in body.lines() {
                let _ = writeln!(text, "    {}", printable(line));
            }
        }
        None if !event.payload().is_empty() => {
            text.push_str("    (too long or not text; --payload writes it)\n");
        }
        None => {}
    }
    let advice = match stored.standing {
        EventStatus::Parked => "The broker did not accept it. Find out why, then retry it or skip it:",
        EventStatus::Held => "It waits behind a parked event of its key:",
        _ => return text,
    };
    let _ = writeln!(text, "\n{advice}");
    for command in next(stored) {
        let _ = writeln!(text, "  {}", printable(&command));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::shell;

    #[test]
    fn keys_are_quoted_for_a_shell() {
        assert_eq!(shell("account-7"), "account-7");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell("--all"), "'--all'");
    }
}
