//! What the body says of a failure is what is remembered, and what every caller sees.

use semel::guard::FailureKind;
use semel::{Failure, GuardError, OnceError, State};

use crate::world::{Effects, Memory, acme, guard, record};

#[semel::idempotent(operation = "fail", guard = guard, scope = "acme", key = key, skip(effects))]
async fn opaque(guard: &Memory, key: &str, how: String, effects: Effects) -> Result<u32, OnceError> {
    let run = effects.happen();
    match how.as_str() {
        "refused" => return Err(Failure::refused("declined").code(402)),
        "not applied" if run == 1 => Err(Failure::not_applied("no connection")),
        "unknown" => Ok(how.parse::<u32>()?),
        "panic" => panic!("on purpose"),
        _ => Ok(run),
    }
}

async fn failed(guard: &Memory, key: &str, effects: &Effects) -> (FailureKind, u16, String, bool) {
    match opaque(guard, key, key.to_owned(), effects.clone()).await {
        Err(OnceError::Failed { failure, replayed }) => {
            (failure.kind, failure.code, failure.message, replayed)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refusal_is_remembered_with_its_code() {
    let (guard, effects) = (guard(), Effects::default());
    for replayed in [false, true] {
        let answer = failed(&guard, "refused", &effects).await;
        assert_eq!(answer, (FailureKind::Final, 402, "declined".to_owned(), replayed));
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn what_was_not_applied_runs_again() {
    let (guard, effects) = (guard(), Effects::default());
    assert_eq!(failed(&guard, "not applied", &effects).await.0, FailureKind::NotApplied);
    let value = opaque(&guard, "not applied", "not applied".to_owned(), effects.clone()).await.unwrap();
    assert_eq!((value, effects.count()), (2, 2));
}

#[tokio::test]
async fn an_error_by_question_mark_and_a_panic_leave_an_opaque_effect_uncertain() {
    let (guard, effects) = (guard(), Effects::default());
    assert_eq!(failed(&guard, "unknown", &effects).await.0, FailureKind::Unknown);
    let panicked = opaque(&guard, "panic", "panic".to_owned(), effects.clone()).await;
    assert!(matches!(panicked, Err(OnceError::Guard(GuardError::Panicked { .. }))), "{panicked:?}");
    for key in ["unknown", "panic"] {
        let retry = opaque(&guard, key, key.to_owned(), effects.clone()).await;
        assert!(matches!(retry, Err(OnceError::Guard(GuardError::Uncertain { .. }))), "{retry:?}");
        assert_eq!(record(&guard, "fail", key).await.unwrap().head.state, State::Uncertain);
    }
    assert_eq!(effects.count(), 2);
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum PaymentError {
    #[error("declined: {0}")]
    Declined(String),
    #[error("semel: {0}")]
    Other(String),
}

impl From<OnceError> for PaymentError {
    fn from(error: OnceError) -> Self {
        match error {
            OnceError::Failed { failure, .. } if failure.code == 402 => Self::Declined(failure.message),
            other => Self::Other(other.to_string()),
        }
    }
}

#[semel::idempotent(operation = "own", effect = "keyed", guard = guard, scope = scope, key = "k", attempt = run)]
async fn own(guard: &Memory, scope: semel::Scope, good: bool) -> Result<(u32, String), PaymentError> {
    if good {
        Ok((run.number, run.child("charge").as_str().to_owned()))
    } else {
        Err(Failure::refused("no money").code(402))
    }
}

#[tokio::test]
async fn the_first_caller_and_the_retries_see_the_same_error_of_your_own() {
    let guard = guard();
    for _ in 0..2 {
        let declined = own(&guard, acme(), false).await;
        assert_eq!(declined, Err(PaymentError::Declined("no money".to_owned())));
    }
    assert!(matches!(own(&guard, acme(), true).await, Err(PaymentError::Other(_))), "a mismatch");
}

#[tokio::test]
async fn the_body_has_its_attempt_under_the_name_it_was_given() {
    let guard = guard();
    let (number, child) = own(&guard, acme(), true).await.unwrap();
    let intent = guard.operation("own").unwrap().intent(&acme(), &crate::world::key("k"));
    assert_eq!((number, child.as_str()), (1, intent.child("charge").as_str()));
}
