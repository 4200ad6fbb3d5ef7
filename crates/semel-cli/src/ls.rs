//! `semel ls`

use semel::Scope;
use semel::store::{AnyStore, Filter, PAGE_RECORDS_MAX, Page, Record, Store};
use serde::Serialize;

use crate::args::Ls;
use crate::duration;
use crate::failure::Failed;
use crate::stdout;
use crate::table::{Side, Table, printable};
use crate::view::{RecordView, state};

/// Digits of an id in a table: enough to identify it, few enough for a narrow column.
const ID_DIGITS: usize = 12;

#[derive(Serialize)]
struct PageView {
    records: Vec<RecordView>,
    next: Option<String>,
}

pub(crate) async fn run(store: &AnyStore, args: &Ls, json: bool) -> Result<(), Failed> {
    let mut filter = filter(args)?;
    let mut table = Table::new([
        ("ID", Side::Left),
        ("STATE", Side::Left),
        ("OPERATION", Side::Left),
        ("SCOPE", Side::Left),
        ("KEY", Side::Left),
        ("AGE", Side::Right),
        ("ATTEMPTS", Side::Right),
        // What matters of an intent whose key is forgotten soon: when. It rarely has an outcome.
        (if args.expiring.is_some() { "KEY LEFT" } else { "CODE" }, Side::Right),
    ]);
    let mut listed = 0;
    loop {
        let page = store.list(filter.clone()).await?;
        listed += page.records.len();
        filter.after = page.next.clone();
        if json {
            stdout::json(&page_view(page, args.show_keys))?;
        } else if listed > 0 {
            for record in &page.records {
                table.row(row(record, &page, args));
            }
            stdout::text(&table.take())?;
        }
        if !args.all || filter.after.is_none() {
            break;
        }
    }
    match &filter.after {
        Some(cursor) if !json => eprintln!("there are more intents: add --after {cursor}, or --all"),
        None if !json && listed == 0 => eprintln!("no intents match"),
        _ => {}
    }
    Ok(())
}

fn filter(args: &Ls) -> Result<Filter, Failed> {
    let tenant = match args.tenant.as_deref() {
        None => None,
        Some("") => Some(String::new()),
        Some(tenant) => {
            let scope = Scope::tenant(tenant).map_err(|error| Failed::usage(error.to_string()))?;
            Some(scope.tenant_text().to_owned())
        }
    };
    Ok(Filter {
        states: args.state.clone(),
        operation: args.operation.clone(),
        tenant,
        older_than_ms: args.older_than,
        expiring_within_ms: args.expiring,
        after: args.after.clone(),
        limit: if args.all { PAGE_RECORDS_MAX } else { args.limit as usize },
    })
}

fn page_view(page: Page, show_keys: bool) -> PageView {
    let view = |record: &Record| RecordView::new(record, page.now, show_keys);
    PageView { records: page.records.iter().map(view).collect(), next: page.next }
}

fn row(record: &Record, page: &Page, args: &Ls) -> [String; 8] {
    let intent = &record.intent;
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { printable(text) };
    let key = intent.key();
    [
        intent.id().to_string()[..ID_DIGITS].to_owned(),
        state(record, page.now).as_str().to_owned(),
        intent.operation().as_str().to_owned(),
        or_dash(intent.scope().as_str()),
        if args.show_keys { key.as_str().to_owned() } else { format!("#{}", key.short_hash()) },
        duration::shown(page.now.since_ms(record.since(page.now))),
        record.attempts.to_string(),
        match (args.expiring, record.head.safe_until) {
            (Some(_), Some(until)) if until <= page.now => "none".to_owned(),
            (Some(_), Some(until)) => duration::shown(until.since_ms(page.now)),
            _ => record.outcome.as_ref().map_or_else(|| "-".to_owned(), |outcome| outcome.code.to_string()),
        },
    ]
}
