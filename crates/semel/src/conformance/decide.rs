//! Laws of decisions: what an operator or a lookup may decide, and which note is kept.

use super::Harness;
use super::context::{LONG_MS, SHORT_MS, Trial, completed, decision, finish};
use crate::intent::identity::Owner;
use crate::intent::outcome::{OUTCOME_BYTES_MAX, Outcome, Verdict};
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::{Ruling, State};
use crate::store::{Claim, Decide, Decided, ErrorKind, Finish, Finished, Renewed, Store};

const APPLIED: Ruling = Ruling::Applied(Verdict::Completed);

/// An intent decided as applied replays the outcome that was found, and keeps who decided, why and when.
///
/// Otherwise it is not known later why the customer got the answer "paid".
pub async fn an_applied_intent_is_replayed<H: Harness>(harness: &H) {
    let trial = Trial::of("an_applied_intent_is_replayed", harness).await;
    let said = trial.claim("said so");
    trial.done(&said, finish(Verdict::Uncertain, None)).await;
    let lapsed = trial.claim("lapsed");
    trial.lapsed(harness, &lapsed).await;
    let found = Outcome::new(201, "found in the ledger").header("x-found", "yes");
    for claim in [&said, &lapsed] {
        let before = trial.now().await;
        trial.ruled(claim, APPLIED, Some(found.clone())).await;
        let after = trial.now().await;
        let met = trial.meet(&Claim { owner: Owner::random(), ..claim.clone() }, "replay").await;
        trial.equal(met.record.outcome.as_ref(), Some(&found), "the outcome");
        trial.equal(met.record.head.state, State::Completed, "the state");
        let Some(note) = met.record.decision.clone() else { trial.fail("no note was kept") };
        trial.equal(note.ruling.as_str(), "applied", "the ruling");
        trial.equal(note.by.as_str(), "ops@example.com", "who decided");
        trial.equal(note.why.as_str(), "looked at the provider's ledger", "why");
        trial.check((before..=after).contains(&note.at), "when it was decided");
    }
    let refused = trial.claim("refused");
    trial.done(&refused, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&refused, Ruling::Applied(Verdict::FailedFinal), None).await;
    let met = trial.meet(&trial.claim("refused"), "replay").await;
    trial.equal(met.record.head.state, State::FailedFinal, "the state");
}

/// An intent decided as not applied runs again, under a higher epoch.
///
/// Otherwise a payment that was not made is never made.
pub async fn a_not_applied_intent_runs_again<H: Harness>(harness: &H) {
    let trial = Trial::of("a_not_applied_intent_runs_again", harness).await;
    for effect in Effect::ALL {
        let claim = Claim { effect, ..trial.claim(effect.as_str()) };
        let first = trial.lapsed(harness, &claim).await;
        trial.ruled(&claim, Ruling::NotApplied, None).await;
        let note = trial.record(&claim).await.decision;
        trial.equal(note.map(|note| note.ruling), Some("not_applied".to_owned()), "the ruling");
        let second = trial.run(&trial.claim(effect.as_str())).await;
        trial.check(second.epoch > first.epoch, "the next attempt has no higher epoch");
    }
}

/// The note of a decision is kept when the intent is claimed and finished again.
///
/// Otherwise the trace of "not applied, run it again" is gone when it is needed.
pub async fn a_note_survives_the_next_claim<H: Harness>(harness: &H) {
    let trial = Trial::of("a_note_survives_the_next_claim", harness).await;
    let claim = trial.claim("one");
    trial.done(&claim, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&claim, Ruling::NotApplied, None).await;
    let note = trial.record(&claim).await.decision;
    trial.check(note.is_some(), "no note was kept");
    let ticket = trial.run(&trial.claim("one")).await;
    trial.equal(trial.record(&claim).await.decision, note.clone(), "the note after the claim");
    trial.equal(trial.finish(ticket, completed("done")).await, Finished::Recorded, "the outcome");
    trial.equal(trial.record(&claim).await.decision, note, "the note after the finish");
}

