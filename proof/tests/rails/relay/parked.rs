//! Events that cannot be published, and the others.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{Batch, OutboxReader, Poison, RelayOptions, Settled};

use crate::relay::sink::TestSink;
use crate::relay::world::{Postgres, Running, insert, quick, until};

async fn fill(world: &Postgres, events: &[(&str, &str)]) {
    let client = world.connect().await;
    for (key, text) in events {
        client.batch_execute(&insert(key, text)).await.unwrap();
    }
}

async fn parked(outbox: &PostgresOutbox) -> Vec<(String, String, Option<String>)> {
    let parked = outbox.parked(None, 100).await.unwrap();
    let summary = |one: semel::relay::Parked| {
        let text = String::from_utf8(one.event.payload().to_vec()).unwrap();
        (one.key.clone(), text, one.error)
    };
    parked.into_iter().map(summary).collect()
}

async fn until_parked(outbox: &PostgresOutbox, events: usize) {
    for _ in 0..2_400 {
        if parked(outbox).await.len() == events {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{events} events were never parked: {:?}", parked(outbox).await);
}

const REFUSED: &str = "the broker does not want it";

#[tokio::test]
async fn a_refused_event_holds_only_its_key_and_is_published_in_order_later() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    sink.state().refused.insert("a2".into());
    fill(&world, &[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")]).await;
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(3).await;
    until_parked(&outbox, 2).await;
    // What comes later waits behind it, also for the next relay.
    fill(&world, &[("a", "a4"), ("b", "b3")]).await;
    sink.wait_for(4).await;
    relay.stop().await;
    let relay = Running::start(outbox.source(), &sink, quick());
    fill(&world, &[("a", "a5"), ("b", "b4")]).await;
    sink.wait_for(5).await;
    until_parked(&outbox, 4).await;
    let row = |text: &str, error: Option<&str>| ("a".to_owned(), text.to_owned(), error.map(str::to_owned));
    let held = [row("a2", Some(REFUSED)), row("a3", None), row("a4", None), row("a5", None)];
    assert_eq!(parked(&outbox).await, held);
    // Tried again in vain, it stays.
    let calls = sink.state().calls;
    assert_eq!(outbox.retry(Some("a")).await.unwrap(), 1);
    while sink.state().calls == calls {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until_parked(&outbox, 4).await;
    sink.state().refused.clear();
    // The first try may still be on its way to being written down, and would undo this one.
    until("all are tried again", async || {
        outbox.retry(Some("a")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        parked(&outbox).await.is_empty()
    })
    .await;
    sink.wait_for(9).await;
    fill(&world, &[("a", "a6")]).await;
    sink.wait_for(10).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2", "a3", "a4", "a5", "a6"]);
    assert_eq!(sink.first_of_each()["b"], ["b1", "b2", "b3", "b4"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_skipped_event_is_given_up_and_its_key_goes_on() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    sink.state().refused.extend(["a1".to_owned(), "c1".to_owned()]);
    fill(&world, &[("a", "a1"), ("a", "a2"), ("c", "c1")]).await;
    let relay = Running::start(outbox.source(), &sink, quick());
    until_parked(&outbox, 3).await;
    for one in outbox.parked(None, 10).await.unwrap().into_iter().filter(|one| one.error.is_some()) {
        assert!(outbox.skip(one.id()).await.unwrap());
        assert!(!outbox.skip(one.id()).await.unwrap());
    }
    sink.wait_for(1).await;
    until_parked(&outbox, 0).await;
    fill(&world, &[("a", "a3"), ("c", "c2")]).await;
    sink.wait_for(3).await;
    assert_eq!(sink.first_of_each()["a"], ["a2", "a3"]);
    assert_eq!(sink.first_of_each()["c"], ["c2"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn by_choice_only_the_event_is_parked() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    sink.state().refused.insert("a1".into());
    fill(&world, &[("a", "a1"), ("a", "a2")]).await;
    let relay = Running::start(outbox.source(), &sink, quick().poison(Poison::ParksItself));
    sink.wait_for(1).await;
    until_parked(&outbox, 1).await;
    fill(&world, &[("a", "a3")]).await;
    sink.wait_for(2).await;
    assert_eq!(sink.texts(), ["a2", "a3"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn an_event_that_always_fails_is_parked_and_comes_back_by_itself() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.options().retry_after(Duration::from_millis(50)).open().await.unwrap();
    let sink = TestSink::default();
    sink.state().failing.insert("a1".into());
    fill(&world, &[("a", "a1"), ("a", "a2"), ("b", "b1")]).await;
    let relay = Running::start(outbox.source(), &sink, quick().attempts_max(3));
    sink.wait_for(1).await;
    until_parked(&outbox, 2).await;
    sink.state().failing.clear();
    sink.wait_for(3).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2"]);
    until_parked(&outbox, 0).await;
    relay.stop().await;
    world.end().await;
}

/// With the defaults of a service: the failing key is set aside soon, what others append meanwhile goes on, and once it is
/// mended it comes by itself.
#[tokio::test]
async fn a_failing_key_holds_no_other_key_up_for_long() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    sink.state().failing.insert("a1".into());
    fill(&world, &[("a", "a1"), ("a", "a2")]).await;
    let relay = Running::start(outbox.source(), &sink, RelayOptions::default());
    while sink.state().calls == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fill(&world, &[("b", "b1")]).await;
    sink.wait_for(1).await;
    let calls = sink.state().calls;
    assert!(calls <= 10, "the failing key was tried {} times before another's turn", calls - 1);
    // Tried again by itself, in vain; also that holds no other key up for longer.
    while sink.state().calls == calls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let calls = sink.state().calls;
    fill(&world, &[("b", "b2")]).await;
    sink.wait_for(2).await;
    assert!(sink.state().calls <= calls + 10);
    sink.state().failing.clear();
    sink.wait_for(4).await;
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2"]);
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_broker_that_is_down_loses_and_parks_nothing() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    sink.state().down = true;
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let events: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    fill(&world, &events).await;
    let relay = Running::start(outbox.source(), &sink, quick().attempts_max(2).failing_keys_max(1));
    while sink.state().calls < 30 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fill(&world, &events).await;
    assert_eq!(parked(&outbox).await, []);
    sink.state().down = false;
    sink.wait_for(40).await;
    assert_eq!(relay.stop().await.confirmed, 40);
    assert_eq!(outbox.source().lag().await.unwrap().parked, 0);
    world.end().await;
}

/// The next batch is read while one is published. What was read before a key was parked, or before it was free again,
/// does not know of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_ahead_is_held_and_free_as_its_key_is_now() {
    let Some(world) = Postgres::new().await else { return };
    let outbox = world.options().batch_max(1, 1 << 20).open().await.unwrap();
    fill(&world, &[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")]).await;
    let mut source = outbox.source();
    let parked = Settled::Parked { error: REFUSED.into(), for_good: true, alone: false };
    for (text, held, settled) in
        [("a1", false, parked), ("a2", true, Settled::Held), ("b1", false, Settled::Confirmed)]
    {
        assert_eq!(text_and_held(&source.next().await.unwrap().unwrap()), (text.to_owned(), held));
        read_ahead(&mut source).await;
        source.ack(&[settled]).await.unwrap();
    }
    // a3 was read while its key was parked. Now that is given back, as soon as it is looked for.
    assert_eq!(outbox.retry(Some("a")).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let again = source.next().await.unwrap().unwrap();
    let texts: Vec<_> = again.events.iter().map(|one| one.event.payload().clone()).collect();
    assert_eq!(texts, ["a1", "a2"]);
    source.ack(&[Settled::Confirmed, Settled::Confirmed]).await.unwrap();
    loop {
        let batch = source.next().await.unwrap();
        // That nothing is left of the key is seen at the next look.
        if let Some(batch) = batch {
            assert_eq!(text_and_held(&batch), ("a3".to_owned(), false));
            break;
        }
    }
    source.ack(&[Settled::Confirmed]).await.unwrap();
    assert_eq!(outbox.parked(None, 10).await.unwrap().len(), 0);
    source.release().await.unwrap();
    world.end().await;
}

fn text_and_held(batch: &Batch) -> (String, bool) {
    let one = &batch.events[0];
    (String::from_utf8(one.event.payload().to_vec()).unwrap(), one.held)
}

/// Two trips on the connection on which it is read: it is, by then.
async fn read_ahead(source: &mut impl OutboxReader) {
    for _ in 0..2 {
        tokio::task::yield_now().await;
        source.renew_lease().await.unwrap();
    }
}
