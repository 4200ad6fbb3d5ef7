//! Laws of finishing: fencing by owner and epoch, and which outcome is recorded.

use super::Harness;
use super::context::{Trial, completed, finish};
use crate::intent::identity::{Epoch, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::{Ruling, State};
use crate::store::{Claim, Finish, Finished, Renewed, Ticket};

/// Only the owner can finish its claim.
///
/// Otherwise a process that read or guessed the epoch finishes another owner's work.
pub async fn finish_is_fenced_by_owner<H: Harness>(harness: &H) {
    let trial = Trial::of("finish_is_fenced_by_owner", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.run(&claim).await;
    let before = trial.record(&claim).await;
    for owner in [Owner::random(), Owner::NONE] {
        let stranger = Ticket { owner, ..ticket };
        trial.equal(
            trial.finish(stranger, completed("theirs")).await,
            Finished::Stale,
            "a stranger's outcome",
        );
    }
    trial.unchanged(&claim, &before, "a stranger's outcome").await;
    trial.equal(trial.finish(ticket, completed("mine")).await, Finished::Recorded, "the owner's outcome");
}

/// Only the claim's own epoch can finish it: an earlier one is stale even with the same owner token, and a later one
/// was never issued.
///
/// Otherwise a zombie overwrites the result of the new owner.
pub async fn finish_is_fenced_by_epoch<H: Harness>(harness: &H) {
    let trial = Trial::of("finish_is_fenced_by_epoch", harness).await;
    let claim = trial.claim("one");
    // The same token on purpose: only the epoch differs.
    let first = trial.done(&claim, Finish::release(Retention::DAY)).await;
    let second = trial.run(&claim).await;
    trial.check(second.epoch > first.epoch, "the second claim has no higher epoch");
    let before = trial.record(&claim).await;
    let ahead = Ticket { epoch: second.epoch.next(), ..second };
    let zero = Ticket { epoch: Epoch(0), ..second };
    for wrong in [first, ahead, zero] {
        trial.equal(
            trial.finish(wrong, completed("zombie")).await,
            Finished::Stale,
            "a wrong epoch's outcome",
        );
    }
    trial.unchanged(&claim, &before, "a wrong epoch's outcome").await;
    trial.equal(trial.finish(second, completed("mine")).await, Finished::Recorded, "the owner's outcome");
}

/// A stale outcome changes nothing, whatever happened to the record since.
///
/// Otherwise a process that wakes up after an hour overwrites newer results.
pub async fn a_stale_finish_changes_nothing<H: Harness>(harness: &H) {
    let trial = Trial::of("a_stale_finish_changes_nothing", harness).await;
    let successors = [
        ("completed", completed("second")),
        ("refused", finish(Verdict::FailedFinal, Some(Outcome::new(402, "second")))),
        ("uncertain", finish(Verdict::Uncertain, None)),
        ("released", Finish::release(Retention::DAY)),
    ];
    for (key, successor) in successors {
        let stale = trial.done(&trial.claim(key), Finish::release(Retention::DAY)).await;
        let claim = trial.claim(key);
        trial.done(&claim, successor).await;
        let before = trial.record(&claim).await;
        for verdict in Verdict::ALL {
            let late = finish(verdict, Some(Outcome::new(500, "zombie")));
            trial.equal(trial.finish(stale, late).await, Finished::Stale, "a stale outcome");
        }
        trial.unchanged(&claim, &before, "a stale outcome").await;
    }
}

/// The last owner's outcome is accepted after its lease expired, if no claim or decision came since.
///
/// Otherwise a garbage collector pause turns a payment that is known to be made into one that an operator has to look
/// up.
pub async fn a_late_outcome_is_taken<H: Harness>(harness: &H) {
    let trial = Trial::of("a_late_outcome_is_taken", harness).await;
    for effect in Effect::ALL {
        let claim = Claim { effect, ..trial.claim(effect.as_str()) };
        let ticket = trial.lapsed(harness, &claim).await;
        if effect == Effect::Opaque {
            // Even after others got "uncertain".
            trial.meet(&trial.claim(effect.as_str()), "uncertain").await;
        }
        let late = completed("late but true");
        trial.equal(trial.finish(ticket, late.clone()).await, Finished::Recorded, "the late outcome");
        let met = trial.meet(&trial.claim(effect.as_str()), "replay").await;
        trial.equal(met.record.outcome.clone(), late.outcome, "the late outcome");
    }
}

/// An owner that finished as uncertain may still report the real outcome, which then stands.
///
/// Otherwise an answer that arrives a second after the timeout is discarded.
pub async fn an_uncertain_outcome_is_made_certain_by_its_owner<H: Harness>(harness: &H) {
    let trial = Trial::of("an_uncertain_outcome_is_made_certain_by_its_owner", harness).await;
    for (key, verdict, then) in [
        ("done", Verdict::Completed, "replay"),
        ("refused", Verdict::FailedFinal, "replay"),
        ("failed", Verdict::FailedRetryable, "run"),
    ] {
        let claim = trial.claim(key);
        let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
        let unsure = trial.record(&claim).await;
        let again = trial.finish(ticket, finish(Verdict::Uncertain, None)).await;
        trial.equal(again, Finished::Already, "uncertain said twice");
        trial.unchanged(&claim, &unsure, "uncertain said twice").await;
        let stranger = Ticket { owner: Owner::random(), ..ticket };
        trial.equal(trial.finish(stranger, completed("no")).await, Finished::Stale, "a stranger's outcome");

        let certain = finish(verdict, Some(Outcome::new(200, "known")));
        trial.equal(trial.finish(ticket, certain).await, Finished::Recorded, "the certain outcome");
        trial.equal(trial.state(&claim).await, State::from(verdict), "the state");
        trial.equal(super::context::name(&trial.ask(&trial.claim(key)).await), then, "the next claim");
    }
}

/// An uncertain outcome is uncertain for every claimant, whatever the effect.
///
/// Otherwise "not known" runs again as if it were "did not happen".
pub async fn an_uncertain_outcome_runs_for_no_caller<H: Harness>(harness: &H) {
    let trial = Trial::of("an_uncertain_outcome_runs_for_no_caller", harness).await;
    for effect in Effect::ALL {
        let claim = Claim { effect, ..trial.claim(effect.as_str()) };
        let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
        for next in Effect::ALL {
            let next = Claim { effect: next, ..trial.claim(effect.as_str()) };
            let met = trial.meet(&next, "uncertain").await;
            trial.equal(met.record.head.epoch, ticket.epoch, "the epoch of the uncertain claim");
        }
        // Not even for the owner.
        trial.meet(&claim, "uncertain").await;
    }
}

/// A retryable failure runs again at once, under a higher epoch, as the next attempt.
///
/// Otherwise a failure that is known to have had no effect blocks the key until its retention ends.
pub async fn a_retryable_failure_runs_again_at_once<H: Harness>(harness: &H) {
    let trial = Trial::of("a_retryable_failure_runs_again_at_once", harness).await;
    let refused = finish(Verdict::FailedRetryable, Some(Outcome::new(503, "try again")));
    let first = trial.done(&trial.claim("one"), refused.clone()).await;
    let created = trial.record(&trial.claim("one")).await.created_at;
    trial.equal(
        trial.record(&trial.claim("one")).await.outcome,
        refused.outcome,
        "the outcome of the failure",
    );
    let claim = trial.claim("one");
    let second = trial.run(&claim).await;
    trial.check(second.epoch > first.epoch, "the next attempt has no higher epoch");
    trial.equal(second.attempt, 2, "the number of the next attempt");
    let record = trial.record(&claim).await;
    trial.equal(record.created_at, created, "when the intent was first claimed");
    trial.equal(record.outcome, None, "the outcome of an attempt in progress");
    trial.meet(&trial.claim("one"), "in flight").await;
}

/// A retryable failure of a keyed attempt is uncertain to a claimant without the downstream's key, until it is decided.
///
/// Otherwise a deploy that drops the key charges again what an attempt before the failed one may have charged: a
/// failure only covers its own attempt.
pub async fn a_keyed_failure_is_uncertain_to_an_opaque_claimant<H: Harness>(harness: &H) {
    let trial = Trial::of("a_keyed_failure_is_uncertain_to_an_opaque_claimant", harness).await;
    let keyed = |key| Claim { effect: Effect::Keyed, ..trial.claim(key) };
    let failed = || finish(Verdict::FailedRetryable, None);
    trial.done(&keyed("one"), failed()).await;
    trial.meet(&trial.claim("one"), "uncertain").await;
    trial.run(&keyed("one")).await;
    trial.done(&keyed("two"), failed()).await;
    trial.ruled(&trial.claim("two"), Ruling::NotApplied, None).await;
    trial.run(&trial.claim("two")).await;
}

/// A released claim runs again at once, under a higher epoch.
///
/// Otherwise a process that drains for a restart leaves its keys blocked.
pub async fn a_released_claim_runs_again_at_once<H: Harness>(harness: &H) {
    let trial = Trial::of("a_released_claim_runs_again_at_once", harness).await;
    let first = trial.done(&trial.claim("one"), Finish::release(Retention::DAY)).await;
    let second = trial.run(&trial.claim("one")).await;
    trial.check(second.epoch > first.epoch, "the next claim has no higher epoch");
    trial.equal(
        trial.finish(first, completed("old")).await,
        Finished::Stale,
        "the outcome of the owner that released it",
    );
    trial.equal(
        trial.finish(second, completed("new")).await,
        Finished::Recorded,
        "the outcome of the new owner",
    );
}

/// Finishing or renewing an unknown claim is stale, and creates no record.
///
/// Otherwise the outcome of a swept record, or of another store, appears out of nowhere.
pub async fn an_unknown_ticket_is_stale<H: Harness>(harness: &H) {
    let trial = Trial::of("an_unknown_ticket_is_stale", harness).await;
    let known = trial.run(&trial.claim("known")).await;
    let unknown = trial.claim("unknown");
    let ticket = Ticket { id: unknown.intent.id(), ..known };
    trial.equal(trial.finish(ticket, completed("from nowhere")).await, Finished::Stale, "the outcome");
    trial.equal(trial.renew(ticket, 1_000).await, Renewed::Stale, "the renewal");
    trial.run(&unknown).await;
}
