//! What must have happened by when, in virtual time.

use std::time::Duration;

use semel::State;
use semel::store::{Filter, PAGE_RECORDS_MAX, Record, Store};

use super::fleet::{Ask, Fleet};
use super::ledger::{Given, Pages, Run, RunEnd};
use super::network::Shared;
use super::plan::{End, LookupPlan, Plan, WhenInFlight, Work};
use crate::stage::Stage;
use crate::world::Violation;

type Verdicts = Result<(), Violation>;

/// A call asks for its claim three times, perhaps in two rounds, asks a lookup, and records its outcome.
const CALL_MAX: Duration = Duration::from_secs(60);
/// A caller waits for its lapsed claim to be given back, three times at most, for as long as for one request.
const GIVE_BACK_MAX: Duration = Duration::from_secs(15);
/// Pauses between tries in the background are five seconds at most, and a try takes as long.
const BACKGROUND_MAX: Duration = Duration::from_secs(15);
/// A lookup that takes longer is not waited for.
const LOOKUP_TIMEOUT_MS: u64 = 10_000;

fn broken<T>(law: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation::new(law, what))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits for what must happen, and says what did not.
pub(super) async fn judge(plan: &Plan, fleet: &mut Fleet, shared: &Shared, stage: &Stage) -> Verdicts {
    let wait = match plan.settings.in_flight {
        WhenInFlight::Wait { ms: wait } => ms(wait),
        WhenInFlight::Reject | WhenInFlight::Accept { .. } => Duration::ZERO,
    };
    let longest = wait + ms(plan.work_ms()) + CALL_MAX + GIVE_BACK_MAX;
    if !shared.ledger.all_returned(longest).await {
        return broken(
            "every call returns",
            format!("a call has not returned {longest:?} after the last fault"),
        );
    }
    in_time(plan, wait, &shared.ledger.pages())?;
    calm(plan, &shared.ledger.pages())?;
    nothing_left_open(plan, shared, stage).await?;
    looked_up(plan, shared, stage).await?;
    probe(plan, fleet, shared).await?;
    for node in &fleet.nodes {
        let drained = node.guard().drain(BACKGROUND_MAX).await;
        if !drained.is_clean() {
            return broken(
                "a drain ends",
                format!("{BACKGROUND_MAX:?} after all work has ended: {drained:?}"),
            );
        }
    }
    Ok(())
}

/// Where nothing goes wrong an owner keeps its lease, and its duplicates get "in flight". A drain has a limit:
/// work that takes longer ends with its process, and leaves doubt about its own key, and no other.
fn calm(plan: &Plan, pages: &Pages) -> Verdicts {
    let uncertain =
        pages.calls.iter().position(|call| call.given == Some(Given::Uncertain) && !killed(pages, call.key));
    match uncertain.filter(|_| plan.is_calm()) {
        Some(call) => broken("nothing is uncertain while nothing goes wrong", format!("call {call}")),
        None => Ok(()),
    }
}

/// Whether a process ended while it had a call of this key.
fn killed(pages: &Pages, key: usize) -> bool {
    pages.calls.iter().any(|call| call.key == key && pages.was_killed(&call.process))
}

fn in_time(plan: &Plan, wait: Duration, pages: &Pages) -> Verdicts {
    for (number, call) in pages.calls.iter().enumerate() {
        let Some(ended) = call.ended else { continue };
        let limit = if plan.is_calm() {
            // A drain that left work behind leaves doubt about its key, and the next call asks the lookup.
            let lookup = plan.settings.lookup.filter(|_| killed(pages, call.key));
            let lookup = ms(lookup.map_or(0, |lookup| lookup.takes_ms.min(LOOKUP_TIMEOUT_MS)));
            wait + call.work + lookup + 20 * ms(plan.settings.latency_ms) + Duration::from_secs(1)
        } else {
            wait + call.work + CALL_MAX + GIVE_BACK_MAX + ms(plan.stalled_ms())
        };
        if ended - call.began > limit {
            return broken(
                "a call returns in time",
                format!("call {number} took {:?}, more than {limit:?}", ended - call.began),
            );
        }
    }
    Ok(())
}

