//! Laws of outcomes: replayed exactly as they were, or refused.

use bytes::Bytes;

use super::Harness;
use super::context::{Trial, completed, finish};
use crate::intent::outcome::{Body, Headers, OUTCOME_BYTES_MAX, OUTCOME_HEADERS_MAX, Outcome, Verdict};
use crate::intent::state::State;
use crate::store::{ErrorKind, Fate, Finished, Store};

fn every_byte() -> Bytes {
    (0..=u8::MAX).collect()
}

/// Stores the outcome and checks what a later claim and a lookup return.
async fn kept<S: Store>(trial: &Trial<S>, key: &str, outcome: Outcome) {
    trial.done(&trial.claim(key), finish(Verdict::Completed, Some(outcome.clone()))).await;
    let replayed = trial.meet(&trial.claim(key), "replay").await.record;
    // Not `equal`: it would print bodies of megabytes.
    trial.check(
        replayed.outcome.as_ref() == Some(&outcome),
        format_args!("{key}: another outcome is replayed"),
    );
    let shown = trial.record(&trial.claim(key)).await;
    trial.check(shown.outcome.as_ref() == Some(&outcome), format_args!("{key}: another outcome is shown"));
}

/// An outcome is replayed byte for byte: body, header values, their order, the code.
///
/// Otherwise a signed or compressed answer is useless the second time.
pub async fn an_outcome_comes_back_byte_for_byte<H: Harness>(harness: &H) {
    let trial = Trial::of("an_outcome_comes_back_byte_for_byte", harness).await;
    let binary = Outcome::new(201, every_byte())
        .header("x-bytes", every_byte())
        .header("set-cookie", "b=2")
        .header("Set-Cookie", "a=1")
        .header("set-cookie", "b=2")
        .header("x-empty", "");
    kept(&trial, "every byte", binary).await;
    kept(&trial, "nul and quote", Outcome::new(0, &b"\0'\"\\\0%s$1\r\n"[..])).await;
    kept(&trial, "highest code", Outcome::new(u16::MAX, "ünï")).await;
    trial.done(&trial.claim("none"), finish(Verdict::Completed, None)).await;
    let none = trial.meet(&trial.claim("none"), "replay").await.record;
    trial.equal(none.outcome.clone(), None, "an outcome although none was stored");
}

/// An empty body is not the same as a body that was not kept.
///
/// Otherwise a caller mistakes an answer that was too large for an empty one.
pub async fn an_empty_body_is_not_a_missing_one<H: Harness>(harness: &H) {
    let trial = Trial::of("an_empty_body_is_not_a_missing_one", harness).await;
    let empty = Outcome::new(204, "").header("x-kept", "yes");
    kept(&trial, "missing", empty.tombstone()).await;
    kept(&trial, "empty", empty).await;
    kept(&trial, "bare", Outcome { code: 200, headers: Headers::NONE, body: Body::NotKept }).await;
}

/// The maximum number of headers comes back, and one more is refused.
///
/// Otherwise an answer loses headers that its caller needs.
pub async fn every_header_comes_back<H: Harness>(harness: &H) {
    let trial = Trial::of("every_header_comes_back", harness).await;
    let mut outcome = Outcome::new(200, "ok");
    for number in 0..OUTCOME_HEADERS_MAX {
        outcome = outcome.header(format!("x-{number}"), number.to_string());
    }
    kept(&trial, "all", outcome.clone()).await;
    let ticket = trial.run(&trial.claim("one more")).await;
    let more = finish(Verdict::Completed, Some(outcome.header("x-more", "1")));
    match trial.store.finish(ticket, more).await {
        Err(error) => trial.equal(error.kind(), ErrorKind::TooLarge, "the kind of error"),
        Ok(answer) => trial.fail(format_args!("too many headers were answered {answer:?}")),
    }
}

