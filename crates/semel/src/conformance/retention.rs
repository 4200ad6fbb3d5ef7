//! Laws of retention: what expires, what never does, and what a sweep may delete.

use super::Harness;
use super::context::{SHORT_MS, Trial, completed, finish};
use crate::intent::identity::Epoch;
use crate::intent::outcome::Verdict;
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::State;
use crate::store::{Claim, Filter, Finish, Finished, Store};

/// An expired outcome is absent, swept or not: a claim runs again under a higher epoch, and neither `get` nor `list`
/// shows the record.
///
/// Otherwise keys are never free again, or only when the sweeper happens to run.
pub async fn an_expired_outcome_is_absent<H: Harness>(harness: &H) {
    let trial = Trial::of("an_expired_outcome_is_absent", harness).await;
    let claim = trial.claim("one");
    let first = trial.expired(harness, &claim).await;
    let shown = trial.answered(trial.store.get(claim.intent.id()).await);
    trial.check(shown.is_none(), "an expired record is shown");
    trial.equal(trial.keys(Filter::default()).await, Vec::<String>::new(), "the records listed");
    // Another request may use the key now: there is no fingerprint left to compare.
    let claim = Claim { fingerprint: super::context::fingerprint(2), ..trial.claim("one") };
    let second = trial.run(&claim).await;
    trial.check(second.epoch > first.epoch, "the epoch did not rise over an expiry");
    trial.equal(second.attempt, 1, "the attempt number after an expiry");
    trial.equal(trial.record(&claim).await.outcome, None, "the outcome after an expiry");
    trial.equal(
        trial.finish(first, completed("zombie")).await,
        Finished::Stale,
        "the outcome of the owner before the expiry",
    );
}

/// Retention starts when the outcome is recorded, by the store's clock.
///
/// Otherwise a slow effect expires as soon as it is done, and the retry runs it again.
pub async fn retention_starts_at_the_finish<H: Harness>(harness: &H) {
    let trial = Trial::of("retention_starts_at_the_finish", harness).await;
    let claim = trial.claim("slow");
    let ticket = trial.run(&claim).await;
    trial.wait(harness, SHORT_MS).await;
    let before = trial.now().await;
    let done = Finish { retention: Retention::Ms(500_000), ..completed("done") };
    trial.equal(trial.finish(ticket, done).await, Finished::Recorded, "the outcome");
    let after = trial.now().await;
    let record = trial.record(&claim).await;
    let due = Some(before.plus_ms(500_000))..=Some(after.plus_ms(500_000));
    trial.check(due.contains(&record.head.expires_at), format_args!("{:?}", record.head.expires_at));
    trial.check((before..=after).contains(&record.changed_at), "the time of the finish");
}

/// A record kept forever has no expiry, and no sweep deletes it.
///
/// Otherwise "never pay this invoice twice" holds only until the first sweep.
pub async fn forever_does_not_expire<H: Harness>(harness: &H) {
    let trial = Trial::of("forever_does_not_expire", harness).await;
    let claim = trial.claim("one");
    trial.done(&claim, Finish { retention: Retention::Forever, ..completed("kept") }).await;
    trial.wait(harness, SHORT_MS).await;
    sweep_all(&trial).await;
    trial.equal(trial.record(&claim).await.head.expires_at, None, "the expiry");
    trial.meet(&trial.claim("one"), "replay").await;
}

/// A claim in progress never expires and is never swept, whether its lease has expired or not.
///
/// Otherwise the slowest effect is the one that runs twice.
pub async fn in_progress_never_expires<H: Harness>(harness: &H) {
    let trial = Trial::of("in_progress_never_expires", harness).await;
    let live = trial.claim("live");
    let ticket = trial.run(&live).await;
    let keyed = Claim { effect: Effect::Keyed, ..trial.claim("keyed") };
    let lapsed = trial.lapsed(harness, &keyed).await;
    sweep_all(&trial).await;
    trial.equal(trial.state(&live).await, State::InProgress, "the live claim");
    trial.equal(trial.state(&keyed).await, State::InProgress, "the lapsed keyed claim");
    trial.meet(&trial.claim("live"), "in flight").await;
    trial.equal(trial.finish(ticket, completed("live")).await, Finished::Recorded, "the live one's outcome");
    trial.equal(trial.finish(lapsed, completed("late")).await, Finished::Recorded, "the late one's outcome");
}

