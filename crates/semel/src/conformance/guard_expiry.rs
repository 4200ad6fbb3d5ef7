//! Laws about keys that a downstream service remembers for a while only.

use super::Harness;
use super::context::{LONG_MS, SHORT_MS, Trial, completed, decision, finish};
use crate::intent::guard_expiry::KeyWindow;
use crate::intent::identity::Owner;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::state::{Ruling, State};
use crate::store::{Claim, Decided, Filter, Finish, Finished, Store, Ticket};

/// Keys that are remembered for this long.
fn window(safe_for_ms: u64) -> KeyWindow {
    KeyWindow { safe_for_ms: Some(safe_for_ms), call_ms: 0 }
}

fn keyed<S: Store>(trial: &Trial<S>, key: &str, window: KeyWindow) -> Claim {
    Claim { effect: Effect::Keyed, window, ..trial.claim(key) }
}

/// A release with a retention that is over at once.
fn released() -> Finish {
    Finish { retention: Retention::Ms(1), ..Finish::release(Retention::DAY) }
}

fn until<S: Store>(trial: &Trial<S>, ticket: &Ticket) -> StoreTime {
    ticket.safe_until.unwrap_or_else(|| trial.fail("the ticket does not say until when its key protects"))
}

/// The first keyed claim stores until when its key protects; takeovers and releases do not move it.
///
/// Otherwise every crash makes the key live longer here than downstream, and the retry that comes a day later has its
/// effect twice.
pub async fn the_time_of_a_key_never_moves<H: Harness>(harness: &H) {
    let trial = Trial::of("the_time_of_a_key_never_moves", harness).await;
    let first = trial.lapsed(harness, &keyed(&trial, "one", window(LONG_MS))).await;
    let safe_until = until(&trial, &first);
    let granted_at = StoreTime(first.lease_until.0 - SHORT_MS);
    trial.equal(safe_until, granted_at.plus_ms(LONG_MS), "the time that the first claim set");
    // Three takeovers; what they say themselves does not count.
    for other in [window(2 * LONG_MS), window(LONG_MS / 2), KeyWindow::ENDLESS] {
        let claim = keyed(&trial, "one", other);
        let ticket = trial.lapsed(harness, &claim).await;
        trial.equal(ticket.safe_until, Some(safe_until), "the time after a takeover");
        trial.equal(trial.record(&claim).await.head.safe_until, Some(safe_until), "the stored time");
    }
    for verdict in [Verdict::FailedRetryable, Verdict::FailedRetryable] {
        let claim = keyed(&trial, "one", window(2 * LONG_MS));
        let ticket = trial.done(&claim, finish(verdict, None)).await;
        trial.equal(ticket.safe_until, Some(safe_until), "the time after a release");
        trial.equal(trial.record(&claim).await.head.safe_until, Some(safe_until), "the stored time");
        trial.equal(trial.state(&claim).await, verdict.into(), "the state");
        trial.equal(trial.record(&claim).await.head.effect, Effect::Keyed, "the effect");
    }
    // Of other effects there is no such time.
    let opaque = Claim { window: window(LONG_MS), ..trial.claim("opaque") };
    trial.equal(trial.run(&opaque).await.safe_until, None, "the time of an opaque claim");
}

