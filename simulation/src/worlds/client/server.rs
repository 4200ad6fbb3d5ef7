//! The server: the real layer on the real guard, in a process that is killed, drained and started again. Its store is
//! a database that outlives it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use semel::guard::{Found, Limits, Spawn};
use semel::http::{IdempotencyLayer, IdempotencyService, KeyRule, On5xx, Profile, Rule};
use semel::observe::Metrics;
use semel::store::Record;
use semel::store::memory::MemoryStore;
use semel::{Effect, Guard, InFlight, KeyFormat, Outcome, Scope, StoreTime};
use tokio::sync::{Semaphore, oneshot};
use tower_layer::Layer;
use tower_service::Service;

use super::body::Chunks;
use super::ledger::read_request;
use super::plan;
use super::scene::Scene;
use super::service::{Payments, receipt};
use crate::process::Process;

/// How far clients' clocks may be off where keys are time-ordered.
const SKEW_MS: u64 = 1_000;

/// Where virtual time begins on the store's clock.
const STORE_BEGINS_MS: u64 = 1_700_000_000_000;

/// A process that serves.
#[derive(Clone)]
struct Running {
    process: Process,
    service: IdempotencyService<Payments, MemoryStore>,
    guard: Guard<MemoryStore>,
    /// Closed when the process dies. Those who wait for it wake up in their order.
    alive: Arc<Semaphore>,
}

/// The server's machine.
#[derive(Default)]
pub(super) struct Server {
    running: Mutex<Option<Running>>,
    store: Mutex<Option<MemoryStore>>,
}

/// A response whose body is here, or what broke.
pub(super) type Reply = Result<(http::response::Parts, Bytes, bool), io::Error>;

impl Server {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, scene: &Arc<Scene>) {
        let store = {
            let mut kept = self.store.lock().unwrap_or_else(PoisonError::into_inner);
            if scene.stage.has("store-forgets-at-a-restart") {
                *kept = None;
            }
            let stage = scene.stage.clone();
            let clock = move || StoreTime(STORE_BEGINS_MS + stage.elapsed().as_millis() as u64);
            kept.get_or_insert_with(|| MemoryStore::with_clock(clock)).clone()
        };
        let process = Process::default();
        let mut limits = Limits::default();
        if scene.plan.settings.one_call_at_a_time {
            limits.calls_max = 1;
        }
        let guard = Guard::with(store, limits, Metrics::new(), process.clone());
        let layer = layer(scene, &guard);
        let service = layer.layer(Payments(Arc::clone(scene)));
        scene.stage.trace("the server starts");
        *self.running() = Some(Running { process, service, guard, alive: Arc::new(Semaphore::new(0)) });
    }

    /// Whether it was running.
    pub(super) fn kill(&self) -> bool {
        let Some(running) = self.running().take() else { return false };
        running.process.kill();
        running.alive.close();
        true
    }

    /// Lets go of everything.
    pub(super) fn end(&self) {
        *self.running() = None;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn is_running(&self) -> bool {
        self.running().is_some()
    }

    pub(super) async fn drain(&self, limit: Duration) {
        let guard = self.running().as_ref().map(|running| running.guard.clone());
        if let Some(guard) = guard {
            guard.drain(limit).await;
        }
    }

    /// One request on a connection of its own. The connection breaks when the process dies, and is closed when the
    /// reader of the reply goes away.
    pub(super) async fn serve(&self, request: Request<Full<Bytes>>) -> Reply {
        let Some(running) = self.running().clone() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let (mut reply, answered) = oneshot::channel();
        let mut service = running.service.clone();
        let exchange = async move { read(service.call(request).await?).await };
        running.process.spawn(Box::pin(async move {
            let answer = tokio::select! {
                biased;
                answer = exchange => Some(answer),
                () = reply.closed() => None,
            };
            if let Some(answer) = answer {
                let _ = reply.send(answer);
            }
        }));
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into())),
            _ = running.alive.acquire() => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

