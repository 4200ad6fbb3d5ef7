//! In MySQL and MariaDB: the numbers of a part, in the order of commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::outbox::append_tx;
use semel::relay::poll::mysql::MysqlOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Rebase, Settled};
use sqlx::{AssertSqlSafe, Executor, Row};
use testkit::proxy::Proxy;

use super::SERVER;
use crate::relay::mysql_world::{LEASE, World};
use crate::relay::sink::TestSink;
use crate::relay::world::{Running, batch, drained, event, quick};

#[tokio::test]
async fn a_restart_repeats_the_batch_and_an_owner_of_yesterday_moves_nothing() {
    let Some(world) = World::new(SERVER).await else { return };
    world.append(&[("a", "1"), ("a", "2"), ("a", "3")]).await;
    let outbox = world.outbox.clone().batch_max(1, 1 << 20);
    let (mut first, mut second) = (outbox.source(), outbox.source());
    let given = batch(&mut first).await;
    assert_eq!(given.events.len(), 1);
    assert_eq!(batch(&mut first).await.position, given.position);
    tokio::time::sleep(LEASE * 9 / 8).await;
    assert!(!first.holds_lease());
    // And what is over is not renewed.
    let kept = first.renew_lease().await;
    assert!(matches!(kept, Err(OutboxReaderError::Fenced)) && !first.holds_lease(), "{kept:?}");
    let again = batch(&mut second).await;
    assert_eq!(again.position, given.position);
    assert_eq!(again.events[0].event.id(), given.events[0].event.id());
    second.ack(&[Settled::Confirmed]).await.unwrap();
    batch(&mut second).await;
    let word = first.ack(&[Settled::Confirmed]).await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    drop(second);
    world.pool.execute("UPDATE semel_outbox_relay SET lease_until = 0").await.unwrap();
    assert_eq!(drained(&mut outbox.source()).await, ["2", "3"]);
    world.end().await;
}

#[tokio::test]
async fn a_lease_that_is_over_is_not_kept() {
    let Some(world) = World::new(SERVER).await else { return };
    world.append(&[("a", "1"), ("a", "2")]).await;
    let outbox = world.outbox.clone().batch_max(1, 1 << 20);
    crate::relay::ownership::kept_too_late(&mut outbox.source(), &mut outbox.source(), LEASE).await;
    world.end().await;
}

#[tokio::test]
async fn a_new_lease_does_not_bring_back_an_old_batch() {
    let Some(world) = World::new(SERVER).await else { return };
    world.append(&[("a", "1")]).await;
    let outbox = &world.outbox;
    crate::relay::ownership::woken(&mut outbox.source(), &mut outbox.source(), LEASE).await;
    world.end().await;
}

#[tokio::test]
async fn parts_had_before_a_connection_broke_come_to_others() {
    let Some(world) = World::new(SERVER).await else { return };
    let server = world.server.url().rsplit_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::start(server).unwrap();
    let url = world.server.url().rsplit_once('/').unwrap().0.replace(server, &proxy.addr().to_string());
    let lease = Duration::from_secs(30);
    let through = MysqlOutbox::new(&format!("{url}/{}", world.database)).unwrap().lease(lease);
    let direct = world.outbox.clone().lease(lease);
    let owned = async || world.owned().await;
    crate::relay::ownership::orphaned(&mut through.source(), &mut direct.source(), &proxy, owned).await;
    world.end().await;
}

#[tokio::test]
async fn parts_are_shared_by_one_that_is_always_busy() {
    let Some(world) = World::new(SERVER).await else { return };
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    world.append(&keys.iter().map(|key| (key.as_str(), "1")).collect::<Vec<_>>()).await;
    let outbox = world.outbox.clone().batch_max(1, 1 << 20);
    let owned = async || world.owned().await;
    crate::relay::ownership::shared_while_busy(&mut outbox.source(), &mut outbox.source(), LEASE, owned)
        .await;
    world.end().await;
}

