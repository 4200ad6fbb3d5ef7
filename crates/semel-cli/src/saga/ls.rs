//! `semel saga ls`

use semel::StoreTime;
use semel::saga::{SagaFilter, SagaNumber, SagaRecord, SagaRow};
use serde::Serialize;

use super::args::Ls;
use super::open::current_step;
use super::view::SagaView;
use super::{Sagas, is_tampered};
use crate::duration;
use crate::failure::Failed;
use crate::stdout;
use crate::table::{Side, Table, printable};

#[derive(Serialize)]
struct PageView {
    sagas: Vec<SagaView>,
    next: Option<u64>,
}

pub(super) async fn run(sagas: &Sagas, args: &Ls, json: bool) -> Result<(), Failed> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let before = args.before.map(SagaNumber);
    let filter = SagaFilter { statuses: args.status.clone(), name: args.name.clone(), before, limit };
    let records = sagas.admin.list(filter.clone()).await?;
    let next = next_page(sagas, filter, &records).await?;
    let now = sagas.now().await?;
    let mut steps = Vec::with_capacity(records.len());
    for record in &records {
        steps.push(step_of(sagas, record).await?);
    }
    if json {
        let view = |(record, step)| SagaView::new(record, step, now, args.show_keys);
        let sagas = records.iter().zip(steps).map(view).collect();
        return stdout::json(&PageView { sagas, next });
    }
    if records.is_empty() {
        eprintln!("no sagas match");
        return Ok(());
    }
    let mut table = Table::new([
        ("NUMBER", Side::Right),
        ("NAME", Side::Left),
        ("SCOPE", Side::Left),
        ("KEY", Side::Left),
        ("STATUS", Side::Left),
        ("STEP", Side::Left),
        ("AGE", Side::Right),
        ("DUE", Side::Right),
    ]);
    for (record, step) in records.iter().zip(steps) {
        let key = record.intent.key();
        table.row([
            record.number.0.to_string(),
            printable(&record.name),
            scope_text(record),
            if args.show_keys { printable(key.as_str()) } else { format!("#{}", key.short_hash()) },
            status_text(&record.row),
            step.as_deref().map_or_else(|| "-".to_owned(), printable),
            duration::shown(now.since_ms(record.created_at)),
            due_text(record, now),
        ]);
    }
    stdout::text(&table.take())?;
    if let Some(next) = next {
        eprintln!("there are more sagas: add --before {next}, or narrow it with --status or --name");
    }
    Ok(())
}

/// The number to go on before, if there is anything behind a full page.
async fn next_page(sagas: &Sagas, filter: SagaFilter, records: &[SagaRecord]) -> Result<Option<u64>, Failed> {
    let Some(last) = records.last().filter(|_| records.len() >= filter.page()) else { return Ok(None) };
    let more = SagaFilter { before: Some(last.number), limit: 1, ..filter };
    Ok((!sagas.admin.list(more).await?.is_empty()).then_some(last.number.0))
}

/// The step that was begun last. An ended saga's journal is not read: its steps are over.
async fn step_of(sagas: &Sagas, record: &SagaRecord) -> Result<Option<String>, Failed> {
    if record.row.status.is_ended() {
        return Ok(None);
    }
    let loaded = match sagas.admin.load(record.number).await {
        // `show` says what is wrong with it.
        Err(error) if is_tampered(&error) => None,
        loaded => loaded?,
    };
    Ok(loaded.and_then(|loaded| current_step(&loaded.entries)))
}

pub(super) fn scope_text(record: &SagaRecord) -> String {
    match record.intent.scope().as_str() {
        "" => "-".to_owned(),
        scope => printable(scope),
    }
}

/// `parked (unknown_result)`, `undone (refused)`.
pub(super) fn status_text(row: &SagaRow) -> String {
    let status = row.status.as_str();
    match (row.reason, row.undo) {
        (Some(reason), _) => format!("{status} ({})", reason.as_str()),
        (None, Some(cause)) => format!("{status} ({})", cause.as_str()),
        (None, None) => status.to_owned(),
    }
}

fn due_text(record: &SagaRecord, now: StoreTime) -> String {
    match record.row.due_at {
        None => "-".to_owned(),
        Some(due) if due <= now => "now".to_owned(),
        Some(due) => format!("in {}", duration::shown(due.since_ms(now))),
    }
}
