//! Settling what is held: look where the effect would be, then send again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::store::Record;
use semel::{Found, Outcome};

use super::client::{Client, Ending, receipt};
use super::ledger::Counted;
use super::plan::{IntentNo, Send};
use super::progress::Progress;
use super::report::Report;
use crate::args::Bug;

/// Sends each held intent once more through a guard that may look into the ledger. All processes that could still
/// write to it are gone, so "not found" may be believed at once.
pub(super) async fn run(
    client: Client,
    held: &HashSet<IntentNo>,
    ledger: Counted,
    report: &mut Report,
    progress: &mut Progress,
) {
    let ledger = Arc::new(ledger);
    let blind = client.bug == Some(Bug::Blind);
    let applied = Arc::new(AtomicU64::new(0));
    let found_applied = Arc::clone(&applied);
    let lookup = move |record: Record| {
        let found = if blind { Found::NotApplied } else { look(&ledger, &record) };
        found_applied.fetch_add(u64::from(matches!(found, Found::Applied(_))), Ordering::Relaxed);
        async move { found }
    };
    // A bug planted for the run itself stays out of the settling.
    let client =
        Client { guarded: client.guarded.clone().lookup(lookup, Duration::ZERO), bug: None, ..client };
    for (number, intent) in (u32::MAX / 2..).zip(held) {
        match client.send(Send { number, intent: *intent }).await.ending {
            Ending::Replayed | Ending::Ran => {}
            Ending::Held => report.wrong.push(format!("{intent} could not be settled")),
            Ending::Wrong(why) => report.wrong.push(why),
        }
        progress.step();
    }
    report.settled.applied = applied.load(Ordering::Relaxed);
    report.settled.run_again = held.len() as u64 - report.settled.applied;
}

fn look(ledger: &Counted, record: &Record) -> Found {
    match record.intent.key().as_str().parse::<IntentNo>() {
        Ok(intent) if ledger.of(intent) > 0 => match serde_json::to_vec(&receipt(intent)) {
            Ok(receipt) => Found::Applied(Outcome::new(200, receipt)),
            Err(_) => Found::Unknown,
        },
        Ok(_) => Found::NotApplied,
        Err(()) => Found::Unknown,
    }
}