#[tokio::test]
async fn a_parked_key_waits_and_the_others_go_on() {
    let Some(world) = World::new(SERVER).await else { return };
    let outbox = world.outbox.clone();
    world.append(&[("ä", "a1"), ("b", "b1"), ("ä", "a2")]).await;
    let sink = TestSink::default();
    sink.state().refused.insert("a1".into());
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(1).await;
    world.append(&[("ä", "a3"), ("b", "b2")]).await;
    sink.wait_for(2).await;
    while outbox.parked(None, 10).await.unwrap().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let parked = outbox.parked(Some("ä"), 10).await.unwrap();
    assert_eq!(parked[0].error.as_deref(), Some("the broker does not want it"));
    assert_eq!((parked[1].error.clone(), parked[1].event.payload().as_ref()), (None, &b"a2"[..]));
    sink.state().refused.clear();
    assert_eq!(outbox.retry(Some("ä")).await.unwrap(), 1);
    sink.wait_for(5).await;
    world.append(&[("ä", "a4")]).await;
    sink.wait_for(6).await;
    assert_eq!(sink.first_of_each()["ä"], ["a1", "a2", "a3", "a4"]);
    // One that is skipped is gone, and its key is free.
    sink.state().refused.insert("c1".into());
    world.append(&[("c", "c1")]).await;
    let parked = loop {
        let parked = outbox.parked(None, 10).await.unwrap();
        if !parked.is_empty() {
            break parked;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(outbox.skip(parked[0].id()).await.unwrap());
    assert!(!outbox.skip(parked[0].id()).await.unwrap());
    world.append(&[("c", "c2")]).await;
    sink.wait_for(7).await;
    assert_eq!(sink.first_of_each()["c"], ["c2"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random writers and crashes"]
async fn nothing_is_lost_and_nothing_is_overtaken() {
    let Some(world) = World::new(SERVER).await else { return };
    // So short that what the killed had is taken over while the others come and go.
    let outbox = world.outbox.clone().lease(Duration::from_millis(400)).batch_max(20, 1 << 20);
    world.pool.execute("CREATE TABLE counter (k varchar(9) PRIMARY KEY, n bigint NOT NULL)").await.unwrap();
    let rows: Vec<String> = (0..40).map(|n| format!("('k{n}', 0)")).collect();
    let fill = format!("INSERT INTO counter VALUES {}", rows.join(","));
    world.pool.execute(AssertSqlSafe(fill)).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let (pool, over) = (world.pool.clone(), over.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut tx = pool.begin().await.unwrap();
                    let key = format!("k{}", fastrand::u32(0..40));
                    let add = format!("UPDATE counter SET n = n + 1 WHERE k = '{key}'");
                    tx.execute(AssertSqlSafe(add)).await.unwrap();
                    let look = format!("SELECT n FROM counter WHERE k = '{key}'");
                    let n: i64 = tx.fetch_one(AssertSqlSafe(look)).await.unwrap().get(0);
                    append_tx(&mut tx, &event(&key, &n.to_string())).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..8))).await;
                    if fastrand::u32(0..5) > 0 {
                        tx.commit().await.unwrap();
                    } else {
                        tx.rollback().await.unwrap();
                    }
                }
            })
        })
        .collect();
    let sink = TestSink::default();
    sink.state().fail_percent = 3;
    for _ in 0..8 {
        let relays = [0, 1].map(|_| Running::start(outbox.source(), &sink, quick().attempts_max(1_000)));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(100..900))).await;
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
        writer.await.unwrap();
    }
    sink.state().fail_percent = 0;
    // At last one with time to keep its lease.
    let relay = Running::start(world.outbox.clone().batch_max(20, 1 << 20).source(), &sink, quick());
    let rows = sqlx::query("SELECT k, n FROM counter WHERE n > 0").fetch_all(&world.pool).await.unwrap();
    let committed: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    sink.wait_for(usize::try_from(committed.iter().map(|(_, n)| n).sum::<i64>()).unwrap()).await;
    relay.stop().await;
    let by_key = sink.first_of_each();
    for (key, n) in &committed {
        assert_eq!(by_key[key], (1..=*n).map(|n| n.to_string()).collect::<Vec<_>>(), "{key}");
    }
    world.end().await;
}

#[tokio::test]
async fn what_is_published_and_old_is_forgotten_and_lag_is_reported() {
    let Some(world) = World::new(SERVER).await else { return };
    let mut source = world.outbox.clone().lease(Duration::from_secs(30)).source();
    world.append(&[("a", "1"), ("b", "2"), ("a", "3")]).await;
    assert_eq!(source.prune(Duration::ZERO).await.unwrap().rows, 0);
    assert_eq!(source.lag().await.unwrap().events, 3);
    assert_eq!(drained(&mut source).await.len(), 3);
    world.append(&[("a", "4"), ("b", "5")]).await;
    let lag = source.lag().await.unwrap();
    assert_eq!((lag.events, lag.parked, lag.oldest.is_some(), lag.partitions), (2, 0, true, 16));
    assert_eq!(source.prune(Duration::from_secs(3600)).await.unwrap().rows, 0);
    assert_eq!(source.prune(Duration::ZERO).await.unwrap().rows, 3);
    let mut left = drained(&mut source).await;
    left.sort();
    assert_eq!(left, ["4", "5"]);
    world.end().await;
}

#[tokio::test]
async fn another_lineage_stops_it_until_a_person_decides() {
    let Some(world) = World::new(SERVER).await else { return };
    world.append(&[("a", "1")]).await;
    let all = async || {
        let mut source = world.outbox.source();
        let texts = drained(&mut source).await;
        source.release().await.unwrap();
        texts
    };
    assert_eq!(all().await, ["1"]);
    world.pool.execute("UPDATE semel_outbox_meta SET lineage = UUID()").await.unwrap();
    let refused = world.outbox.source().next().await.unwrap_err();
    assert!(matches!(refused, OutboxReaderError::OutboxLineage { .. }), "{refused}");
    world.outbox.rebase(Rebase::Everything).await.unwrap();
    assert_eq!(all().await, ["1"]);
    world.outbox.rebase(Rebase::FromNow).await.unwrap();
    world.append(&[("a", "2")]).await;
    assert_eq!(all().await, ["2"]);
    world.end().await;
}

/// As after a restore of the events without the cursor: what is new gets numbers that count as published.
#[tokio::test]
async fn a_cursor_ahead_of_all_numbers_stops_it_until_a_person_decides() {
    let Some(world) = World::new(SERVER).await else { return };
    world.append(&[("a", "1"), ("a", "2"), ("a", "3")]).await;
    let mut source = world.outbox.source();
    assert_eq!(drained(&mut source).await, ["1", "2", "3"]);
    world.pool.execute("DELETE FROM semel_outbox").await.unwrap();
    world.pool.execute("UPDATE semel_outbox_part SET n = 0").await.unwrap();
    world.append(&[("a", "4")]).await;
    // One that runs notices, and one that starts.
    let noticed = source.renew_lease().await.unwrap_err();
    let refused = world.outbox.source().next().await.unwrap_err();
    for error in [noticed, refused] {
        assert!(error.to_string().contains("semel outbox rebase") && !error.may_retry(), "{error}");
    }
    world.outbox.rebase(Rebase::Everything).await.unwrap();
    assert_eq!(drained(&mut world.outbox.source()).await, ["4"]);
    world.end().await;
}
