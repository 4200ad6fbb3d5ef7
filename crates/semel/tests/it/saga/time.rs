//! Time: sleeps, signals, deadlines and retention.

use std::time::Duration;

use semel::saga::{
    Definition, Saga, SagaEnd, SagaError, SagaFilter, SagaResult, Signalled, Status, UndoCause,
};

use super::shop::{Hold, Open, Price, Shop, completed, definition};

const HOUR: Duration = Duration::from_secs(3_600);

async fn approved(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
    saga.run(Hold, sku.clone()).await?;
    match saga.signal::<String>("approval", Some(HOUR)).await {
        Some(by) => {
            saga.run(Price, sku).await?;
            Ok(format!("approved by {by}"))
        }
        None => Err(semel::saga::Refused::new("no approval")),
    }
}

fn with_approval() -> Open {
    Open::new(Definition::new("order", 1, approved).step(Hold).step(Price))
}

async fn waiting(open: &Open) -> semel::saga::SagaNumber {
    loop {
        let sagas = open.sagas.list(SagaFilter::default()).await.unwrap();
        if let Some(saga) = sagas.first().filter(|saga| saga.row.status == Status::Waiting) {
            return saga.number;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_saga_sleeps_without_a_worker() {
    async fn sleeps(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku.clone()).await?;
        saga.sleep(HOUR).await;
        saga.run(Price, sku).await?;
        Ok("slept".to_owned())
    }
    let open = Open::new(Definition::new("order", 1, sleeps).step(Hold).step(Price));
    let begin = tokio::time::Instant::now();
    let (end, row) = tokio::join!(open.once("k"), async {
        waiting(&open).await;
        open.only().await.row
    });
    assert_eq!(row.worker, None);
    assert!(
        matches!(end, Err(SagaError::UnderWay { status: Status::Waiting, .. })),
        "the caller waited an hour"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(open.once("k").await.unwrap(), SagaEnd::Completed("slept".to_owned()));
    assert!(begin.elapsed() >= HOUR);
    assert_eq!(open.shop.calls("hold"), 1, "the journal answered after the sleep");
}

#[tokio::test(start_paused = true)]
async fn a_signal_before_the_wait_twice_and_after_the_end() {
    let open = with_approval();
    let (end, ()) = tokio::join!(open.once("k"), async {
        let number = waiting(&open).await;
        let send = async |id: &str, who: &str| {
            open.sagas.signal(number, id, "approval", &who.to_owned()).await.unwrap()
        };
        assert_eq!(send("s1", "ann").await, Signalled::Recorded);
        assert_eq!(send("s1", "bob").await, Signalled::Already, "the same signal again");
    });
    assert_eq!(end.unwrap(), SagaEnd::Completed("approved by ann".to_owned()));
    let number = open.only().await.number;
    let late = open.sagas.signal(number, "s2", "approval", &"cal".to_owned()).await.unwrap();
    assert_eq!(late, Signalled::TooLate);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_signal_has_an_end() {
    let open = with_approval();
    let begin = tokio::time::Instant::now();
    let _ = open.once("k").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let end = open.once("k").await.unwrap();
    assert_eq!(end, SagaEnd::Undone { cause: UndoCause::Refused, why: "no approval".to_owned() });
    assert!(begin.elapsed() >= HOUR);
    assert_eq!(open.shop.effects(), ["hold", "release"]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_undoes_what_has_not_passed_its_pivot() {
    let definition = Definition::new("order", 1, approved).step(Hold).step(Price);
    let open = Open::new(definition.deadline(Duration::from_secs(60)));
    let begin = tokio::time::Instant::now();
    let end = open.once("k").await.unwrap();
    assert_eq!(end, SagaEnd::Undone { cause: UndoCause::Deadline, why: "its deadline passed".to_owned() });
    assert_eq!(open.shop.effects(), ["hold", "release"]);
    assert!((60..70).contains(&begin.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn an_ended_saga_answers_its_key_until_its_retention_is_over() {
    let open = Open::new(definition(false).retention(HOUR));
    assert_eq!(open.once("k").await.unwrap(), completed());
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.calls("charge"), 1);
    tokio::time::sleep(HOUR).await;
    assert_eq!(open.sagas.list(SagaFilter::default()).await.unwrap().len(), 0);
}
