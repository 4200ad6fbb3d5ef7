//! Many callers, leaving callers: over real sockets.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use semel::{InFlight, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Notify};

use crate::world::{
    Clock, Effects, app, charged, client, layer, payments, record, send, serve, state, until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixty_four_concurrent_duplicates_one_takes_effect() {
    let effects = Effects::default();
    let rule = payments().in_flight(InFlight::Wait(Duration::from_secs(30)));
    let to = serve(app(layer(Clock::new().store(), rule), &effects, charged)).await;
    let start = Arc::new(Barrier::new(64));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                let client = client();
                start.wait().await;
                send(&client, to, "k", r#"{"amount":1}"#).await
            })
        })
        .collect();
    let mut first = 0;
    for caller in callers {
        let got = caller.await.unwrap();
        assert_eq!((got.status, &*got.body), (201, &b"charged 1"[..]));
        first += u32::from(!got.replayed());
    }
    assert_eq!((effects.count(), first), (1, 1));
}

/// A service whose work waits for a word.
fn slow(store: semel::store::memory::MemoryStore, effects: &Effects) -> (Router, Arc<Notify>, Arc<Notify>) {
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starts, goes, effects) = (Arc::clone(&started), Arc::clone(&go), effects.clone());
    let handler = move || async move {
        starts.notify_one();
        goes.notified().await;
        charged(effects.happen())
    };
    (Router::new().route("/payments", post(handler)).layer(layer(store, payments())), started, go)
}

const HEAD: &str = "POST /payments HTTP/1.1\r\nhost: x\r\nx-tenant-id: acme\r\nidempotency-key: k\r\ncontent-type: application/json\r\n";

#[tokio::test]
async fn a_client_that_hangs_up_in_the_middle_changes_nothing_and_its_retry_gets_the_result() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let (app, started, go) = slow(store.clone(), &effects);
    let to = serve(app).await;
    let mut socket = TcpStream::connect(to).await.unwrap();
    socket.write_all(format!("{HEAD}content-length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    started.notified().await;
    // Reset, not closed politely: the server notices at once.
    socket.set_zero_linger().unwrap();
    drop(socket);
    go.notify_one();
    until(&store, "k", State::Completed).await;
    let retry = send(&client(), to, "k", "{}").await;
    assert_eq!((retry.status, &*retry.body, retry.replayed()), (201, &b"charged 1"[..], true));
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_while_sending_claims_nothing() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let to = serve(app(layer(store.clone(), payments()), &effects, charged)).await;
    let mut socket = TcpStream::connect(to).await.unwrap();
    // The server asks for the body when it has read the head: from then on it waits in the middle of it.
    let head = format!("{HEAD}expect: 100-continue\r\ncontent-length: 20\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut received = [0; 12];
    socket.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"HTTP/1.1 100");
    socket.write_all(b"{\"amo").await.unwrap();
    socket.shutdown().await.unwrap();
    // Whatever the server says now, it says it after it has given up the request.
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(record(&store, "k").await.is_none());
    assert_eq!(effects.count(), 0);
    assert_eq!(send(&client(), to, "k", "{}").await.status, 201);
}

#[tokio::test]
async fn the_lease_is_not_lost_to_a_slow_reader_of_the_answer() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let to = serve(app(layer(store.clone(), payments()), &effects, charged)).await;
    let mut socket = TcpStream::connect(to).await.unwrap();
    socket.write_all(format!("{HEAD}content-length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    // Nothing is read from the socket, and the outcome is there all the same.
    until(&store, "k", State::Completed).await;
    assert_eq!((effects.count(), state(&store, "k").await), (1, Some(State::Completed)));
}
