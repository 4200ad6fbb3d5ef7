//! Relays with one mistake each. The judge has to see what it does.

use semel::crash::{AFTER_DONE, BEFORE_PUBLISH};
use sqlx::Executor;
use testkit::services::{Service, require};

use crate::SOON;
use crate::judge::Verdict;
use crate::load::Database;
use crate::scene::Scene;

/// With a mistake, killed a few times at this point; or not killed at all.
async fn with(mode: &'static str, killed_at: Option<&str>) -> Option<Verdict> {
    let (database, broker) = (require(Service::Postgres)?, require(Service::Kafka)?);
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    scene.mode = mode;
    let load = scene.load();
    if let Some(point) = killed_at {
        for _ in 0..2 {
            let mut relay = scene.relay_at(Some(&format!("{point}:2")));
            relay.wait_for_point(SOON).unwrap();
            relay.kill().unwrap();
        }
    }
    let relay = scene.relay();
    load.more(400).await;
    Some(scene.end_soon(load, vec![relay]).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn confirming_before_the_broker_does_is_caught_losing() {
    let Some(verdict) = with("confirmed-early", Some(AFTER_DONE)).await else { return };
    assert!(!verdict.lost.is_empty(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn marking_before_publishing_is_caught_losing() {
    let Some(verdict) = with("done-early", Some(BEFORE_PUBLISH)).await else { return };
    assert!(!verdict.lost.is_empty(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_by_number_is_caught_losing() {
    let Some(verdict) = with("by-seq", None).await else { return };
    assert!(!verdict.lost.is_empty(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_transactions_is_caught_overtaking() {
    let Some(verdict) = with("by-xid", None).await else { return };
    assert!(!verdict.overtaken.is_empty(), "{verdict}");
}

/// Numbers that are counted up outside of the appending transaction become visible in any order.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_mysql_without_a_lock_until_the_commit_are_caught_losing() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::mariadb(database.url(), broker.url()).await;
    let Database::Mysql(pool) = &scene.database else { panic!("it is MariaDB") };
    // Not transactional: what the trigger counts is there at once, for everybody.
    pool.execute("ALTER TABLE semel_outbox_part ENGINE = MyISAM").await.unwrap();
    let load = scene.load();
    let relay = scene.relay();
    load.more(400).await;
    let verdict = scene.end_soon(load, vec![relay]).await;
    assert!(!verdict.lost.is_empty(), "{verdict}");
}
