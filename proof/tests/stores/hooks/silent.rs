//! Two endpoints, of which one takes connections and never answers: the other gets its events all the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel::blocking;
use semel::outbox::{self, Event};
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{Relay, RelayOptions};
use semel::sink::webhook::WebhookSink;
use semel::tx::driver::Dialect;
use tokio::net::TcpListener;

use crate::hooks::place::Place;
use crate::hooks::provider::SECRET;
use crate::hooks::server::Server;

const KEYS: usize = 20;
const SOON: Duration = Duration::from_secs(120);

async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    (address, connections)
}

/// An event of each key to each topic.
fn append(connection: &mut Connection, round: usize, topics: &[&str]) {
    let tx = connection.transaction().unwrap();
    for key in 0..KEYS {
        for topic in topics {
            let event = Event::new(topic, "payment.completed", round.to_string()).unwrap();
            blocking::append_tx(&tx, &event.key(&format!("{topic}-{key}")).unwrap()).unwrap();
        }
    }
    tx.commit().unwrap();
}

async fn wait_for(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !reached().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for time-outs"]
async fn other_endpoints_do_not_wait_for_one_that_never_answers() {
    let (place, (address, tried)) = (Place::sqlite(), silent().await);
    let server = Server::start(&place, "good", None);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let mut connection = Connection::open(&path).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection.execute_batch(outbox::schema(Dialect::Sqlite)).unwrap();
    let outbox = SqliteOutbox::new(&path);
    let good = format!("http://{}/standard", server.address);
    let sink = WebhookSink::options().allow_private().attempt_timeout(Duration::from_secs(3));
    let sink = sink.endpoint("good", &good, SECRET).unwrap();
    let sink = sink.endpoint("silent", &format!("http://{address}/"), SECRET).unwrap().open();
    append(&mut connection, 1, &["silent", "good"]);
    let relay = Relay::new(outbox.source(), sink, RelayOptions::default());
    let stop = relay.stop_handle();
    let running = tokio::spawn(relay.run());
    wait_for("the silent one's keys are not parked", async || {
        outbox.parked(None, 100).await.unwrap().len() == KEYS
    })
    .await;
    let first = tried.load(Ordering::SeqCst);
    assert!(first < KEYS, "{first} events were sent to it");
    // Those that are parked are tried again meanwhile, more of them than would be taken for a sink that is down.
    for round in 2..4 {
        let before = tried.load(Ordering::SeqCst);
        wait_for("the silent one is not tried again", async || tried.load(Ordering::SeqCst) > before).await;
        append(&mut connection, round, &["good"]);
        let wanted = i64::try_from(round * KEYS).unwrap();
        wait_for("the good one waits for the silent one", async || place.effects("%").await == wanted).await;
    }
    stop.stop();
    running.await.unwrap().unwrap();
}
