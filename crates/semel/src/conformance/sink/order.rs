//! Laws of delivery and order: nothing lost, nothing overtaken.

use std::collections::HashSet;
use std::sync::Arc;

use super::bench::{Bench, numbered};
use super::harness::SinkHarness;
use crate::outbox::Event;
use crate::sink::Published;

/// No events, no answers: an empty batch is not an error.
pub async fn nothing_is_answered_for_nothing(harness: &impl SinkHarness) {
    let mut bench = Bench::of("nothing_is_answered_for_nothing", harness).await;
    bench.publish(&[]).await;
}

/// Otherwise an event is lost: the relay has moved on, and never publishes it again.
pub async fn what_is_confirmed_is_there(harness: &impl SinkHarness) {
    let mut bench = Bench::of("what_is_confirmed_is_there", harness).await;
    let topic = harness.topic().await;
    let mut confirmed = Vec::new();
    for batch in 0..4 {
        let events: Vec<_> =
            (0..50).map(|n| numbered(&topic, &format!("key-{}", n % 13), batch * 50 + n)).collect();
        let answers = bench.publish(&events).await;
        let taken = events.into_iter().zip(answers).filter(|(_, answer)| *answer == Published::Confirmed);
        confirmed.extend(taken.map(|(event, _)| event));
    }
    bench.check(confirmed.len() > 100, format_args!("only {} of 200 were confirmed", confirmed.len()));
    let seen = bench.read(&topic).await;
    for event in confirmed {
        bench.check(bench.times(&seen, &event) > 0, format_args!("{event:?} was confirmed and is missing"));
    }
}

/// Otherwise a reader sees the payment's refund before the payment.
pub async fn order_is_kept_within_a_key(harness: &impl SinkHarness) {
    let mut bench = Bench::of("order_is_kept_within_a_key", harness).await;
    let topic = harness.topic().await;
    let keys = ["a", "b", "c", "d", "e", "f", "g"];
    let events: Vec<_> = (0..210).map(|n| numbered(&topic, keys[n % keys.len()], n)).collect();
    for batch in events.chunks(70) {
        bench.settle(batch).await;
    }
    let seen = bench.read(&topic).await;
    for key in keys {
        let wanted: Vec<String> = events
            .iter()
            .filter(|event| event.ordered_by() == Some(key))
            .map(|event| event.id().to_string())
            .collect();
        let of_key: HashSet<&str> = wanted.iter().map(String::as_str).collect();
        // Only the first occurrence of each: a repeat may come later.
        let mut known = HashSet::new();
        let order: Vec<&str> = seen
            .iter()
            .filter_map(|seen| seen.id())
            .filter(|id| of_key.contains(id) && known.insert(id.to_owned()))
            .collect();
        bench.check(
            order == wanted,
            format_args!("the events of the key {key} came as {order:?}, not {wanted:?}"),
        );
    }
}

/// A relay's batch has events for many topics.
pub async fn several_topics_in_one_call(harness: &impl SinkHarness) {
    let mut bench = Bench::of("several_topics_in_one_call", harness).await;
    let topics = [harness.topic().await, harness.topic().await, harness.topic().await];
    let events: Vec<_> = (0..30).map(|n| numbered(&topics[n % 3], "same", n)).collect();
    bench.settle(&events).await;
    for topic in &topics {
        let seen = bench.read(topic).await;
        for event in &events {
            let wanted = event.topic() == topic;
            let there = bench.times(&seen, event) > 0;
            bench.check(there == wanted, format_args!("{event:?} in {topic}: {there}, not {wanted}"));
        }
    }
}

/// An event that the broker never accepts must be reported as refused, or its key is retried forever. Later events of
/// its key must wait for a decision, or they overtake it.
pub async fn a_refused_event_is_reported_and_holds_back_its_key(harness: &impl SinkHarness) {
    let Some((topic, payload)) = harness.refusing().await else { return };
    let mut bench = Bench::of("a_refused_event_is_reported_and_holds_back_its_key", harness).await;
    let bad = Event::new(&topic, "law.tried", payload).and_then(|event| event.key("held"));
    let bad = Arc::new(bad.expect("the harness gives a valid payload"));
    let before = numbered(&topic, "held", 1);
    let after = numbered(&topic, "held", 2);
    let other = numbered(&topic, "other", 3);
    bench.settle(std::slice::from_ref(&before)).await;
    let batch = [bad.clone(), after.clone(), other.clone()];
    let answers = bench.publish(&batch).await;
    bench.check(
        matches!(answers[0], Published::Refused(_)) || matches!(answers[0], Published::Failed(_)),
        format_args!("a payload that is too large was answered {:?}", answers[0]),
    );
    bench.check(
        matches!(answers[1], Published::Failed(_)),
        format_args!("the event after a refused one was answered {:?}", answers[1]),
    );
    let seen = bench.read(&topic).await;
    bench.check(bench.times(&seen, &bad) == 0, "the refused event was published");
    bench.check(bench.times(&seen, &after) == 0, "the event after a refused one overtook it");
    // Alone it must be refused: in a batch its neighbours may have been the cause.
    let alone = bench.publish(std::slice::from_ref(&bad)).await;
    bench.check(
        matches!(alone[0], Published::Refused(_)),
        format_args!("an event that is never accepted was answered {:?}", alone[0]),
    );
    // A relay parks the refused event and goes on.
    let mut rest = vec![after.clone()];
    if answers[2] != Published::Confirmed {
        rest.push(other.clone());
    }
    bench.settle(&rest).await;
    let seen = bench.read(&topic).await;
    for event in [&before, &after, &other] {
        bench.check(bench.times(&seen, event) > 0, format_args!("{event:?} was confirmed and is missing"));
    }
}
