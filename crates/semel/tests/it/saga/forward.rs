//! Forward: each step once, whatever fails on the way.

use semel::saga::{
    Definition, Journal, NewSaga, ParkReason, Saga, SagaEnd, SagaError, SagaFilter, SagaResult, SagasBuilder,
};

use super::shop::{
    Charge, Does, Hold, Mail, Open, Price, Shop, Truck, completed, definition, journal, options,
};

const ALL: [&str; 5] = ["hold", "truck", "price", "charge", "mail"];

#[tokio::test(start_paused = true)]
async fn a_saga_runs_its_steps_and_a_retry_gets_the_same_answer() {
    let open = Open::new(definition(false));
    for _ in 0..3 {
        assert_eq!(open.once("k1").await.unwrap(), completed());
    }
    assert_eq!(open.shop.effects(), ALL);
    assert!(matches!(open.once_with("k1", "another book").await, Err(SagaError::Mismatch)));
    open.once("k2").await.unwrap();
    assert_eq!(open.shop.effects().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_key_share_one_saga() {
    let open = Open::new(definition(false));
    let (one, other) = tokio::join!(open.once("k"), open.once("k"));
    assert_eq!((one.unwrap(), other.unwrap()), (completed(), completed()));
    assert_eq!(open.shop.effects(), ALL);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_failed_without_effect_is_tried_again() {
    let open = Open::new(definition(false));
    open.shop.script("hold", [Does::Fails, Does::Fails]);
    open.shop.script("charge", [Does::Fails]);
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.effects(), ALL);
    assert_eq!((open.shop.calls("hold"), open.shop.calls("charge")), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_keyed_step_whose_answer_is_lost_is_called_again_with_its_key() {
    let open = Open::new(definition(false));
    open.shop.script("hold", [Does::TakesAndLosesTheAnswer, Does::Hangs, Does::Panics]);
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.effects(), ALL);
    assert_eq!(open.shop.calls("hold"), 4);
}

/// What is due when a process starts is taken as it has room, not all at once: other processes may have the rest.
#[tokio::test(start_paused = true)]
async fn a_process_takes_no_more_sagas_than_it_runs() {
    async fn holds(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku).await
    }
    let (journal, shop) = (journal(), Shop::default());
    shop.script("hold", std::iter::repeat_n(Does::Hangs, 20));
    for n in 0..20 {
        let key = semel::Key::new(format!("k{n}")).unwrap();
        let operation = semel::Operation::new("order").unwrap();
        let saga = NewSaga {
            intent: semel::Intent::new(semel::Scope::tenant("acme").unwrap(), operation, key),
            fingerprint: semel::intent::fingerprint::Recipe::default().value(&"book").unwrap(),
            name: "order".to_owned(),
            version: 1,
            input: bytes::Bytes::from_static(b"\"book\""),
            deadline_ms: None,
            worker: None,
        };
        journal.start(saga).await.unwrap();
    }
    let mut options = options();
    options.running_max = 2;
    let mut sagas = SagasBuilder::new(journal.clone(), shop.clone()).options(options);
    sagas.register(Definition::new("order", 1, holds).step(Hold)).unwrap();
    let sagas = sagas.start();
    while shop.calls("hold") == 0 {
        tokio::task::yield_now().await;
    }
    let taken = sagas.list(SagaFilter::default()).await.unwrap();
    assert_eq!(taken.iter().filter(|saga| saga.row.worker.is_some()).count(), 2);
}

/// Branches that run beside each other use one step: after a crash each gets its own result again.
#[tokio::test(start_paused = true)]
async fn parallel_branches_go_on_in_the_order_of_the_journal() {
    async fn branches(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        let first = async {
            saga.run(Truck, 7).await?;
            saga.run(Hold, format!("{sku} first")).await
        };
        let second = async {
            saga.run(Price, sku.clone()).await?;
            saga.run(Hold, format!("{sku} second")).await
        };
        let (one, other) = tokio::join!(first, second);
        one?;
        other?;
        saga.sleep(std::time::Duration::from_secs(60)).await;
        Ok("both".to_owned())
    }
    let open = Open::new(Definition::new("order", 1, branches).step(Hold).step(Truck).step(Price));
    // The second branch is first.
    open.shop.script("truck", [Does::Fails]);
    assert_eq!(open.once("k").await.unwrap(), SagaEnd::Completed("both".to_owned()));
    assert_eq!(open.shop.effects(), ["price", "hold", "truck", "hold"]);
    assert_eq!(open.sagas.waited_for(), 0, "no caller waits any more");
}

/// The code handles a refusal, and the saga goes on beyond its pivot, also when it is run again.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_the_code_handled_is_answered_again() {
    async fn handles(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        if saga.run(Hold, sku).await.is_err() {
            saga.run(Truck, 7).await?;
        }
        let (paid, saga) = saga.pivot(Charge { lookup: false }, 42).await?;
        saga.sleep(std::time::Duration::from_secs(60)).await;
        saga.run(Mail, paid.clone()).await;
        Ok(paid)
    }
    let definition = Definition::new("order", 1, handles).step(Hold).step(Truck);
    let open = Open::new(definition.step(Charge { lookup: false }).step(Mail));
    open.shop.script("hold", [Does::Refuses]);
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.effects(), ["truck", "charge", "mail"]);
}

