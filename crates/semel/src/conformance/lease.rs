//! Laws of leases: how long a claim is live, and what may happen after it lapsed.

use super::Harness;
use super::context::{LONG_MS, SHORT_MS, Trial, completed};
use crate::intent::identity::Owner;
use crate::intent::policy::{Effect, LEASE_MS_MAX};
use crate::intent::state::State;
use crate::store::{Claim, Finished, Renewed, Ticket};

/// The store's clock does not go back.
///
/// Otherwise an expired lease becomes valid again, and two owners rely on it.
pub async fn the_clock_does_not_go_backwards<H: Harness>(harness: &H) {
    let trial = Trial::of("the_clock_does_not_go_backwards", harness).await;
    let mut last = trial.now().await;
    for _ in 0..200 {
        let now = trial.now().await;
        trial.check(now >= last, format_args!("{now:?} came after {last:?}"));
        last = now;
    }
    trial.wait(harness, 3).await;
    trial.check(trial.now().await.since_ms(last) >= 3, "the clock does not advance");
}

/// A lease is counted by the store's clock, to the millisecond: at the claim and at each renewal.
///
/// Otherwise machines whose clocks differ disagree about which claims are live; one published test counted 168 leases
/// that ended early that way.
pub async fn a_lease_runs_by_the_stores_clock<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lease_runs_by_the_stores_clock", harness).await;
    let claim = trial.claim("one");
    let before = trial.now().await;
    let ticket = trial.run(&claim).await;
    let after = trial.now().await;
    let due = before.plus_ms(LONG_MS)..=after.plus_ms(LONG_MS);
    trial
        .check(due.contains(&ticket.lease_until), format_args!("{:?} is not in {due:?}", ticket.lease_until));
    trial.equal(trial.record(&claim).await.head.lease_until, ticket.lease_until, "the lease in the record");

    trial.wait(harness, SHORT_MS).await;
    let before = trial.now().await;
    let renewed = trial.renew(ticket, LONG_MS / 2).await;
    let after = trial.now().await;
    let due = before.plus_ms(LONG_MS / 2)..=after.plus_ms(LONG_MS / 2);
    let Renewed::Until(until) = renewed else { trial.fail("a live claim was not renewed") };
    trial.check(due.contains(&until), format_args!("{until:?} is not in {due:?}, counted from now"));
    trial.equal(trial.record(&claim).await.head.lease_until, until, "the renewed lease in the record");
}

/// An opaque claim whose lease expired is uncertain for every claimant, its owner included. It never runs again.
///
/// Otherwise a crash between charge and record charges twice.
pub async fn a_lapsed_opaque_claim_is_uncertain<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lapsed_opaque_claim_is_uncertain", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.lapsed(harness, &claim).await;
    for effect in Effect::ALL {
        let met = trial.meet(&Claim { effect, ..trial.claim("one") }, "uncertain").await;
        trial.equal(met.record.head.epoch, ticket.epoch, "the epoch of the uncertain claim");
        trial.check(met.now >= ticket.lease_until, "uncertain before the lease ended");
        trial.equal(met.record.state_at(met.now), Some(State::Uncertain), "the state that is shown");
    }
    trial.meet(&claim, "uncertain").await;
    trial.equal(trial.state(&claim).await, State::Uncertain, "the state");
    trial.equal(trial.record(&claim).await.attempts, 1, "the number of attempts");
}

/// A claim whose effect is safe to repeat is taken over after its lease expired, under a higher epoch.
///
/// Otherwise a crashed process blocks a key for as long as the record is kept.
pub async fn a_lapsed_keyed_claim_runs_again<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lapsed_keyed_claim_runs_again", harness).await;
    for effect in [Effect::Keyed, Effect::Atomic] {
        let key = effect.as_str();
        let first = trial.lapsed(harness, &Claim { effect, ..trial.claim(key) }).await;
        let claim = Claim { effect, ..trial.claim(key) };
        let second = trial.run(&claim).await;
        trial.check(second.epoch > first.epoch, "the takeover has no higher epoch");
        trial.equal(second.attempt, 2, "the number of the attempt");
        trial.meet(&Claim { effect, ..trial.claim(key) }, "in flight").await;
        trial.equal(trial.finish(second, completed("second")).await, Finished::Recorded, "the outcome");
    }
}

