//! Undo: in reverse, from the journal, and never past the pivot.

use semel::saga::{Definition, Saga, SagaEnd, SagaError, SagaResult, Status, UndoCause};

use super::shop::{Charge, Does, Hold, Open, Price, Shop, Truck, completed, definition};

fn undone(why: &str) -> SagaEnd<String> {
    SagaEnd::Undone { cause: UndoCause::Refused, why: why.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_undoes_in_reverse_what_happened() {
    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::Refuses]);
    for _ in 0..2 {
        assert_eq!(open.once("k").await.unwrap(), undone("no"));
    }
    assert_eq!(open.shop.effects(), ["hold", "truck", "price", "no truck", "release"]);
    assert_eq!(open.only().await.row.status, Status::Undone);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_was_refused_is_not_undone() {
    let open = Open::new(definition(false));
    open.shop.script("truck", [Does::Refuses]);
    assert_eq!(open.once("k").await.unwrap(), undone("no"));
    assert_eq!(open.shop.effects(), ["hold", "release"]);
}

/// The first attempt was lost, and may have happened; the second was refused. So it is undone, without a result, and
/// only when the first cannot arrive any more.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_attempt_with_unknown_result_is_undone_as_perhaps() {
    let open = Open::new(definition(false));
    open.shop.script("truck", [Does::LosesTheCall, Does::Refuses]);
    let begin = tokio::time::Instant::now();
    assert_eq!(open.once("k").await.unwrap(), undone("no"));
    assert_eq!(open.shop.effects(), ["hold", "no truck perhaps", "release"]);
    assert!(begin.elapsed().as_secs() >= 15, "timeout and settle delay after the attempt");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_too_often_is_a_refusal() {
    let open = Open::new(definition(false));
    open.shop.script("truck", [Does::Fails, Does::Fails, Does::Fails]);
    let end = open.once("k").await.unwrap();
    assert_eq!(end, undone("failed 3 times: try again"));
    assert_eq!(open.shop.effects(), ["hold", "release"]);
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_fails_is_tried_again_and_earlier_ones_wait() {
    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::Refuses]);
    open.shop.script("no truck", [Does::Fails, Does::TakesAndLosesTheAnswer]);
    assert_eq!(open.once("k").await.unwrap(), undone("no"));
    assert_eq!(open.shop.effects(), ["hold", "truck", "price", "no truck", "release"]);
    assert_eq!(open.shop.calls("no truck"), 3);
}

/// An undo that never works parks the saga: no hot loop, nothing forgotten.
#[tokio::test(start_paused = true)]
async fn an_undo_that_never_works_is_parked() {
    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::Refuses]);
    open.shop.script("no truck", [Does::Fails, Does::Fails, Does::Fails]);
    let parked = open.once("k").await.unwrap_err();
    assert!(
        matches!(parked, SagaError::Parked { reason: semel::saga::ParkReason::UndoStuck, .. }),
        "{parked}"
    );
    tokio::time::sleep(std::time::Duration::from_secs(7_200)).await;
    assert_eq!(open.shop.calls("no truck"), 3);
    assert_eq!(open.shop.calls("release"), 0, "an earlier step is not undone before a later one");
}

#[tokio::test(start_paused = true)]
async fn a_saga_whose_code_refuses_is_undone() {
    async fn dear(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku.clone()).await?;
        saga.run(Price, sku).await?;
        Err(semel::saga::Refused::new("too dear"))
    }
    let open = Open::new(Definition::new("order", 1, dear).step(Hold).step(Price));
    assert_eq!(open.once("k").await.unwrap(), undone("too dear"));
    assert_eq!(open.shop.effects(), ["hold", "price", "release"], "a price has nothing to undo");
}

#[tokio::test(start_paused = true)]
async fn after_the_pivot_steps_are_tried_until_they_happen_or_parked() {
    let open = Open::new(definition(false));
    open.shop.script("mail", [Does::Fails, Does::TakesAndLosesTheAnswer]);
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.effects(), ["hold", "truck", "price", "charge", "mail"]);
    // Refused for good: nothing is undone, and a person sees that a charge was in vain.
    open.shop.script("mail", [Does::Refuses]);
    let parked = open.once("other").await.unwrap_err();
    assert!(
        matches!(parked, SagaError::Parked { reason: semel::saga::ParkReason::ForwardStuck, .. }),
        "{parked}"
    );
    assert_eq!(open.shop.calls("release"), 0);
}

/// The sibling of a refused step is waited for, written down, and undone.
#[tokio::test(start_paused = true)]
async fn a_parallel_step_that_is_dropped_by_the_code_is_undone_too() {
    async fn either(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        let (hold, _) = tokio::try_join!(saga.run(Hold, sku), saga.run(Truck, 7))?;
        let (paid, _) = saga.pivot(Charge { lookup: false }, 1).await?;
        Ok(hold + &paid)
    }
    let definition =
        Definition::new("order", 1, either).step(Hold).step(Truck).step(Charge { lookup: false });
    let open = Open::new(definition);
    open.shop.script("truck", [Does::Refuses]);
    assert_eq!(open.once("k").await.unwrap(), undone("no"));
    assert_eq!(open.shop.effects(), ["hold", "release"]);
}
