//! Events that cannot be published, and the others.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Settled};

use crate::cdc::world::{Running, World, batch, insert, quick, texts, until};
use crate::relay::sink::TestSink;

async fn fill(world: &World, events: &[(&str, &str)]) {
    let client = world.connect().await;
    for (key, text) in events {
        client.batch_execute(&insert(key, text)).await.unwrap();
    }
}

async fn parked(admin: &PostgresOutbox) -> Vec<(String, bool)> {
    let parked = admin.parked(None, 100).await.unwrap();
    let summary = |one: semel::relay::Parked| {
        (String::from_utf8(one.event.payload().to_vec()).unwrap(), one.error.is_some())
    };
    parked.into_iter().map(summary).collect()
}

#[tokio::test]
async fn a_refused_event_holds_only_its_key_and_comes_in_order_later() {
    let Some(world) = World::new().await else { return };
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let sink = TestSink::default();
    sink.state().refused.insert("a2".into());
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    fill(&world, &[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")]).await;
    sink.wait_for(3).await;
    until("two are parked", async || parked(&admin).await.len() == 2).await;
    relay.stop().await;
    // What comes later waits behind it, also for the next relay.
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    fill(&world, &[("a", "a4"), ("b", "b3")]).await;
    sink.wait_for(4).await;
    until("three are parked", async || parked(&admin).await.len() == 3).await;
    let row = |text: &str, error| (text.to_owned(), error);
    assert_eq!(parked(&admin).await, [row("a2", true), row("a3", false), row("a4", false)]);
    sink.state().refused.clear();
    until("it is tried again", async || {
        admin.retry(Some("a")).await.unwrap();
        parked(&admin).await.is_empty()
    })
    .await;
    fill(&world, &[("a", "a5")]).await;
    sink.wait_for(8).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2", "a3", "a4", "a5"]);
    assert_eq!(sink.first_of_each()["b"], ["b1", "b2", "b3"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn an_event_that_fails_is_tried_again_by_itself_and_a_skipped_one_is_given_up() {
    let Some(world) = World::new().await else { return };
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let outbox = world.options().retry_after(Duration::from_millis(50)).open().await.unwrap();
    let sink = TestSink::default();
    sink.state().failing.insert("a1".into());
    sink.state().refused.insert("c1".into());
    let relay = Running::start(outbox.source(), &sink, quick().attempts_max(3));
    fill(&world, &[("a", "a1"), ("a", "a2"), ("b", "b1"), ("c", "c1"), ("c", "c2")]).await;
    sink.wait_for(1).await;
    until("four are parked", async || parked(&admin).await.len() == 4).await;
    sink.state().failing.clear();
    sink.wait_for(3).await;
    let refused = admin.parked(Some("c"), 1).await.unwrap().remove(0);
    assert!(admin.skip(refused.id()).await.unwrap());
    sink.wait_for(4).await;
    until("none is parked", async || parked(&admin).await.is_empty()).await;
    fill(&world, &[("a", "a3"), ("c", "c3")]).await;
    sink.wait_for(6).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2", "a3"]);
    assert_eq!(sink.first_of_each()["c"], ["c2", "c3"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn what_is_set_aside_is_set_aside_once_whatever_the_slot_repeats() {
    let Some(world) = World::new().await else { return };
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let outbox = world.outbox().await;
    let mut source = outbox.source();
    fill(&world, &[("z", "z0")]).await;
    assert_eq!(texts(&batch(&mut source).await), ["z0"]);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    fill(&world, &[("a", "a1")]).await;
    let given = batch(&mut source).await;
    assert_eq!(texts(&given), ["a1"]);
    let stream = given.position.clone();
    let refused = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    source.ack(&[refused]).await.unwrap();
    assert_eq!(parked(&admin).await, [("a1".to_owned(), true)]);
    // It is published from where it is parked, and then the relay dies before it acks anything to the server.
    admin.retry(None).await.unwrap();
    let retried = batch(&mut source).await;
    assert_eq!(texts(&retried), ["a1"]);
    assert_ne!(retried.position, stream);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    assert_eq!(parked(&admin).await, []);
    drop(source);
    world.lease_over().await;
    fill(&world, &[("a", "a2")]).await;
    let mut source = outbox.source();
    // Not a1 again.
    let next = batch(&mut source).await;
    assert_eq!((texts(&next), next.events[0].held), (vec!["a2".to_owned()], false));
    source.ack(&[Settled::Confirmed]).await.unwrap();
    source.release().await.unwrap();
    world.end().await;
}

/// The second comes when the first is parked already.
#[tokio::test]
async fn one_id_on_two_topics_is_two_events() {
    let Some(world) = World::new().await else { return };
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let sink = TestSink::default();
    sink.state().refused.extend(["paid".to_owned(), "mail".to_owned()]);
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    let client = world.connect().await;
    let id = uuid::Uuid::now_v7();
    for (n, topic) in ["paid", "mail"].iter().enumerate() {
        let insert = format!(
            "INSERT INTO semel_outbox (id, topic, type, payload) VALUES ('{id}', '{topic}', 'made', '{topic}');"
        );
        client.batch_execute(&insert).await.unwrap();
        // A relay that has published this one has parked that one before.
        client.batch_execute(&super::world::insert("a", &format!("a{n}"))).await.unwrap();
        sink.wait_for(n + 1).await;
    }
    relay.stop().await;
    assert_eq!(parked(&admin).await, [("paid".to_owned(), true), ("mail".to_owned(), true)]);
    let keys: std::collections::BTreeSet<String> =
        admin.parked(None, 10).await.unwrap().into_iter().map(|one| one.key).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    world.end().await;
}
