//! An atomic step that the database rolls back: by a conflict, by a deadlock. It runs again, and there is one row.

use std::time::Duration;

use semel::saga::SagaEnd;
use semel::{Key, Scope};
use sqlx::{AssertSqlSafe, Executor, Row};
use testkit::services::Service;

use super::place::Place;
use super::shop::{Shop, worker_on};

const PATIENCE: Duration = Duration::from_secs(60);

async fn once(place: &Place, shop: &Shop, key: &str) {
    let (sagas, orders) = worker_on(place.journal().await, shop);
    let (acme, key, name) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap(), key.to_owned());
    let end = tokio::time::timeout(PATIENCE, sagas.once(&orders, &acme, &key, &name)).await;
    let end = end.expect("it takes much too long").unwrap();
    assert!(matches!(end, SagaEnd::Completed(_)), "{end:?}");
    sagas.drain(Duration::from_secs(1)).await;
}

/// The server says it first of a serialization failure, then of a deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conflicts_are_run_again() {
    let Some(place) = Place::postgres().await else { return };
    conflicts_are_run_again(place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conflicts_are_run_again_over_sqlx() {
    let Some(place) = Place::sqlx_postgres().await else { return };
    conflicts_are_run_again(place).await;
}

async fn conflicts_are_run_again(place: Place) {
    let shop = Shop::new(|nth| match nth {
        1 => Some("DO $$ BEGIN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END $$"),
        2 => Some("DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$"),
        _ => None,
    });
    once(&place, &shop, "conflict").await;
    assert_eq!((shop.runs("conflict"), place.orders("conflict").await), (3, 1));
    // An error that the step swallows leaves a transaction that cannot commit.
    let swallows = Shop { swallows: true, ..Shop::new(|nth| (nth == 1).then_some("SELECT 1 / 0")) };
    once(&place, &swallows, "swallowed").await;
    assert_eq!((swallows.runs("swallowed"), place.orders("swallowed").await), (2, 1));
    // A constraint that is checked at the commit.
    let pool = place.postgres_pool().await.unwrap();
    pool.execute(
        "CREATE TABLE late (n int PRIMARY KEY, of int REFERENCES late DEFERRABLE INITIALLY DEFERRED)",
    )
    .await
    .unwrap();
    let late = Shop::new(|nth| (nth == 1).then_some("INSERT INTO late VALUES (1, 2)"));
    once(&place, &late, "late").await;
    assert_eq!((late.runs("late"), place.orders("late").await), (2, 1));
    place.end().await;
}

async fn a_real_deadlock_is_run_again(server: Service, swallows: bool) {
    let Some(place) = Place::mysql_of(server).await else { return };
    let pool = place.mysql_pool();
    pool.execute(
        "CREATE TABLE stock (n int PRIMARY KEY, weight int); INSERT INTO stock VALUES (1, 0), (2, 0)",
    )
    .await
    .unwrap();
    // The judge holds 2 and will want 1. It has written more: InnoDB rolls back the one that has written less.
    let mut judge = pool.begin().await.unwrap();
    let heavy = "INSERT INTO stock (n, weight) SELECT 100 + a.n * 10 + b.n, 0 FROM stock a, stock b";
    judge.execute(heavy).await.unwrap();
    judge.execute("INSERT INTO stock (n, weight) SELECT 1000 + n, 0 FROM stock WHERE n > 2").await.unwrap();
    judge.execute("UPDATE stock SET weight = 1 WHERE n = 2").await.unwrap();
    let mut shop = Shop::new(|nth| {
        (nth == 1)
            .then_some("UPDATE stock SET weight = 2 WHERE n = 1; UPDATE stock SET weight = 2 WHERE n = 2")
    });
    shop.swallows = swallows;
    let saga = async {
        once(&place, &shop, "deadlock").await;
    };
    let deadlock = async {
        crate::tx::mysql_world::until_waiting(&pool, 1).await;
        judge.execute("UPDATE stock SET weight = 1 WHERE n = 1").await.unwrap();
        judge.commit().await.unwrap();
    };
    tokio::join!(saga, deadlock);
    assert_eq!(shop.runs("deadlock"), 2, "the deadlock rolled the first run back");
    assert_eq!(place.orders("deadlock").await, 1);
    let weight: i32 =
        sqlx::query("SELECT weight FROM stock WHERE n = 1").fetch_one(&pool).await.unwrap().get(0);
    assert_eq!(weight, 1, "nothing is left of the first run");
    place.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_deadlocks_are_run_again() {
    a_real_deadlock_is_run_again(Service::Mariadb, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_deadlocks_are_run_again() {
    a_real_deadlock_is_run_again(Service::Mysql, false).await;
}

/// The step goes on after the deadlock as if nothing were, in a transaction that is gone: it is not taken for done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_that_a_step_swallows_is_run_again_too() {
    a_real_deadlock_is_run_again(Service::Mariadb, true).await;
}

impl Place {
    async fn orders(&self, name: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM orders WHERE name = '{name}'");
        match self.postgres_pool().await {
            Some(pool) => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&pool).await.unwrap(),
            None => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.mysql_pool()).await.unwrap(),
        }
    }
}
