//! Plays the operator for the intents that lookups could not settle: reads the ledger, decides, lets the client retry.

use std::time::{Duration, Instant};

use semel::intent::state::Ruling;
use semel::store::{AnyStore, Decide, Decided, Filter, PAGE_RECORDS_MAX, Record, Store};
use semel::{Outcome, Retention, State, Verdict};

use super::client::{Client, Ending};
use super::ledger::Counted;
use super::plan::{IntentNo, Send};
use super::progress::Progress;
use super::report::{Report, Settled};
use crate::failure::Failed;

/// The name under which decisions are recorded here.
const BY: &str = "demo";
/// How long abandoned claims may take to expire before something is wrong.
const LAPSE_MAX: Duration = Duration::from_secs(15);

/// Decides about every uncertain intent by the ledger, as `semel resolve` would, and sends it again. No charge is in
/// flight any more.
pub(super) async fn run(
    client: &Client,
    store: &AnyStore,
    uncertain: Vec<Record>,
    ledger: &Counted,
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failed> {
    for (number, record) in (u32::MAX / 2..).zip(uncertain) {
        let key = record.intent.key().as_str();
        let Ok(intent) = key.parse::<IntentNo>() else {
            return Err(Failed::not_done(format!("the store has a key that was never sent: {key}")));
        };
        let (ruling, outcome) = match ledger.of(intent).first() {
            Some(charge) => {
                let body = serde_json::to_vec(charge).map_err(|error| Failed::not_done(error.to_string()))?;
                let outcome = Outcome::new(201, body).header("content-type", "application/json");
                (Ruling::Applied(Verdict::Completed), Some(outcome))
            }
            None => (Ruling::NotApplied, None),
        };
        let (seen, why) = (record.head.epoch, "looked into the ledger".to_owned());
        let retention = Retention::Ms(3_600_000);
        let decide = Decide { seen, ruling, outcome, retention, by: BY.to_owned(), why };
        if !matches!(store.decide(record.intent.id(), decide).await?, Decided::Recorded) {
            report.wrong.push(format!("{intent} could not be resolved"));
        }
        let result = client.send(Send { number, intent }).await;
        match &result.ending {
            Ending::Held => report.wrong.push(format!("{intent} is still uncertain after it was resolved")),
            Ending::Wrong(why) => report.wrong.push(why.clone()),
            Ending::Paid | Ending::Replayed => {}
        }
        report.with.count(&result);
        progress.step();
    }
    Ok(())
}

/// How each intent that was in doubt was settled, according to the store.
pub(super) async fn settled(store: &AnyStore) -> Result<Settled, Failed> {
    let mut settled = Settled::default();
    for record in list(store, Vec::new()).await? {
        let Some(decision) = &record.decision else { continue };
        let applied = decision.ruling == "applied";
        let by_hand = decision.by == BY;
        *match (by_hand, applied) {
            (false, true) => &mut settled.found,
            (false, false) => &mut settled.not_found_and_run,
            (true, true) => &mut settled.resolved_charged,
            (true, false) => &mut settled.resolved_and_run,
        } += 1;
    }
    Ok(settled)
}

/// The intents in the given states; all of them if none is given.
pub(super) async fn list(store: &AnyStore, states: Vec<State>) -> Result<Vec<Record>, Failed> {
    let mut records = Vec::new();
    let mut filter = Filter { states, limit: PAGE_RECORDS_MAX, ..Filter::default() };
    loop {
        let page = store.list(filter.clone()).await?;
        records.extend(page.records);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(records),
        }
    }
}

/// Waits until all leases have expired.
pub(super) async fn wait_for_leases(store: &AnyStore) -> Result<(), Failed> {
    let deadline = Instant::now() + LAPSE_MAX;
    while !list(store, vec![State::InProgress]).await?.is_empty() {
        if Instant::now() > deadline {
            return Err(Failed::not_done("an intent stays in progress although no process works on it"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
