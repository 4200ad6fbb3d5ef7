//! Laws of claiming: who may run, and what other claimants get.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use super::Harness;
use super::context::{LONG_MS, RECIPE, Trial, completed, fingerprint, finish, name};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::Verdict;
use crate::intent::policy::Effect;
use crate::intent::state::State;
use crate::store::{Claim, Claimed, Finished, Store};

/// Timeout of a claim after a dropped one. Only a store that is blocked for good reaches it.
const DROPPED_TIMEOUT: Duration = Duration::from_secs(30);

/// An unclaimed intent runs, and is in progress from then on.
///
/// Otherwise nothing ever runs.
pub async fn a_fresh_claim_runs<H: Harness>(harness: &H) {
    let trial = Trial::of("a_fresh_claim_runs", harness).await;
    let claim = trial.claim("fresh");
    let before = trial.now().await;
    let ticket = trial.run(&claim).await;
    let after = trial.now().await;
    trial.equal(ticket.id, claim.intent.id(), "the ticket's intent");
    trial.equal(ticket.owner, claim.owner, "the ticket's owner");
    trial.equal(ticket.attempt, 1, "the number of the first attempt");
    trial.check(!ticket.other_recipe, "a fresh claim met another recipe");

    let record = trial.record(&claim).await;
    trial.equal(&record.intent, &claim.intent, "the record's intent");
    trial.equal(record.intent.scope(), claim.intent.scope(), "the record's scope");
    trial.equal(record.intent.operation(), claim.intent.operation(), "the record's operation");
    trial.equal(record.intent.key(), claim.intent.key(), "the record's key");
    trial.equal(record.head.state, State::InProgress, "the state");
    trial.equal(record.head.effect, claim.effect, "the effect");
    trial.equal(record.head.fingerprint, claim.fingerprint, "the fingerprint");
    trial.equal(record.ticket(false), ticket, "the ticket in the record");
    trial.equal(record.head.expires_at, None, "the expiry of a claim");
    trial.check(
        record.outcome.is_none() && record.decision.is_none(),
        "a fresh claim has an outcome or a decision",
    );
    trial.check((before..=after).contains(&record.created_at), "the creation time is wrong");
    trial.equal(record.changed_at, record.created_at, "the last change of a fresh claim");
}

/// While the owner works, other claimants get "in flight" and the record.
///
/// Otherwise a double click charges twice.
pub async fn a_second_claimant_gets_in_flight<H: Harness>(harness: &H) {
    let trial = Trial::of("a_second_claimant_gets_in_flight", harness).await;
    for (key, effect) in [("opaque", Effect::Opaque), ("keyed", Effect::Keyed), ("atomic", Effect::Atomic)] {
        let first = Claim { effect, ..trial.claim(key) };
        let ticket = trial.run(&first).await;
        let before = trial.record(&first).await;
        let met = trial.meet(&Claim { effect, ..trial.claim(key) }, "in flight").await;
        trial.equal(met.record.ticket(false), ticket, "the claim that is in flight");
        trial.check(met.now < ticket.lease_until, "the lease of a claim in flight has expired");
        trial.unchanged(&first, &before, "a second claimant").await;
    }
}

/// The same key under another scope or another operation is another intent.
///
/// Otherwise a tenant gets another tenant's answer, or a refund gets its payment's answer.
pub async fn scope_and_operation_are_part_of_the_identity<H: Harness>(harness: &H) {
    let trial = Trial::of("scope_and_operation_are_part_of_the_identity", harness).await;
    let pay = trial.intent("pay", "key-1");
    let refund = trial.intent("refund", "key-1");
    let actor = pay.scope().clone().actor("user-1").expect("a tenant takes an actor");
    let by_actor = Intent::new(actor, pay.operation().clone(), pay.key().clone());
    let claims = [pay, refund, by_actor].map(|intent| trial.claim_of(intent));
    for claim in &claims {
        trial.run(claim).await;
    }
    for claim in &claims {
        trial.equal(trial.record(claim).await.head.owner, claim.owner, "the owner of each");
    }
}