/// An uncertain record never expires and is never swept, whatever its retention.
///
/// Otherwise it is deleted, and the effect runs again.
pub async fn uncertain_never_expires<H: Harness>(harness: &H) {
    let trial = Trial::of("uncertain_never_expires", harness).await;
    let said = trial.claim("said so");
    let unsure = Finish { retention: Retention::Ms(1), ..finish(Verdict::Uncertain, None) };
    trial.done(&said, unsure).await;
    let lapsed = trial.claim("lapsed");
    trial.lapsed(harness, &lapsed).await;
    trial.wait(harness, SHORT_MS).await;
    for round in ["before a sweep", "after a sweep"] {
        for claim in [&said, &lapsed] {
            trial.equal(trial.state(claim).await, State::Uncertain, round);
            trial.equal(trial.record(claim).await.head.expires_at, None, "the expiry");
        }
        trial.meet(&trial.claim("said so"), "uncertain").await;
        trial.meet(&trial.claim("lapsed"), "uncertain").await;
        sweep_all(&trial).await;
    }
}

/// A sweep deletes at most its limit, returns how many, and ends when all expired records are gone. Others stay.
///
/// Otherwise a sweep blocks the store for minutes, or never finishes.
pub async fn sweep_keeps_its_limit_and_counts<H: Harness>(harness: &H) {
    const EXPIRED: usize = 7;
    const LIMIT: usize = 3;
    const ROUNDS_MAX: usize = 100;
    let trial = Trial::of("sweep_keeps_its_limit_and_counts", harness).await;
    let kept = trial.claim("kept");
    trial.done(&kept, completed("kept")).await;
    let mut swept = 0;
    // On a shared store another law's sweep may delete some of ours: then another round is needed.
    for round in 0..ROUNDS_MAX {
        for number in 0..EXPIRED {
            let claim = trial.claim(&format!("{round}-{number}"));
            trial.done(&claim, Finish { retention: Retention::Ms(SHORT_MS), ..completed("old") }).await;
        }
        trial.wait(harness, SHORT_MS).await;
        swept = sweep_by(&trial, LIMIT).await;
        if swept >= EXPIRED || !harness.sweeps() {
            break;
        }
    }
    if !harness.sweeps() {
        let left = trial.keys(Filter::default()).await;
        trial.equal(left, vec!["kept".to_owned()], "the records left in a store that needs no sweep");
        swept = EXPIRED;
    }
    trial.check(swept >= EXPIRED, format_args!("{swept} of {EXPIRED} expired records were counted"));
    trial.meet(&trial.claim("kept"), "replay").await;
}

/// Each claim's epoch is higher than all before it, across releases, expiry and sweeps.
///
/// Otherwise a zombie from before the sweep holds the ticket of the current owner.
pub async fn epochs_rise_over_release_expiry_and_sweep<H: Harness>(harness: &H) {
    let trial = Trial::of("epochs_rise_over_release_expiry_and_sweep", harness).await;
    // The same token: only the epoch differs between these claims.
    let claim = trial.claim("one");
    let mut highest = Epoch(0);
    let mut rises = |epoch: Epoch, over: &str| {
        trial.check(epoch > highest, format_args!("{epoch:?} over {over}, after {highest:?}"));
        highest = epoch;
    };
    rises(trial.done(&claim, Finish::release(Retention::DAY)).await.epoch, "the first claim");
    let zombie = trial.expired(harness, &claim).await;
    rises(zombie.epoch, "a release");
    rises(trial.expired(harness, &claim).await.epoch, "an expiry");
    sweep_all(&trial).await;
    let ticket = trial.run(&claim).await;
    rises(ticket.epoch, "a sweep");
    trial.equal(trial.finish(zombie, completed("zombie")).await, Finished::Stale, "the zombie's outcome");
    trial.equal(trial.finish(ticket, completed("mine")).await, Finished::Recorded, "the owner's outcome");
    rises(trial.run(&trial.claim("another")).await.epoch, "the claim of another key");
}

/// Sweeps in steps until nothing is left, and returns how many records were deleted.
async fn sweep_by<S: Store>(trial: &Trial<S>, limit: usize) -> usize {
    const ROUNDS_MAX: usize = 20_000;
    let mut swept = 0;
    for _ in 0..ROUNDS_MAX {
        let count = trial.sweep(limit).await;
        trial.check(count <= limit, format_args!("{count} were swept with a limit of {limit}"));
        swept += count;
        if count == 0 {
            return swept;
        }
    }
    trial.fail("sweeping does not end")
}

/// Like [`sweep_by`], in large steps.
pub(super) async fn sweep_all<S: Store>(trial: &Trial<S>) {
    sweep_by(trial, 1_000).await;
}
