//! 202, and the resource it points to.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Method, Request};
use semel::http::{Builder, Rule};
use semel::store::memory::MemoryStore;
use semel::{Effect, State};
use tokio::sync::Notify;

use crate::world::{
    Clock, Effects, Got, builder, call, charged, client, payment, payments, read, serve, status, until,
};

struct Service {
    app: Router,
    started: Arc<Notify>,
    go: Arc<Notify>,
    effects: Effects,
}

fn service(store: MemoryStore, rule: Rule, answer: fn(u32) -> axum::response::Response) -> Service {
    service_with(builder(store).rule(rule), answer)
}

fn service_with(builder: Builder<MemoryStore>, answer: fn(u32) -> axum::response::Response) -> Service {
    let (started, go, effects) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Effects::default());
    let (starts, goes, happened) = (Arc::clone(&started), Arc::clone(&go), effects.clone());
    let handler = move || async move {
        starts.notify_one();
        goes.notified().await;
        answer(happened.happen())
    };
    let layer = builder.status_path("/v1/intents").build().unwrap();
    let app = Router::new()
        .route("/payments", post(handler))
        .layer(layer.clone())
        .route_service("/v1/intents/{id}", layer.status_service());
    Service { app, started, go, effects }
}

impl Service {
    /// Sends a request, and a second one while the first is under way, which gets the status URL; then lets it go on.
    async fn place(&self) -> String {
        let first = tokio::spawn({
            let app = self.app.clone();
            async move { call(&app, payment("k", "{}")).await }
        });
        self.started.notified().await;
        let place = call(&self.app, payment("k", "{}")).await.header("location").to_owned();
        self.go.notify_one();
        first.await.unwrap();
        place
    }
}

async fn ask(app: &Router, tenant: &str, place: &str) -> Got {
    let request = Request::get(place).header("x-tenant-id", tenant).body(Body::empty()).unwrap();
    call(app, request).await
}

