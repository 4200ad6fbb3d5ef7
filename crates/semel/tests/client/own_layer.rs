//! Against semel's own layer, through a network that fails: the handler's effects are counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use semel::Guard;
use semel::http::{IdempotencyLayer, Rule};
use semel::store::memory::MemoryStore;
use testkit::proxy::{Fault, Proxy};

use crate::script::*;

/// A guarded service on a real port. Each effect takes a moment, so that retries come in between.
pub async fn serve(effects: Arc<AtomicU32>) -> SocketAddr {
    let layer = IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
        .single_tenant()
        .rule(Rule::on("POST /payments").name("payment.create"))
        .build()
        .unwrap();
    let handler = move || async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        format!("charged {}", effects.fetch_add(1, Ordering::SeqCst) + 1)
    };
    let app = Router::new().route("/payments", post(handler)).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_effect_per_intent_whatever_the_network_does() {
    let effects = Arc::new(AtomicU32::new(0));
    let proxy = Proxy::start(serve(effects.clone()).await).unwrap();
    let uri = format!("http://{}/payments", proxy.addr());
    let policy = policy().attempt_timeout(Duration::from_millis(400)).attempts_max(30);
    let faults = [
        vec![Fault::Pass],
        vec![Fault::DropResponse, Fault::DropResponse],
        vec![Fault::CutRequestAfter(20), Fault::CutRequestAfter(120)],
        vec![Fault::CutAnswerAfter(10), Fault::CutAnswerAfter(60)],
        vec![Fault::Hang],
        vec![Fault::Refuse, Fault::DropResponse, Fault::Hang, Fault::CutAnswerAfter(30)],
        vec![Fault::Delay(Duration::from_millis(30))],
    ];
    for (n, faults) in faults.iter().enumerate() {
        // A client of its own, so that each attempt of this intent makes a new connection and meets its fault.
        for fault in faults {
            proxy.next(1, *fault);
        }
        let response =
            client(policy.clone()).send(payment(uri.clone(), &format!("order-{n}"))).await.unwrap();
        assert_eq!(response.status(), 200, "{faults:?}");
        assert_eq!(text(response).await, format!("charged {}", n + 1), "{faults:?}");
        assert_eq!(effects.load(Ordering::SeqCst), n as u32 + 1, "{faults:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_through_a_network_that_keeps_failing() {
    const INTENTS: u32 = 24;
    let effects = Arc::new(AtomicU32::new(0));
    let proxy = Arc::new(Proxy::start(serve(effects.clone()).await).unwrap());
    let mut chance = fastrand::Rng::with_seed(0x5e6e1);
    for _ in 0..3 * INTENTS {
        let fault = match chance.u8(0..6) {
            0 => Fault::DropResponse,
            1 => Fault::CutAnswerAfter(chance.u64(0..150)),
            2 => Fault::CutRequestAfter(chance.u64(0..250)),
            3 => Fault::Refuse,
            4 => Fault::Delay(Duration::from_millis(chance.u64(0..20))),
            _ => Fault::Pass,
        };
        proxy.next(1, fault);
    }
    let client = client(policy().attempt_timeout(Duration::from_secs(2)).attempts_max(200));
    let uri = format!("http://{}/payments", proxy.addr());
    let sends = (0..INTENTS).map(|n| {
        let (client, request) = (client.clone(), payment(uri.clone(), &format!("order-{n}")));
        tokio::spawn(async move { text(client.send(request).await.unwrap()).await })
    });
    let mut answers: Vec<_> =
        futures_util::future::join_all(sends).await.into_iter().map(Result::unwrap).collect();
    answers.sort();
    answers.dedup();
    assert_eq!((answers.len() as u32, effects.load(Ordering::SeqCst)), (INTENTS, INTENTS));
}
