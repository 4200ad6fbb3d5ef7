//! Plays the operator for sagas that are parked: reads the provider's ledger, and records what it says, as `semel saga
//! resolve` does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use semel::saga::sql::SqlJournal;
use semel::saga::{
    AdminResult, DecidedBy, Op, ResolvedAs, SagaAdmin, SagaFilter, SagaNumber, SagaRecord, Status, StepId,
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::participant::Line;
use crate::failure::Failed;

/// Attempts to decide about a saga that changes meanwhile: a lookup tries again now and then.
const DECIDE_ATTEMPTS: u32 = 50;
const DECIDE_PAUSE: Duration = Duration::from_millis(20);
/// How long sagas may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(30);
const REST_PAUSE: Duration = Duration::from_millis(50);

/// A saga that was parked, and what was found out about it.
#[derive(Debug, Serialize)]
pub(super) struct Resolved {
    pub(super) saga: u64,
    pub(super) order: String,
    pub(super) step: String,
    pub(super) reason: String,
    /// The provider's id of the charge; none: it was not charged.
    pub(super) charge: Option<String>,
}

/// All sagas of the journal.
pub(super) async fn list(admin: &SagaAdmin, statuses: &[Status]) -> Result<Vec<SagaRecord>, Failed> {
    let mut records = Vec::new();
    let mut filter = SagaFilter { statuses: statuses.to_vec(), ..SagaFilter::default() };
    loop {
        let page = admin.list(filter.clone()).await.map_err(|error| Failed::not_done(error.to_string()))?;
        let Some(last) = page.last() else { return Ok(records) };
        filter.before = Some(last.number);
        records.extend(page);
    }
}

/// The orders whose sagas ended so.
pub(super) async fn keys(admin: &SagaAdmin, status: Status) -> Result<BTreeSet<String>, Failed> {
    let sagas = list(admin, &[status]).await?;
    Ok(sagas.iter().map(|saga| saga.intent.key().as_str().to_owned()).collect())
}

/// Opens the journal as an operator.
pub(super) async fn open(url: &str) -> Result<SagaAdmin, Failed> {
    Ok(SagaAdmin::new(SqlJournal::open(url).await?))
}

/// Waits until no saga is at work or about to be. With `parked` those that are parked count as at work too.
pub(super) async fn come_to_rest(admin: &SagaAdmin, parked: bool) -> Result<(), Failed> {
    let mut statuses = vec![Status::Running, Status::Waiting, Status::Undoing];
    if parked {
        statuses.push(Status::Parked);
    }
    let until = Instant::now() + REST_MAX;
    loop {
        let open = list(admin, &statuses).await?;
        let Some(first) = open.first() else { return Ok(()) };
        if Instant::now() > until {
            let (number, status) = (first.number.0, first.row.status.as_str());
            return Err(Failed::not_done(format!(
                "saga {number} is still {status} and does not come to its end (and {} more)",
                open.len() - 1
            )));
        }
        sleep(REST_PAUSE).await;
    }
}

/// Decides about every parked saga by the provider's ledger. No charge is under way any more.
pub(super) async fn resolve_all(admin: &SagaAdmin, ledger: &Path) -> Result<Vec<Resolved>, Failed> {
    let lines: Vec<Line> = crate::demo::ledger::read(ledger)?;
    let charges: BTreeMap<String, String> = lines.into_iter().map(|line| (line.order, line.id)).collect();
    let mut all = Vec::new();
    for parked in list(admin, &[Status::Parked]).await? {
        let order = parked.intent.key().as_str().to_owned();
        let charge = charges.get(&order).cloned();
        if let Some((step, reason)) = resolve(admin, parked.number, charge.as_deref()).await? {
            let (saga, step) = (parked.number.0, step.to_string());
            all.push(Resolved { saga, order, step, reason, charge });
        }
    }
    Ok(all)
}

/// `semel saga resolve URL N charge --applied '"ID"'`, or `--not-applied`. Returns what was resolved, and why it was
/// parked; `None` if it went on by itself: a later lookup found the charge.
async fn resolve(
    admin: &SagaAdmin,
    number: SagaNumber,
    charge: Option<&str>,
) -> Result<Option<(StepId, String)>, Failed> {
    let failed = |error: &dyn std::error::Error| Failed::not_done(error.to_string());
    let by = DecidedBy::new("demo", "looked into the provider's ledger");
    for _ in 0..DECIDE_ATTEMPTS {
        let loaded = admin.load(number).await.map_err(|error| failed(&error))?;
        let Some(loaded) = loaded else { return Ok(None) };
        let pivot = loaded.entries.iter().find(|entry| entry.op == Op::Pivot).map(|entry| entry.step.clone());
        if let (Some(step), Status::Parked) = (pivot, loaded.record.row.status) {
            let found = match charge {
                Some(id) => ResolvedAs::Applied(Bytes::from(serde_json::json!(id).to_string())),
                None => ResolvedAs::NotApplied,
            };
            let seen = loaded.record.row.epoch;
            let decided = admin.resolve(number, seen, &step, false, found, &by).await;
            if let AdminResult::Recorded = decided.map_err(|error| failed(&error))? {
                let reason = loaded.record.row.reason.map_or("parked", |reason| reason.as_str());
                return Ok(Some((step, reason.to_owned())));
            }
        }
        sleep(DECIDE_PAUSE).await;
    }
    Ok(None)
}
