//! A person who looks at an uncertain intent, finds out the truth, and says so.

use std::time::Duration;

use semel::intent::state::Ruling;
use semel::store::{Decide, Decided, Filter, Store};
use semel::{Outcome, State, Verdict};

use super::clock::StoreClock;
use super::network::Shared;
use super::plan::Settings;

/// Decides one of the uncertain intents. An honest person says nothing of an effect that may still happen, and waits
/// for a lease after the clock was set ahead or far back: until then a live owner may be believed dead, and may be
/// about to begin. The guide says so: a decision does not stop a process that has a claim.
pub(super) async fn decide(shared: &Shared, settings: &Settings, clock: &StoreClock, pick: usize) {
    if clock.hides_owners_in(Duration::from_millis(settings.lease_ms)) {
        return;
    }
    let filter = Filter { states: vec![State::Uncertain], limit: 100, ..Filter::default() };
    let Ok(page) = shared.store.list(filter).await else { return };
    let seen: Vec<_> = page.records.iter().filter(|record| !shared.is_hidden(&record.intent.id())).collect();
    let Some(record) = (!seen.is_empty()).then(|| seen[pick % seen.len()]) else { return };
    let Some(key) = shared.key_of(&record.intent.id()) else { return };
    let effect = shared.ledger.effect_of(key);
    if shared.ledger.may_still_happen(key) {
        return;
    }
    let (ruling, outcome) = match effect {
        Some(body) => (Ruling::Applied(Verdict::Completed), Some(Outcome::new(200, body))),
        None => (Ruling::NotApplied, None),
    };
    let (by, why) = ("operator".to_owned(), "looked at the ledger".to_owned());
    let retention = settings.retention();
    let decide = Decide { seen: record.head.epoch, ruling, outcome, retention, by, why };
    let decided = shared.store.decide(record.intent.id(), decide).await;
    if !matches!(decided, Ok(Decided::Recorded)) {
        return;
    }
    if ruling == Ruling::NotApplied {
        shared.ledger.rules_out(key);
    }
    shared.stage.trace(format_args!("key {key}: a person decides {ruling:?}"));
    shared.stage.count("decided by a person", 1);
}