/// A keyed attempt that might end after its key is forgotten is not made: uncertain, although the key protects now.
///
/// Otherwise a slow retry that begins a second too early arrives a second too late.
pub async fn an_attempt_that_may_outlast_its_key_is_uncertain<H: Harness>(harness: &H) {
    let trial = Trial::of("an_attempt_that_may_outlast_its_key_is_uncertain", harness).await;
    let lapsed = keyed(&trial, "lapsed", window(LONG_MS));
    trial.lapsed(harness, &lapsed).await;
    let failed = keyed(&trial, "failed", window(LONG_MS));
    trial.done(&failed, released()).await;
    for key in ["lapsed", "failed"] {
        let slow = KeyWindow { safe_for_ms: Some(LONG_MS), call_ms: LONG_MS };
        let met = trial.meet(&keyed(&trial, key, slow), "uncertain").await;
        trial.check(met.record.head.is_guard_expired(met.now, LONG_MS), "the guard has not expired");
        trial.check(!met.record.head.is_guard_expired(met.now, 0), "the key is forgotten already");
        let ticket = trial.run(&keyed(&trial, key, window(LONG_MS))).await;
        trial.equal(ticket.attempt, 2, "the number of the attempt");
        // The same owner would begin too late, too.
        let again = Claim { owner: ticket.owner, ..keyed(&trial, key, slow) };
        trial.meet(&again, "uncertain").await;
        trial.equal(trial.finish(ticket, completed("done")).await, Finished::Recorded, "the outcome");
        trial.equal(trial.record(&again).await.head.safe_until, None, "the time of a settled intent");
        trial.meet(&keyed(&trial, key, window(LONG_MS)), "replay").await;
    }
}

/// A keyed failure does not expire before its key is forgotten, and is uncertain from then on.
///
/// Otherwise it is swept, and the next retry is a first attempt under a key that the downstream has forgotten.
pub async fn a_keyed_failure_is_uncertain_once_its_key_is_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::of("a_keyed_failure_is_uncertain_once_its_key_is_forgotten", harness).await;
    let claim = keyed(&trial, "one", window(SHORT_MS));
    let ticket = trial.done(&claim, released()).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    for round in ["before a sweep", "after a sweep"] {
        trial.equal(trial.state(&claim).await, State::Uncertain, round);
        trial.equal(trial.record(&claim).await.head.expires_at, None, "the expiry");
        trial.meet(&keyed(&trial, "one", window(LONG_MS)), "uncertain").await;
        let uncertain = Filter { states: vec![State::Uncertain], ..Filter::default() };
        trial.equal(trial.keys(uncertain).await, vec!["one".to_owned()], "the uncertain ones");
        let failed = Filter { states: vec![State::FailedRetryable], ..Filter::default() };
        trial.equal(trial.keys(failed).await, Vec::new(), "the failed ones");
        trial.sweep(1_000).await;
    }
    let other = Finished::Other(State::FailedRetryable);
    trial.equal(trial.finish(ticket, completed("late")).await, other, "another outcome of the same owner");
    trial.equal(trial.finish(ticket, released()).await, Finished::Already, "the same outcome");
}

/// A keyed claim whose lease ended is uncertain once its key is forgotten; its owner's late outcome still counts.
///
/// Otherwise a takeover that comes a day late is made, and has its effect twice.
pub async fn a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::of("a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten", harness).await;
    let claim = keyed(&trial, "one", window(SHORT_MS));
    let ticket = trial.lapsed(harness, &claim).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    trial.equal(trial.state(&claim).await, State::Uncertain, "the state");
    let met = trial.meet(&keyed(&trial, "one", window(LONG_MS)), "uncertain").await;
    trial.equal(met.record.state_at(met.now), Some(State::Uncertain), "the state that is shown");
    let uncertain = Filter { states: vec![State::Uncertain], ..Filter::default() };
    trial.equal(trial.keys(uncertain).await, vec!["one".to_owned()], "the uncertain ones");
    trial.equal(trial.finish(ticket, completed("late")).await, Finished::Recorded, "the late outcome");
    trial.meet(&keyed(&trial, "one", window(LONG_MS)), "replay").await;

    // Who says that it does not know keeps the time, also if it knows later that it failed.
    let unsure = keyed(&trial, "unsure", window(SHORT_MS));
    let ticket = trial.done(&unsure, finish(Verdict::Uncertain, None)).await;
    trial.equal(trial.record(&unsure).await.head.safe_until, ticket.safe_until, "the time");
    trial.meet(&keyed(&trial, "unsure", window(LONG_MS)), "uncertain").await;
    trial.equal(trial.finish(ticket, released()).await, Finished::Recorded, "the late failure");
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    trial.meet(&keyed(&trial, "unsure", window(LONG_MS)), "uncertain").await;
}

