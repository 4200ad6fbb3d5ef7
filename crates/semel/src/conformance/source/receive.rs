//! How messages come.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::bench::{Bench, WAIT, all, id, ids, receipts};
use super::harness::{Lease, SourceHarness};
use crate::source::{Settle, Source};

/// A consumer has other things to do than to wait for an empty queue.
pub async fn nothing_is_told_within_the_wait(harness: &impl SourceHarness) {
    let bench = Bench::of("nothing_is_told_within_the_wait", harness, Lease::Long).await;
    let mut source = bench.source().await;
    for wait in [Duration::ZERO, WAIT, Duration::ZERO] {
        match bench.within(source.receive(10, wait)).await {
            Ok(came) => bench.check(came.is_empty(), "something came out of an empty queue"),
            // A broker that makes the group just now.
            Err(error) => bench.check(error.may_retry(), format_args!("nothing was received: {error}")),
        }
    }
    bench.publish_some(1).await;
    bench.receive(&mut source, 1).await;
}

/// Who has room for three has not asked for four.
pub async fn no_more_comes_than_was_asked_for(harness: &impl SourceHarness) {
    let bench = Bench::of("no_more_comes_than_was_asked_for", harness, Lease::Long).await;
    bench.publish_some(20).await;
    let mut source = bench.source().await;
    let (until, mut came) = (bench.deadline(), HashSet::new());
    let mut most = [1, 3, 5].into_iter().cycle();
    while came.len() < 20 {
        bench.check(Instant::now() < until, format_args!("{} of 20 came", came.len()));
        for delivery in bench.receive_once(&mut source, most.next().unwrap_or(1)).await {
            bench.check(came.insert(id(&delivery).to_owned()), format_args!("{} came twice", id(&delivery)));
        }
    }
}

/// Later deliveries have higher receipts, those that come again too.
pub async fn receipts_ascend(harness: &impl SourceHarness) {
    let bench = Bench::of("receipts_ascend", harness, Lease::Long).await;
    bench.publish_some(8).await;
    let mut source = bench.source().await;
    let mut given = Vec::new();
    for _ in 0..3 {
        let came = bench.receive(&mut source, 8).await;
        given.extend(receipts(&came));
        bench.settle(&mut source, &all(&came, Settle::Nack)).await;
    }
    bench.check(given.is_sorted_by(|one, next| one < next), format_args!("receipts were {given:?}"));
}

/// A consumer that is told to stop, or has something better to do, leaves its call where it stands.
pub async fn a_receive_that_is_left_loses_nothing(harness: &impl SourceHarness) {
    let bench = Bench::of("a_receive_that_is_left_loses_nothing", harness, Lease::Long).await;
    let mut source = bench.source().await;
    bench.publish_some(40).await;
    let mut came: HashSet<String> = HashSet::new();
    // Left ever later, so that each of its steps is once the last one.
    for turn in 0..60 {
        let call = source.receive(2, WAIT);
        if let Ok(Ok(part)) = tokio::time::timeout(Duration::from_micros(turn * turn * 10), call).await {
            came.extend(ids(&part).into_iter().map(str::to_owned));
            bench.settle(&mut source, &all(&part, Settle::Ack)).await;
        }
    }
    let until = bench.deadline();
    while came.len() < 40 {
        bench.check(Instant::now() < until, format_args!("{} of 40 came", came.len()));
        let part = bench.receive_once(&mut source, 10).await;
        came.extend(ids(&part).into_iter().map(str::to_owned));
        bench.settle(&mut source, &all(&part, Settle::Ack)).await;
    }
    bench.leave(source).await;
    bench.all_is_done().await;
}
