//! What is not known is not said.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::task::{Context, Waker};

use super::bench::{Bench, numbered};
use super::harness::SinkHarness;
use crate::sink::{Published, Sink};

/// Else the events of an outage are lost.
pub async fn a_broker_that_is_gone_confirms_nothing(harness: &impl SinkHarness) {
    // Bound and closed again: nobody listens there.
    let address = listen().1;
    confirms_nothing("a_broker_that_is_gone_confirms_nothing", harness, address).await;
}

/// A broker that takes the bytes and says nothing has confirmed nothing, and must not hold the relay for ever.
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
    // Twice: what the sink makes of the first failure must not be worse.
    for _ in 0..2 {
        for answer in bench.publish(&events).await {
            bench.check(
                matches!(answer, Published::Failed(_)),
                format_args!("without a broker an event was answered {answer:?}"),
            );
        }
    }
}

/// A relay that is told to stop leaves its call where it stands. What was on its way may arrive; the sink goes on.
pub async fn a_call_that_is_left_leaves_the_sink_usable(harness: &impl SinkHarness) {
    let law = "a_call_that_is_left_leaves_the_sink_usable";
    let mut bench = Bench::of(law, harness).await;
    let topic = harness.topic().await;
    let events: Vec<_> = (0..20).map(|n| numbered(&topic, "left", n)).collect();
    {
        // Polled once, then dropped: it has begun and is not at its end.
        let mut call = pin!(bench.sink.publish(&events));
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // A sink that publishes exactly once may have to begin again, which another one of the harness's has done.
    if bench.sink.guarantee().delivery == crate::sink::DeliverySemantics::ExactlyOnce {
        bench.sink = harness.sink().await;
    }
    bench.settle(&events).await;
    let seen = bench.read(&topic).await;
    let mut last = None;
    for event in &events {
        let id = event.id().to_string();
        let place = seen.iter().position(|seen| seen.id() == Some(id.as_str()));
        let Some(place) = place else { bench.fail(format_args!("{event:?} was confirmed and is not there")) };
        bench.check(last < Some(place), format_args!("{event:?} was overtaken"));
        last = Some(place);
    }
}
