//! Laws of payload, headers, position and delivery count.

use super::bench::{Bench, all, ids};
use super::harness::{Lease, Sent, SourceHarness};
use crate::source::Settle;

/// A handler needs to know which message it is, its key, and how to decode it.
pub async fn what_travels_with_a_message(harness: &impl SourceHarness) {
    let bench = Bench::of("what_travels_with_a_message", harness, Lease::Long).await;
    let mut sent = Sent::new("m-0").key("account-7");
    for (name, text) in [("semel-type", "payment.completed"), ("region", "eu"), ("x-note", "paid twice? no")]
    {
        sent.headers.push((name.to_owned(), text.to_owned()));
    }
    bench.publish(std::slice::from_ref(&sent)).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 1).await;
    let delivery = &received[0];
    for (name, wanted) in &sent.headers {
        let found = delivery.header(name);
        bench.check(found == Some(wanted), format_args!("the header {name} is {found:?}, not {wanted:?}"));
    }
    bench.check(delivery.payload == sent.payload, format_args!("the payload is {:?}", delivery.payload));
    bench.check(!delivery.from.is_empty(), "the delivery does not name its queue");
    if bench.can.keys {
        bench.check(delivery.key == sent.key, format_args!("the key is {:?}", delivery.key));
    } else {
        bench.cannot("the broker has no keys");
    }
}

/// A payload is any bytes, and may be empty.
pub async fn any_bytes_arrive_as_they_are(harness: &impl SourceHarness) {
    let bench = Bench::of("any_bytes_arrive_as_they_are", harness, Lease::Long).await;
    let every: Vec<u8> = (0..=255).collect();
    let mut payloads: Vec<Vec<u8>> = vec!["naïve ☃".into(), b"\r\n\r\n ".to_vec(), b"{\"a\": 1}".to_vec()];
    if bench.can.bytes {
        payloads.extend([Vec::new(), every, vec![0], vec![0xff, 0xfe]]);
    } else {
        bench.cannot("the broker only carries text");
    }
    let mut sent = Vec::new();
    for (n, payload) in payloads.into_iter().enumerate() {
        sent.push(Sent { payload: payload.into(), ..Sent::new(format!("m-{n}")) });
    }
    bench.publish(&sent).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, sent.len()).await;
    for sent in &sent {
        let found = received.iter().find(|delivery| super::bench::id(delivery) == sent.id());
        let Some(found) = found else { bench.fail(format_args!("{} is missing", sent.id())) };
        bench.check(found.payload == sent.payload, format_args!("{sent:?} became {found:?}"));
    }
}

/// The largest payload that the broker accepts is delivered.
pub async fn a_large_payload_arrives_whole(harness: &impl SourceHarness) {
    let bench = Bench::of("a_large_payload_arrives_whole", harness, Lease::Long).await;
    // Letters without short repeats, so that it does not compress well.
    let payload: Vec<u8> =
        (0..bench.can.payload_bytes_max).map(|n| b'a' + ((n * n + n / 7) % 26) as u8).collect();
    let large = Sent { payload: payload.into(), ..Sent::new("large") };
    bench.publish(&[Sent::new("m-0"), large.clone(), Sent::new("m-1")]).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 3).await;
    let found = received.iter().find(|delivery| super::bench::id(delivery) == large.id());
    let Some(found) = found else { bench.fail("the large message is missing") };
    bench.check(found.payload == large.payload, format_args!("{} bytes arrived", found.payload.len()));
}

/// A position identifies one message, and is the same at every delivery.
pub async fn a_place_is_one_message_s(harness: &impl SourceHarness) {
    let bench = Bench::of("a_place_is_one_message_s", harness, Lease::Short).await;
    bench.publish_some(5).await;
    let mut source = bench.source().await;
    let mut received = bench.receive(&mut source, 5).await;
    let positions = |received: &[crate::source::Delivery]| {
        let mut positions: Vec<_> = received
            .iter()
            .map(|delivery| (delivery.place.clone(), delivery.lineage.clone(), delivery.from.clone()))
            .collect();
        positions.sort_unstable();
        positions
    };
    let first = positions(&received);
    let mut distinct = first.clone();
    distinct.dedup();
    bench.check(distinct.len() == 5, format_args!("the positions of {:?} are {first:?}", ids(&received)));
    if !bench.can.places {
        return bench.cannot("a redelivered message has another position");
    }
    bench.settle(&mut source, &all(&received, Settle::Nack)).await;
    received = bench.receive(&mut source, 5).await;
    bench.check(positions(&received) == first, format_args!("{first:?} became {:?}", positions(&received)));
    bench.leave(source).await;
    let mut next = bench.source().await;
    received = bench.receive(&mut next, 5).await;
    bench.check(positions(&received) == first, format_args!("{first:?} became {:?}", positions(&received)));
}

/// The delivery count is correct, or absent.
pub async fn deliveries_are_counted(harness: &impl SourceHarness) {
    let bench = Bench::of("deliveries_are_counted", harness, Lease::Long).await;
    bench.publish_some(2).await;
    let mut source = bench.source().await;
    let mut before = 0;
    for _ in 0..3 {
        let received = bench.receive(&mut source, 2).await;
        let counted: Vec<Option<u32>> = received.iter().map(|delivery| delivery.deliveries).collect();
        if bench.can.counts {
            bench.check(
                counted.iter().all(|counted| counted.is_some_and(|counted| counted > before)),
                format_args!("deliveries were counted {counted:?} after {before}"),
            );
            before = counted.into_iter().flatten().min().unwrap_or_default();
        } else {
            bench.cannot("the broker does not count");
            bench.check(counted == [None, None], format_args!("deliveries were counted {counted:?}"));
        }
        bench.settle(&mut source, &all(&received, Settle::Nack)).await;
    }
}
