//! The relay is killed: at each of its points, and wherever it happens to be.

use std::time::Duration;

use semel::crash::IN_RELAY;
use testkit::services::{Service, require};

use crate::SOON;
use crate::rounds;
use crate::scene::Scene;

/// At each point, early and later on, one after the other under the same load.
async fn at_every_point(scene: &mut Scene) {
    let load = scene.load();
    for point in IN_RELAY {
        for nth in [1, 4] {
            let mut relay = scene.relay_at(Some(&format!("{point}:{nth}")));
            relay.wait_for_point(SOON).unwrap();
            relay.kill().unwrap();
        }
    }
    let relay = scene.relay();
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
    assert!(verdict.events > 200, "{verdict}");
    // Killed between the broker's word and its own note: what it had sent is sent again.
    assert!(verdict.repeats > 0, "{verdict}");
}

/// At any time.
async fn at_random(scene: &mut Scene) {
    let load = scene.load();
    for _ in 0..rounds(4) {
        let mut relay = scene.relay();
        // It is in the middle of things; how far it then gets is chance.
        scene.follower.more(fastrand::usize(1..100));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        relay.kill().unwrap();
    }
    let relay = scene.relay();
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_to_kafka_killed_at_every_point() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    at_every_point(&mut Scene::postgres(database.url(), broker.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_to_kafka_killed_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    at_random(&mut Scene::postgres(database.url(), broker.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_to_kafka_killed_at_every_point_and_at_any_time() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    at_every_point(&mut Scene::mariadb(database.url(), broker.url()).await).await;
    at_random(&mut Scene::mariadb(database.url(), broker.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_to_kafka_killed_at_every_point_and_at_any_time() {
    let Some(broker) = require(Service::Kafka) else { return };
    let directory = tempfile::tempdir().unwrap();
    at_every_point(&mut Scene::sqlite(directory.path().join("one.db"), broker.url()).await).await;
    at_random(&mut Scene::sqlite(directory.path().join("other.db"), broker.url()).await).await;
}
