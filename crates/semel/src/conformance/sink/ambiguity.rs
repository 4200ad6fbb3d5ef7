//! Laws of ambiguity: without the broker's answer nothing is confirmed.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::task::{Context, Waker};

use super::bench::{Bench, numbered};
use super::harness::SinkHarness;
use crate::sink::{Published, Sink};

/// Otherwise the events of an outage are lost.
pub async fn a_broker_that_is_gone_confirms_nothing(harness: &impl SinkHarness) {
    // Bound and closed again: this port refuses connections.
    let address = listen().1;
    confirms_nothing("a_broker_that_is_gone_confirms_nothing", harness, address).await;
}

/// A broker that accepts the bytes and does not answer has confirmed nothing, and must not block the relay forever.
pub async fn a_broker_that_is_silent_confirms_nothing(harness: &impl SinkHarness) {
    let (silent, address) = listen();
    confirms_nothing("a_broker_that_is_silent_confirms_nothing", harness, address).await;
    drop(silent);
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port on loopback");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

async fn confirms_nothing<H: SinkHarness>(law: &'static str, harness: &H, address: SocketAddr) {
    let mut bench = Bench::with(law, harness, harness.sink_at(address).await);
    let events: Vec<_> = (0..5).map(|n| numbered("nowhere", "away", n)).collect();
    // Twice: the first failure must not leave the sink in a worse state.
    for _ in 0..2 {
        for answer in bench.publish(&events).await {
            bench.check(
                matches!(answer, Published::Failed(_)),
                format_args!("without a broker an event was answered {answer:?}"),
            );
        }
    }
}

/// Cancellation: a relay that stops drops its call half-way. Events on their way may arrive; the sink stays usable.
pub async fn a_call_that_is_left_leaves_the_sink_usable(harness: &impl SinkHarness) {
    let law = "a_call_that_is_left_leaves_the_sink_usable";
    let mut bench = Bench::of(law, harness).await;
    let topic = harness.topic().await;
    let events: Vec<_> = (0..20).map(|n| numbered(&topic, "left", n)).collect();
    {
        // Polled once, then dropped: started, not finished.
        let mut call = pin!(bench.sink.publish(&events));
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // An exactly-once sink may have to start again; a new one of the harness has done so.
    if bench.sink.guarantee().delivery == crate::sink::DeliverySemantics::ExactlyOnce {
        bench.sink = harness.sink().await;
    }
    bench.settle(&events).await;
    let seen = bench.read(&topic).await;
    let mut last = None;
    for event in &events {
        let id = event.id().to_string();
        let index = seen.iter().position(|seen| seen.id() == Some(id.as_str()));
        let Some(index) = index else { bench.fail(format_args!("{event:?} was confirmed and is missing")) };
        bench.check(last < Some(index), format_args!("{event:?} was overtaken"));
        last = Some(index);
    }
}
