//! The receiver as a service: what is answered, what is counted, what reaches the handler.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use semel::blocking;
use semel::inbox::webhook::{BODY_BYTES_MAX, Done, Received, ReceiverBody, Stripe, Tenant, WebhookReceiver};
use semel::inbox::{self, Inbox};
use semel::observe::Metrics;
use semel::tx::driver::Dialect;
use tokio::sync::{Mutex, Notify};
use tower::{Service, ServiceExt};

use crate::request::{OTHER, Post, SECRET, stripe_signature};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn event(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"charge.succeeded"}}"#)
}

fn signed(secret: &str, at: u64, body: &str) -> Post {
    let signature = stripe_signature(secret, &at.to_string(), body);
    Post::new(&[("stripe-signature", &format!("t={at},v1={signature}"))], body.as_bytes())
}

fn request(post: Post) -> Request<Full<Bytes>> {
    let mut request = Request::post("/hooks/acme").body(Full::new(post.body.into())).unwrap();
    *request.headers_mut() = post.headers;
    request
}

/// What it says: status, and the code of a problem.
async fn answer<S, B>(service: &S, request: Request<B>) -> (u16, String)
where
    S: Service<Request<B>, Response = Response<ReceiverBody>, Error = Infallible> + Clone,
{
    let response = service.clone().oneshot(request).await.unwrap();
    let status = response.status();
    assert_eq!(response.headers().contains_key("retry-after"), status.is_server_error());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    if status.is_success() {
        assert!(body.is_empty());
        return (status.as_u16(), String::new());
    }
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    (status.as_u16(), problem["code"].as_str().unwrap().to_owned())
}

