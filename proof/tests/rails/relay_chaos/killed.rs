//! The relay is killed: at each of its points, and wherever it happens to be.

use std::time::Duration;

use semel::crash::IN_RELAY;
use testkit::services::{Service, require};

use crate::relay_chaos::SOON;
use crate::relay_chaos::judge::Verdict;
use crate::relay_chaos::load::Load;
use crate::relay_chaos::rounds;
use crate::relay_chaos::scene::Scene;

/// Events in a history of kills: fewer would show little.
const EVENTS_MIN: usize = 200;

/// At each of these points, early and perhaps later on, all under one load.
pub async fn killed(scene: &mut Scene, points: &[&str], times: &[u32]) -> Verdict {
    let load = scene.load();
    kill(scene, points, times).await;
    ended(scene, load).await
}

/// At any time, under one load.
pub async fn killed_at_any_time(scene: &mut Scene) -> Verdict {
    let load = scene.load();
    kill_at_any_time(scene).await;
    ended(scene, load).await
}

async fn ended(scene: &mut Scene, load: Load) -> Verdict {
    // On a slow machine the relays may have been killed before much was written.
    while load.committed() <= EVENTS_MIN {
        load.more(1).await;
    }
    let relay = scene.relay();
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.events > EVENTS_MIN, "{verdict}");
    verdict
}

/// One relay after the other.
pub async fn kill(scene: &mut Scene, points: &[&str], times: &[u32]) {
    for point in points {
        for nth in times {
            let mut relay = scene.relay_at(Some(&format!("{point}:{nth}")));
            relay.wait_for_point(SOON).unwrap();
            relay.kill().unwrap();
        }
    }
}

/// One relay after the other, wherever it happens to be.
pub async fn kill_at_any_time(scene: &mut Scene) {
    for _ in 0..rounds(8) {
        let mut relay = scene.relay();
        // It is in the middle of things; how far it then gets is chance.
        scene.follower.more(fastrand::usize(1..100));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        relay.kill().unwrap();
    }
}

pub fn at_least_once(verdict: &Verdict) {
    assert!(verdict.holds(), "{verdict}");
    // Killed between the broker's word and its own note: what it had sent is sent again.
    assert!(verdict.repeats > 0, "{verdict}");
}

/// Slow: a process started and killed at each point.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_to_kafka_killed_at_every_point() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    at_least_once(&killed(&mut scene, &IN_RELAY, &[1, 4]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_to_kafka_killed_at_every_point() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await;
    at_least_once(&killed(&mut scene, &IN_RELAY, &[2]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_to_kafka_killed_at_every_point() {
    let (Some(database), Some(broker)) = (require(Service::Mysql), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await;
    at_least_once(&killed(&mut scene, &IN_RELAY, &[2]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_to_kafka_killed_at_every_point() {
    let Some(broker) = require(Service::Kafka) else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::sqlite(directory.path().join("app.db"), broker.url()).await;
    at_least_once(&killed(&mut scene, &IN_RELAY, &[2]).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn postgres_to_kafka_killed_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let verdict = killed_at_any_time(&mut scene).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn mariadb_to_kafka_killed_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await;
    let verdict = killed_at_any_time(&mut scene).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn mysql_to_kafka_killed_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Mysql), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mysql(database.url(), broker.url()).await;
    let verdict = killed_at_any_time(&mut scene).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn sqlite_to_kafka_killed_at_any_time() {
    let Some(broker) = require(Service::Kafka) else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::sqlite(directory.path().join("app.db"), broker.url()).await;
    let verdict = killed_at_any_time(&mut scene).await;
    assert!(verdict.holds(), "{verdict}");
}