/// The response with as much of its body as there is, and whether that breaks off.
async fn read<B>(response: Response<B>) -> Reply
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = response.into_parts();
    let mut body = Box::pin(body);
    let mut data = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(chunk)) => data.extend_from_slice(&chunk),
            Ok(Err(_)) => {}
            Err(_) => return Ok((head, data.into(), true)),
        }
    }
    Ok((head, data.into(), false))
}

/// A reply as the client's end of the network gives it.
pub(super) fn response(head: http::response::Parts, body: &Bytes, breaks_off: bool) -> Response<Chunks> {
    let body = if breaks_off { Chunks::broken(body) } else { Chunks::whole(body.clone()) };
    Response::from_parts(head, body)
}

fn layer(scene: &Arc<Scene>, guard: &Guard<MemoryStore>) -> IdempotencyLayer<MemoryStore> {
    let settings = &scene.plan.settings;
    let (has, ms) = (|bug: &str| scene.stage.has(bug), Duration::from_millis);
    let retention = ms(settings.retention_ms);
    let mut rule = Rule::on("POST /payments")
        .name("payment.create")
        .lease(ms(settings.lease_ms))
        .retention(if has("server-forgets-early") { retention / 8 } else { retention })
        .response_bytes_max(settings.response_bytes_max)
        .on_5xx(match settings.on_5xx {
            plan::On5xx::Retry => On5xx::Retry,
            plan::On5xx::Hold => On5xx::Hold,
            plan::On5xx::Replay => On5xx::Replay,
        });
    if has("key-lost-on-retries") {
        rule = rule.key(KeyRule::Optional);
    }
    if settings.keyed {
        rule = rule.effect(Effect::Keyed);
    }
    rule = match settings.in_flight {
        plan::InFlight::Reject => rule,
        plan::InFlight::Wait(wait_ms) => rule.in_flight(InFlight::Wait(ms(wait_ms))),
        plan::InFlight::Accept => rule.respond_accepted(),
    };
    if let Some(after_ms) = settings.respond_async_after_ms {
        rule = rule.respond_async_after(ms(after_ms));
    }
    if settings.time_ordered {
        rule = rule.key_format(KeyFormat::TimeOrdered { skew_ms: SKEW_MS });
    }
    if let Some(settle_ms) = settings.lookup_settle_ms {
        let scene = Arc::clone(scene);
        let lookup = move |record: Record| {
            let found = scene.look_up(&record);
            async move { found }
        };
        rule = rule.lookup(lookup, ms(settle_ms));
    }
    let token_is_tenant = has("tenant-from-a-token");
    let profile = [Profile::Classic, Profile::Ietf, Profile::Stripe][usize::from(settings.profile % 3)];
    let layer = IdempotencyLayer::builder(guard.clone())
        .scope(move |parts| {
            let name = if token_is_tenant { "authorization" } else { "x-tenant-id" };
            let tenant = parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("none");
            Scope::tenant(tenant)
        })
        .profile(profile)
        .status_path("/intents")
        .rule(rule)
        .build();
    layer.expect("the plan's settings make a layer")
}

impl Scene {
    /// The service's own books: what was charged is known, and what is not there was not charged.
    fn look_up(&self, record: &Record) -> Found {
        let Some(intent) = self.intent_of(record.intent.key().as_str()) else { return Found::Unknown };
        self.stage.count("lookups", 1);
        let charged = self.ledger.with(intent, |pages| {
            let charged = pages.charges.first().map(|(_, amount)| *amount);
            if let Some(amount) = charged {
                let answer =
                    super::ledger::Answer { status: 201, body: receipt(intent, amount), not_kept: false };
                pages.finals.push((amount, answer));
            }
            charged
        });
        match charged {
            Some(amount) => Found::Applied(Outcome::new(201, receipt(intent, amount))),
            None => Found::NotApplied,
        }
    }
}

/// Which intent a request is about.
pub(super) fn intent_of(body: &Bytes) -> Option<usize> {
    read_request(body).map(|(intent, _)| intent)
}