/// Another request under the key of one in flight is a mismatch.
///
/// Otherwise a client's bug looks like a temporary conflict, and is retried forever.
pub async fn mismatch_comes_before_in_flight<H: Harness>(harness: &H) {
    let trial = Trial::of("mismatch_comes_before_in_flight", harness).await;
    let first = trial.claim("one");
    trial.run(&first).await;
    trial.mismatch(&Claim { fingerprint: fingerprint(2), ..trial.claim("one") }).await;
    // Not even for the owner itself: it would overwrite its own claim.
    trial.mismatch(&Claim { fingerprint: fingerprint(2), ..first.clone() }).await;
    trial.meet(&trial.claim("one"), "in flight").await;
}

/// Another request under the key of a finished one is a mismatch.
///
/// Otherwise the second of two different payments is reported as made.
pub async fn mismatch_comes_before_replay<H: Harness>(harness: &H) {
    let trial = Trial::of("mismatch_comes_before_replay", harness).await;
    for (key, verdict) in [
        ("done", Verdict::Completed),
        ("refused", Verdict::FailedFinal),
        ("failed", Verdict::FailedRetryable),
    ] {
        trial.done(&trial.claim(key), finish(verdict, None)).await;
        trial.mismatch(&Claim { fingerprint: fingerprint(2), ..trial.claim(key) }).await;
    }
    trial.meet(&trial.claim("done"), "replay").await;
}

/// Another request under the key of an uncertain one is a mismatch, also after the lease expired.
///
/// Otherwise a client's bug reaches an operator as a payment to look up.
pub async fn mismatch_comes_before_uncertain<H: Harness>(harness: &H) {
    let trial = Trial::of("mismatch_comes_before_uncertain", harness).await;
    trial.lapsed(harness, &trial.claim("lapsed")).await;
    trial.done(&trial.claim("said so"), finish(Verdict::Uncertain, None)).await;
    // A keyed one may run again, but not as another request: the downstream knows its key.
    trial.lapsed(harness, &Claim { effect: Effect::Keyed, ..trial.claim("keyed") }).await;
    for key in ["lapsed", "said so", "keyed"] {
        let other = Claim { fingerprint: fingerprint(2), effect: Effect::Keyed, ..trial.claim(key) };
        trial.mismatch(&other).await;
    }
}

/// A mismatch leaves the record as it was, in every state.
///
/// Otherwise a client with a bug, or one that guesses keys, ends or blocks another client's payment.
pub async fn a_mismatch_changes_nothing<H: Harness>(harness: &H) {
    let trial = Trial::of("a_mismatch_changes_nothing", harness).await;
    let claims = ["running", "done", "failed", "uncertain"].map(|key| trial.claim(key));
    let ticket = trial.run(&claims[0]).await;
    trial.done(&claims[1], completed("kept")).await;
    trial.done(&claims[2], finish(Verdict::FailedRetryable, None)).await;
    trial.done(&claims[3], finish(Verdict::Uncertain, None)).await;
    for claim in &claims {
        let before = trial.record(claim).await;
        let other = Claim { fingerprint: fingerprint(2), owner: Owner::random(), ..claim.clone() };
        trial.mismatch(&other).await;
        trial.unchanged(claim, &before, "a mismatch").await;
    }
    trial.equal(trial.finish(ticket, completed("done")).await, Finished::Recorded, "the owner's outcome");
}

/// A fingerprint made by another recipe cannot be compared: the claim is answered as if the request were the same, and
/// flagged.
///
/// Otherwise every retry across a deploy of a new recipe is refused, or runs again.
pub async fn another_recipe_replays_and_is_flagged<H: Harness>(harness: &H) {
    let trial = Trial::of("another_recipe_replays_and_is_flagged", harness).await;
    let newer = |key| Claim {
        fingerprint: Fingerprint::from_parts([9; 32], RECIPE + 1),
        effect: Effect::Keyed,
        ..trial.claim(key)
    };
    trial.done(&trial.claim("done"), completed("first")).await;
    trial.check(trial.meet(&newer("done"), "replay").await.other_recipe, "the replay is not flagged");
    trial.run(&trial.claim("running")).await;
    trial.check(trial.meet(&newer("running"), "in flight").await.other_recipe, "in flight is not flagged");
    trial.done(&trial.claim("open"), finish(Verdict::Uncertain, None)).await;
    trial.check(trial.meet(&newer("open"), "uncertain").await.other_recipe, "uncertain is not flagged");
    trial.done(&trial.claim("failed"), finish(Verdict::FailedRetryable, None)).await;
    trial.check(trial.run(&newer("failed")).await.other_recipe, "the next attempt is not flagged");
    let same = trial.meet(&trial.claim("done"), "replay").await;
    trial.check(!same.other_recipe, "the same recipe is flagged");
}

