//! The process is really killed, after its request has arrived.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use semel::http::client::durable::{DurableClient, End};
use testkit::child::Child;
use testkit::proxy::{Fault, Proxy};

use crate::durable::place;
use crate::own_layer;
use crate::script::*;

/// Bounds every wait; nothing is judged by it.
const SOON: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_sending_it_is_resumed_and_took_effect_once() {
    let (place, effects) = (place(), Arc::new(AtomicU32::new(0)));
    let service = own_layer::serve(effects.clone()).await;
    // Its answers are held back: the child has sent, the service has done it, the child never knows.
    let proxy = Proxy::start(service).unwrap();
    proxy.next(1, Fault::DropResponse);
    // And should it try again before it is killed, it hears nothing.
    proxy.set(Fault::Hang);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["killed::one_that_is_killed", "--exact", "--ignored", "--nocapture"])
        .env("SEMEL_TEST_FILE", &place.path)
        .env("SEMEL_TEST_URI", format!("http://{}/payments", proxy.addr()));
    let mut child = Child::spawn(command, None).unwrap();
    let sent = async {
        while effects.load(Ordering::SeqCst) == 0 || proxy.dropped() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, sent).await.expect("the child sends");
    child.kill().unwrap();
    proxy.set(Fault::Pass);

    let client = DurableClient::builder(client(policy())).lease(LEASE).open(&place.path).await.unwrap();
    // The dead one's claim runs out by itself.
    let resumed = async {
        loop {
            let mut resume = client.resume::<Incoming>(10).await.unwrap();
            match resume.ended.pop() {
                Some(resumed) => break resumed.end,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let end = tokio::time::timeout(SOON, resumed).await.expect("it was written down");
    let End::Answered(response) = end else { panic!("{end:?}") };
    assert_eq!(response.headers()["idempotency-replayed"], "true");
    assert_eq!(text(*response).await, "charged 1");
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[test]
#[ignore = "started by killed_after_sending_it_is_resumed_and_took_effect_once"]
fn one_that_is_killed() {
    let path = std::env::var_os("SEMEL_TEST_FILE").unwrap();
    let uri = std::env::var("SEMEL_TEST_URI").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Waits long before the second attempt: that is where it is killed.
        let policy = policy()
            .backoff(Duration::from_secs(600), Duration::from_secs(600))
            .time_max(Duration::from_secs(7_200));
        let client = DurableClient::builder(client(policy)).lease(LEASE).open(path).await.unwrap();
        let _ = client.send(payment(uri, "order-1")).await;
    });
}
