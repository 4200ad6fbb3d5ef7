//! Relays with one mistake each. The judge has to see what it does.
//!
//! Some show only when the relay looks at the right moment: a few tries have to be enough.

use semel::crash::{AFTER_DONE, BEFORE_PUBLISH};
use sqlx::Executor;
use testkit::services::{Service, require};

use crate::relay_chaos::SOON;
use crate::relay_chaos::judge::Verdict;
use crate::relay_chaos::load::Database;
use crate::relay_chaos::scene::Scene;

const TRIES: u32 = 5;

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
    // It is known to read while they write.
    scene.follower.more(50);
    load.more(400).await;
    Some(scene.end_soon(load, vec![relay]).await)
}

async fn is_caught(mode: &'static str, killed_at: Option<&str>, shows: fn(&Verdict) -> bool) {
    for _ in 0..TRIES {
        let Some(verdict) = with(mode, killed_at).await else { return };
        if shows(&verdict) {
            return;
        }
    }
    panic!("{mode} was not caught");
}

fn loses(verdict: &Verdict) -> bool {
    !verdict.lost.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn confirming_before_the_broker_does_is_caught_losing() {
    is_caught("confirmed-early", Some(AFTER_DONE), loses).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn marking_before_publishing_is_caught_losing() {
    let Some(verdict) = with("done-early", Some(BEFORE_PUBLISH)).await else { return };
    assert!(loses(&verdict), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn a_cursor_by_number_is_caught_losing() {
    is_caught("by-seq", None, loses).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn the_order_of_transactions_is_caught_overtaking() {
    is_caught("by-xid", None, |verdict| !verdict.overtaken.is_empty()).await;
}

/// Numbers that are counted up outside of the appending transaction become visible in any order.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn numbers_of_mysql_without_a_lock_until_the_commit_are_caught_losing() {
    let (Some(database), Some(broker)) = (require(Service::Mariadb), require(Service::Kafka)) else {
        return;
    };
    for _ in 0..TRIES {
        let mut scene = Scene::mysql(database.url(), broker.url()).await;
        let Database::Mysql(pool) = &scene.database else { panic!("it is MariaDB") };
        // Not transactional: what the trigger counts is there at once, for everybody.
        pool.execute("ALTER TABLE semel_outbox_part ENGINE = MyISAM").await.unwrap();
        let load = scene.load();
        let relay = scene.relay();
        scene.follower.more(50);
        load.more(400).await;
        if loses(&scene.end_soon(load, vec![relay]).await) {
            return;
        }
    }
    panic!("they were not caught");
}