/// An outcome of 1 MiB comes back whole, and so does the largest one allowed.
///
/// Otherwise the caller of a large report gets half of it with a success code.
pub async fn a_large_outcome_comes_back_whole<H: Harness>(harness: &H) {
    let trial = Trial::of("a_large_outcome_comes_back_whole", harness).await;
    let patterned =
        |len: usize| -> Bytes { (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect() };
    kept(&trial, "1 MiB", Outcome::new(200, patterned(1 << 20))).await;
    let frame = Outcome::new(200, "").encoded_len();
    let largest = Outcome::new(200, patterned(OUTCOME_BYTES_MAX - frame));
    trial.check(largest.fits(), "the test's own outcome is too large");
    kept(&trial, "largest", largest).await;
}

/// An outcome that is too large is refused with that error, nothing changes, and the owner may finish with a smaller
/// one.
///
/// Otherwise the record is lost with the outcome, and finished work runs again.
pub async fn too_large_an_outcome_is_refused_and_the_claim_stays<H: Harness>(harness: &H) {
    let trial = Trial::of("too_large_an_outcome_is_refused_and_the_claim_stays", harness).await;
    let claim = trial.claim("large");
    let ticket = trial.run(&claim).await;
    let before = trial.record(&claim).await;
    let large = Outcome::new(200, vec![b'x'; OUTCOME_BYTES_MAX]);
    match trial.store.finish(ticket, finish(Verdict::Completed, Some(large.clone()))).await {
        Err(error) => {
            trial.equal(error.kind(), ErrorKind::TooLarge, "the kind of error");
            trial.equal(error.fate(), Fate::NotApplied, "its fate");
            trial.check(!error.may_retry(), "the error claims that a retry may help");
        }
        Ok(answer) => trial.fail(format_args!("an outcome that is too large was answered {answer:?}")),
    }
    trial.unchanged(&claim, &before, "a refused outcome").await;
    let tombstone = finish(Verdict::Completed, Some(large.tombstone()));
    trial.equal(trial.finish(ticket, tombstone).await, Finished::Recorded, "the smaller outcome");
    let met = trial.meet(&trial.claim("large"), "replay").await;
    trial.equal(
        met.record.outcome.clone().map(|it| it.body),
        Some(Body::NotKept),
        "the body of the tombstone",
    );
}

/// A final failure is replayed like a success, with its outcome.
///
/// Otherwise every retry charges a declined card again, until the bank blocks it.
pub async fn a_final_failure_is_replayed<H: Harness>(harness: &H) {
    let trial = Trial::of("a_final_failure_is_replayed", harness).await;
    let declined = Outcome::new(402, "card declined");
    trial.done(&trial.claim("declined"), finish(Verdict::FailedFinal, Some(declined.clone()))).await;
    let met = trial.meet(&trial.claim("declined"), "replay").await;
    trial.equal(met.record.head.state, State::FailedFinal, "the state");
    trial.equal(met.record.outcome.clone(), Some(declined), "the outcome");
}

/// The first outcome of an owner stands. A second one is answered `Already`, or, if its verdict differs, with the state
/// that stands.
///
/// Otherwise two callers of one intent get different answers, or an outcome is reported as stored that is not.
pub async fn the_first_outcome_stands<H: Harness>(harness: &H) {
    let trial = Trial::of("the_first_outcome_stands", harness).await;
    let verdicts = [Verdict::Completed, Verdict::FailedFinal, Verdict::FailedRetryable];
    for (number, first) in verdicts.into_iter().enumerate() {
        for (other, second) in Verdict::ALL.into_iter().enumerate() {
            let claim = trial.claim(&format!("{number} then {other}"));
            let ticket = trial.done(&claim, finish(first, Some(Outcome::new(200, "first")))).await;
            let before = trial.record(&claim).await;
            let again = finish(second, Some(Outcome::new(500, "second")));
            let answer =
                if first == second { Finished::Already } else { Finished::Other(State::from(first)) };
            trial.equal(trial.finish(ticket, again).await, answer, "a second outcome");
            trial.unchanged(&claim, &before, "a second outcome").await;
        }
    }
    let claim = trial.claim("repeated");
    let ticket = trial.done(&claim, completed("first")).await;
    trial.equal(trial.finish(ticket, completed("first")).await, Finished::Already, "the same outcome again");
}
