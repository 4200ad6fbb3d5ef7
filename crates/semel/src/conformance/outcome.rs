//! Laws of what is replayed: the outcome as it was, or a refusal to keep it.

use bytes::Bytes;

use super::Harness;
use super::context::{Trial, completed, finish};
use crate::intent::outcome::{Body, Headers, OUTCOME_BYTES_MAX, OUTCOME_HEADERS_MAX, Outcome, Verdict};
use crate::intent::state::State;
use crate::store::{ErrorKind, Fate, Finished, Store};

fn every_byte() -> Bytes {
    (0..=u8::MAX).collect()
}

/// Stores the outcome and checks what a later caller, and one who looks, are given.
async fn kept<S: Store>(trial: &Trial<S>, key: &str, outcome: Outcome) {
    trial.done(&trial.claim(key), finish(Verdict::Completed, Some(outcome.clone()))).await;
    let replayed = trial.meet(&trial.claim(key), "replay").await.record;
    // Bodies of megabytes are not put into a message.
    trial.check(
        replayed.outcome.as_ref() == Some(&outcome),
        format_args!("{key}: another outcome is replayed"),
    );
    let shown = trial.record(&trial.claim(key)).await;
    trial.check(shown.outcome.as_ref() == Some(&outcome), format_args!("{key}: another outcome is shown"));
}

/// An outcome is replayed byte for byte: body, header values, their order, the code.
///
/// Otherwise a signed or compressed answer is worthless the second time.
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
    trial.equal(none.outcome.clone(), None, "an outcome where none was brought");
}

/// An empty body and a body that was not kept are told apart.
///
/// Otherwise a caller takes an answer that was too large for one that was empty.
pub async fn an_empty_body_is_not_a_missing_one<H: Harness>(harness: &H) {
    let trial = Trial::of("an_empty_body_is_not_a_missing_one", harness).await;
    let empty = Outcome::new(204, "").header("x-kept", "yes");
    kept(&trial, "missing", empty.tombstone()).await;
    kept(&trial, "empty", empty).await;
    kept(&trial, "bare", Outcome { code: 200, headers: Headers::NONE, body: Body::NotKept }).await;
}

/// As many headers as are allowed come back, and one more is refused.
///
/// Otherwise an answer loses the headers that made it an answer.
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

/// An outcome of 1 MiB comes back whole, and so does the largest there may be.
///
/// Otherwise the caller of a large report gets half of it, and a success code.
pub async fn a_large_outcome_comes_back_whole<H: Harness>(harness: &H) {
    let trial = Trial::of("a_large_outcome_comes_back_whole", harness).await;
    let patterned =
        |len: usize| -> Bytes { (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect() };
    kept(&trial, "1 MiB", Outcome::new(200, patterned(1 << 20))).await;
    let frame = Outcome::new(200, "").encoded_len();
    let largest = Outcome::new(200, patterned(OUTCOME_BYTES_MAX - frame));
    trial.check(largest.fits(), "the law's own outcome is too large");
    kept(&trial, "largest", largest).await;
}

/// Too large an outcome is refused as such, nothing is changed, and the owner may finish with a smaller one.
///
/// Otherwise the record is lost with the outcome, and work that was done is run again.
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
            trial.check(!error.may_retry(), "it is said to be worth a retry");
        }
        Ok(answer) => trial.fail(format_args!("too large an outcome was answered {answer:?}")),
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
/// Otherwise a declined card is tried again by every retry, until the bank blocks it.
pub async fn a_final_failure_is_replayed<H: Harness>(harness: &H) {
    let trial = Trial::of("a_final_failure_is_replayed", harness).await;
    let declined = Outcome::new(402, "card declined");
    trial.done(&trial.claim("declined"), finish(Verdict::FailedFinal, Some(declined.clone()))).await;
    let met = trial.meet(&trial.claim("declined"), "replay").await;
    trial.equal(met.record.head.state, State::FailedFinal, "the state");
    trial.equal(met.record.outcome.clone(), Some(declined), "the outcome");
}

/// The first outcome an owner brings stands. The second is answered `Already`, or, where its verdict is another one,
/// with the state that stands.
///
/// Otherwise two callers of one intent are given two different answers, or one that is not stored is told as stored.
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
