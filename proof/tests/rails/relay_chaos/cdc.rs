//! The same from PostgreSQL's log: killed while it reads the table, while it streams, and without its slot.
//!
//! Each on a server of its own: making a slot waits for all transactions on the whole server, and slots are few.

use std::time::Duration;

use semel::crash::{AFTER_SINK_COMMIT, BEFORE_SINK_COMMIT, IN_EXACTLY_ONCE, IN_RELAY};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Executor};
use testkit::child::Child;

use crate::relay_chaos::SOON;
use crate::relay_chaos::exactly_once::{once, without_its_database, woken_up};
use crate::relay_chaos::killed::{at_least_once, kill, kill_at_any_time, killed};
use crate::relay_chaos::load::Database;
use crate::relay_chaos::scene::Scene;
use crate::relay_chaos::servers::apart;

/// More than the relays that are killed get through.
const WAITING: u32 = 3_000;

fn pool(scene: &Scene) -> &PgPool {
    let Database::Postgres(pool) = &scene.database else { panic!("the log is PostgreSQL's") };
    pool
}

/// Events that are in the table before anybody makes a slot.
async fn waiting(scene: &Scene) {
    let fill = format!(
        "INSERT INTO semel_outbox (topic, type, key, payload)
         SELECT '{}', 'counted', 'w' || n % 100, convert_to((n / 100 + 1)::text, 'UTF8')
         FROM generate_series(0, {}) n",
        scene.topic,
        WAITING - 1
    );
    pool(scene).execute(AssertSqlSafe(fill)).await.unwrap();
}

/// Whether the relay that was last has written down that it reads the table. `None`: there was none.
async fn walks(scene: &Scene) -> Option<bool> {
    let look = "SELECT walk IS NOT NULL FROM semel_outbox_slot";
    sqlx::query_scalar(look).fetch_optional(pool(scene)).await.unwrap()
}

/// A relay that is past the table and reads the stream.
async fn streaming(scene: &mut Scene) -> Child {
    let relay = scene.relay();
    let waited = async {
        while walks(scene).await != Some(false) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waited).await.expect("the table is read to its end");
    scene.follower.more(100);
    relay
}

/// Drops the slot of a relay that is dead, as soon as the server has noticed that it is.
async fn drop_slot(scene: &Scene) {
    let drop = "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots";
    let waited = async {
        while sqlx::query_scalar::<_, i64>(drop).fetch_one(pool(scene)).await.ok() != Some(1) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waited).await.expect("the slot becomes free");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: minutes"]
async fn once_killed_at_every_point_while_it_reads_the_table() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once";
    waiting(&scene).await;
    for point in IN_EXACTLY_ONCE {
        let mut relay = scene.relay_at(Some(point));
        relay.wait_for_point(SOON).unwrap();
        relay.kill().unwrap();
    }
    assert_eq!(walks(&scene).await, Some(true), "killed only behind the table");
    once(&killed(&mut scene, &[BEFORE_SINK_COMMIT, AFTER_SINK_COMMIT], &[3]).await);
}

/// Slow: a server of its own, and a process started and killed at each of the points.
#[tokio::test(flavor = "multi_thread")]
async fn once_killed_at_every_point_while_it_streams() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once";
    let load = scene.load();
    streaming(&mut scene).await.kill().unwrap();
    kill(&mut scene, &IN_EXACTLY_ONCE, &[1]).await;
    let relay = scene.relay();
    once(&scene.end(load, vec![relay]).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at any time"]
async fn at_least_once_killed_at_every_point_and_at_any_time() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc";
    let load = scene.load();
    streaming(&mut scene).await.kill().unwrap();
    kill(&mut scene, &IN_RELAY, &[1, 4]).await;
    kill_at_any_time(&mut scene).await;
    let relay = scene.relay();
    at_least_once(&scene.end(load, vec![relay]).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout under load"]
async fn once_for_one_that_wakes_up_with_its_transaction_open() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once";
    let load = scene.load();
    streaming(&mut scene).await.kill().unwrap();
    once(&woken_up(&mut scene, load).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a database killed under load"]
async fn once_although_the_database_is_killed_and_comes_back() {
    let Some((mut scene, mut cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once";
    let load = scene.load();
    let relay = streaming(&mut scene).await;
    once(&without_its_database(&mut scene, &mut cluster, load, relay).await);
}

/// Dropped while the relay is dead, which was killed with its position in Kafka ahead of what it had written down. Then
/// only the cursor says what of the table is published, and it is a few seconds behind: so much is
/// repeated, with the same ids, and nothing of what the cursor has left behind.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn nothing_is_lost_when_the_slot_is_dropped_while_no_relay_reads_it() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once";
    waiting(&scene).await;
    let load = scene.load();
    streaming(&mut scene).await.kill().unwrap();
    let mut relay = scene.relay_at(Some(&format!("{AFTER_SINK_COMMIT}:3")));
    relay.wait_for_point(SOON).unwrap();
    relay.kill().unwrap();
    drop_slot(&scene).await;
    let behind = "SELECT count(*) FILTER (WHERE pg_visible_in_snapshot(o.xid, c.low)), count(*)
                  FROM semel_outbox o, (SELECT low FROM semel_outbox_cursor LIMIT 1) c";
    let (behind, all): (i64, i64) = sqlx::query_as(behind).fetch_one(pool(&scene)).await.unwrap();
    assert!(behind >= i64::from(WAITING), "the cursor is behind {behind} of {all}");
    load.more(100).await;
    let relay = scene.relay();
    scene.follower.more(200);
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
    assert!(i64::try_from(verdict.repeats).unwrap() <= all - behind, "{verdict}, of {}", all - behind);
}

/// With a relay that tells the server of what Kafka does not have yet. The judge has to see what it does.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load until the planted bug strikes"]
async fn telling_the_server_too_early_is_caught_losing() {
    let Some((mut scene, _cluster, _proxy, _broker)) = apart().await else { return };
    scene.mode = "cdc-exactly-once-acked-early";
    let load = scene.load();
    streaming(&mut scene).await.kill().unwrap();
    let mut relay = scene.relay_at(Some(BEFORE_SINK_COMMIT));
    relay.wait_for_point(SOON).unwrap();
    relay.kill().unwrap();
    let relay = scene.relay();
    load.more(200).await;
    let verdict = scene.end_soon(load, vec![relay]).await;
    assert!(!verdict.lost.is_empty(), "{verdict}");
}
