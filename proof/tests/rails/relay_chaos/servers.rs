//! The database dies, is replaced by its standby, or comes back from an older backup.

use semel::relay::poll::postgres::PostgresOutbox;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use testkit::proxy::Proxy;
use testkit::services::{Cluster, Service, alone, require};

use crate::relay_chaos::SOON;
use crate::relay_chaos::load::Database;
use crate::relay_chaos::rounds;
use crate::relay_chaos::scene::Scene;

/// A server of the test's own, and a scene in which everybody reaches it through a proxy.
pub async fn apart() -> Option<(Scene, Cluster, Proxy, testkit::services::Lease)> {
    // Only to go without where the run does.
    drop(require(Service::Postgres)?);
    let broker = require(Service::Kafka)?;
    let cluster = Cluster::new().unwrap();
    let proxy = Proxy::start(cluster.addr()).unwrap();
    let url = cluster.url().replace(&cluster.addr(), &proxy.addr().to_string());
    Some((Scene::postgres(&url, broker.url()).await, cluster, proxy, broker))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a database killed under load"]
async fn the_database_is_killed_and_comes_back() {
    let Some((mut scene, mut cluster, _proxy, _broker)) = apart().await else { return };
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(2) {
        scene.follower.more(150);
        cluster.kill().unwrap();
        cluster.start().unwrap();
    }
    load.more(150).await;
    scene.follower.more(150);
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a database killed under load"]
async fn mariadb_is_killed_and_comes_back() {
    let (Some(mut server), Some(broker)) = (alone(Service::Mariadb), require(Service::Kafka)) else { return };
    let mut scene = Scene::mysql(server.url(), broker.url()).await;
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(2) {
        scene.follower.more(100);
        server.restart().unwrap();
    }
    load.more(100).await;
    scene.follower.more(100);
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a database killed under load"]
async fn mysql_is_killed_and_comes_back() {
    let (Some(mut server), Some(broker)) = (alone(Service::Mysql), require(Service::Kafka)) else { return };
    let mut scene = Scene::mysql(server.url(), broker.url()).await;
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(2) {
        scene.follower.more(100);
        server.restart().unwrap();
    }
    load.more(100).await;
    scene.follower.more(100);
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}

/// Refused as long as it is a standby, which does not know what is under way; once it is promoted the relay goes on by
/// itself, and what had not got there is not there for anybody.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn a_standby_is_refused_and_once_promoted_it_goes_on() {
    let Some((mut scene, mut cluster, proxy, _broker)) = apart().await else { return };
    let load = scene.load();
    let mut relay = scene.relay();
    let standby = cluster.standby().unwrap();
    scene.follower.more(200);
    let direct = scene.source.replace(&proxy.addr().to_string(), &standby.addr());
    let refused = PostgresOutbox::open(&direct).await.err().unwrap();
    assert!(refused.to_string().contains("standby"), "{refused}");
    // The writers stop, so that what they know is committed has got to the standby when the server dies.
    let ledger = load.stop().await;
    caught_up(&scene, &standby).await;
    proxy.point_at(standby.addr()).unwrap();
    cluster.kill().unwrap();
    proxy.cut();
    // Neither does it end, nor does it publish.
    asks_again(&proxy).await;
    standby.promote().unwrap();
    let more = scene.load();
    scene.follower.more(200);
    let after = more.stop().await;
    let mut ledger = ledger;
    ledger.committed.extend(after.committed);
    ledger.rolled_back.extend(after.rolled_back);
    let verdict = scene.judge(&ledger, Vec::new(), SOON).await;
    relay.terminate().unwrap();
    assert!(relay.wait(SOON).unwrap().status.success());
    assert!(verdict.holds(), "{verdict}");
}

/// Waits until a relay has asked, was refused, and goes on asking.
pub async fn asks_again(proxy: &Proxy) {
    let refused = proxy.accepted();
    let waited = async {
        while proxy.accepted() < refused + 3 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waited).await.expect("the relay asks again");
}

/// Waits until the standby has all that the server has.
pub async fn caught_up(scene: &Scene, standby: &Cluster) {
    let Database::Postgres(pool) = &scene.database else { panic!("there are standbys of PostgreSQL only") };
    let end: String =
        sqlx::query_scalar("SELECT pg_current_wal_flush_lsn()::text").fetch_one(pool).await.unwrap();
    let options: PgConnectOptions = standby.url().parse().unwrap();
    let other = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let look = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
    let waited = async {
        while !sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(look.clone()))
            .fetch_one(&other)
            .await
            .unwrap()
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waited).await.expect("the standby catches up");
    other.close().await;
}

/// The cursor is as old as the events beside it. So everything in the restored table is published, what was published
/// after the backup was made a second time; what the backup does not have is with the broker and in no table, and no
/// relay can know of it: the business rows are gone as well.
/// Slow: a server of its own, backed up, written on, and restored.
#[tokio::test(flavor = "multi_thread")]
async fn from_an_older_backup_it_goes_on_with_what_the_backup_has() {
    let Some((mut scene, mut cluster, proxy, _broker)) = apart().await else { return };
    let load = scene.load();
    let relay = scene.relay();
    scene.follower.more(200);
    let mut backup = cluster.backup().unwrap();
    scene.follower.more(300);
    let before = load.stop().await;
    scene.follower.all(&scene.table().await, SOON);
    let before_restore = scene.table().await;
    cluster.kill().unwrap();
    proxy.point_at(backup.addr()).unwrap();
    proxy.cut();
    backup.start().unwrap();
    let left = scene.table().await;
    assert!(left.len() < before_restore.len(), "the backup has as much as the server had");
    let load = scene.load();
    scene.follower.more(200);
    let mut verdict = scene.end(load, vec![relay]).await;
    // The broker has them, and no table does any more.
    let gone: Vec<_> = before_restore.iter().filter(|one| !left.contains(one)).cloned().collect();
    assert!(!verdict.foreign.is_empty());
    let rolled_back = |one: &_| before.rolled_back.contains(one);
    assert!(verdict.foreign.iter().all(|one| gone.contains(one) && !rolled_back(one)), "{verdict}");
    verdict.foreign.clear();
    assert!(verdict.holds(), "{verdict}");
}
