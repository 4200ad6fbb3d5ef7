//! `semel saga retry`, `compensate` and `abandon` about many sagas.

use semel::saga::{AdminError, AdminResult, DecidedBy, SagaFilter, SagaNumber, SagaRecord, SagaRow, Status};
use semel::store::{ErrorKind, StoreError};
use serde::Serialize;

use super::args::Which;
use super::decide::Decision;
use super::ls::status_text;
use super::open::has_begun_pivot;
use super::{Sagas, is_tampered};
use crate::failure::Failed;
use crate::stdout;
use crate::table::printable;

/// How many sagas are decided about at most, unless --limit says otherwise.
const LIMIT: u64 = 1_000;
/// How many are read at once: each may come with an input of a megabyte.
const PAGE: usize = 100;

/// What became of one saga. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct LineView {
    number: u64,
    name: String,
    /// `planned`, `recorded`, `already` or `refused`.
    result: &'static str,
    /// Why it was refused.
    why: Option<String>,
}

#[derive(Default, Serialize)]
struct BulkView {
    sagas: Vec<LineView>,
    /// How many were decided about, or would be.
    done: u64,
    refused: u64,
}

/// Prints what would be done.
pub(super) async fn plan(sagas: &Sagas, decision: Decision, which: &Which, json: bool) -> Result<(), Failed> {
    let mut plan = BulkView::default();
    let chosen = chosen(sagas, which).await?;
    for saga in &chosen.sagas {
        let why = objection(sagas, decision, saga).await?;
        plan.add(saga, if why.is_some() { "refused" } else { "planned" }, why);
    }
    if json {
        return stdout::json(&plan);
    }
    let mut text = String::new();
    for (saga, line) in chosen.sagas.iter().zip(&plan.sagas) {
        let what = match &line.why {
            None => format!("would be {}", decision.done()),
            Some(why) => format!("would be refused: {why}"),
        };
        text +=
            &format!("saga {} ({}, {}) {what}\n", line.number, printable(&line.name), status_text(&saga.row));
    }
    text += &format!(
        "{} would be {}, {} refused; nothing was changed\n",
        plan.done,
        decision.done(),
        plan.refused
    );
    stdout::text(&text)?;
    chosen.say_if_cut();
    Ok(())
}

/// Decides about all of them, each as it was read.
pub(super) async fn apply(
    sagas: &Sagas,
    decision: Decision,
    which: &Which,
    by: &DecidedBy,
    json: bool,
) -> Result<(), Failed> {
    let mut done = BulkView::default();
    let chosen = chosen(sagas, which).await?;
    let mut stopped = None;
    for saga in &chosen.sagas {
        let (result, why) = match decided(sagas, decision, saga, by).await {
            Ok(decided) => decided,
            // The database does not answer: the others would fail as well.
            Err(error) => {
                stopped = Some((saga.number.0, error));
                break;
            }
        };
        done.add(saga, result, why);
        if !json && let Some(line) = done.sagas.last() {
            let what =
                line.why.as_ref().map_or_else(|| decision.done().to_owned(), |why| format!("refused: {why}"));
            stdout::text(&format!("saga {} ({}) {what}\n", line.number, printable(&line.name)))?;
        }
    }
    match json {
        true => stdout::json(&done)?,
        false => stdout::text(&format!("{} {}, {} refused\n", done.done, decision.done(), done.refused))?,
    }
    if let Some((number, error)) = stopped {
        return Err(Failed::not_done(format!("stopped at saga {number}: {error}; run the command again")));
    }
    if !json {
        chosen.say_if_cut();
    }
    match done.refused {
        0 => Ok(()),
        refused => Err(Failed::not_done(format!(
            "{refused} of {} sagas were refused; `semel saga show` says how they are",
            done.sagas.len()
        ))),
    }
}

