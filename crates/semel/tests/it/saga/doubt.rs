//! Doubt: an unknown result is looked up, or parks the saga; it is never guessed.

use std::time::Duration;

use semel::saga::{
    Definition, LookedUp, ParkReason, Saga, SagaEnd, SagaError, SagaResult, Status, UndoCause,
};

use super::shop::{Does, Hold, Open, Price, Shop, completed, definition};

fn reason(result: Result<SagaEnd<String>, SagaError>) -> ParkReason {
    match result {
        Err(SagaError::Parked { reason, .. }) => reason,
        other => panic!("not parked: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_opaque_step_whose_answer_is_lost_is_never_called_again() {
    for does in [Does::TakesAndLosesTheAnswer, Does::LosesTheCall, Does::Hangs, Does::Panics] {
        let open = Open::new(definition(false));
        open.shop.script("charge", [does.clone()]);
        assert_eq!(reason(open.once("k").await), ParkReason::UnknownResult, "{does:?}");
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(reason(open.once("k").await), ParkReason::UnknownResult);
        assert_eq!((open.shop.calls("charge"), open.shop.calls("release")), (1, 0), "{does:?}");
        assert_eq!(open.only().await.row.status, Status::Parked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_finds_out_and_the_saga_goes_on() {
    let open = Open::new(definition(true));
    open.shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    let begin = tokio::time::Instant::now();
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert!(begin.elapsed() >= Duration::from_secs(10), "not before the call is over and has settled");
    // It never arrived: the same key may be charged again.
    open.shop.script("charge", [Does::LosesTheCall]);
    assert_eq!(open.once("other").await.unwrap(), completed());
    let charges = open.shop.effects().iter().filter(|name| *name == "charge").count();
    assert_eq!((charges, open.shop.calls("charge"), open.shop.calls("look up")), (2, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_does_not_know_is_asked_again_ever_more_rarely() {
    let open = Open::new(definition(true));
    open.shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    open.shop.ledger().lookup = Some(LookedUp::Unknown);
    assert_eq!(reason(open.once("k").await), ParkReason::UnknownResult);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let asked = open.shop.calls("look up");
    assert!((8..=30).contains(&asked), "{asked} times in an hour");
    open.shop.ledger().lookup = None;
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.calls("charge"), 1);
}

/// A day after the first attempt the participant may have forgotten the key: calling again might hold twice.
#[tokio::test(start_paused = true)]
async fn a_keyed_step_is_not_called_any_more_when_its_key_may_be_forgotten() {
    let open = Open::new(definition(false));
    open.shop.script("hold", std::iter::repeat_n(Does::LosesTheCall, 100));
    let parked = open.once("k").await;
    // The hold gives up after its attempts; its key is still safe then.
    assert_eq!(reason(parked), ParkReason::UnknownResult);
    let calls = open.shop.calls("hold");
    assert_eq!(calls, semel::saga::ATTEMPTS_MAX as usize);
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    assert_eq!(open.shop.calls("hold"), calls);
}

#[tokio::test(start_paused = true)]
async fn code_that_changed_is_noticed_and_nothing_is_called() {
    async fn changed(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Price, sku).await?;
        Ok("cheap".to_owned())
    }
    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::LosesTheCall]);
    assert_eq!(reason(open.once("k").await), ParkReason::UnknownResult);
    open.sagas.drain(Duration::from_secs(1)).await;
    let calls = open.shop.ledger().calls.len();
    let definition = Definition::new("order", 1, changed).step(Price).step(Hold);
    let next = Open::over(open.journal.clone(), open.shop.clone(), definition);
    // Somebody cancels it, and so wakes it; but its pivot has begun.
    let number = next.only().await.number;
    next.sagas.cancel(number).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(next.only().await.row.reason, Some(ParkReason::Changed));
    assert_eq!(next.shop.ledger().calls.len(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_not_declared_parks_the_saga() {
    async fn undeclared(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku).await
    }
    let open = Open::new(Definition::new("order", 1, undeclared).step(Price));
    assert_eq!(reason(open.once("k").await), ParkReason::NoHandler);
    assert_eq!(open.shop.ledger().calls.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_saga_whose_code_panics_is_parked() {
    async fn panics(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku).await?;
        panic!("a bug")
    }
    let open = Open::new(Definition::new("order", 1, panics).step(Hold));
    assert_eq!(reason(open.once("k").await), ParkReason::Panicked);
    assert_eq!(open.shop.effects(), ["hold"]);
}

#[tokio::test(start_paused = true)]
async fn cancelling_before_the_pivot_undoes_and_after_it_does_nothing() {
    let open = Open::new(definition(false));
    open.shop.script("truck", [Does::Hangs]);
    let caller = tokio::spawn({
        let (sagas, order) = (open.sagas.clone(), open.order.clone());
        async move {
            let (acme, key) = (semel::Scope::tenant("acme").unwrap(), semel::Key::new("k").unwrap());
            sagas.once(&order, &acme, &key, &"book".to_owned()).await
        }
    });
    while open.shop.calls("truck") == 0 {
        tokio::task::yield_now().await;
    }
    open.sagas.cancel(open.only().await.number).await.unwrap();
    let end = caller.await.unwrap().unwrap();
    assert_eq!(end, SagaEnd::Undone { cause: UndoCause::Cancelled, why: "cancelled".to_owned() });
    // The call that hung is settled first: it is repeated under its key, and then undone.
    assert_eq!(open.shop.effects(), ["hold", "truck", "no truck", "release"]);
}
