//! Written down first: what is dropped half way is resumed, once, and not too late.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderName;
use hyper::body::Incoming;
use semel::Key;
use semel::http::client::durable::{
    DurableBuilder, DurableClient, DurableError, End, FromJournal, JournalState,
};
use semel::http::client::{ClientError, RetryPolicy};
use testkit::proxy::{Fault, Proxy};

use crate::own_layer;
use crate::script::*;

pub struct Place {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("intents.db");
    Place { _dir: dir, path }
}

/// A clock the test moves, in ms.
#[derive(Clone)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_800_000_000_000)))
    }

    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
    }

    pub fn at(&self) -> impl Fn() -> i64 + Send + Sync + 'static {
        let clock = self.0.clone();
        move || clock.load(Ordering::SeqCst)
    }
}

const LEASE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 3_600);

pub fn durable(policy: RetryPolicy, clock: &Clock) -> DurableBuilder<Http> {
    DurableClient::builder(client(policy)).lease(LEASE).clock(clock.at()).steady_clock(|| Duration::ZERO)
}

/// What came of each, in words.
pub async fn resumed(client: &DurableClient<Http>) -> Vec<String> {
    let resume = client.resume::<Incoming>(100).await.unwrap();
    assert!(!resume.more);
    resume.ended.iter().map(|resumed| format!("{} {:?}", resumed.key, resumed.end)).collect()
}

#[tokio::test]
async fn a_send_dropped_half_way_is_resumed_with_the_same_key() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([Step::Hang, answer(201)]).await;
    let first = durable(policy(), &clock).open(&place.path).await.unwrap();
    {
        let sending = first.send(payment(script.uri(), "order-1"));
        tokio::select! {
            _ = sending => panic!("no server answers"),
            () = script.news() => {}
        }
    }
    drop(first);

    let second = durable(policy(), &clock).open(&place.path).await.unwrap();
    let unfinished = second.unfinished(10).await.unwrap();
    assert_eq!((unfinished.len(), unfinished[0].state, unfinished[0].claimed), (1, JournalState::Open, true));
    // Its sender may be alive: not before the lease has run out.
    assert!(resumed(&second).await.is_empty());
    let elsewhere = second.send(payment(script.uri(), "order-1")).await.unwrap_err();
    assert!(matches!(elsewhere, DurableError::Elsewhere { lease_left: LEASE }), "{elsewhere}");
    clock.advance(LEASE);
    assert_eq!(resumed(&second).await, ["order-1 Answered(201 Created)"]);
    assert_eq!(script.arrived().len(), 2);
    script.assert_one_intent("order-1");
    assert_eq!(script.arrived()[0].head.replace("\r", ""), script.arrived()[1].head.replace("\r", ""));

    // It is done: nothing to resume, and a caller that asks again gets the answer without a request.
    assert!(resumed(&second).await.is_empty());
    let again = second.send(payment(script.uri(), "order-1")).await.unwrap();
    assert!(again.extensions().get::<FromJournal>().is_some());
    assert_eq!((again.status().as_u16(), text(again).await.as_str()), (201, "done"));
    assert_eq!(script.arrived().len(), 2);
}

