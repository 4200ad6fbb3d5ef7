//! PostgreSQL is killed while sagas are taken over, and comes back: all of them end, each step once.

use std::time::Duration;

use semel::saga::sql::{SqlJournal, schema};
use semel::saga::{Journal, SagaFilter, Status};
use semel::tx::driver::Dialect;
use testkit::services::{Service, alone};
use tokio_postgres::{Client, NoTls};

use super::shop::{Shop, left_behind, worker};

const SAGAS: usize = 24;
/// A server that was killed recovers its log first.
const PATIENCE: Duration = Duration::from_secs(120);

async fn connect(url: &str) -> Client {
    loop {
        if let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await {
            tokio::spawn(connection);
            return client;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Slow: a server is killed twice, and recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_recovery_holds_up_no_saga_for_ever() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    let orders = "CREATE TABLE orders (n bigserial PRIMARY KEY, name text NOT NULL, what text NOT NULL);";
    let tables = schema(Dialect::Postgres);
    let client = connect(server.url()).await;
    client
        .batch_execute(&format!(
            "DROP SCHEMA IF EXISTS saga_restarted CASCADE; CREATE SCHEMA saga_restarted; \
             SET search_path = saga_restarted; {tables} {orders}"
        ))
        .await
        .unwrap();
    let url = |server: &str| format!("{server}?schema=saga_restarted");
    let address = server.url().to_owned();
    let names: Vec<String> = (0..SAGAS).map(|n| format!("order-{n}")).collect();
    left_behind(&url(&address), &names).await;

    let shop = Shop::new(|_| None);
    shop.open.send_replace(false);
    let (sagas, _) = worker(&url(&address), &shop).await;
    // Twice: while the first are called, and again when half of them are: others are being taken, or in their
    // transaction.
    for calls in [1, SAGAS / 2] {
        while shop.calls() < calls {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill().unwrap();
        server.start().unwrap();
        assert_eq!(server.url(), address, "its port was taken meanwhile");
    }
    shop.open.send_replace(true);
    tokio::time::timeout(PATIENCE, async {
        while !all_ended(&url(&address)).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("a saga never ends");

    let client = connect(&address).await;
    client.batch_execute("SET search_path = saga_restarted").await.unwrap();
    let rows = client.query("SELECT name FROM orders ORDER BY name", &[]).await.unwrap();
    let mut created: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let mut expected = names.clone();
    created.sort();
    expected.sort();
    assert_eq!(created, expected, "a row each");
    let holds = shop.holds.lock().unwrap().clone();
    assert_eq!(holds.len(), SAGAS);
    assert!(holds.values().all(|keys| keys.iter().all(|key| *key == keys[0])), "one key for all attempts");
    println!("figures: {SAGAS} sagas, {} calls", shop.calls());
    sagas.drain(Duration::from_secs(1)).await;
    client.batch_execute("DROP SCHEMA saga_restarted CASCADE").await.unwrap();
}

async fn all_ended(url: &str) -> bool {
    let Ok(journal) = SqlJournal::open(url).await else { return false };
    let listed = journal.list(SagaFilter { limit: SAGAS, ..SagaFilter::default() }).await;
    listed.is_ok_and(|listed| {
        listed.len() == SAGAS && listed.iter().all(|record| record.row.status == Status::Completed)
    })
}
