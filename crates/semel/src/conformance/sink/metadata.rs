//! Laws of payload and headers: what a reader gets.

use std::sync::Arc;

use super::bench::{Bench, numbered};
use super::harness::SinkHarness;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::scope::Scope;
use crate::outbox::{Event, PAYLOAD_BYTES_MAX};
use crate::sink::headers;
use crate::sink::{DeliverySemantics, Sink};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A reader deduplicates by the id. With another id a repeat would be a second payment.
pub async fn a_repeat_has_the_same_id(harness: &impl SinkHarness) {
    let mut bench = Bench::of("a_repeat_has_the_same_id", harness).await;
    let topic = harness.topic().await;
    let event = numbered(&topic, "repeated", 1);
    for _ in 0..3 {
        bench.settle(std::slice::from_ref(&event)).await;
    }
    let seen = bench.read(&topic).await;
    let times = bench.times(&seen, &event);
    bench.check(times > 0, "the event is missing");
    bench.check(times == seen.len(), format_args!("a repeat has another id: {seen:?}"));
    let deduplicated = bench.sink.guarantee().delivery == DeliverySemantics::Deduplicated;
    bench.check(!deduplicated || times == 1, format_args!("the broker should deduplicate, but has {times}"));
}

/// A reader needs to know what happened, which request it belongs to, and how to decode it.
pub async fn what_travels_with_an_event(harness: &impl SinkHarness) {
    let mut bench = Bench::of("what_travels_with_an_event", harness).await;
    let topic = harness.topic().await;
    let intent = Intent::new(
        Scope::tenant("acme").expect("a tenant"),
        Operation::new("payment.create").expect("an operation"),
        Key::new("order-1001").expect("a key"),
    );
    let event = Event::new(&topic, "payment.completed", "<payment/>")
        .and_then(|event| event.key("account-7"))
        .and_then(|event| event.aggregate("payment", "7"))
        .and_then(|event| event.content_type("application/xml"))
        .and_then(|event| event.header("region", "eu"))
        .and_then(|event| event.header("x-note", "paid twice? no"))
        .and_then(|event| event.trace_parent(TRACE))
        .expect("a valid event")
        .caused_by(&intent);
    let event = Arc::new(event);
    bench.settle(std::slice::from_ref(&event)).await;
    let seen = bench.read(&topic).await;
    let Some(seen) = seen.first() else { bench.fail("the event is missing") };
    let (id, intent) = (event.id().to_string(), intent.id().to_string());
    for (name, wanted) in [
        (headers::ID, id.as_str()),
        (headers::KIND, "payment.completed"),
        (headers::CONTENT_TYPE, "application/xml"),
        (headers::INTENT, &intent),
        (headers::TRACE_PARENT, TRACE),
        (headers::AGGREGATE_TYPE, "payment"),
        (headers::AGGREGATE_ID, "7"),
        ("region", "eu"),
        ("x-note", "paid twice? no"),
    ] {
        let found = seen.header(name);
        bench.check(found == Some(wanted), format_args!("the header {name} is {found:?}, not {wanted:?}"));
    }
    bench.check(seen.payload == *event.payload(), "the payload differs");
}

/// The largest payload that the outbox accepts can be published; otherwise it would block its key forever.
pub async fn a_large_payload_arrives_whole(harness: &impl SinkHarness) {
    let mut bench = Bench::of("a_large_payload_arrives_whole", harness).await;
    let topic = harness.topic().await;
    // Letters without short repeats, so that it does not compress well.
    let payload: String =
        (0..PAYLOAD_BYTES_MAX).map(|n| char::from(b'a' + ((n * n + n / 7) % 26) as u8)).collect();
    let event = Event::new(&topic, "law.tried", payload).and_then(|event| event.key("large"));
    let event = Arc::new(event.expect("as large as an event may be"));
    let (small, next) = (numbered(&topic, "large", 0), numbered(&topic, "large", 2));
    bench.settle(&[small, event.clone(), next]).await;
    let seen = bench.read(&topic).await;
    let id = event.id().to_string();
    let found = seen.iter().find(|seen| seen.id() == Some(id.as_str()));
    let Some(found) = found else { bench.fail("the large event is missing") };
    bench.check(found.payload == *event.payload(), format_args!("{} bytes arrived", found.payload.len()));
}

/// A payload is any bytes, and may be empty.
pub async fn any_bytes_arrive_as_they_are(harness: &impl SinkHarness) {
    if !harness.takes_bytes() {
        return;
    }
    let mut bench = Bench::of("any_bytes_arrive_as_they_are", harness).await;
    let topic = harness.topic().await;
    let every: Vec<u8> = (0..=255).collect();
    for payload in [Vec::new(), every, vec![0], b"\r\n\r\n".to_vec(), "naïve ☃".into()] {
        // These events have no key.
        let event = Arc::new(Event::new(&topic, "law.tried", payload).expect("a valid event"));
        bench.settle(std::slice::from_ref(&event)).await;
        let seen = bench.read(&topic).await;
        let id = event.id().to_string();
        let found = seen.iter().find(|seen| seen.id() == Some(id.as_str()));
        let Some(found) = found else { bench.fail(format_args!("{event:?} is missing")) };
        bench.check(found.payload == *event.payload(), format_args!("{event:?} became {found:?}"));
    }
}