#[tokio::test]
async fn what_has_no_answer_yet_stays_and_what_cannot_get_one_is_held() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([
        Step::ReadAndClose,                            // order-1: open
        problem(409, "IDEMPOTENCY_OUTCOME_UNCERTAIN"), // order-2: held
        answer(401),                                   // order-3: held
        answer(402),                                   // order-4: answered
        answer(401),                                   // order-1 resumed with a bad token: open
        answer(200),                                   // order-1 resumed
        answer(200),                                   // order-2 by hand
    ])
    .await;
    let client = durable(policy().attempts_max(1), &clock).open(&place.path).await.unwrap();
    let send = async |key: &str| client.send(payment(script.uri(), key)).await;
    let error = send("order-1").await.unwrap_err();
    assert!(matches!(error, DurableError::Client(ClientError::InDoubt(_))), "{error}");
    let error = send("order-2").await.unwrap_err();
    assert!(matches!(error, DurableError::Client(ClientError::InDoubt(_))), "{error}");
    assert_eq!(send("order-3").await.unwrap().status(), 401);
    assert_eq!(send("order-4").await.unwrap().status(), 402);

    let unfinished = client.unfinished(10).await.unwrap();
    let states: Vec<_> = unfinished.iter().map(|intent| (intent.key.as_str(), intent.state)).collect();
    assert_eq!(
        states,
        [("order-1", JournalState::Open), ("order-2", JournalState::Held), ("order-3", JournalState::Held)]
    );
    assert!(unfinished.iter().all(|intent| intent.attempts == 1 && intent.why.is_some()));

    let bad_token = resumed(&client).await;
    assert!(bad_token[0].starts_with("order-1 NoAnswer(it may have taken effect"), "{bad_token:?}");
    assert_eq!(resumed(&client).await, ["order-1 Answered(200 OK)"]);
    assert!(resumed(&client).await.is_empty());
    // Somebody has settled it at the server; who sends it by hand knows.
    assert_eq!(send("order-2").await.unwrap().status(), 200);
    assert!(client.forget(&Key::new("order-3").unwrap()).await.unwrap());
    assert!(client.unfinished(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_is_resumed_beyond_the_retention_of_the_server() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([Step::ReadAndClose]).await;
    let policy = policy().attempts_max(1).retention(DAY);
    let client = durable(policy.clone(), &clock).open(&place.path).await.unwrap();
    client.send(payment(script.uri(), "order-1")).await.unwrap_err();
    // A minute before the margin it is still sent,
    clock.advance(DAY - Duration::from_secs(3_660));
    assert!(resumed(&client).await[0].contains("NoAnswer"));
    assert_eq!(script.arrived().len(), 2);
    // at the margin it is not, and is reported once.
    clock.advance(Duration::from_secs(60));
    assert_eq!(resumed(&client).await, ["order-1 Expired"]);
    assert!(resumed(&client).await.is_empty());
    assert_eq!(client.unfinished(10).await.unwrap()[0].state, JournalState::Expired);
    // Neither by hand, nor after the clock was set back, nor with a longer retention.
    clock.advance(Duration::ZERO);
    let back = Clock::new();
    let patient = durable(policy.retention(10 * DAY), &back).open(&place.path).await.unwrap();
    for client in [client, patient] {
        let error = client.send(payment(script.uri(), "order-1")).await.unwrap_err();
        assert!(matches!(error, DurableError::Expired), "{error}");
    }
    assert_eq!(script.arrived().len(), 2);
}

#[tokio::test]
async fn a_clock_that_was_far_ahead_holds_what_is_open_once_and_no_more() {
    let (place, ahead, right) = (place(), Clock::new(), Clock::new());
    let script = Script::start([Step::ReadAndClose, Step::ReadAndClose, answer(200)]).await;
    let open =
        async |clock: &Clock| durable(policy().attempts_max(1), clock).open(&place.path).await.unwrap();
    ahead.advance(3_650 * DAY);
    open(&ahead).await.send(payment(script.uri(), "order-1")).await.unwrap_err();
    // As an earlier build left it, which did not keep how far the clock was set back.
    let tool = rusqlite::Connection::open(&place.path).unwrap();
    tool.execute("DROP TABLE clock", []).unwrap();
    drop(tool);

    let client = open(&right).await;
    assert_eq!(resumed(&client).await, ["order-1 Expired"]);
    client.send(payment(script.uri(), "order-2")).await.unwrap_err();
    let listed = client.unfinished(10).await.unwrap();
    assert!(listed[0].why.as_ref().is_some_and(|why| why.contains("set back")), "{listed:?}");
    let age = std::time::UNIX_EPOCH + Duration::from_millis(1_800_000_000_000);
    assert_eq!(listed[1].created, age, "as the machine's clock has it");
    drop(client);
    // From now on it is known.
    right.advance(LEASE);
    assert_eq!(resumed(&open(&right).await).await, ["order-2 Answered(200 OK)"]);
    assert_eq!(script.arrived().len(), 3);
}

#[tokio::test]
async fn secrets_are_given_again_and_the_rest_is_as_it_was() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([Step::ReadAndClose, answer(200)]).await;
    let tenant = HeaderName::from_static("x-tenant-id");
    let builder = || {
        durable(policy().attempts_max(1), &clock).store_headers([tenant.clone()]).with_credentials(
            |_, headers| drop(headers.insert("authorization", "Bearer new".parse().unwrap())),
        )
    };
    let request = |tenant: &str| {
        let mut request = payment(script.uri(), "order-1");
        request.headers_mut().insert("authorization", "Bearer old-secret".parse().unwrap());
        request.headers_mut().insert("x-tenant-id", tenant.parse().unwrap());
        request
    };
    let first = builder().open(&place.path).await.unwrap();
    first.send(request("acme")).await.unwrap_err();
    // Another tenant under the same key is another intent, and gets no other's answer.
    let error = first.send(request("other")).await.unwrap_err();
    assert!(matches!(error, DurableError::Mismatch), "{error}");
    drop(first);
    for file in ["intents.db", "intents.db-wal"] {
        let bytes = std::fs::read(place.path.with_file_name(file)).unwrap_or_default();
        assert!(!bytes.windows(10).any(|w| w == b"old-secret"), "{file}");
    }

    let second = builder().open(&place.path).await.unwrap();
    assert_eq!(resumed(&second).await, ["order-1 Answered(200 OK)"]);
    let arrived = script.arrived();
    assert_eq!(arrived[0].header("authorization"), Some("Bearer old-secret"));
    assert_eq!(arrived[1].header("authorization"), Some("Bearer new"));
    for name in ["x-tenant-id", "content-type", "idempotency-key", "host", "content-length"] {
        assert_eq!(arrived[0].header(name), arrived[1].header(name), "{name}");
    }
    assert_eq!(arrived[0].body, arrived[1].body);
}

