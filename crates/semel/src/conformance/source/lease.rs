//! Whose a message is.

use std::time::Instant;

use super::bench::{Bench, WAIT, all, ids, receipts, sorted};
use super::harness::{Lease, SourceHarness};
use crate::source::{Delivery, Receipt, Settle, Source};

/// How often a machine that is too busy to keep anything is given another chance.
const CHANCES: usize = 5;

/// Work that takes longer than a lease is not done twice side by side.
// Slow: it keeps for three leases, and a broker's shortest is several seconds.
pub async fn what_is_kept_stays(harness: &impl SourceHarness) {
    for chance in 1..=CHANCES {
        if is_kept(harness, chance == CHANCES).await {
            return;
        }
    }
}

/// Whether it was judged: who could not keep in time has shown nothing.
async fn is_kept(harness: &impl SourceHarness, last: bool) -> bool {
    let bench = Bench::of("what_is_kept_stays", harness, Lease::Short).await;
    let Some(lease) = bench.can.lease else {
        bench.cannot("the broker has no leases");
        return true;
    };
    bench.publish_some(4).await;
    let mut source = bench.source().await;
    // Where a lease begins is known to the broker only: when it was asked at the earliest.
    let mut kept = Instant::now();
    let came = bench.receive(&mut source, 4).await;
    let held = receipts(&came);
    let mut other = bench.source().await;
    let begun = Instant::now();
    let mut to_other = Vec::new();
    while begun.elapsed() < lease * 3 {
        let pause = source.renew_after().min(lease);
        let next = tokio::time::Instant::from_std(kept + pause);
        while tokio::time::Instant::now() < next {
            let left = next.saturating_duration_since(tokio::time::Instant::now()).min(WAIT);
            if let Ok(Ok(came)) = tokio::time::timeout(WAIT * 10, other.receive(10, left)).await {
                to_other.extend(came);
            }
        }
        bench.keep(&mut source, &held).await;
        if kept.elapsed() > lease * 3 / 4 && !last {
            return false;
        }
        kept = Instant::now();
    }
    bench.check(to_other.is_empty(), format_args!("{:?} were kept and came to another", ids(&to_other)));
    let lost = source.lost();
    bench.check(lost.is_empty(), format_args!("{lost:?} were kept and are lost"));
    bench.settle(&mut source, &all(&came, Settle::Ack)).await;
    bench.leave(other).await;
    bench.leave(source).await;
    bench.all_is_done().await;
    true
}

/// Lets a consumer be silent until another one has what it had.
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
        bench.check(Instant::now() < until, format_args!("{} of 4 came to another", has.len()));
        has.extend(bench.receive_once(&mut other, 4 - has.len()).await);
        bench.keep(&mut other, &receipts(&has)).await;
    }
    bench.check(
        sorted(&has) == sorted(&had),
        format_args!("{:?} came to another, and not {:?}", ids(&has), ids(&had)),
    );
    Some((silent, had, other, has))
}

/// Else a consumer goes on with what another one does too.
pub async fn what_another_has_is_named_lost(harness: &impl SourceHarness) {
    let bench = Bench::of("what_another_has_is_named_lost", harness, Lease::Short).await;
    let Some((mut silent, had, mut other, has)) = taken_over(&bench).await else { return };
    let until = bench.deadline();
    let mut lost: Vec<Receipt> = silent.lost();
    while lost.len() < 4 {
        bench.check(Instant::now() < until, format_args!("only {lost:?} are lost of {:?}", receipts(&had)));
        // Some hear of it only when they ask.
        bench.keep(&mut silent, &receipts(&had)).await;
        bench.keep(&mut other, &receipts(&has)).await;
        lost.extend(silent.lost());
    }
    lost.sort_unstable();
    bench.check(lost == receipts(&had), format_args!("{lost:?} are lost, and not {:?}", receipts(&had)));
    bench.check(silent.lost().is_empty(), "what is lost is told twice");
    bench.settle(&mut other, &all(&has, Settle::Ack)).await;
    bench.leave(other).await;
    bench.left_is(0).await;
}

/// A late word from somebody who was given up does not decide about what another one works on.
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
    bench.check(sorted(&again) == sorted(&had), format_args!("{:?} came again", ids(&again)));
    bench.settle(&mut next, &all(&again, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}

/// A deployment does not make everybody wait for leases.
pub async fn who_leaves_gives_back_at_once(harness: &impl SourceHarness) {
    let at_once = harness.abilities().gives_back_at_once;
    let lease = if at_once { Lease::Long } else { Lease::Short };
    let bench = Bench::of("who_leaves_gives_back_at_once", harness, lease).await;
    if !at_once {
        bench.cannot("what was given back comes when its lease is over");
    }
    bench.publish_some(5).await;
    let mut source = bench.source().await;
    let came = bench.receive(&mut source, 5).await;
    bench.settle(&mut source, &all(&came[..2], Settle::Ack)).await;
    bench.leave(source).await;
    let mut next = bench.source().await;
    let rest = bench.receive(&mut next, 3).await;
    bench.check(sorted(&rest) == sorted(&came[2..]), format_args!("{:?} came again", ids(&rest)));
    bench.settle(&mut next, &all(&rest, Settle::Ack)).await;
    bench.leave(next).await;
    bench.all_is_done().await;
}