/// All work has ended: within a lease nothing is in flight, and what is uncertain has a cause.
async fn nothing_left_open(plan: &Plan, shared: &Shared, stage: &Stage) -> Verdicts {
    let quiet =
        ms(plan.settings.lease_ms + plan.near_back_ms() + plan.late_ms() + plan.wire_ms()) + BACKGROUND_MAX;
    tokio::time::sleep(quiet).await;
    for (key, record, state) in records(shared).await? {
        let lapsed = record.head.is_lapsed(shared.store.now().await.unwrap_or_default());
        if state == State::InProgress && !lapsed {
            return broken(
                "a claim ends with its work",
                format!("key {key} is in flight {quiet:?} after its last work has ended"),
            );
        }
        if state == State::Uncertain || lapsed {
            stage.count("uncertain at the end", 1);
            // Its key may be forgotten, whatever its owner knew.
            let aged = record.head.safe_until.is_some();
            if !aged && !has_cause(key, &shared.ledger.pages()) {
                return broken(
                    "uncertain has a cause",
                    format!("key {key} is {state:?} although its owner lives and knows what happened"),
                );
            }
        }
    }
    Ok(())
}

async fn records(shared: &Shared) -> Result<Vec<(usize, Record, State)>, Violation> {
    let filter = Filter { limit: PAGE_RECORDS_MAX, ..Filter::default() };
    let page = shared.store.list(filter).await;
    let page = page.map_err(|error| Violation::new("the store can be read", error.to_string()))?;
    let known = page.records.into_iter().filter_map(|record| {
        let (key, state) = (shared.key_of(&record.intent.id())?, record.state_at(page.now)?);
        Some((key, record, state))
    });
    Ok(known.collect())
}

/// Where the table says "uncertain": the owner died, or lives and does not know; or its claim was never its own.
fn has_cause(key: usize, pages: &Pages) -> bool {
    let unknown = |run: &Run| {
        let ended = match run.ended {
            Some(RunEnd::Returned(end)) => {
                matches!(end, End::Broken { .. } | End::Panic { .. } | End::Hold { .. })
            }
            Some(RunEnd::Dropped) | None => true,
        };
        run.key == key && ended
    };
    pages.runs.iter().any(unknown) || killed(pages, key) || pages.claimed_late.contains(&key)
}

/// Whether a lookup can settle everything in this history.
fn settles(plan: &Plan) -> Option<LookupPlan> {
    plan.settings
        .lookup
        .filter(|lookup| lookup.takes_ms < LOOKUP_TIMEOUT_MS && plan.back_ms() == plan.near_back_ms())
}

/// Where a reconciler runs and the lookup knows, nothing stays uncertain.
async fn looked_up(plan: &Plan, shared: &Shared, stage: &Stage) -> Verdicts {
    let (Some(lookup), Some(every_ms)) = (settles(plan), plan.settings.reconcile_every_ms) else {
        return Ok(());
    };
    let rounds = 3 + 2 * u64::from(lookup.unknown_first);
    let limit = ms(lookup.settle_ms + plan.back_ms() + rounds * 3 * every_ms + 2 * lookup.takes_ms);
    tokio::time::sleep(limit).await;
    let now = shared.store.now().await.unwrap_or_default();
    for (key, record, state) in records(shared).await? {
        // It has become uncertain only now.
        let just = record.head.safe_until.is_some_and(|until| until.plus_ms(limit.as_millis() as u64) > now);
        if state == State::Uncertain && !just {
            return broken(
                "a lookup that knows settles an uncertain intent",
                format!("key {key} is uncertain {limit:?} after everything was well again"),
            );
        }
    }
    stage.count("reconciled histories", 1);
    Ok(())
}

/// Somebody asks for every key once more, from a process in which nothing goes wrong.
async fn probe(plan: &Plan, fleet: &mut Fleet, shared: &Shared) -> Verdicts {
    if let Some(lookup) = settles(plan) {
        tokio::time::sleep(ms(lookup.settle_ms + plan.back_ms())).await;
    }
    fleet.in_flight(WhenInFlight::Reject);
    let process = fleet.add();
    let first = shared.ledger.pages().calls.len();
    for key in 0..plan.settings.keys {
        fleet.call(Ask { process, key, other_request: false, work: Work::PLAIN, leaves: None });
    }
    if !shared.ledger.all_returned(CALL_MAX).await {
        return broken("every call returns", format!("a last call has not returned after {CALL_MAX:?}"));
    }
    let pages = shared.ledger.pages();
    for (number, call) in pages.calls.iter().enumerate().skip(first) {
        let other_request = pages.calls.iter().any(|other| other.key == call.key && other.other_request);
        let knows = settles(plan).is_some_and(|lookup| lookup.unknown_first == 0);
        let fine = match &call.given {
            Some(Given::Answer { stored, .. }) => *stored,
            Some(Given::Mismatch) => other_request,
            Some(Given::Uncertain) => !knows,
            Some(Given::KeyRefused) => plan.settings.time_ordered,
            _ => false,
        };
        if !fine {
            return broken(
                "every key is answered in the end",
                format!(
                    "key {}, call {number}: {:?} although nothing goes wrong any more",
                    call.key, call.given
                ),
            );
        }
    }
    Ok(())
}
