//! `semel inbox show`

use std::fmt::Write;

use semel::inbox::dead_letter::{DeadLetterState, DeadLetterStore, StoredDeadLetter};
use serde::Serialize;

use super::args::Show;
use super::dead::LetterView;
use crate::failure::Failed;
use crate::moment::{age, when};
use crate::show::shown_body;
use crate::stdout;
use crate::table::{printable, thousands};

#[derive(Serialize)]
struct ShowView<'a> {
    #[serde(flatten)]
    letter: LetterView<'a>,
    /// `None` when it is not text; `show --payload` gives the bytes.
    payload: Option<&'a str>,
    next: Vec<String>,
}

pub(super) async fn run(tables: &DeadLetterStore, args: &Show, json: bool) -> Result<(), Failed> {
    let Some(letter) = tables.find(args.id).await? else {
        return Err(Failed::not_done(format!(
            "there is no dead letter {}; it may have been handled: `semel inbox dead` lists them",
            args.id
        )));
    };
    if args.payload {
        return stdout::bytes(&letter.payload);
    }
    if json {
        return stdout::json(&ShowView {
            letter: LetterView::new(&letter),
            payload: std::str::from_utf8(&letter.payload).ok(),
            next: next(&letter),
        });
    }
    stdout::text(&text(&letter))
}

/// The commands that apply now.
fn next(letter: &StoredDeadLetter) -> Vec<String> {
    let (retry, drop) = (
        format!("semel inbox retry {}", letter.number),
        format!("semel inbox drop {} --why TEXT --yes", letter.number),
    );
    match letter.state {
        DeadLetterState::Dead => vec![retry, drop],
        DeadLetterState::Retry => vec![drop],
        _ => Vec::new(),
    }
}

fn text(letter: &StoredDeadLetter) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {}", printable(value));
    };
    line("letter", &letter.number.to_string());
    line("state", letter.state.as_str());
    line("consumer", &letter.consumer);
    line("source", &letter.source);
    line("message", letter.id.as_deref().unwrap_or("- (it has no identity)"));
    line("topic", &letter.topic);
    line("place", &letter.place);
    if let Some(lineage) = &letter.lineage {
        line("lineage", lineage);
    }
    line("key", letter.key.as_deref().unwrap_or("- (no order)"));
    line("tried", &format!("{} times", thousands(letter.attempts)));
    let moment = |at| format!("{}, {} ago", when(at), age(at));
    line("failed first", &moment(letter.first_failed_at));
    line("dead", &moment(letter.dead_at));
    line("error", &letter.error);
    if let Some((at, why)) = &letter.dropped {
        line("dropped", &moment(*at));
        line("why", why);
    }
    for (name, value) in &letter.headers {
        line("header", &format!("{name}: {value}"));
    }
    let kind = letter.content_type.as_deref().unwrap_or("no content type");
    line("payload", &format!("{} bytes, {kind}", thousands(letter.payload_bytes)));
    match shown_body(&letter.payload) {
        Some(body) => {
            for line in body.lines() {
                let _ = writeln!(text, "    {}", printable(line));
            }
        }
        None if !letter.payload.is_empty() => {
            text.push_str("    (too long or not text; --payload writes it)\n");
        }
        None => {}
    }
    let advice = match letter.state {
        DeadLetterState::Dead => "It could not be handled. Fix what is wrong, then retry it or drop it:",
        DeadLetterState::Retry => "A consumer handles it at its next poll. It can still be dropped:",
        _ => return text,
    };
    let _ = writeln!(text, "\n{advice}");
    for command in next(letter) {
        let _ = writeln!(text, "  {command}");
    }
    text
}