/// A refusal after an attempt that may have had an effect cannot be waved through.
#[tokio::test(start_paused = true)]
async fn what_perhaps_happened_is_not_forgotten_when_the_code_completes() {
    async fn ignores(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        let _ = saga.run(Hold, sku).await;
        Ok("whatever".to_owned())
    }
    let open = Open::new(Definition::new("order", 1, ignores).step(Hold));
    open.shop.script("hold", [Does::TakesAndLosesTheAnswer, Does::Refuses]);
    assert!(matches!(open.once("k").await, Err(SagaError::Parked { .. })));
}

/// What the journal will never take parks the saga, and does not run for ever.
#[tokio::test(start_paused = true)]
async fn an_input_that_is_too_large_parks_the_saga() {
    async fn large(saga: Saga<Shop>, _: String) -> SagaResult<String> {
        saga.run(Hold, "x".repeat(2_000_000)).await
    }
    let open = Open::new(Definition::new("order", 1, large).step(Hold));
    let parked = open.once("k").await;
    assert!(
        matches!(parked, Err(SagaError::Parked { reason: ParkReason::JournalRefused, .. })),
        "{parked:?}"
    );
    assert_eq!(open.shop.calls("hold"), 0);
}

/// Parallel steps begin together, and are answered from the journal one by one.
#[tokio::test(start_paused = true)]
async fn parallel_steps_run_beside_each_other() {
    async fn both(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        let (hold, truck) = tokio::join!(saga.run(Hold, sku), saga.run(Truck, 7));
        Ok(format!("{} and {}", hold?, truck?))
    }
    let open = Open::new(Definition::new("order", 1, both).step(Hold).step(Truck));
    open.shop.script("hold", [Does::Hangs]);
    assert_eq!(open.once("k").await.unwrap(), SagaEnd::Completed("hold done and truck done".to_owned()));
    // The truck did not wait for the hold that hung.
    assert_eq!(open.shop.effects(), ["truck", "hold"]);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_drains_leaves_its_sagas_to_the_next() {
    let open = Open::new(definition(false));
    open.shop.script("truck", [Does::Fails]);
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
    assert_eq!(open.sagas.drain(std::time::Duration::from_secs(60)).await, 0);
    assert!(matches!(open.once("other").await, Err(SagaError::Stopping)));
    let next = Open::over(open.journal.clone(), open.shop.clone(), definition(false));
    // The first process's caller hears of it by asking the journal.
    assert_eq!(caller.await.unwrap().unwrap(), completed());
    assert_eq!(next.once("k").await.unwrap(), completed());
    assert_eq!(next.shop.effects(), ALL);
}
