//! Laws of `receive`: waits, limits, receipts and cancellation.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::bench::{Bench, WAIT, all, id, ids, receipts};
use super::harness::{Lease, SourceHarness};
use crate::source::{Settle, Source};

/// An empty queue does not block a consumer longer than its wait.
pub async fn nothing_arrives_within_the_wait(harness: &impl SourceHarness) {
    let bench = Bench::of("nothing_arrives_within_the_wait", harness, Lease::Long).await;
    let mut source = bench.source().await;
    for wait in [Duration::ZERO, WAIT, Duration::ZERO] {
        match bench.within(source.receive(10, wait)).await {
            Ok(received) => bench.check(received.is_empty(), "an empty queue delivered a message"),
            // The broker may still be creating the group.
            Err(error) => bench.check(error.may_retry(), format_args!("receive failed: {error}")),
        }
    }
    bench.publish_some(1).await;
    bench.receive(&mut source, 1).await;
}

/// A consumer with room for three messages never gets four.
pub async fn no_more_comes_than_was_asked_for(harness: &impl SourceHarness) {
    let bench = Bench::of("no_more_comes_than_was_asked_for", harness, Lease::Long).await;
    bench.publish_some(20).await;
    let mut source = bench.source().await;
    let (until, mut received) = (bench.deadline(), HashSet::new());
    let mut most = [1, 3, 5].into_iter().cycle();
    while received.len() < 20 {
        bench.check(Instant::now() < until, format_args!("received {} of 20", received.len()));
        for delivery in bench.receive_once(&mut source, most.next().unwrap_or(1)).await {
            bench.check(
                received.insert(id(&delivery).to_owned()),
                format_args!("{} was delivered twice", id(&delivery)),
            );
        }
    }
}

/// Later deliveries have higher receipts, redeliveries too.
pub async fn receipts_ascend(harness: &impl SourceHarness) {
    let bench = Bench::of("receipts_ascend", harness, Lease::Long).await;
    bench.publish_some(8).await;
    let mut source = bench.source().await;
    let mut given = Vec::new();
    for _ in 0..3 {
        let received = bench.receive(&mut source, 8).await;
        given.extend(receipts(&received));
        bench.settle(&mut source, &all(&received, Settle::Nack)).await;
    }
    bench.check(given.is_sorted_by(|one, next| one < next), format_args!("receipts were {given:?}"));
}

/// Cancellation: a consumer that stops drops its `receive` half-way, and no message is lost.
pub async fn a_receive_that_is_left_loses_nothing(harness: &impl SourceHarness) {
    let bench = Bench::of("a_receive_that_is_left_loses_nothing", harness, Lease::Long).await;
    let mut source = bench.source().await;
    bench.publish_some(40).await;
    let mut received: HashSet<String> = HashSet::new();
    // Dropped a little later each time, so that each of its steps is the last one once.
    for turn in 0..60 {
        let call = source.receive(2, WAIT);
        if let Ok(Ok(part)) = tokio::time::timeout(Duration::from_micros(turn * turn * 10), call).await {
            received.extend(ids(&part).into_iter().map(str::to_owned));
            bench.settle(&mut source, &all(&part, Settle::Ack)).await;
        }
    }
    let until = bench.deadline();
    while received.len() < 40 {
        bench.check(Instant::now() < until, format_args!("received {} of 40", received.len()));
        let part = bench.receive_once(&mut source, 10).await;
        received.extend(ids(&part).into_iter().map(str::to_owned));
        bench.settle(&mut source, &all(&part, Settle::Ack)).await;
    }
    bench.leave(source).await;
    bench.all_is_done().await;
}
