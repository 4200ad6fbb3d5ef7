//! `semel outbox ls`

use semel::relay::{EventFilter, EventSummary};
use serde::Serialize;

use super::any_outbox::AnyOutbox;
use super::args::Ls;
use crate::failure::Failed;
use crate::moment::{age, when};
use crate::stdout;
use crate::table::{Side, Table, printable, thousands};

/// What `--json` shows of an event in a listing. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct ListedView<'a> {
    id: String,
    state: &'static str,
    topic: &'a str,
    r#type: &'a str,
    key: Option<&'a str>,
    made_at: String,
    payload_bytes: u64,
}

#[derive(Serialize)]
struct PageView<'a> {
    events: Vec<ListedView<'a>>,
}

pub(super) async fn run(outbox: &AnyOutbox, args: &Ls, json: bool) -> Result<(), Failed> {
    let mut listing = EventFilter::new(usize::try_from(args.limit).unwrap_or(usize::MAX));
    if args.unpublished {
        listing = listing.unpublished();
    }
    if args.oldest_first {
        listing = listing.oldest_first();
    }
    if let Some(topic) = &args.topic {
        listing = listing.topic(topic);
    }
    if let Some(key) = &args.key {
        listing = listing.key(key);
    }
    let events = outbox.list(&listing).await?;
    if json {
        return stdout::json(&PageView { events: events.iter().map(view).collect() });
    }
    if events.is_empty() {
        eprintln!("no events match");
        return Ok(());
    }
    let mut table = Table::new([
        ("ID", Side::Left),
        ("STATE", Side::Left),
        ("TOPIC", Side::Left),
        ("TYPE", Side::Left),
        ("KEY", Side::Left),
        ("AGE", Side::Right),
        ("BYTES", Side::Right),
    ]);
    for event in &events {
        table.row([
            event.id.to_string(),
            event.standing.as_str().to_owned(),
            printable(&event.topic),
            printable(&event.kind),
            event.key.as_deref().map_or_else(|| "-".to_owned(), printable),
            age(event.made_at),
            thousands(event.payload_bytes),
        ]);
    }
    stdout::text(&table.take())?;
    if events.len() as u64 == args.limit {
        eprintln!("there may be more: raise --limit, or narrow it with --topic or --key");
    }
    Ok(())
}

fn view(event: &EventSummary) -> ListedView<'_> {
    ListedView {
        id: event.id.to_string(),
        state: event.standing.as_str(),
        topic: &event.topic,
        r#type: &event.kind,
        key: event.key.as_deref(),
        made_at: when(event.made_at),
        payload_bytes: event.payload_bytes,
    }
}