#[tokio::test]
async fn an_intent_whose_answer_is_lost_is_done() {
    let (place, clock) = (place(), Clock::new());
    let lost = || problem(502, "IDEMPOTENCY_ANSWER_LOST");
    let script = Script::start([lost(), Step::ReadAndClose, lost(), answer(299)]).await;
    let client = durable(policy().attempts_max(1), &clock).open(&place.path).await.unwrap();
    let send = async |key: &str| match client.send(payment(script.uri(), key)).await.unwrap_err() {
        DurableError::Client(error) => error,
        error => panic!("{error}"),
    };
    assert!(matches!(send("order-1").await, ClientError::AnswerLost(_)));
    assert!(matches!(send("order-2").await, ClientError::InDoubt(_)));
    assert_eq!(resumed(&client).await, ["order-2 AnswerLost"]);
    assert!(client.unfinished(10).await.unwrap().is_empty() && resumed(&client).await.is_empty());
    // The same from the journal, which sends nothing.
    for key in ["order-1", "order-2"] {
        let ClientError::AnswerLost(gave_up) = send(key).await else { panic!("{key}") };
        let response = gave_up.response.unwrap();
        assert!(response.extensions().get::<FromJournal>().is_some());
        assert_eq!((response.status().as_u16(), gave_up.attempts.count()), (502, 0));
    }
    assert_eq!(script.arrived().len(), 3);
}

#[tokio::test]
async fn of_several_clients_one_resumes_an_intent() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start((0..20).map(|_| Step::ReadAndClose).chain([answer(200)])).await;
    let once = durable(policy().attempts_max(1), &clock).open(&place.path).await.unwrap();
    for n in 0..20 {
        once.send(payment(script.uri(), &format!("order-{n}"))).await.unwrap_err();
    }
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(durable(policy(), &clock).open(&place.path).await.unwrap());
    }
    let resumed =
        futures_util::future::join_all(clients.iter().map(|client| client.resume::<Incoming>(100))).await;
    let mut keys: Vec<_> =
        resumed.into_iter().flat_map(|resume| resume.unwrap().ended).map(|r| r.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), script.arrived().len()), (20, 40));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_effect_also_over_restarts_and_lost_answers() {
    let (place, clock, effects) = (place(), Clock::new(), Arc::new(AtomicU32::new(0)));
    let proxy = Proxy::start(own_layer::serve(effects.clone()).await).unwrap();
    let uri = format!("http://{}/payments", proxy.addr());
    proxy.next(3, Fault::DropResponse);
    for run in 0..2 {
        let client = durable(policy().attempts_max(1), &clock).open(&place.path).await.unwrap();
        if run == 0 {
            client.send(payment(uri.clone(), "order-1")).await.unwrap_err();
        } else {
            assert!(resumed(&client).await[0].contains("NoAnswer"));
        }
    }
    let last = durable(policy(), &clock).open(&place.path).await.unwrap();
    let mut resume = last.resume::<Incoming>(1).await.unwrap();
    assert!(resume.more);
    let End::Answered(response) = resume.ended.remove(0).end else { panic!() };
    assert_eq!(response.headers()["idempotency-replayed"], "true");
    assert_eq!(text(*response).await, "charged 1");
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}