/// "Applied" ends the time of a key, and so does "not applied" once the time is past: the next attempt has one of its
/// own. A time that is still ahead stays, because the downstream may know the key since the first attempt.
///
/// Otherwise an intent that a person released stays uncertain for ever, or is retried under a key that was forgotten.
pub async fn a_decision_ends_the_time_of_a_key<H: Harness>(harness: &H) {
    let trial = Trial::of("a_decision_ends_the_time_of_a_key", harness).await;
    let claim = keyed(&trial, "one", window(SHORT_MS));
    let ticket = trial.done(&claim, released()).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    trial.ruled(&claim, Ruling::NotApplied, None).await;
    trial.equal(trial.record(&claim).await.head.safe_until, None, "the time after a decision");
    trial.equal(trial.state(&claim).await, State::FailedRetryable, "the state after a decision");
    let next = trial.run(&keyed(&trial, "one", window(LONG_MS))).await;
    trial.check(next.safe_until > ticket.safe_until, "the next attempt has no time of its own");

    let lapsed = keyed(&trial, "two", window(SHORT_MS));
    let ticket = trial.lapsed(harness, &lapsed).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    trial.ruled(&lapsed, Ruling::Applied(Verdict::Completed), Some(Outcome::new(200, "found"))).await;
    trial.equal(trial.record(&lapsed).await.head.safe_until, None, "the time of a settled intent");
    trial.meet(&keyed(&trial, "two", window(LONG_MS)), "replay").await;

    let failed = keyed(&trial, "failed", window(LONG_MS));
    let first = trial.done(&failed, released()).await;
    let unsure = keyed(&trial, "unsure", window(LONG_MS));
    let second = trial.done(&unsure, finish(Verdict::Uncertain, None)).await;
    for (key, claim, ticket) in [("failed", failed, first), ("unsure", unsure, second)] {
        trial.ruled(&claim, Ruling::NotApplied, None).await;
        let decided = trial.record(&claim).await;
        trial.equal(decided.head.safe_until, ticket.safe_until, "a time that is ahead, after a decision");
        trial.equal(decided.head.effect, Effect::Keyed, "the effect after a decision");
        trial.equal(decided.head.owner, Owner::NONE, "the owner after a decision");
        trial.check(decided.decision.is_some(), "the note of the decision is gone");
        trial.equal(trial.state(&claim).await, State::FailedRetryable, "the state after a decision");
        let slow = KeyWindow { safe_for_ms: Some(LONG_MS), call_ms: LONG_MS };
        trial.meet(&keyed(&trial, key, slow), "uncertain").await;
        let next = trial.run(&keyed(&trial, key, window(2 * LONG_MS))).await;
        trial.equal(next.safe_until, ticket.safe_until, "the time of the next attempt");
        trial.equal(trial.record(&claim).await.decision, decided.decision, "the note after the next claim");
    }

    // An attempt without a key has no use for the time, and nothing was done before it.
    let opaque = keyed(&trial, "opaque", window(LONG_MS));
    trial.done(&opaque, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&opaque, Ruling::NotApplied, None).await;
    trial.equal(trial.run(&trial.claim("opaque")).await.safe_until, None, "the time of an opaque claim");
    trial.equal(trial.record(&opaque).await.head.effect, Effect::Opaque, "the effect of an opaque claim");

    // It passes before anybody tried again: undecided as before.
    let late = keyed(&trial, "late", window(20 * SHORT_MS));
    let ticket = trial.done(&late, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&late, Ruling::NotApplied, None).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    for next in [keyed(&trial, "late", window(LONG_MS)), trial.claim("late")] {
        trial.meet(&next, "uncertain").await;
    }
    trial.ruled(&late, Ruling::NotApplied, None).await;
    trial.run(&keyed(&trial, "late", window(LONG_MS))).await;
}

