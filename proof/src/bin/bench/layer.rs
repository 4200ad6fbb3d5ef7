//! What the HTTP layer adds to a handler: time and allocations per request, called directly in one thread.
//!
//! No sockets and no second process, so the figures hold still on a busy machine; the ratios that users see are
//! `cargo xtask bench edge`. Under `valgrind --tool=callgrind --toggle-collect='*answered*'` the same calls are
//! counted in instructions.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use http_body::Body as _;
use semel::Guard;
use semel::http::{IdempotencyLayer, Rule};
use semel::store::memory::MemoryStore;
use tokio::runtime::Runtime;
use tower_service::Service;

use crate::table::Table;
use crate::{ALLOCATOR, Failed};

/// Requests made before the clock starts, at a time.
const BATCH: usize = 1_000;

const BODY: &str = r#"{"amount":4200,"currency":"EUR","card":"tok_visa","reference":"order-1001"}"#;

async fn pay(body: String) -> (StatusCode, String) {
    (StatusCode::CREATED, format!("{{\"paid\":true,\"length\":{}}}", body.len()))
}

fn request(key: &str) -> Result<Request<Body>, Failed> {
    let request = Request::post("/payments").header("host", "127.0.0.1:8080");
    let request = request.header("content-type", "application/json").header("content-length", BODY.len());
    Ok(request.header("idempotency-key", key).body(Body::from(BODY))?)
}

/// Calls the service and reads what it answers, as a server would.
#[inline(never)]
fn answered(runtime: &Runtime, app: &mut Router, requests: Vec<Request<Body>>) -> Result<(), Failed> {
    runtime.block_on(async {
        for request in requests {
            let response = Service::call(app, request).await?;
            if response.status() != StatusCode::CREATED {
                return Err(format!("answered {}", response.status()).into());
            }
            let mut body = std::pin::pin!(response.into_body());
            while let Poll::Ready(Some(frame)) =
                body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()))
            {
                frame?;
            }
        }
        Ok(())
    })
}

struct Cost {
    ns: f64,
    allocations: f64,
    bytes: f64,
}

/// The best of all batches in time; allocations do not vary.
fn cost(
    runtime: &Runtime,
    app: &mut Router,
    batches: usize,
    key: impl Fn(usize) -> String,
) -> Result<Cost, Failed> {
    let mut best = Cost { ns: f64::MAX, allocations: f64::MAX, bytes: f64::MAX };
    for batch in 0..batches {
        let requests: Result<_, _> = (0..BATCH).map(|n| request(&key(batch * BATCH + n))).collect();
        let (requests, before, begin) = (requests?, ALLOCATOR.stats(), Instant::now());
        answered(runtime, app, requests)?;
        let (each, counted) = (BATCH as f64, ALLOCATOR.stats() - before);
        best.ns = best.ns.min(begin.elapsed().as_nanos() as f64 / each);
        best.allocations = best.allocations.min(counted.allocations as f64 / each);
        best.bytes = best.bytes.min(counted.bytes_allocated as f64 / each);
    }
    Ok(best)
}

pub(crate) fn measure(size: usize, only: Option<&str>, table: &mut Table) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = || Router::new().route("/payments", post(pay));
    let guard = Guard::new(MemoryStore::new().records_max(usize::MAX));
    let rule = Rule::on("POST /payments").name("payment.create");
    let layer = IdempotencyLayer::builder(guard).single_tenant().rule(rule).build()?;
    let (mut bare, mut guarded) = (app(), app().layer(layer));
    let batches = 20 * size;
    let mut floor = None;
    for kind in ["bare", "first", "replay"] {
        if only.is_some_and(|only| only != kind) {
            continue;
        }
        let app = if kind == "bare" { &mut bare } else { &mut guarded };
        let keys = if kind == "replay" { 100 } else { usize::MAX };
        let it = cost(&runtime, app, batches, |n| format!("key-{}", n % keys))?;
        let (ns, allocations) = *floor.get_or_insert((it.ns, it.allocations));
        table.row(&format!("layer: {kind}, one thread"), it.ns, "ns", format!("{:+.0} ns", it.ns - ns));
        let added = format!("{:+.1}; {:.0} bytes", it.allocations - allocations, it.bytes);
        table.row(&format!("layer: {kind}, allocations"), it.allocations, "", added);
    }
    Ok(())
}
