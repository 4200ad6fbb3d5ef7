//! The journal's file: bounds, and errors that say what to do.

use std::fs;

use http::Request;
use semel::Key;
use semel::http::client::durable::{DurableClient, DurableError};
use semel::http::client::{IdempotentClient, InvalidRequest};
use semel::store::ErrorKind;

use crate::durable::{Clock, durable, place};
use crate::script::*;

#[tokio::test]
async fn a_file_that_is_no_journal_is_refused_and_left_alone() {
    let open = async |path: &std::path::Path| {
        DurableClient::builder(IdempotentClient::http()).open(path).await.map(drop)
    };
    let place = place();
    fs::write(
        &place.path,
        "these are notes, and long enough to be taken for a header of a database file, ".repeat(20),
    )
    .unwrap();
    let before = fs::read(&place.path).unwrap();
    let error = open(&place.path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), before);

    // A store's file is not a journal, although both are semel's.
    let store = place.path.with_file_name("store.db");
    semel::store::sqlite::schema::migrate(&store).await.unwrap();
    let error = open(&store).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("use another path"), "{error}");

    let error = open(&place.path.with_file_name("no/such/directory/intents.db")).await.unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
}

#[tokio::test]
async fn a_damaged_row_is_held_and_the_next_one_is_resumed() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([Step::ReadAndClose, Step::ReadAndClose, answer(200)]).await;
    let client = durable(policy().attempts_max(1), &clock).open(&place.path).await.unwrap();
    for key in ["order-1", "order-2"] {
        client.send(payment(script.uri(), key)).await.unwrap_err();
    }
    let tool = rusqlite::Connection::open(&place.path).unwrap();
    tool.execute("UPDATE intent SET uri = 'not a uri' WHERE key = 'order-1'", []).unwrap();
    assert_eq!(crate::durable::resumed(&client).await, ["order-1 Unreadable", "order-2 Answered(200 OK)"]);
    assert!(crate::durable::resumed(&client).await.is_empty());
}

#[tokio::test]
async fn a_locked_file_says_so_and_nothing_is_sent() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([answer(200)]).await;
    let client = durable(policy(), &clock).open(&place.path).await.unwrap();
    let other = rusqlite::Connection::open(&place.path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = client.send(payment(script.uri(), "order-1")).await.unwrap_err();
    assert!(matches!(error, DurableError::Journal(_)), "{error}");
    assert!(
        error.to_string().starts_with("nothing was sent: ") && error.to_string().contains("locked"),
        "{error}"
    );
    assert!(script.arrived().is_empty());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(client.send(payment(script.uri(), "order-1")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_journal_has_its_bounds() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([Step::ReadAndClose, Step::ReadAndClose, answer(200)]).await;
    let policy = policy().attempts_max(1).body_bytes_max(BODY.len());
    let client = durable(policy, &clock).intents_max(2).answers_max(1).open(&place.path).await.unwrap();
    let send = async |key: &str| client.send(payment(script.uri(), key)).await;
    for key in ["order-1", "order-2"] {
        send(key).await.unwrap_err();
    }
    let error = send("order-3").await.unwrap_err();
    assert!(matches!(error, DurableError::Full { intents_max: 2 }), "{error}");
    assert_eq!(script.arrived().len(), 2);
    // Going on with one that is there is no new one, and one that is forgotten makes room.
    assert_eq!(send("order-1").await.unwrap().status(), 200);
    assert!(client.forget(&Key::new("order-2").unwrap()).await.unwrap());
    for n in 3..8 {
        assert_eq!(send(&format!("order-{n}")).await.unwrap().status(), 200);
    }
    let tool = rusqlite::Connection::open(&place.path).unwrap();
    let rows: u32 = tool.query_row("SELECT count(*) FROM intent", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2, "one kept answer beside the last one");

    let large = Request::post(script.uri()).body(format!("{BODY} ")).unwrap();
    let error = client.send(large).await.unwrap_err();
    assert!(matches!(error, DurableError::Invalid(InvalidRequest::BodyTooLarge { .. })), "{error}");
}

#[tokio::test]
async fn what_would_not_come_back_whole_is_refused_before_it_is_sent() {
    let (place, clock) = (place(), Clock::new());
    let script = Script::start([answer(200)]).await;
    let client = durable(policy(), &clock).open(&place.path).await.unwrap();
    let with = |name: &'static str| {
        let mut request = payment(script.uri(), "order-1");
        request.headers_mut().insert(name, "x".parse().unwrap());
        request
    };
    let error = client.send(with("x-tenant-id")).await.unwrap_err();
    assert!(error.to_string().contains("x-tenant-id"), "{error}");
    let error = client.send(with("authorization")).await.unwrap_err();
    assert!(matches!(error, DurableError::NoCredentials(_)), "{error}");
    let error = client.send(payment("http://me:secret@127.0.0.1:1/".into(), "order-1")).await.unwrap_err();
    assert!(matches!(error, DurableError::Uri), "{error}");
    let error = client.send(payment("/payments".into(), "order-1")).await.unwrap_err();
    assert!(matches!(error, DurableError::Uri), "{error}");
    assert!(script.arrived().is_empty() && client.unfinished(10).await.unwrap().is_empty());
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let (place, clock) = (place(), Clock::new());
    let _client = durable(policy(), &clock).open(&place.path).await.unwrap();
    for file in ["intents.db", "intents.db-wal"] {
        let mode = fs::metadata(place.path.with_file_name(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}
