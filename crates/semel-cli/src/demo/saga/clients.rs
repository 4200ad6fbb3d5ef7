//! The clients: each places orders, one after the other, and asks again until it hears how an order ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::http::call;
use super::plan::OrderNo;
use super::process::Place;
use crate::demo::progress::Progress;

/// How long a client waits for one answer, and in all for the end of an order.
const ANSWER_MAX: Duration = Duration::from_secs(8);
const END_MAX: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(100);

/// How an order ended, as its client was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Completed,
    Undone,
    Parked,
    /// Nothing that counts, until the client gave up.
    Nothing,
}

/// The answers of all clients.
#[derive(Default)]
pub(super) struct Replies {
    pub(super) requests: u64,
    pub(super) unanswered: u64,
    pub(super) failed: u64,
    pub(super) by_order: BTreeMap<OrderNo, Reply>,
}

struct One {
    order: OrderNo,
    reply: Reply,
    requests: u64,
    unanswered: u64,
    failed: u64,
}

/// Places all orders, from so many clients at once. `ended` counts those whose client knows how they ended.
pub(super) async fn place_all(
    workers: &[SocketAddr],
    seed: u64,
    orders: u32,
    clients: u32,
    ended: &tokio::sync::watch::Sender<u32>,
    progress: &mut Progress,
) -> Replies {
    let next = Arc::new(AtomicU32::new(0));
    let (done, mut results) = tokio::sync::mpsc::channel(clients as usize);
    let mut tasks = JoinSet::new();
    for _ in 0..clients.min(orders) {
        let (next, done, workers) = (Arc::clone(&next), done.clone(), workers.to_vec());
        tasks.spawn(async move {
            loop {
                let order = OrderNo(next.fetch_add(1, Ordering::Relaxed));
                if order.0 >= orders || done.send(place(&workers, seed, order).await).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(done);
    let mut replies = Replies::default();
    while let Some(one) = results.recv().await {
        replies.requests += one.requests;
        replies.unanswered += one.unanswered;
        replies.failed += one.failed;
        replies.by_order.insert(one.order, one.reply);
        ended.send_modify(|ended| *ended += 1);
        progress.step();
    }
    replies
}

async fn place(workers: &[SocketAddr], seed: u64, order: OrderNo) -> One {
    let mut rng = Rng::with_seed(seed ^ u64::from(order.0));
    let mut one = One { order, reply: Reply::Nothing, requests: 0, unanswered: 0, failed: 0 };
    let until = Instant::now() + END_MAX;
    while Instant::now() < until {
        let worker = workers[rng.usize(..workers.len())];
        one.requests += 1;
        let place = Place { order: order.to_string() };
        match timeout(ANSWER_MAX, call(worker, "/orders", &place)).await {
            Ok(Ok((StatusCode::OK, _))) => one.reply = Reply::Completed,
            Ok(Ok((StatusCode::CONFLICT, _))) => one.reply = Reply::Undone,
            Ok(Ok((StatusCode::ACCEPTED, _))) => one.reply = Reply::Parked,
            Ok(Ok(_)) => one.failed += 1,
            Ok(Err(_)) | Err(_) => one.unanswered += 1,
        }
        if one.reply != Reply::Nothing {
            break;
        }
        sleep(PAUSE).await;
    }
    one
}