/// After a decision the last owner is stale: it can neither finish nor renew.
///
/// Otherwise a zombie changes an answer that a person has decided.
pub async fn a_decision_fences_the_last_owner<H: Harness>(harness: &H) {
    let trial = Trial::of("a_decision_fences_the_last_owner", harness).await;
    for (key, ruling) in [("applied", APPLIED), ("not applied", Ruling::NotApplied)] {
        let claim = trial.claim(key);
        let ticket = trial.lapsed(harness, &claim).await;
        trial.ruled(&claim, ruling, Some(Outcome::new(200, "decided"))).await;
        let before = trial.record(&claim).await;
        trial.check(before.head.epoch > ticket.epoch, "the decision has no higher epoch");
        trial.equal(
            trial.finish(ticket, completed("late")).await,
            Finished::Stale,
            "the last owner's outcome",
        );
        trial.equal(trial.renew(ticket, LONG_MS).await, Renewed::Stale, "the last owner's renewal");
        trial.unchanged(&claim, &before, "the last owner").await;
    }
}

/// A decision is about the epoch that was seen; if the record has changed, or is gone, it is stale.
///
/// Otherwise two people decide on the same payment, and the second one overrides the first.
pub async fn a_decision_about_something_older_is_stale<H: Harness>(harness: &H) {
    let trial = Trial::of("a_decision_about_something_older_is_stale", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&claim, APPLIED, None).await;
    let before = trial.record(&claim).await;
    for ruling in [APPLIED, Ruling::NotApplied, Ruling::Release] {
        let answer = trial.decide(&claim, decision(ticket.epoch, ruling)).await;
        trial.check(matches!(answer, Decided::Stale), format_args!("{ruling:?} was answered {answer:?}"));
    }
    trial.unchanged(&claim, &before, "a stale decision").await;

    // It is uncertain again, but under another epoch than the one that was seen.
    let doubted = trial.claim("twice");
    let first = trial.done(&doubted, finish(Verdict::Uncertain, None)).await;
    trial.ruled(&doubted, Ruling::NotApplied, None).await;
    trial.done(&trial.claim("twice"), finish(Verdict::Uncertain, None)).await;
    let answer = trial.decide(&doubted, decision(first.epoch, Ruling::NotApplied)).await;
    trial.check(matches!(answer, Decided::Stale), format_args!("a later uncertain state: {answer:?}"));

    let unknown = trial.claim("unknown");
    let answer = trial.decide(&unknown, decision(ticket.epoch, APPLIED)).await;
    trial.check(matches!(answer, Decided::Stale), format_args!("an unknown intent: {answer:?}"));
    let gone = trial.claim("gone");
    let forgotten = trial.expired(harness, &gone).await;
    let answer = trial.decide(&gone, decision(forgotten.epoch, Ruling::Release)).await;
    trial.check(matches!(answer, Decided::Stale), format_args!("an expired intent: {answer:?}"));
}

