//! Another server answers to the name, or the same one after a promotion.

use semel::relay::cdc::CdcOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Rebase};
use testkit::services::{Cluster, Service, require};

use crate::cdc::world::{PATIENT, Running, World, drained, insert, quick, refusal};
use crate::relay::sink::TestSink;

/// A relay has published two events and is gone; then what was written down is of another lineage.
async fn changed(world: &World, change: &str) {
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&format!("{}{}", insert("a", "1"), insert("a", "2"))).await.unwrap();
    assert_eq!(drained(&mut source, 2).await, ["1", "2"]);
    source.release().await.unwrap();
    client.batch_execute(&format!("UPDATE semel_outbox_slot SET lineage = {change}")).await.unwrap();
    client.batch_execute(&insert("a", "3")).await.unwrap();
}

/// As after a promotion.
const ANOTHER_TIMELINE: &str = "regexp_replace(lineage, '\\.[0-9A-F]+$', '.99')";

#[tokio::test]
async fn another_cluster_or_timeline_stops_the_relay_until_a_person_decides() {
    for change in [ANOTHER_TIMELINE, "regexp_replace(lineage, '/.*', '/77.1')"] {
        let Some(world) = World::new().await else { return };
        changed(&world, change).await;
        let relay = Running::start(world.outbox().await.source(), &TestSink::default(), quick());
        let stopped = relay.task.await.unwrap().unwrap_err();
        assert!(stopped.to_string().contains("semel outbox rebase"), "{stopped}");
        CdcOutbox::rebase(&world.url(), Rebase::Everything).await.unwrap();
        let mut source = world.outbox().await.source();
        assert_eq!(drained(&mut source, 3).await, ["1", "2", "3"]);
        source.release().await.unwrap();
        CdcOutbox::rebase(&world.url(), Rebase::FromNow).await.unwrap();
        world.connect().await.batch_execute(&insert("a", "4")).await.unwrap();
        let mut source = world.outbox().await.source();
        assert_eq!(drained(&mut source, 1).await, ["4"]);
        source.release().await.unwrap();
        world.end().await;
    }
}

#[tokio::test]
async fn a_promotion_is_followed_from_the_table_where_that_is_wanted() {
    let Some(world) = World::new().await else { return };
    changed(&world, ANOTHER_TIMELINE).await;
    let mut source = world.options().follow_promotions(true).open().await.unwrap().source();
    let mut texts = Vec::new();
    while texts.last().is_none_or(|last| last != "3") {
        texts.extend(drained(&mut source, 1).await);
    }
    source.release().await.unwrap();
    world.end().await;

    // Another cluster is not a promotion.
    let Some(world) = World::new().await else { return };
    changed(&world, "regexp_replace(lineage, '/.*', '/77.1')").await;
    let mut source = world.options().follow_promotions(true).open().await.unwrap().source();
    let error = refusal(&mut source).await;
    assert!(matches!(error, OutboxReaderError::OutboxLineage { .. }), "{error}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_set_back_while_it_was_read_stops_the_relay() {
    if require(Service::Postgres).is_none() {
        return;
    }
    let mut server = Cluster::new().unwrap();
    let world = World::on(&server.url()).await;
    let client = world.connect().await;
    let mut older = server.backup().unwrap();
    // Whichever of them runs.
    let url = format!(
        "postgres://postgres@{},{}/postgres?schema={}{PATIENT}",
        server.addr(),
        older.addr(),
        world.name
    );
    let mut source = world.options_at(&url).open().await.unwrap().source();
    for n in 0..3 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
        // The first from the table, and the others from the stream.
        assert_eq!(drained(&mut source, 1).await, [n.to_string()]);
    }
    server.kill().unwrap();
    older.start().unwrap();
    let error = refusal(&mut source).await;
    assert!(error.to_string().contains("set back"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_named_first_is_passed_over() {
    if require(Service::Postgres).is_none() {
        return;
    }
    let server = Cluster::new().unwrap();
    let world = World::on(&server.url()).await;
    let client = world.connect().await;
    let standby = server.standby().unwrap();
    let url = format!(
        "postgres://postgres@{},{}/postgres?schema={}&target_session_attrs=read-write{PATIENT}",
        standby.addr(),
        server.addr(),
        world.name
    );
    let mut source = world.options_at(&url).open().await.unwrap().source();
    for n in 0..3 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
        assert_eq!(drained(&mut source, 1).await, [n.to_string()]);
    }
    source.release().await.unwrap();
}
