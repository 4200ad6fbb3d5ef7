//! Approvals: who said yes or no, and why.

use std::time::Duration;

use semel::saga::{
    AdminError, Approval, DecidedBy, Definition, EntryKind, Refused, Saga, SagaAdmin, SagaEnd, SagaFilter,
    SagaNumber, SagaResult, Signalled, Status, UndoCause,
};

use super::shop::{Hold, Open, Shop};

const DAY: Duration = Duration::from_secs(24 * 3_600);

async fn order(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
    saga.run(Hold, sku).await?;
    let decided = saga.approval("manager", Some(DAY)).await;
    let by = decided.ok_or_else(|| Refused::new("no decision in time"))?.granted()?;
    Ok(format!("approved by {}: {}", by.by, by.why))
}

async fn waiting() -> (Open, SagaAdmin, SagaNumber) {
    let open = Open::new(Definition::new("order", 1, order).step(Hold));
    let (acme, key) = (semel::Scope::tenant("acme").unwrap(), semel::Key::new("k").unwrap());
    let number = open.sagas.submit(&open.order, &acme, &key, &"book".to_owned()).await.unwrap();
    while open.sagas.list(SagaFilter::default()).await.unwrap()[0].row.status != Status::Waiting {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let admin = SagaAdmin::new(open.journal.clone());
    (open, admin, number)
}

fn ann() -> DecidedBy {
    DecidedBy::new("ann", "within the budget")
}

#[tokio::test(start_paused = true)]
async fn who_approved_and_why_is_in_the_journal_and_in_the_codes_hands() {
    let (open, admin, number) = waiting().await;
    assert_eq!(admin.approve(number, "manager", &ann()).await.unwrap(), Signalled::Recorded);
    let bob = DecidedBy::new("bob", "too expensive");
    // The first one counts: the same again is no news, and the opposite is no success.
    assert_eq!(admin.approve(number, "manager", &bob).await.unwrap(), Signalled::Already);
    let opposite = admin.reject(number, "manager", &bob).await.unwrap_err();
    assert_eq!(opposite.to_string(), "saga 1 was already approved by ann: within the budget");
    let other =
        admin.decide_as(number, "approval-manager", "boss", &Approval::approved(&bob)).await.unwrap_err();
    assert!(matches!(other, AdminError::SignalIdTaken { .. }), "{other}");
    let end = open.once("k").await.unwrap();
    assert_eq!(end, SagaEnd::Completed("approved by ann: within the budget".to_owned()));
    let loaded = admin.load(number).await.unwrap().unwrap();
    let mut signals = loaded.entries.iter().filter(|entry| entry.kind == EntryKind::Signal);
    let seen: Approval = serde_json::from_slice(signals.next().unwrap().body.as_ref().unwrap()).unwrap();
    assert_eq!((seen, signals.count()), (Approval::approved(&ann()), 0));
    let opposite = admin.reject(number, "manager", &bob).await.unwrap_err();
    assert!(matches!(opposite, AdminError::AlreadyDecided { .. }), "after the end too: {opposite}");
    let late = admin.decide_as(number, "ticket-7", "manager", &Approval::approved(&ann())).await.unwrap();
    assert_eq!(late, Signalled::TooLate);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_undoes_and_says_by_whom() {
    let (open, admin, number) = waiting().await;
    let bob = DecidedBy::new("bob", "too expensive");
    assert_eq!(admin.reject(number, "manager", &bob).await.unwrap(), Signalled::Recorded);
    let end = open.once("k").await.unwrap();
    let why = "rejected by bob: too expensive".to_owned();
    assert_eq!(end, SagaEnd::Undone { cause: UndoCause::Refused, why });
    assert_eq!(open.shop.effects(), ["hold", "release"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_and_the_application_may_decide() {
    let (open, _, _) = waiting().await;
    tokio::time::sleep(2 * DAY).await;
    let end = open.once("k").await.unwrap();
    assert_eq!(end, SagaEnd::Undone { cause: UndoCause::Refused, why: "no decision in time".to_owned() });

    let (open, _, number) = waiting().await;
    let body = Approval::approved(&ann());
    assert_eq!(open.sagas.signal(number, "ticket-7", "manager", &body).await.unwrap(), Signalled::Recorded);
    assert!(matches!(open.once("k").await.unwrap(), SagaEnd::Completed(_)));
    let (open, admin, number) = waiting().await;
    assert_eq!(
        open.sagas.signal(number, "approval-manager", "manager", &"yes").await.unwrap(),
        Signalled::Recorded
    );
    let no_decision = admin.reject(number, "manager", &ann()).await.unwrap_err();
    assert!(no_decision.to_string().contains("it is no decision about \"manager\""), "{no_decision}");
    let bad = admin.approve(number, "the manager", &ann()).await;
    assert!(matches!(bad, Err(AdminError::SignalName)));
}
