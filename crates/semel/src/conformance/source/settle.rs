//! Laws of ack and nack.

use super::bench::{Bench, all, ids, sorted};
use super::harness::{Lease, SourceHarness};
use crate::source::{Settle, Source};

/// Otherwise the messages in flight at a crash are lost.
pub async fn nothing_is_acknowledged_before_it_is_done(harness: &impl SourceHarness) {
    let law = "nothing_is_acknowledged_before_it_is_done";
    let bench = Bench::of(law, harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut dies = bench.source().await;
    let received = bench.receive(&mut dies, 6).await;
    bench.left_stays(6).await;
    drop(dies);
    let mut next = bench.source().await;
    let again = bench.receive(&mut next, 6).await;
    bench.check(
        sorted(&again) == sorted(&received),
        format_args!("{:?} redelivered of {:?}", ids(&again), ids(&received)),
    );
    bench.left_stays(6).await;
}

/// Otherwise every restart handles everything again.
pub async fn what_is_done_does_not_come_again(harness: &impl SourceHarness) {
    let bench = Bench::of("what_is_done_does_not_come_again", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 6).await;
    bench.settle(&mut source, &all(&received, Settle::Ack)).await;
    let besides = bench.besides_the_last(&mut source).await;
    bench.check(besides.is_empty(), format_args!("acked, and redelivered: {:?}", ids(&besides)));
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// Otherwise a message that failed once is never handled.
pub async fn what_is_given_back_comes_again(harness: &impl SourceHarness) {
    let bench = Bench::of("what_is_given_back_comes_again", harness, Lease::Long).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let mut received = bench.receive(&mut source, 6).await;
    let first = sorted(&received).join(" ");
    for _ in 0..3 {
        bench.settle(&mut source, &all(&received, Settle::Nack)).await;
        received = bench.receive(&mut source, 6).await;
        let again = sorted(&received).join(" ");
        bench.check(again == first, format_args!("{again} redelivered, not {first}"));
    }
    bench.left_stays(6).await;
    bench.settle(&mut source, &all(&received, Settle::Ack)).await;
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// Only the named messages are settled, not others of the same batch.
pub async fn a_part_of_what_came_is_settled(harness: &impl SourceHarness) {
    let bench = Bench::of("a_part_of_what_came_is_settled", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 6).await;
    bench.settle(&mut source, &all(&received[..3], Settle::Ack)).await;
    bench.leave(source).await;
    bench.left_is(3).await;
    let mut next = bench.source().await;
    let rest = bench.receive(&mut next, 3).await;
    bench.check(
        sorted(&rest) == sorted(&received[3..]),
        format_args!("{:?} redelivered, not {:?}", ids(&rest), ids(&received[3..])),
    );
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// Handlers end in any order. An offset that follows the fastest one loses the slower messages.
pub async fn messages_are_settled_in_any_order(harness: &impl SourceHarness) {
    let bench = Bench::of("messages_are_settled_in_any_order", harness, Lease::Short).await;
    bench.publish_some(6).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 6).await;
    for done in [5, 3, 0] {
        bench.settle(&mut source, &[(received[done].receipt, Settle::Ack)]).await;
    }
    bench.leave(source).await;
    let open = [received[1].clone(), received[2].clone(), received[4].clone()];
    let mut next = bench.source().await;
    let count = if bench.can.one_by_one {
        3
    } else {
        bench.cannot("acked messages behind an unacked one are redelivered");
        5
    };
    let rest = bench.receive(&mut next, count).await;
    let missing: Vec<_> = ids(&open).into_iter().filter(|open| !ids(&rest).contains(open)).collect();
    bench.check(missing.is_empty(), format_args!("{missing:?} were not acked and not redelivered"));
    bench.check(!ids(&rest).contains(&ids(&received)[0]), "the first one was acked and redelivered");
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// Acks are idempotent: after an error it is not known what arrived, so the caller repeats them, maybe with more.
pub async fn acked_again_is_acked_once(harness: &impl SourceHarness) {
    let bench = Bench::of("acked_again_is_acked_once", harness, Lease::Long).await;
    bench.publish_some(4).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 4).await;
    let acks = all(&received, Settle::Ack);
    for count in 1..=4 {
        bench.settle(&mut source, &acks[..count]).await;
        bench.settle(&mut source, &acks[..count]).await;
    }
    // An ack is final.
    bench.settle(&mut source, &all(&received, Settle::Nack)).await;
    bench.settle(&mut source, &[]).await;
    let besides = bench.besides_the_last(&mut source).await;
    bench.check(besides.is_empty(), format_args!("acked, and redelivered: {:?}", ids(&besides)));
    bench.leave(source).await;
    bench.all_is_done().await;
}

/// A receipt identifies a delivery. After a nack it is invalid, even if its message is in flight again.
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
        format_args!("{:?} redelivered of {:?}", ids(&again), ids(&new)),
    );
    bench.settle(&mut next, &all(&again, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
    // A source that has left settles nothing either, without an error.
    bench.publish_some(1).await;
    let mut left = bench.source().await;
    let received = bench.receive(&mut left, 1).await;
    let gone = bench.within(left.leave()).await;
    bench.check(gone.is_ok(), format_args!("leave failed: {gone:?}"));
    bench.settle(&mut left, &all(&received, Settle::Ack)).await;
    bench.left_stays(1).await;
}