/// A lease that ends later than the longest allowed has lapsed: the store's clock was far ahead when it was granted.
///
/// Otherwise a key that was claimed then stays in flight until the clock gets there, perhaps in a year.
pub async fn a_lease_longer_than_any_has_lapsed<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lease_longer_than_any_has_lapsed", harness).await;
    let far = |claim: Claim| Claim { lease_ms: LEASE_MS_MAX + LONG_MS, ..claim };
    let ticket = trial.run(&far(trial.claim("opaque"))).await;
    let met = trial.meet(&trial.claim("opaque"), "uncertain").await;
    trial.equal(met.record.state_at(met.now), Some(State::Uncertain), "the state that is shown");
    trial.equal(trial.renew(ticket, LONG_MS).await, Renewed::Stale, "a renewal");
    trial.equal(trial.finish(ticket, completed("late")).await, Finished::Recorded, "the late outcome");

    let keyed = || Claim { effect: Effect::Keyed, ..trial.claim("keyed") };
    let first = trial.run(&far(keyed())).await;
    let second = trial.run(&keyed()).await;
    trial.check(second.epoch > first.epoch, "the takeover has no higher epoch");

    let longest = Claim { lease_ms: LEASE_MS_MAX, ..trial.claim("longest") };
    let ticket = trial.run(&longest).await;
    trial.meet(&trial.claim("longest"), "in flight").await;
    trial.check(
        matches!(trial.renew(ticket, LONG_MS).await, Renewed::Until(_)),
        "the longest lease is not live",
    );
}

/// A lapsed keyed claim is uncertain to a claimant without the downstream's key.
///
/// Otherwise a deploy that drops the key charges again what the previous version may have charged.
pub async fn a_lapsed_keyed_claim_is_uncertain_to_an_opaque_claimant<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lapsed_keyed_claim_is_uncertain_to_an_opaque_claimant", harness).await;
    let keyed = Claim { effect: Effect::Keyed, ..trial.claim("one") };
    let first = trial.lapsed(harness, &keyed).await;
    let met = trial.meet(&trial.claim("one"), "uncertain").await;
    trial.equal(met.record.head.epoch, first.epoch, "the epoch of the claim in doubt");
    // The record itself is not uncertain: a claimant with the key may still take over.
    trial.run(&Claim { effect: Effect::Keyed, ..trial.claim("one") }).await;
}

/// After a takeover the old owner's renewal and outcome are stale, and the new owner's are accepted.
///
/// Otherwise the outcome of the old run is replayed, or both owners believe they hold the claim.
pub async fn a_takeover_fences_the_old_owner<H: Harness>(harness: &H) {
    let trial = Trial::of("a_takeover_fences_the_old_owner", harness).await;
    // With another token and with the same: a client that reuses its token is fenced by the epoch.
    for (key, same_token) in [("other token", false), ("same token", true)] {
        let claim = Claim { effect: Effect::Keyed, ..trial.claim(key) };
        let old = trial.lapsed(harness, &claim).await;
        let owner = if same_token { claim.owner } else { Owner::random() };
        let claim = Claim { owner, ..claim };
        let new = trial.run(&claim).await;
        let before = trial.record(&claim).await;
        trial.equal(trial.renew(old, LONG_MS).await, Renewed::Stale, "the old owner's renewal");
        trial.equal(trial.finish(old, completed("old")).await, Finished::Stale, "the old owner's outcome");
        trial.unchanged(&claim, &before, "the old owner").await;
        let done = completed("new");
        trial.equal(trial.finish(new, done.clone()).await, Finished::Recorded, "the new owner's outcome");
        let met = trial.meet(&trial.claim(key), "replay").await;
        trial.equal(met.record.outcome.clone(), done.outcome, "the outcome");
    }
}