/// Claiming again with the same owner during the lease returns the same ticket, and does not count as an attempt.
///
/// Otherwise, if the answer to a claim is lost, its caller must not run, and all others wait for an unused lease.
pub async fn the_same_owner_gets_the_same_ticket<H: Harness>(harness: &H) {
    let trial = Trial::of("the_same_owner_gets_the_same_ticket", harness).await;
    let claim = trial.claim("lost answer");
    let ticket = trial.run(&claim).await;
    let before = trial.record(&claim).await;
    trial.wait(harness, 2).await;
    trial.equal(trial.run(&claim).await, ticket, "the ticket of the repeated claim");
    trial.unchanged(&claim, &before, "a repeated claim").await;
    trial.equal(trial.finish(ticket, completed("once")).await, Finished::Recorded, "the owner's outcome");
}

/// Claiming again with the same owner after it finished replays its own outcome.
///
/// Otherwise a duplicate request that arrives late runs again under a finished claim.
pub async fn the_same_owner_gets_its_outcome_after_finishing<H: Harness>(harness: &H) {
    let trial = Trial::of("the_same_owner_gets_its_outcome_after_finishing", harness).await;
    let claim = trial.claim("late");
    let done = completed("mine");
    trial.done(&claim, done.clone()).await;
    let met = trial.meet(&claim, "replay").await;
    trial.equal(met.record.outcome.clone(), done.outcome, "its own outcome");
}

/// A replay changes nothing, however often.
///
/// Otherwise reading costs a write, and a popular outcome never expires or expires at once.
pub async fn a_replay_changes_nothing<H: Harness>(harness: &H) {
    let trial = Trial::of("a_replay_changes_nothing", harness).await;
    let claim = trial.claim("done");
    trial.done(&claim, completed("once")).await;
    let before = trial.record(&claim).await;
    trial.wait(harness, 2).await;
    for _ in 0..3 {
        trial.meet(&trial.claim("done"), "replay").await;
    }
    trial.unchanged(&claim, &before, "a replay").await;
}

/// Cancellation: a claim whose future is dropped half-way was applied or not. It blocks no other caller, and repeating
/// it with the same owner settles it.
///
/// Otherwise a caller that hangs up at the wrong moment blocks the key, or the whole store.
pub async fn a_dropped_claim_is_settled_by_repeating_it<H: Harness>(harness: &H) {
    let trial = Trial::of("a_dropped_claim_is_settled_by_repeating_it", harness).await;
    for polls in 1..=4 {
        let claim = trial.claim(&format!("dropped after {polls}"));
        let mut future = Box::pin(trial.store.claim(claim.clone()));
        for _ in 0..polls {
            let ready = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
            if ready {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(future);
        let settled = async {
            let bystander = trial.claim(&format!("bystander of {polls}"));
            trial.run(&bystander).await;
            let ticket = trial.run(&claim).await;
            trial.equal(ticket.attempt, 1, "the number of an attempt that was settled");
            trial.meet(&Claim { owner: Owner::random(), ..claim.clone() }, "in flight").await;
            trial.equal(trial.finish(ticket, completed("ok")).await, Finished::Recorded, "the outcome");
            trial.meet(&Claim { owner: Owner::random(), ..claim.clone() }, "replay").await;
        };
        if tokio::time::timeout(DROPPED_TIMEOUT, settled).await.is_err() {
            trial.fail("a dropped claim blocks the store");
        }
        // Another caller may find that the dropped claim was granted, and then waits for its lease; never an error.
        let other = trial.claim(&format!("other after {polls}"));
        drop(trial.store.claim(Claim { lease_ms: LONG_MS, ..other.clone() }));
        match trial.ask(&Claim { owner: Owner::random(), ..other }).await {
            Claimed::Run(_) | Claimed::InFlight(_) => {}
            answer => {
                trial.fail(format_args!("after a dropped claim the next one was answered {}", name(&answer)))
            }
        }
    }
}