/// A keyed failure is not released as long as it has a time: not while its key protects, and not afterwards.
///
/// Otherwise a release makes an uncertain intent a new one, and it runs under a key that the downstream has forgotten.
pub async fn a_keyed_failure_is_not_released<H: Harness>(harness: &H) {
    let trial = Trial::of("a_keyed_failure_is_not_released", harness).await;
    let refused = async |claim: &Claim, state: State| {
        let before = trial.record(claim).await;
        let answer = trial.decide(claim, decision(before.head.epoch, Ruling::Release)).await;
        let is_refused = matches!(answer, Decided::Refused(found) if found == state);
        trial.check(is_refused, format_args!("a release was answered {answer:?}, not refused as {state:?}"));
        trial.unchanged(claim, &before, "a refused release").await;
    };
    let young = keyed(&trial, "young", window(LONG_MS));
    trial.done(&young, released()).await;
    refused(&young, State::FailedRetryable).await;

    let old = keyed(&trial, "old", window(SHORT_MS));
    let ticket = trial.done(&old, released()).await;
    harness.pass(&trial.store, until(&trial, &ticket)).await;
    refused(&old, State::Uncertain).await;
    trial.meet(&keyed(&trial, "old", window(LONG_MS)), "uncertain").await;

    // What is finished is released as ever.
    let done = keyed(&trial, "done", window(LONG_MS));
    trial.done(&done, completed("done")).await;
    trial.ruled(&done, Ruling::Release, None).await;
    trial.run(&keyed(&trial, "done", window(LONG_MS))).await;
}

/// The list finds unfinished intents whose key is forgotten soon, and no others.
///
/// Otherwise it is not looked at in time.
pub async fn list_filters_by_the_time_of_the_key<H: Harness>(harness: &H) {
    let trial = Trial::of("list_filters_by_the_time_of_the_key", harness).await;
    trial.run(&keyed(&trial, "open", window(LONG_MS))).await;
    trial.done(&keyed(&trial, "failed", window(LONG_MS)), released()).await;
    trial.done(&keyed(&trial, "done", window(LONG_MS)), completed("done")).await;
    trial.run(&keyed(&trial, "later", window(3 * LONG_MS))).await;
    trial.run(&keyed(&trial, "never", KeyWindow::ENDLESS)).await;
    trial.run(&trial.claim("opaque")).await;
    let within = |ms| Filter { expiring_within_ms: Some(ms), ..Filter::default() };
    trial.equal(trial.keys(within(1)).await, Vec::new(), "within a moment");
    trial.equal(trial.keys(within(2 * LONG_MS)).await, vec!["failed".to_owned(), "open".to_owned()], "soon");
    let failed = Filter { states: vec![State::FailedRetryable], ..within(2 * LONG_MS) };
    trial.equal(trial.keys(failed).await, vec!["failed".to_owned()], "soon, and failed");
    let all = ["failed", "later", "open"].map(str::to_owned).to_vec();
    trial.equal(trial.keys(within(4 * LONG_MS)).await, all, "at all");
    let states = Filter { states: vec![State::FailedRetryable], ..Filter::default() };
    trial.equal(trial.keys(states).await, vec!["failed".to_owned()], "the failed ones");
}

/// The time of a key survives a restart.
///
/// Otherwise every deployment makes keys live longer.
pub async fn reopening_keeps_the_time_of_a_key<H: Harness>(harness: &H) {
    let trial = Trial::of("reopening_keeps_the_time_of_a_key", harness).await;
    let open = keyed(&trial, "open", window(LONG_MS));
    let failed = keyed(&trial, "failed", window(LONG_MS));
    let safe = [trial.run(&open).await.safe_until, trial.done(&failed, released()).await.safe_until];
    let Some(trial) = trial.reopened(harness).await else { return };
    for (claim, safe_until) in [open, failed].iter().zip(safe) {
        trial.equal(trial.record(claim).await.head.safe_until, safe_until, "the time after reopening");
    }
    let again = Claim { owner: Owner::random(), ..keyed(&trial, "failed", window(2 * LONG_MS)) };
    trial.equal(trial.run(&again).await.safe_until, safe[1], "the time of the next attempt");
}
