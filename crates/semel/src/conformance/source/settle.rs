//! What settling means to the broker.

use super::bench::{Bench, all, ids, sorted};
use super::harness::{Lease, SourceHarness};
use crate::source::{Settle, Source};

/// Else what a consumer had in hand when it died is lost.
pub async fn nothing_is_acknowledged_before_it_is_done(harness: &impl SourceHarness) {
    let law = "nothing_is_acknowledged_before_it_is_done";
    let bench = Bench::of(law, harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut dies = bench.source().await;
    let came = bench.receive(&mut dies, 6).await;
    bench.left_stays(6).await;
    drop(dies);
    let mut next = bench.source().await;
    let again = bench.receive(&mut next, 6).await;
    bench.check(
        sorted(&again) == sorted(&came),
        format_args!("{:?} came again of {:?}", ids(&again), ids(&came)),
    );
    bench.left_stays(6).await;
}

/// Else every restart does everything again.
pub async fn what_is_done_does_not_come_again(harness: &impl SourceHarness) {
    let bench = Bench::of("what_is_done_does_not_come_again", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let came = bench.receive(&mut source, 6).await;
    bench.settle(&mut source, &all(&came, Settle::Ack)).await;
    let besides = bench.besides_the_last(&mut source).await;
    bench.check(besides.is_empty(), format_args!("done, and came again: {:?}", ids(&besides)));
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// Else a message that could not be handled now is never handled.
pub async fn what_is_given_back_comes_again(harness: &impl SourceHarness) {
    let bench = Bench::of("what_is_given_back_comes_again", harness, Lease::Long).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let mut came = bench.receive(&mut source, 6).await;
    let first = sorted(&came).join(" ");
    for _ in 0..3 {
        bench.settle(&mut source, &all(&came, Settle::Nack)).await;
        came = bench.receive(&mut source, 6).await;
        let again = sorted(&came).join(" ");
        bench.check(again == first, format_args!("{again} came again, and not {first}"));
    }
    bench.left_stays(6).await;
    bench.settle(&mut source, &all(&came, Settle::Ack)).await;
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// What is not named is not settled, whatever came with it.
pub async fn a_part_of_what_came_is_settled(harness: &impl SourceHarness) {
    let bench = Bench::of("a_part_of_what_came_is_settled", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let came = bench.receive(&mut source, 6).await;
    bench.settle(&mut source, &all(&came[..3], Settle::Ack)).await;
    bench.leave(source).await;
    bench.left_is(3).await;
    let mut next = bench.source().await;
    let rest = bench.receive(&mut next, 3).await;
    bench.check(
        sorted(&rest) == sorted(&came[3..]),
        format_args!("{:?} came again, and not {:?}", ids(&rest), ids(&came[3..])),
    );
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// Handlers end in any order. A position that follows the fastest one loses what is slower.
pub async fn messages_are_settled_in_any_order(harness: &impl SourceHarness) {
    let bench = Bench::of("messages_are_settled_in_any_order", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let came = bench.receive(&mut source, 6).await;
    for done in [5, 3, 0] {
        bench.settle(&mut source, &[(came[done].receipt, Settle::Ack)]).await;
    }
    bench.leave(source).await;
    let open = [came[1].clone(), came[2].clone(), came[4].clone()];
    let mut next = bench.source().await;
    let count = if bench.can.one_by_one {
        3
    } else {
        bench.cannot("what was done behind one that was not comes again");
        5
    };
    let rest = bench.receive(&mut next, count).await;
    let missing: Vec<_> = ids(&open).into_iter().filter(|open| !ids(&rest).contains(open)).collect();
    bench.check(missing.is_empty(), format_args!("{missing:?} were not done and did not come again"));
    bench.check(!ids(&rest).contains(&ids(&came)[0]), "the first one was done and came again");
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// After an error nobody knows what was heard, so it is told again, the same and more.
pub async fn told_again_is_told_once(harness: &impl SourceHarness) {
    let bench = Bench::of("told_again_is_told_once", harness, Lease::Long).await;
    bench.publish_some(4).await;
    let mut source = bench.source().await;
    let came = bench.receive(&mut source, 4).await;
    let told = all(&came, Settle::Ack);
    for heard in 1..=4 {
        bench.settle(&mut source, &told[..heard]).await;
        bench.settle(&mut source, &told[..heard]).await;
    }
    // What is done stays done.
    bench.settle(&mut source, &all(&came, Settle::Nack)).await;
    bench.settle(&mut source, &[]).await;
    let besides = bench.besides_the_last(&mut source).await;
    bench.check(besides.is_empty(), format_args!("done, and came again: {:?}", ids(&besides)));
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// A receipt names a delivery. One that was given back names nothing, although its message is out again.
pub async fn an_old_receipt_settles_nothing(harness: &impl SourceHarness) {
    let bench = Bench::of("an_old_receipt_settles_nothing", harness, Lease::Short).await;
    bench.publish_some(4).await;
    let mut source = bench.source().await;
    let old = bench.receive(&mut source, 4).await;
    bench.settle(&mut source, &all(&old, Settle::Nack)).await;
    let new = bench.receive(&mut source, 4).await;
    bench.settle(&mut source, &all(&old[..2], Settle::Ack)).await;
    bench.settle(&mut source, &all(&old[2..], Settle::Nack)).await;
    bench.left_stays(4).await;
    drop(source);
    let mut next = bench.source().await;
    let again = bench.receive(&mut next, 4).await;
    bench.check(
        sorted(&again) == sorted(&new),
        format_args!("{:?} came again of {:?}", ids(&again), ids(&new)),
    );
    bench.settle(&mut next, &all(&again, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
    // Somebody who has left settles nothing either, and it is no error.
    bench.publish_some(1).await;
    let mut left = bench.source().await;
    let came = bench.receive(&mut left, 1).await;
    let gone = bench.within(left.leave()).await;
    bench.check(gone.is_ok(), format_args!("the source did not leave: {gone:?}"));
    bench.settle(&mut left, &all(&came, Settle::Ack)).await;
    bench.left_stays(1).await;
}
