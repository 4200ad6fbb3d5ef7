//! What a person does about sagas that cannot go on by themselves.

use std::time::Duration;

use bytes::Bytes;
use semel::Retention;
use semel::saga::{
    AdminError, AdminResult, DecidedBy, EntryKind, ParkReason, ResolvedAs, SagaAdmin, SagaError, SagaNumber,
    Signal, Signalled, Status, StepId,
};

use super::shop::{Does, Open, completed, definition};

fn ann() -> DecidedBy {
    DecidedBy::new("ann", "asked the bank")
}

fn step(name: &str) -> StepId {
    StepId { name: name.to_owned(), nth: 0 }
}

/// A saga that is parked because one step's answer was lost, too often for a keyed one.
async fn parked(at: &str) -> (Open, SagaAdmin, SagaNumber, u64) {
    let open = Open::new(definition(false));
    open.shop.script(at, std::iter::repeat_n(Does::LosesTheCall, 16));
    assert!(matches!(open.once("k").await, Err(SagaError::Parked { .. })));
    let record = open.only().await;
    let admin = SagaAdmin::new(open.journal.clone());
    (open, admin, record.number, record.row.epoch)
}

#[tokio::test(start_paused = true)]
async fn a_step_that_a_person_resolved_answers_with_what_they_found() {
    let (open, admin, number, seen) = parked("charge").await;
    let found = ResolvedAs::Applied(Bytes::from_static(b"\"charge done\""));
    assert_eq!(
        admin.resolve(number, seen, &step("charge"), false, found.clone(), &ann()).await.unwrap(),
        AdminResult::Recorded
    );
    assert_eq!(
        admin.resolve(number, seen, &step("charge"), false, found, &ann()).await.unwrap(),
        AdminResult::Stale,
        "the saga has changed since"
    );
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!((open.shop.calls("charge"), open.shop.calls("mail")), (1, 1));
    let journal = admin.load(number).await.unwrap().unwrap();
    let decided = journal.entries.iter().find(|entry| entry.kind == EntryKind::Decided).unwrap();
    assert_eq!(decided.input.as_deref(), Some(&br#"{"by":"ann","why":"asked the bank"}"#[..]));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_did_not_happen_is_called_again() {
    let (open, admin, number, seen) = parked("charge").await;
    // The script goes on losing calls; the next one is taken.
    open.shop.ledger().script.clear();
    let resolved = admin.resolve(number, seen, &step("charge"), false, ResolvedAs::NotApplied, &ann()).await;
    assert_eq!(resolved.unwrap(), AdminResult::Recorded);
    assert_eq!(open.once("k").await.unwrap(), completed());
    assert_eq!(open.shop.calls("charge"), 2);
}

#[tokio::test(start_paused = true)]
async fn only_what_is_open_can_be_resolved() {
    let (_open, admin, number, seen) = parked("charge").await;
    for name in ["hold", "mail"] {
        let resolved = admin.resolve(number, seen, &step(name), false, ResolvedAs::NotApplied, &ann()).await;
        assert!(matches!(resolved, Err(AdminError::NothingToResolve { .. })), "{name}: {resolved:?}");
    }
    let wrong = ResolvedAs::Applied(Bytes::from_static(b"not json"));
    let resolved = admin.resolve(number, seen, &step("charge"), false, wrong, &ann()).await;
    assert!(matches!(resolved, Err(AdminError::NotJson(_))));
    assert_eq!(admin.retry(SagaNumber(99), 1, &ann()).await.unwrap(), AdminResult::Stale);
}

#[tokio::test(start_paused = true)]
async fn a_parked_saga_can_be_undone_before_its_pivot_only() {
    let (open, admin, number, seen) = parked("truck").await;
    assert_eq!(admin.compensate(number, seen, &ann()).await.unwrap(), AdminResult::Recorded);
    // The truck has to be found out about first: its attempts are used up, so it is parked again.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let record = open.only().await;
    assert_eq!((record.row.status, record.row.reason), (Status::Parked, Some(ParkReason::UnknownResult)));
    let resolved =
        admin.resolve(number, record.row.epoch, &step("truck"), false, ResolvedAs::NotApplied, &ann()).await;
    assert_eq!(resolved.unwrap(), AdminResult::Recorded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(open.only().await.row.status, Status::Undone);
    assert_eq!(open.shop.effects(), ["hold", "release"]);

    let (_open, admin, number, seen) = parked("charge").await;
    assert!(matches!(admin.compensate(number, seen, &ann()).await, Err(AdminError::PivotBegun)));
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_a_person_did_counts() {
    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::Refuses]);
    open.shop.script("release", [Does::Refuses]);
    assert!(matches!(open.once("k").await, Err(SagaError::Parked { reason: ParkReason::UndoStuck, .. })));
    let (record, admin) = (open.only().await, SagaAdmin::new(open.journal.clone()));
    let done = ResolvedAs::Applied(Bytes::from_static(b"null"));
    let resolved = admin.resolve(record.number, record.row.epoch, &step("hold"), true, done, &ann()).await;
    assert_eq!(resolved.unwrap(), AdminResult::Recorded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(open.only().await.row.status, Status::Undone);
}

#[tokio::test(start_paused = true)]
async fn a_saga_is_retried_abandoned_or_left_alone() {
    let (open, admin, number, seen) = parked("mail").await;
    open.shop.ledger().script.clear();
    // Its attempts are used up: a decision alone begins a new count only for what is resolved.
    assert_eq!(admin.retry(number, seen, &ann()).await.unwrap(), AdminResult::Recorded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let row = open.only().await.row;
    assert_eq!(row.status, Status::Completed, "{row:?}");
    assert_eq!(
        admin.retry(number, row.epoch, &ann()).await.unwrap(),
        AdminResult::Refused(Status::Completed)
    );

    let (open, admin, number, seen) = parked("charge").await;
    let abandoned = admin.abandon(number, seen, Retention::Forever, &ann()).await;
    assert_eq!(abandoned.unwrap(), AdminResult::Recorded);
    assert_eq!(open.once("k").await.unwrap(), semel::saga::SagaEnd::Abandoned);
    let calls = open.shop.ledger().calls.len();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(open.shop.ledger().calls.len(), calls);
}

#[tokio::test(start_paused = true)]
async fn who_cancelled_is_recorded_and_a_bad_signal_is_refused() {
    let (open, admin, number, _) = parked("truck").await;
    assert_eq!(admin.cancel(number, &ann()).await.unwrap(), AdminResult::Recorded);
    assert_eq!(admin.cancel(number, &ann()).await.unwrap(), AdminResult::Already);
    let signals = admin.load(number).await.unwrap().unwrap().signals;
    assert_eq!((signals.len(), &signals[0].body[..]), (1, &br#"{"by":"ann","why":"asked the bank"}"#[..]));
    let signal = |id: &str, name: &str, body: &'static [u8]| Signal {
        id: id.to_owned(),
        name: name.to_owned(),
        body: Bytes::from_static(body),
    };
    let large = "x".repeat(256);
    for wrong in [signal("", "go", b"1"), signal("1", "a/b", b"1"), signal(&large, "go", b"1")] {
        assert!(matches!(admin.signal(number, wrong).await, Err(AdminError::SignalName)));
    }
    assert!(matches!(admin.signal(number, signal("1", "go", b"no")).await, Err(AdminError::NotJson(_))));
    assert_eq!(admin.signal(number, signal("1", "go", b"1")).await.unwrap(), Signalled::Recorded);
    drop(open);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_past_the_pivot_or_in_undo_is_tried_again() {
    let open = Open::new(definition(false));
    open.shop.script("mail", [Does::Refuses]);
    assert!(matches!(open.once("k").await, Err(SagaError::Parked { reason: ParkReason::ForwardStuck, .. })));
    let (record, admin) = (open.only().await, SagaAdmin::new(open.journal.clone()));
    let retried = admin.retry(record.number, record.row.epoch, &ann()).await;
    assert_eq!(retried.unwrap(), AdminResult::Recorded);
    assert_eq!(open.once("k").await.unwrap(), completed());

    let open = Open::new(definition(false));
    open.shop.script("charge", [Does::Refuses]);
    open.shop.script("release", [Does::Refuses]);
    assert!(matches!(open.once("k").await, Err(SagaError::Parked { reason: ParkReason::UndoStuck, .. })));
    let (record, admin) = (open.only().await, SagaAdmin::new(open.journal.clone()));
    let retried = admin.retry(record.number, record.row.epoch, &ann()).await;
    assert_eq!(retried.unwrap(), AdminResult::Recorded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(open.only().await.row.status, Status::Undone);
    assert_eq!(open.shop.effects(), ["hold", "truck", "price", "no truck", "release"]);
}