/// A renewed claim is in flight beyond the end of its first lease.
///
/// Otherwise every effect that takes longer than a lease is uncertain, or runs twice.
pub async fn renewing_extends_the_lease<H: Harness>(harness: &H) {
    let trial = Trial::of("renewing_extends_the_lease", harness).await;
    // A slow machine may miss a short lease; that is not the store's fault, so a longer one is tried.
    for lease_ms in [250, 1_000, 4_000] {
        let claim = Claim { lease_ms, ..trial.claim(&format!("lease of {lease_ms}")) };
        let ticket = trial.run(&claim).await;
        let renewed = trial.renew(ticket, LONG_MS).await;
        if renewed == Renewed::Stale && trial.now().await >= ticket.lease_until {
            continue;
        }
        trial.check(matches!(renewed, Renewed::Until(_)), "a live claim was not renewed");
        harness.pass(&trial.store, ticket.lease_until).await;
        trial.meet(&Claim { owner: Owner::random(), ..claim.clone() }, "in flight").await;
        trial.equal(trial.state(&claim).await, State::InProgress, "the state");
        // The ticket stays valid: the epoch fences it, its lease is only a hint.
        trial.equal(trial.finish(ticket, completed("slow")).await, Finished::Recorded, "the outcome");
        return;
    }
    trial.fail("this machine was too slow for every lease");
}

/// A lapsed claim is not renewed, and stays as it is.
///
/// Otherwise an answer of "uncertain", already passed to an operator, is wrong a moment later.
pub async fn a_lapsed_claim_is_not_renewed<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lapsed_claim_is_not_renewed", harness).await;
    for effect in Effect::ALL {
        let claim = Claim { effect, ..trial.claim(effect.as_str()) };
        let ticket = trial.lapsed(harness, &claim).await;
        let before = trial.record(&claim).await;
        trial.equal(trial.renew(ticket, LONG_MS).await, Renewed::Stale, "the renewal of a lapsed claim");
        trial.unchanged(&claim, &before, "a renewal that came too late").await;
    }
    trial.meet(&trial.claim("opaque"), "uncertain").await;
}

/// Only the owner can renew, only under its own epoch, and only while its claim is in progress.
///
/// Otherwise a stranger keeps a dead claim alive, or a zombie that of its successor.
pub async fn renew_is_fenced<H: Harness>(harness: &H) {
    let trial = Trial::of("renew_is_fenced", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.run(&claim).await;
    let before = trial.record(&claim).await;
    for wrong in [
        Ticket { owner: Owner::random(), ..ticket },
        Ticket { owner: Owner::NONE, ..ticket },
        Ticket { epoch: ticket.epoch.next(), ..ticket },
    ] {
        trial.equal(trial.renew(wrong, 2 * LONG_MS).await, Renewed::Stale, "a stranger's renewal");
    }
    trial.unchanged(&claim, &before, "a stranger's renewal").await;
    trial.equal(trial.finish(ticket, completed("done")).await, Finished::Recorded, "the outcome");
    let before = trial.record(&claim).await;
    trial.equal(trial.renew(ticket, LONG_MS).await, Renewed::Stale, "the renewal of what is finished");
    trial.unchanged(&claim, &before, "the renewal of what is finished").await;
}

/// Renewing changes only the lease.
///
/// Otherwise a heartbeat makes an old claim look new, and hung work is not noticed.
pub async fn renewing_changes_the_lease_alone<H: Harness>(harness: &H) {
    let trial = Trial::of("renewing_changes_the_lease_alone", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.run(&claim).await;
    let mut before = trial.record(&claim).await;
    trial.wait(harness, 2).await;
    let Renewed::Until(until) = trial.renew(ticket, LONG_MS).await else {
        trial.fail("a live claim was not renewed")
    };
    before.head.lease_until = until;
    trial.unchanged(&claim, &before, "a renewal").await;
}
