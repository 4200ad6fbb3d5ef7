//! Laws of leases: which consumer has a message.

use std::time::Instant;

use super::bench::{Bench, WAIT, all, ids, receipts, sorted};
use super::harness::{Lease, SourceHarness};
use crate::source::{Delivery, Receipt, Settle, Source};

/// Most attempts on a machine that is too busy to extend leases in time.
const ATTEMPTS_MAX: usize = 5;

/// Work that takes longer than a lease does not run twice in parallel.
// Slow: it takes three leases, and a broker's shortest is several seconds.
pub async fn what_is_kept_stays(harness: &impl SourceHarness) {
    for attempt in 1..=ATTEMPTS_MAX {
        if is_kept(harness, attempt == ATTEMPTS_MAX).await {
            return;
        }
    }
}

/// Returns false if this machine could not extend the leases in time, which proves nothing.
async fn is_kept(harness: &impl SourceHarness, last: bool) -> bool {
    let bench = Bench::of("what_is_kept_stays", harness, Lease::Short).await;
    let Some(lease) = bench.can.lease else {
        bench.cannot("the broker has no leases");
        return true;
    };
    bench.publish_some(4).await;
    let mut source = bench.source().await;
    // Only the broker knows when a lease begins: at the earliest when it was asked.
    let mut renewed = Instant::now();
    let received = bench.receive(&mut source, 4).await;
    let in_flight = receipts(&received);
    let mut other = bench.source().await;
    let begun = Instant::now();
    let mut to_other = Vec::new();
    while begun.elapsed() < lease * 3 {
        let pause = source.renew_after().min(lease);
        let next = tokio::time::Instant::from_std(renewed + pause);
        while tokio::time::Instant::now() < next {
            let left = next.saturating_duration_since(tokio::time::Instant::now()).min(WAIT);
            if let Ok(Ok(received)) = tokio::time::timeout(WAIT * 10, other.receive(10, left)).await {
                to_other.extend(received);
            }
        }
        bench.keep(&mut source, &in_flight).await;
        if renewed.elapsed() > lease * 3 / 4 && !last {
            return false;
        }
        renewed = Instant::now();
    }
    bench.check(
        to_other.is_empty(),
        format_args!("{:?} were kept and delivered to another consumer", ids(&to_other)),
    );
    let lost = source.lost();
    bench.check(lost.is_empty(), format_args!("{lost:?} were kept and reported as lost"));
    bench.settle(&mut source, &all(&received, Settle::Ack)).await;
    bench.leave(other).await;
    bench.leave(source).await;
    bench.all_is_done().await;
    true
}

/// Lets a consumer be silent until another one has its messages.
async fn taken_over<H: SourceHarness>(
    bench: &Bench<'_, H>,
) -> Option<(H::Source, Vec<Delivery>, H::Source, Vec<Delivery>)> {
    let Some(lease) = bench.can.lease else {
        bench.cannot("the broker has no leases");
        return None;
    };
    bench.publish_some(4).await;
    let mut silent = bench.source().await;
    let had = bench.receive(&mut silent, 4).await;
    let mut other = bench.source().await;
    let (until, mut has) = (bench.deadline() + lease, Vec::new());
    while has.len() < 4 {
        bench.check(Instant::now() < until, format_args!("another consumer received {} of 4", has.len()));
        has.extend(bench.receive_once(&mut other, 4 - has.len()).await);
        bench.keep(&mut other, &receipts(&has)).await;
    }
    bench.check(
        sorted(&has) == sorted(&had),
        format_args!("another consumer received {:?}, not {:?}", ids(&has), ids(&had)),
    );
    Some((silent, had, other, has))
}

/// Otherwise two consumers work on the same message.
pub async fn what_another_has_is_named_lost(harness: &impl SourceHarness) {
    let bench = Bench::of("what_another_has_is_named_lost", harness, Lease::Short).await;
    let Some((mut silent, had, mut other, has)) = taken_over(&bench).await else { return };
    let until = bench.deadline();
    let mut lost: Vec<Receipt> = silent.lost();
    while lost.len() < 4 {
        bench.check(Instant::now() < until, format_args!("only {lost:?} are lost of {:?}", receipts(&had)));
        // Some sources learn of it only when they ask the broker.
        bench.keep(&mut silent, &receipts(&had)).await;
        bench.keep(&mut other, &receipts(&has)).await;
        lost.extend(silent.lost());
    }
    lost.sort_unstable();
    bench.check(lost == receipts(&had), format_args!("{lost:?} are lost, not {:?}", receipts(&had)));
    bench.check(silent.lost().is_empty(), "a lost receipt is reported twice");
    bench.settle(&mut other, &all(&has, Settle::Ack)).await;
    bench.leave(other).await;
    bench.left_is(0).await;
}

/// A late ack from a consumer that lost its lease does not affect the new owner of the message.
pub async fn settling_what_was_lost_does_nothing(harness: &impl SourceHarness) {
    let bench = Bench::of("settling_what_was_lost_does_nothing", harness, Lease::Short).await;
    let Some((mut silent, had, other, _)) = taken_over(&bench).await else { return };
    bench.settle(&mut silent, &all(&had[..2], Settle::Ack)).await;
    bench.settle(&mut silent, &all(&had[2..], Settle::Nack)).await;
    bench.left_stays(4).await;
    drop(silent);
    drop(other);
    let mut next = bench.source().await;
    let again = bench.receive(&mut next, 4).await;
    bench.check(sorted(&again) == sorted(&had), format_args!("{:?} redelivered", ids(&again)));
    bench.settle(&mut next, &all(&again, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// During a deployment consumers need not wait for leases to expire.
pub async fn who_leaves_gives_back_at_once(harness: &impl SourceHarness) {
    let at_once = harness.abilities().gives_back_at_once;
    let lease = if at_once { Lease::Long } else { Lease::Short };
    let bench = Bench::of("who_leaves_gives_back_at_once", harness, lease).await;
    if !at_once {
        bench.cannot("messages given back are redelivered when their lease expires");
    }
    bench.publish_some(5).await;
    let mut source = bench.source().await;
    let received = bench.receive(&mut source, 5).await;
    bench.settle(&mut source, &all(&received[..2], Settle::Ack)).await;
    bench.leave(source).await;
    let mut next = bench.source().await;
    let rest = bench.receive(&mut next, 3).await;
    bench.check(sorted(&rest) == sorted(&received[2..]), format_args!("{:?} redelivered", ids(&rest)));
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}