#[tokio::test]
async fn a_duplicate_in_flight_is_accepted_with_a_status_url() {
    let service = service(Clock::new().store(), payments().respond_accepted(), charged);
    let first = tokio::spawn({
        let app = service.app.clone();
        async move { call(&app, payment("k", "{}")).await }
    });
    service.started.notified().await;
    let duplicate = call(&service.app, payment("k", "{}")).await;
    assert_eq!((duplicate.status, duplicate.header("retry-after"), duplicate.replayed()), (202, "1", false));
    let place = duplicate.header("location").to_owned();
    assert!(place.starts_with("/v1/intents/"));
    // A mismatch is reported before that.
    assert_eq!(
        call(&service.app, payment("k", "[]")).await.code(),
        "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    );

    let pending = ask(&service.app, "acme", &place).await;
    assert_eq!(
        (pending.status, pending.header("retry-after"), pending.header("location")),
        (202, "1", &*place)
    );
    service.go.notify_one();
    let first = first.await.unwrap();
    let result = ask(&service.app, "acme", &place).await;
    assert_eq!((result.status, &result.body, result.header("location")), (201, &first.body, "/payments/1"));
    assert!(result.replayed() && call(&service.app, payment("k", "{}")).await.replayed());
    assert_eq!(service.effects.count(), 1);
}

#[tokio::test]
async fn the_first_request_is_answered_202_when_its_work_takes_long_and_the_work_goes_on() {
    let store = MemoryStore::new();
    let rule = payments().respond_async_after(Duration::from_millis(20));
    let service = service(store.clone(), rule, charged);
    let to = serve(service.app.clone()).await;
    let first = crate::world::send(&client(), to, "k", "{}").await;
    assert_eq!((first.status, service.effects.count()), (202, 0));
    let place = format!("http://{to}{}", first.header("location"));
    let ask = || async {
        let request = Request::get(&place).header("x-tenant-id", "acme").body(Default::default()).unwrap();
        read(client().request(request).await.unwrap()).await
    };
    assert_eq!(ask().await.status, 202);
    service.go.notify_one();
    until(&store, "k", State::Completed).await;
    let result = ask().await;
    assert_eq!((result.status, &*result.body), (201, &b"charged 1"[..]));
    assert_eq!(crate::world::send(&client(), to, "k", "{}").await.body, "charged 1");
    assert_eq!(service.effects.count(), 1);
}

#[tokio::test]
async fn a_202_of_a_semel_further_in_is_not_remembered_as_the_answer() {
    let (inner, outer) = (MemoryStore::new(), MemoryStore::new());
    let rule = payments().respond_async_after(Duration::from_millis(20));
    let service = service(inner.clone(), rule, charged);
    let app = service.app.clone().layer(builder(outer).rule(payments()).build().unwrap());
    assert_eq!(call(&app, payment("k", "{}")).await.status, 202);
    service.go.notify_one();
    until(&inner, "k", State::Completed).await;
    let result = call(&app, payment("k", "{}")).await;
    assert_eq!((result.status, &*result.body), (201, &b"charged 1"[..]));
    assert_eq!(service.effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn quick_work_is_answered_at_once_also_where_202_is_allowed() {
    let service =
        service(Clock::new().store(), payments().respond_async_after(Duration::from_secs(1)), charged);
    service.go.notify_one();
    assert_eq!(call(&service.app, payment("k", "{}")).await.status, 201);
    // And a replay is no 202 either.
    assert!(call(&service.app, payment("k", "{}")).await.replayed());
}

#[tokio::test]
async fn an_intent_is_shown_to_its_own_scope_only() {
    let service = service(Clock::new().store(), payments().respond_accepted(), charged);
    let place = service.place().await;
    assert_eq!(ask(&service.app, "acme", &place).await.status, 201);
    let nothing = format!("/v1/intents/{}", crate::world::intent("other").id());
    let no_such = ask(&service.app, "acme", &nothing).await;
    let foreign = ask(&service.app, "globex", &place).await;
    let no_tenant = ask(&service.app, "", &place).await;
    assert_eq!((no_such.status, no_such.code().as_str()), (404, "IDEMPOTENCY_INTENT_NOT_FOUND"));
    // From outside they cannot be distinguished.
    assert_eq!((foreign.status, no_tenant.status), (404, 404));
    assert_eq!((&foreign.body, &no_tenant.body), (&no_such.body, &no_such.body));
    assert_eq!(ask(&service.app, "acme", "/v1/intents/zzz").await.status, 404);
    let delete = Request::builder().method(Method::DELETE).uri(&place).header("x-tenant-id", "acme");
    let refused = call(&service.app, delete.body(Body::empty()).unwrap()).await;
    assert_eq!((refused.status, refused.header("allow")), (405, "GET, HEAD"));
}

#[tokio::test]
async fn what_went_wrong_is_answered_as_a_problem() {
    for (answer, code, retry) in [
        ((|_| status(502)) as fn(u32) -> _, "IDEMPOTENCY_OUTCOME_UNCERTAIN", "false"),
        ((|_| status(500)) as fn(u32) -> _, "IDEMPOTENCY_ATTEMPT_FAILED", "true"),
    ] {
        let service = service(Clock::new().store(), payments().respond_accepted(), answer);
        let place = service.place().await;
        let got = ask(&service.app, "acme", &place).await;
        assert_eq!((got.status, got.code().as_str(), got.header("x-should-retry")), (409, code, retry));
    }
}

#[tokio::test]
async fn a_caller_does_not_wait_for_work_that_is_not_running() {
    let clock = Clock::new();
    let store = clock.store();
    let service = service(store.clone(), payments().effect(Effect::Keyed).respond_accepted(), charged);
    let (app, effects) = (service.app.clone(), service.effects.clone());
    let first = tokio::spawn(async move { call(&app, payment("k", "{}")).await });
    service.started.notified().await;
    let place = call(&service.app, payment("k", "{}")).await.header("location").to_owned();
    assert_eq!(ask(&service.app, "acme", &place).await.status, 202);
    // The owner's process is gone, for all the store knows.
    clock.advance_ms(30_000);
    assert_eq!(ask(&service.app, "acme", &place).await.code(), "IDEMPOTENCY_ATTEMPT_FAILED");
    service.go.notify_one();
    first.await.unwrap();
    assert_eq!((ask(&service.app, "acme", &place).await.status, effects.count()), (201, 1));
}

/// Operation and key of an intent are known to many in a tenant; its address only to those who were given it.
#[tokio::test]
async fn an_intent_is_shown_only_to_those_who_were_given_its_address() {
    const SECRET: &str = "a secret of this service";
    const NEXT: &str = "and the one that comes next";
    let store = Clock::new().store();
    let instance = |rule: Rule, secrets: &[&str]| {
        service_with(builder(store.clone()).rule(rule).status_secrets(secrets), charged)
    };
    let first = instance(payments().respond_accepted(), &[SECRET]);
    let place = first.place().await;
    let id = crate::world::intent("k").id().to_string();
    let made_up = [format!("/v1/intents/{id}"), format!("/v1/intents/{id}.{}", "0".repeat(32))];
    for place in made_up {
        let got = ask(&first.app, "acme", &place).await;
        assert_eq!((got.status, got.code().as_str()), (404, "IDEMPOTENCY_INTENT_NOT_FOUND"), "{place}");
    }
    for (secrets, rule, status) in [
        (&[SECRET][..], payments().respond_accepted(), 201),
        (&[NEXT, SECRET], payments().respond_accepted(), 201),
        (&[NEXT], payments().respond_accepted(), 404),
        (&[], payments().respond_accepted(), 404),
        // An operation that does not answer with 202 has no status.
        (&[SECRET], payments(), 404),
    ] {
        let other = instance(rule, secrets);
        assert_eq!(ask(&other.app, "acme", &place).await.status, status, "{secrets:?}");
        assert_eq!(ask(&other.app, "globex", &place).await.status, 404);
    }
    assert_eq!(first.effects.count(), 1);
}
