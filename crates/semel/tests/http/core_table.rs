//! The core table of what an idempotent edge must do, over real HTTP, on memory and on SQLite here and on every
//! server elsewhere: duplicates, races, crashes, outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post;
use semel::http::IdempotencyLayer;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::{Claim, Claimed, Finish, Finished, Store};
use semel::{Effect, Found, Guard, Outcome, Owner, Retention, State, StoreDown, Verdict};
use tokio::sync::Notify;

use super::world::{
    Clock, Effects, Kind, Wire, app, call, charged, intent, layer, payments, record, state, status,
};

/// Each row, handed to a macro that runs it somewhere.
macro_rules! core_rows {
    ($on:ident) => {
        $on! {
            repeated_after_completion_the_response_is_replayed
            the_same_key_with_another_payload_is_a_conflict
            a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided
            a_crash_after_the_effect_is_recovered_by_looking_it_up
            a_store_outage_during_the_claim_follows_the_policy
            a_claim_whose_answer_was_lost_runs_once
            finishing_with_another_owners_token_is_refused
            a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands
            a_webhook_delivered_twice_is_processed_once
            an_event_redelivered_over_http_runs_until_it_worked_and_never_again
        }
    };
}

pub(crate) use core_rows;

pub(crate) async fn repeated_after_completion_the_response_is_replayed(kind: Kind) {
    let effects = Effects::default();
    let wire = Wire::to(app(layer(Clock::new().on(kind).await, payments()), &effects, charged)).await;
    let first = wire.pay("k", r#"{"amount":1}"#).await;
    let again = wire.pay("k", r#"{ "amount" : 1.0 }"#).await;
    assert_eq!((first.status, first.replayed(), again.replayed()), (201, false, true));
    assert_eq!((again.status, again.header("location"), &again.body), (201, "/payments/1", &first.body));
    assert_eq!(effects.count(), 1);
}

pub(crate) async fn the_same_key_with_another_payload_is_a_conflict(kind: Kind) {
    let effects = Effects::default();
    let wire = Wire::to(app(layer(Clock::new().on(kind).await, payments()), &effects, charged)).await;
    wire.pay("k", r#"{"amount":1}"#).await;
    let other = wire.pay("k", r#"{"amount":2}"#).await;
    assert_eq!((other.status, other.header("x-should-retry"), effects.count()), (409, "false", 1));
}

// "Concurrent requests with the same key: one processes" is in `callers`, with 64 of them.

/// Claims like a process that dies right after.
async fn claimed_and_died(
    kind: Kind,
    store: &impl Store,
    wire: &Wire,
    effect: Effect,
) -> semel::store::Ticket {
    // The fingerprint is what the layer makes: a first run says it, and is then withdrawn.
    wire.pay("k", "{}").await;
    let fingerprint = record(store, "k").await.unwrap().head.fingerprint;
    let lease_ms = kind.span_ms(30_000).as_millis() as u64;
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    let claim = Claim { intent: intent("k"), fingerprint, owner: Owner::random(), effect, lease_ms, window };
    match store.claim(claim).await.unwrap() {
        Claimed::Run(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided(kind: Kind) {
    for (effect, after_lease) in [(Effect::Opaque, 409), (Effect::Keyed, 201)] {
        let (clock, effects) = (Clock::new(), Effects::default());
        let store = clock.on(kind).await;
        let answer = |n| if n == 1 { status(500) } else { charged(n) };
        let wire = Wire::to(app(layer(store.clone(), payments().effect(effect)), &effects, answer)).await;
        claimed_and_died(kind, &store, &wire, effect).await;
        let blocked = wire.pay("k", "{}").await;
        assert_eq!((blocked.status, blocked.code().as_str()), (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS"));
        clock.pass_ms(kind, 30_000).await;
        assert_eq!(wire.pay("k", "{}").await.status, after_lease, "{effect}");
    }
}

pub(crate) async fn a_crash_after_the_effect_is_recovered_by_looking_it_up(kind: Kind) {
    let (clock, effects) = (Clock::new(), Effects::default());
    let store = clock.on(kind).await;
    let lookup = |_| async {
        Found::Applied(Outcome::new(201, "found in the ledger").header("location", "/payments/7"))
    };
    let answer = |n| if n == 1 { status(500) } else { charged(n) };
    let settle = kind.span_ms(30_000);
    let rule = payments().lookup(lookup, settle);
    let wire = Wire::to(app(layer(store.clone(), rule), &effects, answer)).await;
    claimed_and_died(kind, &store, &wire, Effect::Opaque).await;
    clock.pass_ms(kind, 30_000).await;
    // Too early to believe "not found": the answer says when to retry.
    let early = wire.pay("k", "{}").await;
    let retry_after = early.header("retry-after").parse().unwrap_or(0);
    assert_eq!(early.code(), "IDEMPOTENCY_OUTCOME_UNCERTAIN");
    match kind {
        // On a real clock, some of it has passed.
        Kind::Elsewhere(_) => assert!((1..=settle.as_secs()).contains(&retry_after), "{retry_after}"),
        _ => assert_eq!(retry_after, settle.as_secs()),
    }
    clock.pass_ms(kind, 30_000).await;
    let retry = wire.pay("k", "{}").await;
    assert_eq!((retry.status, &*retry.body, retry.replayed()), (201, &b"found in the ledger"[..], true));
    assert_eq!((retry.header("location"), effects.count()), ("/payments/7", 1));
}

pub(crate) async fn a_store_outage_during_the_claim_follows_the_policy(kind: Kind) {
    for (policy, code, count) in [(StoreDown::Closed, 503, 0), (StoreDown::Open, 201, 1)] {
        for fault in [Fault::Refused, Fault::RequestLost, Fault::Hangs] {
            let (store, effects) = (Clock::new().on(kind).await, Effects::default());
            let faulty =
                Faulty::new(store, move |asked| if asked == StoreCall::Claim { fault } else { Fault::None });
            let mut limits = semel::guard::Limits::default();
            limits.store_timeout = Duration::from_millis(20);
            let (metrics, runtime) = (semel::observe::Metrics::new(), semel::guard::CurrentRuntime);
            let layer = IdempotencyLayer::builder(Guard::with(faulty, limits, metrics, runtime))
                .single_tenant()
                .rule(payments().store_down(policy))
                .build()
                .unwrap();
            let wire = Wire::to(app(layer, &effects, charged)).await;
            let got = wire.pay("k", "{}").await;
            assert_eq!((got.status, effects.count()), (code, count), "{policy:?} {fault:?}");
            assert_eq!(got.header("idempotency-guarded"), if count == 1 { "false" } else { "" });
        }
    }
}

pub(crate) async fn a_claim_whose_answer_was_lost_runs_once(kind: Kind) {
    let (store, effects) = (Clock::new().on(kind).await, Effects::default());
    let lost = Arc::new(AtomicBool::new(false));
    let faulty = Faulty::new(store, move |asked| match asked {
        StoreCall::Claim if !lost.swap(true, Ordering::SeqCst) => Fault::AnswerLost,
        _ => Fault::None,
    });
    let wire = Wire::to(app(layer(faulty, payments()), &effects, charged)).await;
    let got = wire.pay("k", "{}").await;
    assert_eq!((got.status, got.replayed(), effects.count()), (201, false, 1));
}

pub(crate) async fn finishing_with_another_owners_token_is_refused(kind: Kind) {
    let (store, effects) = (Clock::new().on(kind).await, Effects::default());
    let wire = Wire::to(app(layer(store.clone(), payments()), &effects, |_| status(500))).await;
    let mut ticket = claimed_and_died(kind, &store, &wire, Effect::Opaque).await;
    ticket.owner = Owner::random();
    let outcome = Some(Outcome::new(200, "forged"));
    let finish = Finish { verdict: Verdict::Completed, outcome, retention: Retention::DAY };
    assert_eq!(store.finish(ticket, finish).await.unwrap(), Finished::Stale);
    assert_eq!(state(&store, "k").await, Some(State::InProgress));
}

pub(crate) async fn a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands(
    kind: Kind,
) {
    let (clock, effects) = (Clock::new(), Effects::default());
    let store = clock.on(kind).await;
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starts, goes, happened) = (Arc::clone(&started), Arc::clone(&go), effects.clone());
    let handler = move || async move {
        let n = happened.happen();
        if n == 1 {
            starts.notify_one();
            goes.notified().await;
        }
        charged(n)
    };
    // The stalled worker's renewals never arrive.
    let stalled =
        Faulty::new(
            store.clone(),
            |asked| if asked == StoreCall::Renew { Fault::Hangs } else { Fault::None },
        );
    let service = Router::new().route("/payments", post(handler));
    let rule = || payments().effect(Effect::Keyed).lease(kind.span_ms(30_000));
    let first = Wire::to(service.clone().layer(layer(stalled, rule()))).await;
    let second = Wire::to(service.layer(layer(store, rule()))).await;
    let slow = tokio::spawn(async move { first.pay("k", "{}").await });
    started.notified().await;
    clock.pass_ms(kind, 30_000).await;
    assert_eq!(second.pay("k", "{}").await.body, "charged 2");
    go.notify_one();
    let slow = slow.await.unwrap();
    assert_eq!(
        (&*slow.body, slow.replayed()),
        (&b"charged 2"[..], true),
        "every caller sees the same answer"
    );
}

pub(crate) async fn a_webhook_delivered_twice_is_processed_once(kind: Kind) {
    let effects = Effects::default();
    let happened = effects.clone();
    let handler = move || async move { happened.happen().to_string().into_response() };
    let layer = IdempotencyLayer::builder(Guard::new(Clock::new().on(kind).await))
        .single_tenant()
        .header("webhook-id".parse().unwrap())
        .rule(semel::http::Rule::on("POST /hooks/{provider}").name("hook.receive"))
        .build()
        .unwrap();
    let app = Router::new().route("/hooks/{provider}", post(handler)).layer(layer);
    for replayed in [false, true, true] {
        let sent =
            http::Request::post("/hooks/stripe").header("webhook-id", "evt_1").body("{}".into()).unwrap();
        let got = call(&app, sent).await;
        assert_eq!((got.status, got.replayed()), (200, replayed));
    }
    assert_eq!(effects.count(), 1);
}

pub(crate) async fn an_event_redelivered_over_http_runs_until_it_worked_and_never_again(kind: Kind) {
    // A broker's push: the event's id is the key, delivered at least once.
    let effects = Effects::default();
    let layer = layer(Clock::new().on(kind).await, payments());
    let answer = |n| if n == 1 { status(500) } else { charged(n) };
    let wire = Wire::to(app(layer, &effects, answer)).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(wire.pay("evt-1", "{}").await.status);
    }
    // The first failed without effect and is delivered again; from then on nothing runs.
    assert_eq!((answers, effects.count()), (vec![500, 201, 201, 201], 2));
}
