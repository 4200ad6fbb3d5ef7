//! `semel outbox parked`

use serde::Serialize;

use super::any_outbox::AnyOutbox;
use super::args::Parked;
use super::show::EventView;
use crate::failure::Failed;
use crate::moment::{age, when};
use crate::stdout;
use crate::table::{Side, Table, printable, short};

/// What `--json` shows of a parked event. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct ParkedView<'a> {
    #[serde(flatten)]
    event: EventView<'a>,
    state: &'static str,
    parked_key: &'a str,
    parked_at: String,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct PageView<'a> {
    events: Vec<ParkedView<'a>>,
}

pub(super) async fn run(outbox: &AnyOutbox, args: &Parked, json: bool) -> Result<(), Failed> {
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let parked = outbox.parked(args.key.as_deref(), most).await?;
    let state = |error: &Option<String>| if error.is_some() { "parked" } else { "held" };
    if json {
        let events = parked.iter().map(|parked| ParkedView {
            event: EventView::new(&parked.event),
            state: state(&parked.error),
            parked_key: &parked.key,
            parked_at: when(parked.since),
            error: parked.error.as_deref(),
        });
        return stdout::json(&PageView { events: events.collect() });
    }
    if parked.is_empty() {
        eprintln!("nothing is parked");
        return Ok(());
    }
    let mut table = Table::new([
        ("ID", Side::Left),
        ("STATE", Side::Left),
        ("KEY", Side::Left),
        ("TOPIC", Side::Left),
        ("TYPE", Side::Left),
        ("SINCE", Side::Right),
        ("ERROR", Side::Left),
    ]);
    for parked in &parked {
        table.row([
            parked.id().to_string(),
            state(&parked.error).to_owned(),
            printable(&parked.key),
            printable(parked.event.topic()),
            printable(parked.event.kind()),
            age(parked.since),
            parked.error.as_deref().map_or_else(|| "-".to_owned(), short),
        ]);
    }
    stdout::text(&table.take())?;
    if parked.len() as u64 == args.limit {
        eprintln!("there may be more: raise --limit, or narrow it with --key");
    }
    Ok(())
}