fn counted(metrics: &Metrics, result: &str) -> u64 {
    let line = format!(r#"semel_webhook_total{{provider="stripe",result="{result}"}} "#);
    let text = metrics.render();
    text.lines().find_map(|have| have.strip_prefix(&line)).unwrap().parse().unwrap()
}

fn answered(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// A database with an inbox and a table of effects.
#[derive(Clone)]
struct Books {
    db: Arc<Mutex<rusqlite::Connection>>,
}

impl Books {
    fn new() -> Self {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        db.execute_batch(inbox::schema(Dialect::Sqlite)).unwrap();
        db.execute_batch("CREATE TABLE effect (tenant TEXT, event TEXT)").unwrap();
        Self { db: Arc::new(Mutex::new(db)) }
    }

    async fn handle(self, received: Received) -> Result<Done, Failed> {
        let mut db = self.db.lock().await;
        let tx = db.transaction()?;
        let row = [received.tenant().unwrap_or(""), received.id()];
        let handled = blocking::handle_tx(&Inbox::new("books")?, &tx, &received, |tx| {
            tx.execute("INSERT INTO effect VALUES (?1, ?2)", row).map(drop)
        })?;
        tx.commit()?;
        Ok(handled.into())
    }

    async fn rows(&self) -> i64 {
        self.db.lock().await.query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).unwrap()
    }
}

#[tokio::test]
async fn each_end_has_its_answer_and_its_counter() {
    let (books, metrics) = (Books::new(), Metrics::new());
    let handler = {
        let books = books.clone();
        move |received| books.clone().handle(received)
    };
    let receiver =
        WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap().metrics(&metrics);
    let (good, body) = (signed(SECRET, now(), &event("evt_1")), event("evt_1"));

    assert_eq!(answer(&receiver, request(good.clone())).await, answered(200, ""));
    assert_eq!(answer(&receiver, request(good.clone())).await, answered(200, ""));
    assert_eq!(
        answer(&receiver, request(signed(OTHER, now(), &body))).await,
        answered(401, "WEBHOOK_REFUSED")
    );
    assert_eq!(
        answer(&receiver, request(signed(SECRET, now() - 999, &body))).await,
        answered(401, "WEBHOOK_REFUSED")
    );
    assert_eq!(answer(&receiver, request(Post::new(&[], b"{}"))).await, answered(400, "WEBHOOK_MALFORMED"));
    assert_eq!(
        answer(&receiver, request(signed(SECRET, now(), "{}"))).await,
        answered(500, "WEBHOOK_NOT_HANDLED")
    );
    let long = event(&"x".repeat(inbox::ID_BYTES_MAX + 1));
    assert_eq!(
        answer(&receiver, request(signed(SECRET, now(), &long))).await,
        answered(500, "WEBHOOK_NOT_HANDLED")
    );
    let mut get = request(good);
    *get.method_mut() = Method::GET;
    assert_eq!(answer(&receiver, get).await, answered(405, "WEBHOOK_METHOD_NOT_ALLOWED"));

    for (result, times) in [
        ("accepted", 1),
        ("replayed", 1),
        ("forged", 1),
        ("stale", 1),
        ("malformed", 2),
        ("unnamed", 2),
        ("failed", 0),
        ("too_large", 0),
    ] {
        assert_eq!(counted(&metrics, result), times, "{result}");
    }
    assert!(metrics.render().contains(r#"semel_duplicates_suppressed_total{rail="webhook"} 1"#));
    assert_eq!(books.rows().await, 1);
}

#[tokio::test]
async fn a_body_at_the_bound_is_read_and_one_beyond_it_is_not() {
    let metrics = Metrics::new();
    let handler = |_| async { Ok::<_, Infallible>(Done::Now) };
    let receiver =
        WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap().metrics(&metrics);
    let fill = |bytes: usize| {
        let body = event("evt_1");
        format!("{body}{}", " ".repeat(bytes - body.len()))
    };
    let (at, over) =
        (signed(SECRET, now(), &fill(BODY_BYTES_MAX)), signed(SECRET, now(), &fill(BODY_BYTES_MAX + 1)));
    assert_eq!(answer(&receiver, request(at)).await, answered(200, ""));
    assert_eq!(answer(&receiver, request(over.clone())).await, answered(413, "WEBHOOK_TOO_LARGE"));
    // Its length is not given beforehand, and it never ends.
    let frames = futures_util::stream::repeat(())
        .map(|()| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(vec![b' '; 9_999]))));
    let endless = request(over).map(|_| StreamBody::new(frames));
    assert_eq!(answer(&receiver, endless).await, answered(413, "WEBHOOK_TOO_LARGE"));
    assert_eq!(counted(&metrics, "too_large"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_comes_is_not_waited_for() {
    let metrics = Metrics::new();
    let handler = |_| async { Ok::<_, Infallible>(Done::Now) };
    let receiver =
        WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap().metrics(&metrics);
    let silent =
        StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>());
    let post = signed(SECRET, now(), &event("evt_1"));
    assert_eq!(
        answer(&receiver, request(post.clone()).map(|_| silent)).await,
        answered(408, "WEBHOOK_TOO_SLOW")
    );
    let broken = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>("the line is dead")]);
    assert_eq!(
        answer(&receiver, request(post).map(|_| StreamBody::new(broken))).await,
        answered(400, "WEBHOOK_MALFORMED")
    );
    assert_eq!(counted(&metrics, "broken"), 2);
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_the_handler_the_provider_sends_again() {
    let metrics = Metrics::new();
    let handler = |received: Received| {
        assert_ne!(received.id(), "panics at once", "planted");
        async move {
            match received.id() {
                "fails" => Err("postgres://db-7.internal refused"),
                "panics" => panic!("planted"),
                "hangs" => pending().await,
                "is ignored" => Ok(Done::Ignored),
                _ => Ok(Done::Now),
            }
        }
    };
    let receiver =
        WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap().metrics(&metrics);
    for (id, status) in [
        ("fails", 503),
        ("panics at once", 500),
        ("panics", 500),
        ("hangs", 503),
        ("is ignored", 200),
        ("is good", 200),
    ] {
        let post = signed(SECRET, now(), &event(id));
        let code = if status == 200 { "" } else { "WEBHOOK_NOT_HANDLED" };
        assert_eq!(answer(&receiver, request(post)).await, answered(status, code), "{id}");
    }
    for (result, times) in [("failed", 4), ("ignored", 1), ("accepted", 1)] {
        assert_eq!(counted(&metrics, result), times, "{result}");
    }
}

/// A handler that says that it began, and waits for a signal to go on.
#[derive(Clone, Default)]
struct Slow {
    began: Arc<Notify>,
    go: Arc<Notify>,
}

impl Slow {
    async fn handle(self) -> Result<Done, Infallible> {
        self.began.notify_one();
        self.go.notified().await;
        Ok(Done::Now)
    }

    async fn has_begun(&self) {
        tokio::time::timeout(Duration::from_secs(20), self.began.notified()).await.unwrap();
    }
}

#[tokio::test]
async fn only_so_many_are_under_way_at_once() {
    let (metrics, slow) = (Metrics::new(), Slow::default());
    let handler = {
        let slow = slow.clone();
        move |_| slow.clone().handle()
    };
    let receiver = WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap();
    let receiver = receiver.metrics(&metrics).in_flight_max(1);
    let post = signed(SECRET, now(), &event("evt_1"));
    let first = tokio::spawn({
        let (receiver, post) = (receiver.clone(), post.clone());
        async move { answer(&receiver, request(post)).await }
    });
    slow.has_begun().await;
    assert_eq!(answer(&receiver, request(post.clone())).await, answered(503, "WEBHOOK_NOT_HANDLED"));
    slow.go.notify_one();
    assert_eq!(first.await.unwrap(), answered(200, ""));
    slow.go.notify_one();
    assert_eq!(answer(&receiver, request(post)).await, answered(200, ""), "its place was given back");
    assert_eq!((counted(&metrics, "busy"), counted(&metrics, "accepted")), (1, 2));
}

#[tokio::test]
async fn a_forged_request_is_refused_while_all_places_are_taken() {
    let (metrics, slow) = (Metrics::new(), Slow::default());
    let handler = {
        let slow = slow.clone();
        move |_| slow.clone().handle()
    };
    let receiver = WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap();
    let receiver = receiver.metrics(&metrics).in_flight_max(1);
    let first = tokio::spawn({
        let receiver = receiver.clone();
        async move { answer(&receiver, request(signed(SECRET, now(), &event("evt_1")))).await }
    });
    slow.has_begun().await;
    let forged = signed(OTHER, now(), &event("evt_2"));
    assert_eq!(
        answer(&receiver, request(forged)).await,
        answered(401, "WEBHOOK_REFUSED"),
        "it needs no place"
    );
    slow.go.notify_one();
    assert_eq!(first.await.unwrap(), answered(200, ""));
    assert_eq!((counted(&metrics, "forged"), counted(&metrics, "busy")), (1, 0));
}

/// Also what is not yet known to be signed holds a body in memory.
#[tokio::test]
async fn only_so_many_are_read_at_once() {
    let handler = |_| async { Ok::<_, Infallible>(Done::Now) };
    let receiver = WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap();
    let receiver = receiver.in_flight_max(1);
    let post = signed(SECRET, now(), &event("evt_1"));
    let silent =
        StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>());
    let mut slow = Box::pin(receiver.clone().oneshot(request(post.clone()).map(|_| silent)));
    assert!((&mut slow).now_or_never().is_none(), "it waits for the body");
    assert_eq!(answer(&receiver, request(post.clone())).await, answered(503, "WEBHOOK_NOT_HANDLED"));
    drop(slow);
    assert_eq!(answer(&receiver, request(post)).await, answered(200, ""), "its place was given back");
}

#[tokio::test]
async fn tenants_have_secrets_and_events_of_their_own() {
    let (books, metrics) = (Books::new(), Metrics::new());
    let find = |parts: &http::request::Parts| {
        let tenant = parts.uri.path().strip_prefix("/hooks/")?;
        let secret = match tenant {
            "acme" => SECRET,
            "globex" => OTHER,
            _ => return None,
        };
        Tenant::new(tenant, Stripe::new([secret]).ok()?).ok()
    };
    let handler = {
        let books = books.clone();
        move |received| books.clone().handle(received)
    };
    let receiver = WebhookReceiver::with_tenants("stripe", find, handler).unwrap().metrics(&metrics);
    let to = |tenant: &str, secret| {
        let mut request = request(signed(secret, now(), &event("evt_1")));
        *request.uri_mut() = format!("/hooks/{tenant}").parse().unwrap();
        request
    };
    assert_eq!(answer(&receiver, to("acme", SECRET)).await, answered(200, ""));
    assert_eq!(
        answer(&receiver, to("globex", OTHER)).await,
        answered(200, ""),
        "the same id is another event here"
    );
    assert_eq!(answer(&receiver, to("globex", SECRET)).await, answered(401, "WEBHOOK_REFUSED"));
    assert_eq!(answer(&receiver, to("unknown", SECRET)).await, answered(401, "WEBHOOK_REFUSED"));
    assert_eq!(books.rows().await, 2);
    assert_eq!((counted(&metrics, "forged"), counted(&metrics, "unknown_tenant")), (1, 1));
    for bad in ["", "a/b", "a\nb", &"x".repeat(200)] {
        assert!(
            WebhookReceiver::new(bad, Stripe::new([SECRET]).unwrap(), |_| async {
                Ok::<_, Failed>(Done::Now)
            })
            .is_err(),
            "{bad}"
        );
    }
}

/// What is wrong here on purpose: the event is marked by what the request says, and checked afterwards.
#[tokio::test]
async fn a_mark_before_the_signature_lets_a_forger_take_an_events_place() {
    let marks_first = |books: Books, post: Post| async move {
        let id: serde_json::Value = serde_json::from_slice(&post.body).unwrap();
        let message = inbox::Identity::new("webhook:stripe", id["id"].as_str().unwrap()).unwrap();
        let mut db = books.db.lock().await;
        let tx = db.transaction().unwrap();
        let books_inbox = Inbox::new("books").unwrap();
        let handled = blocking::handle_tx(&books_inbox, &tx, &message, |_| Ok::<_, Failed>(()));
        let fresh = !handled.unwrap().is_already();
        tx.commit().unwrap();
        if !fresh {
            return 200;
        }
        if post.to(&Stripe::new([SECRET]).unwrap(), now()).is_err() {
            return 401;
        }
        db.execute("INSERT INTO effect VALUES ('', ?1)", [message.id()]).unwrap();
        200
    };
    let (forged, good) = (signed(OTHER, now(), &event("evt_1")), signed(SECRET, now(), &event("evt_1")));
    let books = Books::new();
    assert_eq!(marks_first(books.clone(), forged.clone()).await, 401);
    assert_eq!(marks_first(books.clone(), good.clone()).await, 200);
    assert_eq!(books.rows().await, 0, "the forger's mark is the event's, and the event is lost");

    let (books, calls) = (Books::new(), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (books, calls) = (books.clone(), Arc::clone(&calls));
        move |received| {
            calls.fetch_add(1, Ordering::Relaxed);
            books.clone().handle(received)
        }
    };
    let receiver = WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap();
    for _ in 0..3 {
        assert_eq!(answer(&receiver, request(forged.clone())).await, answered(401, "WEBHOOK_REFUSED"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "a forgery reached the handler");
    assert_eq!(answer(&receiver, request(good)).await, answered(200, ""));
    assert_eq!((books.rows().await, calls.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn what_is_received_shows_neither_body_nor_headers() {
    let seen = Arc::new(std::sync::Mutex::new(String::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        move |received: Received| {
            assert_eq!((received.provider(), received.kind()), ("stripe", Some("charge.succeeded")));
            assert_eq!(received.json::<serde_json::Value>().unwrap()["id"], received.id());
            assert!(received.signed_at_s().is_some() && received.headers().contains_key("stripe-signature"));
            *seen.lock().unwrap() = format!("{received:?}");
            async { Ok::<_, Infallible>(Done::Now) }
        }
    };
    let receiver = WebhookReceiver::new("stripe", Stripe::new([SECRET]).unwrap(), handler).unwrap();
    let body = event("evt_1").replace('}', r#","card":"4242"}"#);
    assert_eq!(answer(&receiver, request(signed(SECRET, now(), &body))).await.0, 200);
    let seen = seen.lock().unwrap().clone();
    assert!(seen.contains("evt_1") && !seen.contains("4242") && !seen.contains("v1="), "{seen}");
}
