//! Everything that was committed, in the order of the commits, and nothing else.

use semel::relay::OutboxReader;

use crate::cdc::world::{Running, World, drained, insert, quick};
use crate::relay::sink::TestSink;

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn what_is_committed_comes_in_the_order_of_the_commits() {
    let Some(world) = World::new().await else { return };
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    let (slow, client) = (world.connect().await, world.connect().await);
    client.batch_execute(&insert("a", "first")).await.unwrap();
    sink.wait_for(1).await;
    // The lower number commits later; it is not waited for.
    slow.batch_execute(&format!("BEGIN; {}", insert("b", "late"))).await.unwrap();
    for n in 0..20 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(21).await;
    slow.batch_execute(&format!("{} COMMIT", insert("b", "later"))).await.unwrap();
    sink.wait_for(23).await;
    let mut expected = vec!["first".to_owned()];
    expected.extend(numbers(0..20));
    expected.extend(["late".to_owned(), "later".to_owned()]);
    assert_eq!(sink.texts(), expected);
    assert_eq!(relay.stop().await.confirmed, 23);
    // Nothing is repeated to the next one.
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    client.batch_execute(&insert("a", "last")).await.unwrap();
    sink.wait_for(24).await;
    assert_eq!(sink.texts().len(), 24);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn what_was_rolled_back_is_never_published_not_even_to_a_savepoint() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["0"]);
    client.batch_execute(&format!("BEGIN; {} ROLLBACK", insert("a", "no"))).await.unwrap();
    let half = format!(
        "BEGIN; {} SAVEPOINT s; {} ROLLBACK TO s; {} SAVEPOINT t; {} RELEASE t; COMMIT",
        insert("a", "1"),
        insert("a", "no"),
        insert("a", "2"),
        insert("a", "3")
    );
    client.batch_execute(&half).await.unwrap();
    client.batch_execute(&insert("a", "4")).await.unwrap();
    assert_eq!(drained(&mut source, 4).await, ["1", "2", "3", "4"]);
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn what_was_there_before_the_slot_comes_first_and_once() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    for n in 0..10 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    let mut source = world.options().batch_max(4, 1 << 20).open().await.unwrap().source();
    let mut texts = drained(&mut source, 4).await;
    for n in 10..20 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    texts.extend(drained(&mut source, 16).await);
    assert_eq!(texts, numbers(0..20));
    source.release().await.unwrap();
    world.end().await;
}