/// A live claim cannot be decided.
///
/// Otherwise a hasty decision makes the effect happen twice: once by the owner, once by the retry.
pub async fn a_live_claim_is_not_decided_over<H: Harness>(harness: &H) {
    let trial = Trial::of("a_live_claim_is_not_decided_over", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.run(&claim).await;
    let before = trial.record(&claim).await;
    for ruling in [APPLIED, Ruling::NotApplied, Ruling::Release] {
        let answer = trial.decide(&claim, decision(ticket.epoch, ruling)).await;
        let refused = matches!(answer, Decided::Refused(State::InProgress));
        trial.check(refused, format_args!("{ruling:?} over a live claim was answered {answer:?}"));
    }
    trial.unchanged(&claim, &before, "a refused decision").await;
    trial.equal(trial.finish(ticket, completed("mine")).await, Finished::Recorded, "the owner's outcome");
}

/// A stored outcome that is released runs again, under a higher epoch.
///
/// Otherwise a wrong answer is replayed until its retention ends.
pub async fn a_released_outcome_runs_again<H: Harness>(harness: &H) {
    let trial = Trial::of("a_released_outcome_runs_again", harness).await;
    for (key, verdict) in [("done", Verdict::Completed), ("refused", Verdict::FailedFinal)] {
        let claim = trial.claim(key);
        let first = trial.done(&claim, finish(verdict, Some(Outcome::new(200, "wrong")))).await;
        trial.ruled(&claim, Ruling::Release, None).await;
        let released = trial.record(&claim).await;
        trial.equal(released.outcome, None, "the withdrawn outcome");
        trial.equal(released.decision.map(|it| it.ruling), Some("released".to_owned()), "the ruling");
        let second = trial.run(&trial.claim(key)).await;
        trial.check(second.epoch > first.epoch, "the next attempt has no higher epoch");
    }
}

/// "Uncertain" is not a decision, an uncertain intent cannot be released, and a finished one cannot be decided again.
///
/// Otherwise a typo at the console runs a payment again.
pub async fn a_decision_fits_the_state<H: Harness>(harness: &H) {
    let trial = Trial::of("a_decision_fits_the_state", harness).await;
    let open = trial.claim("open");
    trial.done(&open, finish(Verdict::Uncertain, None)).await;
    let lapsed = trial.claim("lapsed");
    trial.lapsed(harness, &lapsed).await;
    let done = trial.claim("done");
    trial.done(&done, completed("done")).await;
    let unsure = Ruling::Applied(Verdict::Uncertain);
    for (claim, ruling, state) in [
        (&open, unsure, State::Uncertain),
        (&open, Ruling::Release, State::Uncertain),
        (&lapsed, unsure, State::Uncertain),
        (&lapsed, Ruling::Release, State::Uncertain),
        (&done, unsure, State::Completed),
        (&done, APPLIED, State::Completed),
        (&done, Ruling::NotApplied, State::Completed),
    ] {
        let before = trial.record(claim).await;
        let answer = trial.decide(claim, decision(before.head.epoch, ruling)).await;
        let refused = matches!(answer, Decided::Refused(it) if it == state);
        trial.check(refused, format_args!("{ruling:?} on {state:?} was answered {answer:?}"));
        trial.unchanged(claim, &before, "a refused decision").await;
    }
}

/// `by` and `why` are kept up to their limits, cut at a character boundary.
///
/// Otherwise a long note is an error at the worst moment, or the record cannot be read again.
pub async fn a_note_is_cut_between_characters<H: Harness>(harness: &H) {
    let trial = Trial::of("a_note_is_cut_between_characters", harness).await;
    // Two-byte characters shifted by one byte: the limit falls into the middle of one.
    let long = |bytes: usize| format!("x{}", "ä".repeat(bytes));
    for (key, by, why, by_kept, why_kept) in [
        ("long", long(200), long(2_000), 199, 1_999),
        ("exact", "b".repeat(200), "w".repeat(2_000), 200, 2_000),
        ("empty", String::new(), String::new(), 0, 0),
    ] {
        let claim = trial.claim(key);
        let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
        let noted = Decide { by: by.clone(), why: why.clone(), ..decision(ticket.epoch, APPLIED) };
        let answer = trial.decide(&claim, noted).await;
        trial.check(matches!(answer, Decided::Recorded), format_args!("it was answered {answer:?}"));
        let Some(note) = trial.record(&claim).await.decision else { trial.fail("no note was kept") };
        trial.equal((note.by.len(), note.why.len()), (by_kept, why_kept), "the bytes kept");
        trial.check(by.starts_with(&note.by) && why.starts_with(&note.why), "the note was changed");
    }
}

/// A decision's outcome has the same size limit and retention as any other.
///
/// Otherwise it expires at once, or never, or breaks the store.
pub async fn a_decided_outcome_is_kept_like_any_other<H: Harness>(harness: &H) {
    let trial = Trial::of("a_decided_outcome_is_kept_like_any_other", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
    let before = trial.record(&claim).await;
    let large = Outcome::new(200, vec![b'x'; OUTCOME_BYTES_MAX]);
    let decide = Decide { outcome: Some(large), ..decision(ticket.epoch, APPLIED) };
    match trial.store.decide(claim.intent.id(), decide).await {
        Err(error) => trial.equal(error.kind(), ErrorKind::TooLarge, "the kind of error"),
        Ok(answer) => trial.fail(format_args!("an outcome that is too large was answered {answer:?}")),
    }
    trial.unchanged(&claim, &before, "a refused decision").await;

    let short = Decide { retention: Retention::Ms(SHORT_MS), ..decision(ticket.epoch, APPLIED) };
    let answer = trial.decide(&claim, short).await;
    trial.check(matches!(answer, Decided::Recorded), format_args!("it was answered {answer:?}"));
    trial.wait(harness, SHORT_MS).await;
    trial.check(trial.answered(trial.store.get(claim.intent.id()).await).is_none(), "it did not expire");
    trial.done(&trial.claim("one"), Finish::release(Retention::DAY)).await;
}
