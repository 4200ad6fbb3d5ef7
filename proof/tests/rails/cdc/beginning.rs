//! What is committed while the slot is made: before its beginning it is the table's, behind it the stream's.

use semel::relay::OutboxReader;
use semel::relay::cdc::PlantedBug;
use testkit::services::{Service, alone};
use tokio_postgres::Client;

use crate::cdc::world::{World, batch, drained, insert, nothing, texts, until};

#[tokio::test]
async fn the_table_is_read_when_all_that_were_under_way_have_ended() {
    let Some(world) = World::new().await else { return };
    let (held, client) = (world.connect().await, world.connect().await);
    client.batch_execute(&insert("a", "0")).await.unwrap();
    let make = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", world.name);
    client.batch_execute(&make).await.unwrap();
    held.batch_execute(&format!("BEGIN; {}", insert("b", "1"))).await.unwrap();
    let mut source = world.outbox().await.source();
    for _ in 0..20 {
        nothing(&mut source).await;
    }
    // Who came later is not waited for.
    let later = world.connect().await;
    later.batch_execute(&format!("BEGIN; {}", insert("c", "2"))).await.unwrap();
    held.batch_execute("COMMIT").await.unwrap();
    assert_eq!(drained(&mut source, 2).await, ["0", "1"]);
    later.batch_execute("COMMIT").await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["2"]);
    source.release().await.unwrap();
    world.end().await;
}

async fn under_way(client: &Client) -> String {
    client.batch_execute("BEGIN").await.unwrap();
    client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0)
}

/// A commit that is in the log before the slot begins, and that is not visible yet: it waits for a standby. Gives what
/// is read, up to an event that was committed later.
async fn seen_late(plant: Option<PlantedBug>) -> Option<Vec<String>> {
    let mut server = alone(Service::Postgres)?;
    server
        .restart_with(&["-c", "synchronous_commit=local", "-c", "synchronous_standby_names=absent"])
        .unwrap();
    let world = World::on(server.url()).await;
    let (first, second, client) = (world.connect().await, world.connect().await, world.connect().await);
    client.batch_execute(&insert("a", "0")).await.unwrap();
    let mut options = world.options();
    if let Some(plant) = plant {
        options = options.plant(plant);
    }
    let mut source = options.open().await.unwrap().source();
    // A slot is made in two steps. Each waits only for the transactions under way when it began.
    let waited_for = async |xid: &str| {
        let ask = format!("SELECT FROM pg_locks WHERE NOT granted AND transactionid::text = '{xid}'");
        !client.query(&ask, &[]).await.unwrap().is_empty()
    };
    let xid = under_way(&first).await;
    until("the first step", async || {
        nothing(&mut source).await;
        waited_for(&xid).await
    })
    .await;
    let xid = under_way(&second).await;
    first.batch_execute("COMMIT").await.unwrap();
    until("the second step", async || waited_for(&xid).await).await;
    let late = world.connect().await;
    let pid: i32 = late.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let late = tokio::spawn(async move {
        late.batch_execute("SET synchronous_commit = on").await.unwrap();
        late.batch_execute(&insert("a", "late")).await.unwrap();
    });
    until("it waits for a standby", async || {
        let ask = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'";
        !client.query(ask, &[&pid]).await.unwrap().is_empty()
    })
    .await;
    second.batch_execute("COMMIT").await.unwrap();
    until("the slot is there", async || world.slot("confirmed_flush_lsn").await.is_some()).await;
    let mut read = Vec::new();
    if plant.is_some() {
        read = drained(&mut source, 1).await;
    } else {
        for _ in 0..20 {
            nothing(&mut source).await;
        }
    }
    // It waits no longer, and is committed all the same.
    client.execute("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
    late.await.unwrap();
    client.batch_execute(&insert("a", "last")).await.unwrap();
    while read.last().is_none_or(|last| last != "last") {
        read.extend(drained(&mut source, 1).await);
    }
    source.release().await.unwrap();
    world.end().await;
    Some(read)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_before_the_slot_that_is_seen_late_is_not_lost() {
    let Some(read) = seen_late(None).await else { return };
    assert_eq!(read, ["0", "late", "last"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_the_table_at_once_is_caught_losing_it() {
    let Some(read) = seen_late(Some(PlantedBug::AdoptAtOnce)).await else { return };
    assert_eq!(read, ["0", "last"]);
}
