//! Laws of order within a key.

use std::collections::HashMap;
use std::time::Instant;

use super::bench::{Bench, all, id, ids};
use super::harness::{Lease, Sent, SourceHarness};
use crate::source::{Delivery, Settle};

/// The `n`th message of a key.
fn numbered(key: &str, n: usize) -> Sent {
    Sent::new(format!("{key}/{n}")).key(key)
}

/// Otherwise a payment is refunded before it is made.
pub async fn order_is_kept_within_a_key(harness: &impl SourceHarness) {
    let bench = Bench::of("order_is_kept_within_a_key", harness, Lease::Long).await;
    let sent: Vec<Sent> =
        (0..10).flat_map(|n| ["a", "b", "c"].into_iter().map(move |key| numbered(key, n))).collect();
    bench.publish(&sent).await;
    let mut source = bench.source().await;
    let mut seen: HashMap<String, Vec<String>> = HashMap::new();
    let (until, mut count) = (bench.deadline(), 0);
    while count < sent.len() {
        bench.check(Instant::now() < until, format_args!("received {count} of {}", sent.len()));
        let received = bench.receive_once(&mut source, 7).await;
        count += received.len();
        for delivery in &received {
            let key = id(delivery).split('/').next().unwrap_or_default().to_owned();
            seen.entry(key).or_default().push(id(delivery).to_owned());
        }
        bench.settle(&mut source, &all(&received, Settle::Ack)).await;
    }
    for (key, seen) in &mut seen {
        let wanted: Vec<String> = (0..10).map(|n| format!("{key}/{n}")).collect();
        if !bench.can.order {
            bench.cannot("the broker has no order");
            seen.sort_unstable();
        }
        bench.check(*seen == wanted, format_args!("{key} arrived as {seen:?}"));
    }
}

/// After a nack no later message of the key is delivered before the redelivery.
pub async fn what_comes_again_comes_before_its_successors(harness: &impl SourceHarness) {
    let law = "what_comes_again_comes_before_its_successors";
    let bench = Bench::of(law, harness, Lease::Long).await;
    let sent: Vec<Sent> = (0..9).map(|n| numbered("a", n)).collect();
    bench.publish(&sent).await;
    let mut source = bench.source().await;
    // Nacks one of three while another is in flight; then all in flight.
    let first = bench.receive(&mut source, 3).await;
    bench.settle(&mut source, &[(first[0].receipt, Settle::Ack)]).await;
    bench.settle(&mut source, &[(first[1].receipt, Settle::Nack)]).await;
    let second = bench.receive(&mut source, 3).await;
    let mut out: Vec<Delivery> = second.clone();
    out.push(first[2].clone());
    out.sort_by_key(|delivery| delivery.receipt);
    bench.settle(&mut source, &all(&out, Settle::Nack)).await;
    let third = bench.receive(&mut source, 8).await;
    if !bench.can.order {
        return bench.cannot("the broker has no order");
    }
    bench.check(ids(&first) == ["a/0", "a/1", "a/2"], format_args!("first arrived {:?}", ids(&first)));
    bench.check(ids(&second)[0] == "a/1", format_args!("a/1 was overtaken: {:?}", ids(&second)));
    let wanted: Vec<String> = (1..9).map(|n| format!("a/{n}")).collect();
    bench.check(ids(&third) == wanted, format_args!("at last arrived {:?}", ids(&third)));
}
