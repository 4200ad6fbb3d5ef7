//! In SQLite: a number for a cursor, and one relay at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Rebase, Settled};
use semel::tx::driver::Dialect;
use semel::{blocking, outbox};
use tempfile::TempDir;

use crate::relay::sink::TestSink;
use crate::relay::world::{Running, batch, drained, event, quick};

/// Its end is waited for now and then.
const LEASE: Duration = Duration::from_secs(8);

pub fn file() -> (TempDir, PathBuf, SqliteOutbox) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let connection = connect(&path);
    connection.execute_batch(outbox::schema(Dialect::Sqlite)).unwrap();
    let outbox = SqliteOutbox::new(&path).lease(LEASE);
    (directory, path, outbox)
}

pub fn connect(path: &PathBuf) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection
}

pub fn append(path: &PathBuf, events: &[(&str, &str)]) {
    let mut connection = connect(path);
    for (key, text) in events {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        blocking::append_tx(&tx, &event(key, text)).unwrap();
        tx.commit().unwrap();
    }
}

#[tokio::test]
async fn a_restart_repeats_the_batch_and_an_owner_of_yesterday_moves_nothing() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "1"), ("a", "2"), ("a", "3")]);
    let outbox = outbox.batch_max(1, 1 << 20);
    let (mut first, mut second) = (outbox.source(), outbox.source());
    let given = batch(&mut first).await;
    assert_eq!(batch(&mut first).await.position, given.position);
    // It is the first one's turn.
    assert!(second.next().await.unwrap().is_none());
    tokio::time::sleep(LEASE * 9 / 8).await;
    assert!(!first.holds_lease());
    let again = batch(&mut second).await;
    assert_eq!(again.position, given.position);
    assert_eq!(again.events[0].event.id(), given.events[0].event.id());
    second.ack(&[Settled::Confirmed]).await.unwrap();
    batch(&mut second).await;
    let word = first.ack(&[Settled::Confirmed]).await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    drop(second);
    connect(&path).execute("UPDATE semel_outbox_cursor SET lease_until = 0", []).unwrap();
    assert_eq!(drained(&mut outbox.source()).await, ["2", "3"]);
}

