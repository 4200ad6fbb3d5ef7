//! `semel inbox dead`

use semel::inbox::dead_letter::{DeadLetterFilter, DeadLetterStore, StoredDeadLetter};
use serde::Serialize;
use serde_json::Value;

use super::args::Dead;
use crate::failure::Failed;
use crate::moment::{age, when};
use crate::stdout;
use crate::table::{Side, Table, printable, short};

/// What `--json` shows of a dead letter. Names here are an interface: add, never rename.
#[derive(Serialize)]
pub(super) struct LetterView<'a> {
    id: i64,
    state: &'static str,
    consumer: &'a str,
    source: &'a str,
    message_id: Option<&'a str>,
    topic: &'a str,
    lineage: Option<&'a str>,
    place: &'a str,
    key: Option<&'a str>,
    content_type: Option<&'a str>,
    /// Pairs of name and text: a name may occur more than once.
    headers: Vec<Value>,
    error: &'a str,
    attempts: u64,
    first_failed_at: String,
    dead_at: String,
    dropped_at: Option<String>,
    dropped_why: Option<&'a str>,
    payload_bytes: u64,
}

#[derive(Serialize)]
struct PageView<'a> {
    letters: Vec<LetterView<'a>>,
    next: Option<i64>,
}

impl<'a> LetterView<'a> {
    pub(super) fn new(letter: &'a StoredDeadLetter) -> Self {
        let dropped = letter.dropped.as_ref();
        Self {
            id: letter.number,
            state: letter.state.as_str(),
            consumer: &letter.consumer,
            source: &letter.source,
            message_id: letter.id.as_deref(),
            topic: &letter.topic,
            lineage: letter.lineage.as_deref(),
            place: &letter.place,
            key: letter.key.as_deref(),
            content_type: letter.content_type.as_deref(),
            headers: letter.headers.iter().map(|(name, text)| serde_json::json!([name, text])).collect(),
            error: &letter.error,
            attempts: letter.attempts,
            first_failed_at: when(letter.first_failed_at),
            dead_at: when(letter.dead_at),
            dropped_at: dropped.map(|(at, _)| when(*at)),
            dropped_why: dropped.map(|(_, why)| why.as_str()),
            payload_bytes: letter.payload_bytes,
        }
    }
}

/// The dead letters of a consumer and a source.
pub(super) fn listing(consumer: Option<&str>, source: Option<&str>) -> DeadLetterFilter {
    let listing =
        consumer.map_or_else(DeadLetterFilter::new, |consumer| DeadLetterFilter::new().consumer(consumer));
    match source {
        Some(source) => listing.source(source),
        None => listing,
    }
}

pub(super) async fn run(tables: &DeadLetterStore, args: &Dead, json: bool) -> Result<(), Failed> {
    let mut listing = listing(args.consumer.as_deref(), args.source.as_deref()).after(args.after);
    if args.dropped {
        listing = listing.dropped();
    }
    let letters = tables.list(&listing, usize::try_from(args.limit).unwrap_or(usize::MAX)).await?;
    let full = letters.len() as u64 == args.limit;
    let next = letters.last().filter(|_| full).map(|letter| letter.number);
    if json {
        return stdout::json(&PageView { letters: letters.iter().map(LetterView::new).collect(), next });
    }
    if letters.is_empty() {
        eprintln!("no dead letters match");
        return Ok(());
    }
    let mut table = Table::new([
        ("ID", Side::Right),
        ("STATE", Side::Left),
        ("CONSUMER", Side::Left),
        ("SOURCE", Side::Left),
        ("MESSAGE", Side::Left),
        ("KEY", Side::Left),
        ("TRIES", Side::Right),
        ("SINCE", Side::Right),
        (if args.dropped { "WHY" } else { "ERROR" }, Side::Left),
    ]);
    let or_none = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), printable);
    for letter in &letters {
        let (since, why) = match &letter.dropped {
            Some((at, why)) => (*at, why),
            None => (letter.dead_at, &letter.error),
        };
        table.row([
            letter.number.to_string(),
            letter.state.as_str().to_owned(),
            printable(&letter.consumer),
            printable(&letter.source),
            or_none(&letter.id),
            or_none(&letter.key),
            letter.attempts.to_string(),
            age(since),
            short(why),
        ]);
    }
    stdout::text(&table.take())?;
    if let Some(next) = next {
        eprintln!(
            "there may be more: add --after {next}, raise --limit, or narrow it with --consumer or --source"
        );
    }
    Ok(())
}
