//! `semel inbox ls`

use semel::inbox::dead_letter::DeadLetterStore;
use serde::Serialize;

use crate::failure::Failed;
use crate::moment::{age, when};
use crate::stdout;
use crate::table::{Side, Table, printable, thousands};

/// What `--json` shows. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct CountedView<'a> {
    consumer: &'a str,
    source: &'a str,
    dead: u64,
    retry: u64,
    oldest_at: String,
}

#[derive(Serialize)]
struct PageView<'a> {
    consumers: Vec<CountedView<'a>>,
}

pub(super) async fn run(tables: &DeadLetterStore, json: bool) -> Result<(), Failed> {
    let counted = tables.count().await?;
    if json {
        let consumers = counted.iter().map(|counted| CountedView {
            consumer: &counted.consumer,
            source: &counted.source,
            dead: counted.dead,
            retry: counted.retry,
            oldest_at: when(counted.oldest),
        });
        return stdout::json(&PageView { consumers: consumers.collect() });
    }
    if counted.is_empty() {
        eprintln!("no dead letters");
        return Ok(());
    }
    let mut table = Table::new([
        ("CONSUMER", Side::Left),
        ("SOURCE", Side::Left),
        ("DEAD", Side::Right),
        ("RETRY", Side::Right),
        ("OLDEST", Side::Right),
    ]);
    for counted in &counted {
        table.row([
            printable(&counted.consumer),
            printable(&counted.source),
            thousands(counted.dead),
            thousands(counted.retry),
            age(counted.oldest),
        ]);
    }
    stdout::text(&table.take())
}