/// What came of the decision about one saga; and why, if it was refused.
async fn decided(
    sagas: &Sagas,
    decision: Decision,
    saga: &Candidate,
    by: &DecidedBy,
) -> Result<(&'static str, Option<String>), StoreError> {
    if let Some(why) = sagas.refuses_keys(saga.number).await? {
        return Ok(("refused", Some(why)));
    }
    Ok(match decision.apply(&sagas.admin, saga.number, saga.row.epoch, by).await {
        Ok(AdminResult::Recorded) => ("recorded", None),
        Ok(AdminResult::Already) => ("already", None),
        Ok(AdminResult::Refused(status)) => ("refused", Some(decision.refusal(status))),
        Ok(AdminResult::Stale) => ("refused", Some("it has changed meanwhile".to_owned())),
        Err(AdminError::Journal(error)) if error.kind() != ErrorKind::Corrupt => return Err(error),
        Err(error) => ("refused", Some(error.to_string())),
    })
}

impl BulkView {
    fn add(&mut self, saga: &Candidate, result: &'static str, why: Option<String>) {
        match why {
            None => self.done += 1,
            Some(_) => self.refused += 1,
        }
        self.sagas.push(LineView { number: saga.number.0, name: saga.name.clone(), result, why });
    }
}

/// A saga as it was read, without its input.
struct Candidate {
    number: SagaNumber,
    name: String,
    row: SagaRow,
}

/// The sagas that the filters choose, newest first.
struct Chosen {
    sagas: Vec<Candidate>,
    /// There are more than the limit.
    cut: bool,
}

impl Chosen {
    fn say_if_cut(&self) {
        if self.cut {
            eprintln!("there are more sagas than --limit: run the command again, or raise it");
        }
    }
}

/// Read before anything is decided, so that a saga that parks again meanwhile is not decided about twice.
async fn chosen(sagas: &Sagas, which: &Which) -> Result<Chosen, Failed> {
    let limit = usize::try_from(which.limit.unwrap_or(LIMIT)).unwrap_or(usize::MAX);
    let statuses = if which.status.is_empty() { vec![Status::Parked] } else { which.status.clone() };
    let mut filter = SagaFilter { statuses, name: which.name.clone(), before: None, limit: PAGE };
    let mut chosen = Vec::new();
    loop {
        let page = sagas.admin.list(filter.clone()).await?;
        let last = page.last().map(|record| record.number);
        let full = page.len() >= PAGE;
        let fits = |record: &SagaRecord| {
            which.reason.is_empty() || record.row.reason.is_some_and(|reason| which.reason.contains(&reason))
        };
        let fitting = page.into_iter().filter(fits);
        chosen.extend(fitting.map(|record| Candidate {
            number: record.number,
            name: record.name,
            row: record.row,
        }));
        if chosen.len() > limit {
            chosen.truncate(limit);
            return Ok(Chosen { sagas: chosen, cut: true });
        }
        if !full {
            return Ok(Chosen { sagas: chosen, cut: false });
        }
        filter.before = last;
    }
}

/// Why the decision would be refused now.
async fn objection(sagas: &Sagas, decision: Decision, saga: &Candidate) -> Result<Option<String>, Failed> {
    if let Some(why) = sagas.refuses_keys(saga.number).await? {
        return Ok(Some(why));
    }
    let row = &saga.row;
    let undoing = matches!(decision, Decision::Compensate) && row.undo.is_some();
    if row.status != Status::Parked || undoing {
        return Ok(Some(decision.refusal(row.status)));
    }
    if !matches!(decision, Decision::Compensate) {
        return Ok(None);
    }
    let loaded = match sagas.admin.load(saga.number).await {
        Err(error) if is_tampered(&error) => return Ok(Some(error.to_string())),
        loaded => loaded?,
    };
    let begun = loaded.is_some_and(|loaded| has_begun_pivot(&loaded.entries));
    Ok(begun.then(|| AdminError::PivotBegun.to_string()))
}