/// Another relay took over, acked the batch and ended, while this one only renewed its lease: the batch is not its own
/// any more.
#[tokio::test]
async fn a_lease_that_is_taken_again_brings_no_old_batch() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "1")]);
    let mut relay = outbox.source();
    assert!(relay.acquire_exclusive().await.unwrap());
    assert_eq!(batch(&mut relay).await.events.len(), 1);
    let elsewhere = "UPDATE semel_outbox_cursor SET epoch = epoch + 1, after_seq = until_seq, until_seq = NULL, \
                     owner = NULL, lease_until = 0";
    connect(&path).execute(elsewhere, []).unwrap();
    // The first notices that the lease is lost, the second takes it again.
    for _ in 0..2 {
        let _ = relay.renew_lease().await;
    }
    assert!(relay.acquire_exclusive().await.unwrap());
    assert!(relay.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_parked_key_waits_and_the_others_go_on() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "a1"), ("b", "b1"), ("a", "a2")]);
    let sink = TestSink::default();
    sink.state().refused.insert("a1".into());
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(1).await;
    append(&path, &[("a", "a3"), ("b", "b2")]);
    sink.wait_for(2).await;
    while outbox.parked(None, 10).await.unwrap().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let parked = outbox.parked(Some("a"), 10).await.unwrap();
    assert_eq!(parked[0].error.as_deref(), Some("the broker does not want it"));
    assert_eq!((parked[1].error.clone(), parked[1].event.payload().as_ref()), (None, &b"a2"[..]));
    sink.state().refused.clear();
    assert_eq!(outbox.retry(None).await.unwrap(), 1);
    sink.wait_for(5).await;
    append(&path, &[("a", "a4")]);
    sink.wait_for(6).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2", "a3", "a4"]);
    // One that is skipped is gone, and its key is free.
    sink.state().refused.insert("c1".into());
    append(&path, &[("c", "c1")]);
    let parked = loop {
        let parked = outbox.parked(None, 10).await.unwrap();
        if !parked.is_empty() {
            break parked;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(outbox.skip(parked[0].id()).await.unwrap());
    append(&path, &[("c", "c2")]);
    sink.wait_for(7).await;
    assert_eq!(sink.first_of_each()["c"], ["c2"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random writers and crashes"]
async fn nothing_is_lost_and_nothing_is_overtaken() {
    let (_directory, path, outbox) = file();
    // So short that what the killed had is taken over while the others come and go.
    let outbox = outbox.lease(Duration::from_millis(300)).batch_max(20, 1 << 20);
    connect(&path).execute_batch("CREATE TABLE counter (key TEXT PRIMARY KEY, n INTEGER NOT NULL)").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (path, over) = (path.clone(), over.clone());
            std::thread::spawn(move || {
                let mut connection = connect(&path);
                while !over.load(Ordering::Relaxed) {
                    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                    let key = format!("k{}", fastrand::u32(0..20));
                    let add =
                        "INSERT INTO counter VALUES (?1, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n";
                    let n: i64 = tx.query_row(add, [&key], |row| row.get(0)).unwrap();
                    blocking::append_tx(&tx, &event(&key, &n.to_string())).unwrap();
                    if fastrand::u32(0..5) > 0 {
                        tx.commit().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(fastrand::u64(0..5)));
                }
            })
        })
        .collect();
    let sink = TestSink::default();
    sink.state().fail_percent = 3;
    for _ in 0..8 {
        let options = || quick().attempts_max(1_000);
        let relays = [0, 1].map(|_| Running::start(outbox.source(), &sink, options()));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..500))).await;
        for relay in relays {
            if fastrand::bool() {
                relay.kill().await;
            } else {
                relay.stop().await;
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    sink.state().fail_percent = 0;
    // At last one with time to keep its lease.
    let relay = Running::start(outbox.lease(LEASE).source(), &sink, quick());
    let connection = connect(&path);
    let mut rows = connection.prepare("SELECT key, n FROM counter").unwrap();
    let committed: Vec<(String, i64)> =
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
    sink.wait_for(usize::try_from(committed.iter().map(|(_, n)| n).sum::<i64>()).unwrap()).await;
    relay.stop().await;
    let by_key = sink.first_of_each();
    for (key, n) in &committed {
        assert_eq!(by_key[key], (1..=*n).map(|n| n.to_string()).collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test]
async fn what_is_published_and_old_is_forgotten_and_lag_is_reported() {
    let (_directory, path, outbox) = file();
    let events: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    append(&path, &events[..20].iter().map(|text| ("a", text.as_str())).collect::<Vec<_>>());
    let mut source = outbox.source();
    assert_eq!(source.prune(Duration::ZERO).await.unwrap().rows, 0);
    assert_eq!(drained(&mut source).await.len(), 20);
    append(&path, &events[20..].iter().map(|text| ("a", text.as_str())).collect::<Vec<_>>());
    let lag = source.lag().await.unwrap();
    assert_eq!((lag.events, lag.parked, lag.oldest.is_some()), (10, 0, true));
    assert_eq!(source.prune(Duration::from_secs(3600)).await.unwrap().rows, 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(source.prune(Duration::ZERO).await.unwrap().rows, 20);
    assert_eq!(drained(&mut source).await, events[20..]);
    source.release().await.unwrap();
}

#[tokio::test]
async fn another_lineage_stops_it_until_a_person_decides() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "1")]);
    let mut source = outbox.source();
    assert_eq!(drained(&mut source).await, ["1"]);
    source.release().await.unwrap();
    connect(&path).execute("UPDATE semel_outbox_meta SET lineage = 'other'", []).unwrap();
    let refused = outbox.source().next().await.unwrap_err();
    assert!(matches!(refused, OutboxReaderError::OutboxLineage { .. }), "{refused}");
    outbox.rebase(Rebase::Everything).await.unwrap();
    let mut source = outbox.source();
    assert_eq!(drained(&mut source).await, ["1"]);
    source.release().await.unwrap();
    outbox.rebase(Rebase::FromNow).await.unwrap();
    append(&path, &[("a", "2")]);
    assert_eq!(drained(&mut outbox.source()).await, ["2"]);
    let missing = SqliteOutbox::new(path.with_file_name("none.db")).source().next().await.unwrap_err();
    assert!(!missing.may_retry(), "{missing}");
}

/// As after a restore that has left out the cursor, or SQLite's own count: what is new gets numbers that count as published.
#[tokio::test]
async fn a_cursor_ahead_of_all_numbers_stops_it_until_a_person_decides() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "1"), ("a", "2")]);
    let mut source = outbox.source();
    assert_eq!(drained(&mut source).await, ["1", "2"]);
    source.release().await.unwrap();
    let restored = "DELETE FROM semel_outbox; DELETE FROM sqlite_sequence WHERE name = 'semel_outbox'";
    connect(&path).execute_batch(restored).unwrap();
    append(&path, &[("a", "3")]);
    let refused = outbox.source().next().await.unwrap_err();
    assert!(refused.to_string().contains("semel outbox rebase") && !refused.may_retry(), "{refused}");
    outbox.rebase(Rebase::Everything).await.unwrap();
    assert_eq!(drained(&mut outbox.source()).await, ["3"]);
}

/// Services in other languages write what they like: an id that is no UUID becomes one, always the same.
#[tokio::test]
async fn an_id_that_is_no_uuid_stops_no_other_key_and_can_be_skipped() {
    let (_directory, path, outbox) = file();
    let odd = "INSERT INTO semel_outbox (id, topic, type, key, payload) VALUES ('order-17', 't', 'made', 'a', X'6f6464')";
    Connection::open(&path).unwrap().execute(odd, []).unwrap();
    append(&path, &[("b", "1")]);
    let mut source = outbox.source();
    let batch = source.next().await.unwrap().unwrap();
    assert_eq!(batch.events.len(), 2);
    let id = batch.events[0].event.id();
    let refused = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    source.ack(&[refused, Settled::Confirmed]).await.unwrap();
    let parked = outbox.parked(None, 10).await.unwrap();
    assert_eq!((parked.len(), parked[0].event.id()), (1, id));
    assert!(outbox.skip(id).await.unwrap());
    assert!(!outbox.skip(id).await.unwrap());
    assert!(outbox.parked(None, 10).await.unwrap().is_empty());
}
