//! The same with the position in Kafka's transactions: a reader of committed data sees each event once.

use semel::crash::{BEFORE_SINK_COMMIT, IN_EXACTLY_ONCE};
use testkit::child::Child;
use testkit::services::{Cluster, Service, alone, require};

use crate::relay_chaos::killed::{killed, killed_at_any_time};
use crate::relay_chaos::load::{Load, connect};
use crate::relay_chaos::rounds;
use crate::relay_chaos::scene::Scene;
use crate::relay_chaos::servers::apart;
use crate::relay_chaos::{SOON, judge::Verdict};

pub fn once(verdict: &Verdict) {
    assert!(verdict.holds_exactly_once(), "{verdict}");
    assert!(verdict.events > 100, "{verdict}");
}

/// Slow: a process started and killed at each point; a new producer waits for the broker to end the old transaction.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_to_kafka_killed_at_every_point() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await.exactly_once();
    once(&killed(&mut scene, &IN_EXACTLY_ONCE, &[1]).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn postgres_to_kafka_killed_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await.exactly_once();
    once(&killed_at_any_time(&mut scene).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn mariadb_to_kafka_killed_at_every_point_and_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await.exactly_once();
    once(&killed(&mut scene, &IN_EXACTLY_ONCE, &[1]).await);
    once(&killed_at_any_time(&mut scene).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn mysql_to_kafka_killed_at_every_point_and_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Mysql), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await.exactly_once();
    once(&killed(&mut scene, &IN_EXACTLY_ONCE, &[1]).await);
    once(&killed_at_any_time(&mut scene).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn sqlite_to_kafka_killed_at_every_point_and_at_any_time() {
    let Some(broker) = require(Service::Kafka) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let mut scene = Scene::sqlite(path, broker.url()).await.exactly_once();
    once(&killed(&mut scene, &IN_EXACTLY_ONCE, &[1]).await);
    once(&killed_at_any_time(&mut scene).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout under load"]
async fn one_wakes_up_with_its_transaction_open() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await.exactly_once();
    let load = scene.load();
    once(&woken_up(&mut scene, load).await);
}

/// Stopped with its transaction open, and continued after another has sent the batch: the broker knows it no more.
pub async fn woken_up(scene: &mut Scene, load: Load) -> Verdict {
    let mut asleep = scene.relay_at(Some(&format!("{BEFORE_SINK_COMMIT}:3")));
    asleep.wait_for_point(SOON).unwrap();
    // All of it: while only its commit takes long, it keeps its lease.
    asleep.pause().unwrap();
    let awake = scene.relay();
    scene.follower.more(100);
    asleep.resume().unwrap();
    asleep.go().unwrap();
    // It is fenced by the broker and ends, or notices by its own clock and stands by; the other works on.
    scene.follower.more(100);
    asleep.terminate().unwrap();
    let ended = asleep.wait(SOON).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    // The other may have been too late for its own lease meanwhile, and be gone too: then this one works.
    let standby = scene.relay();
    scene.end(load, vec![awake, standby]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn the_broker_is_killed_and_comes_back() {
    let (Some(database), Some(mut broker)) = (require(Service::Postgres), alone(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await.exactly_once();
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(1) {
        scene.follower.more(100);
        broker.kill().unwrap();
        load.more(100).await;
        broker.start().unwrap();
    }
    scene.follower.more(200);
    once(&scene.end(load, vec![relay]).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a database killed under load"]
async fn the_database_is_killed_and_comes_back() {
    let Some((scene, mut cluster, _proxy, _broker)) = apart().await else { return };
    let mut scene = scene.exactly_once();
    let load = scene.load();
    let relay = scene.relay();
    once(&without_its_database(&mut scene, &mut cluster, load, relay).await);
}

/// The database dies under a relay that runs, and comes back.
pub async fn without_its_database(
    scene: &mut Scene,
    cluster: &mut Cluster,
    load: Load,
    relay: Child,
) -> Verdict {
    for _ in 0..rounds(2) {
        scene.follower.more(100);
        cluster.kill().unwrap();
        cluster.start().unwrap();
    }
    scene.follower.more(100);
    scene.end(load, vec![relay]).await
}

/// The position in Kafka is from after the backup. New events get the numbers of those that are gone, and would be taken
/// for published.
#[tokio::test(flavor = "multi_thread")]
async fn from_an_older_copy_of_the_file_it_stops_instead_of_skipping() {
    let Some(broker) = require(Service::Kafka) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("app.db"), directory.path().join("copy.db"));
    let mut scene = Scene::sqlite(path.clone(), broker.url()).await.exactly_once();
    let append = |texts: std::ops::Range<u32>| {
        let mut connection = connect(&path).unwrap();
        let tx = connection.transaction().unwrap();
        for n in texts {
            let insert =
                "INSERT INTO semel_outbox (topic, type, key, payload) VALUES (?1, 'counted', 'a', ?2)";
            tx.execute(insert, (&scene.topic, n.to_string().into_bytes())).unwrap();
        }
        tx.commit().unwrap();
    };
    append(0..5);
    let mut relay = scene.relay();
    scene.follower.more(5);
    relay.terminate().unwrap();
    assert!(relay.wait(SOON).unwrap().status.success());
    // By a reader of the database, not of its file: that is how a backup is made.
    connect(&path).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    append(5..10);
    let mut relay = scene.relay();
    scene.follower.more(5);
    relay.terminate().unwrap();
    assert!(relay.wait(SOON).unwrap().status.success());
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
    std::fs::copy(&copy, &path).unwrap();
    append(10..15);
    let ended = scene.relay().wait(SOON).unwrap();
    let last = ended.stdout.last().unwrap();
    assert!(last.starts_with("stopped: ") && last.contains("older backup"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_older_backup_of_the_database_it_stops_instead_of_skipping() {
    let Some((scene, mut cluster, proxy, _broker)) = apart().await else { return };
    let mut scene = scene.exactly_once();
    let load = scene.load();
    let mut relay = scene.relay();
    scene.follower.more(100);
    let mut backup = cluster.backup().unwrap();
    scene.follower.more(100);
    load.stop().await;
    cluster.kill().unwrap();
    proxy.point_at(backup.addr()).unwrap();
    proxy.cut();
    backup.start().unwrap();
    // The one that runs, and one that comes later.
    for relay in [&mut relay, &mut scene.relay()] {
        let ended = relay.wait(SOON).unwrap();
        let last = ended.stdout.last().unwrap();
        assert!(last.starts_with("stopped: ") && last.contains("older backup"), "{ended:?}");
    }
}
