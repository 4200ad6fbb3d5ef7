//! `semel gateway`: idempotency for a service in any language, as a reverse proxy in front of it.
//!
//! | module | what |
//! |---|---|
//! | `config`, `de`, `settings`, `operation`, `check` | settings, merged from file, environment and flags |
//! | `listen`, `idle_timeout` | client connections: accepted, with a timeout for every phase, closed |
//! | `wire`, `smuggling` | strict HTTP/1 parsing, against request smuggling |
//! | `edge` | one request: checked, authorised, limited, guarded, forwarded, answered |
//! | `request_checks`, `authorize`, `limits` (`token_bucket`, `quota`) | checks before anything is claimed |
//! | `forward`, `forwarded_headers`, `upstream`, `body` | forwarding a request, and whether it was sent |
//! | `lookup` | asks the service about an uncertain intent: on a client's retry, and in the background |
//! | `shadow` | shadow mode: reports what the gateway would have done |
//! | `problem`, `openapi` | errors for clients, and their description |
//! | `admin`, `metrics` | health and metrics for operators |

mod admin;
mod authorize;
mod body;
mod check;
mod config;
mod de;
mod edge;
mod forward;
mod forwarded_headers;
mod idle_timeout;
mod limits;
mod listen;
mod lookup;
mod metrics;
mod openapi;
mod operation;
mod problem;
mod quota;
mod request_checks;
mod settings;
mod shadow;
mod smuggling;
mod token_bucket;
mod upstream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use semel::http::{BuildError, IdempotencyLayer, KeyRule, RESPONSE_BYTES_MAX, Rule};
use semel::observe::Metrics;
use semel::recover::{SweepLimits, Sweeper};
use semel::store::{self, AnyStore};
use semel::{Guard, Scope, ScopeError};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tower_layer::Layer;

use self::authorize::{Authorize, Principal};
use self::de::Tenant;
use self::edge::Edge;
use self::forward::Forward;
use self::limits::Limits;
use self::listen::Serving;
use self::metrics::Counted;
use self::operation::Operation;
use self::quota::Quotas;
use self::settings::{ScopeOf, Settings};
use self::shadow::Shadow;
use self::upstream::Upstream;
use crate::admin::bind;
use crate::args::Gateway;
use crate::failure::Failed;
use crate::keys::{KeySource, protected};
use crate::log;
use crate::stdout;

/// How long reading a response for the store may take, with room to spare.
const RESPONSE_READ_MAX: Duration = Duration::from_secs(10);

/// Runs a gateway until it is stopped.
pub(crate) async fn run(
    args: &Gateway,
    store: Option<&str>,
    cache: Option<&str>,
    keys: Option<&KeySource>,
    json: bool,
) -> Result<(), Failed> {
    let settings = Settings::new(args, store, cache, keys)?;
    let warn = || settings.warnings().iter().for_each(|warning| eprintln!("semel: {warning}"));
    if args.check {
        let (store, counted) = (AnyStore::new(store::memory::MemoryStore::new()), Counted::new());
        build(&settings, &Guard::new(store), &counted)?;
        warn();
        let document = check::document(&settings);
        return if json { stdout::json(&document) } else { stdout::text(&check::toml(&document)) };
    }
    log::to_stderr(settings.log.0);
    let metrics = Metrics::new();
    let store = opened(&settings, &metrics).await?;
    let store = protected(store, settings.protect.protection.clone());
    let guard = Guard::with(store, semel::guard::Limits::default(), metrics, semel::guard::CurrentRuntime);
    let counted = Counted::new();
    let edge = build(&settings, &guard, &counted)?;
    warn();
    let listener = bind("listen", settings.listen).await?;
    let admin = bind("admin", settings.admin).await?;
    let (listening, admin_at) = (listener.local_addr()?, admin.local_addr()?);
    let (stop, stopping) = watch::channel(false);
    let ours = admin::Admin { guard: guard.clone(), counted: counted.clone() };
    tokio::spawn(crate::admin::listen(admin, ours, stopping.clone()));
    let mut sweeping = SweepLimits::default();
    sweeping.every = settings.recover.sweep_every;
    tokio::spawn(Sweeper::new(&guard).limits(sweeping).run());
    // In shadow mode there are no uncertain intents to reconcile.
    if !settings.shadow {
        tokio::spawn(edge.layer.reconciler().limits(settings.recover.reconcile).run());
    }
    let permits = Arc::new(Semaphore::new(settings.limits.connections_max));
    let serving = Serving {
        edge,
        trusted: Arc::new(settings.trusted.clone()),
        head: settings.limits.head,
        streams_max: settings.limits.streams_max,
        phases: settings.timeouts.phases,
        linger: settings.timeouts.linger,
        counted,
        stopping,
    };
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let accepting = tokio::spawn(listen::listen(listener, serving, Arc::clone(&permits)));
    if json {
        stdout::json(&json!({ "listening": listening.to_string(), "admin": admin_at.to_string() }))?;
    } else {
        stdout::text(&format!("listening on {listening}\nadmin on {admin_at}\n"))?;
    }
    tracing::info!(%listening, admin = %admin_at, upstream = %settings.upstream, shadow = settings.shadow, "started");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stdin_ended(args.until_stdin_ends) => {}
    }
    tracing::info!(limit = ?settings.timeouts.drain, "stopping; no new connections, finishing the requests in flight");
    let drained = async {
        let until = Instant::now() + settings.timeouts.drain;
        let _ = stop.send(true);
        let _ = accepting.await;
        let all = u32::try_from(settings.limits.connections_max).unwrap_or(u32::MAX);
        let ended = tokio::time::timeout_at(until, permits.acquire_many(all)).await.is_ok();
        // Calls go on when their client has disconnected.
        let left = guard.drain(until.saturating_duration_since(Instant::now())).await;
        (ended, left)
    };
    let (ended, left) = tokio::select! {
        drained = drained => drained,
        _ = terminate.recv() => return Err(Failed::not_done("stopped at once by a second signal")),
        _ = interrupt.recv() => return Err(Failed::not_done("stopped at once by a second signal")),
    };
    if left.is_clean() && ended {
        tracing::info!("stopped; no calls were left in flight");
        return Ok(());
    }
    Err(Failed::not_done(format!(
        "stopped with {} calls in flight and {} outcomes not recorded, which may be uncertain now{}; check `semel ls \
         --state in_progress,uncertain`",
        left.calls,
        left.unrecorded,
        if ended { "" } else { ", and with connections still open" }
    )))
}

async fn opened(settings: &Settings, metrics: &Metrics) -> Result<AnyStore, Failed> {
    match &settings.cache {
        None => Ok(store::open(&settings.store).await?),
        #[cfg(feature = "redis")]
        Some(cache) => Ok(store::open_tiered(&settings.store, cache, metrics).await?),
        #[cfg(not(feature = "redis"))]
        Some(_) => {
            let _ = metrics;
            Err(crate::absent::absent("a cache on Redis", "redis"))
        }
    }
}

/// Returns when stdin ends; never, unless asked for. Reads in a thread of its own: reading stdin cannot be cancelled,
/// and must not keep the process from exiting.
pub(crate) async fn stdin_ended(asked: bool) {
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    if asked {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            drop(ended);
        });
        let _ = end.await;
        return;
    }
    std::future::pending().await
}

/// Builds the gateway from its settings. Connects to nothing, so that `--check` can do it too.
fn build(settings: &Settings, guard: &Guard<AnyStore>, counted: &Counted) -> Result<Arc<Edge>, Failed> {
    let retentions =
        settings.operations.iter().map(|operation| (operation.name.clone(), operation.retention));
    let kept = settings.operations.iter().map(|operation| operation.response_bytes_max);
    let kept = kept.chain([RESPONSE_BYTES_MAX]).max().unwrap_or(RESPONSE_BYTES_MAX);
    let quotas = settings.limits.stored_bytes_max;
    let quotas =
        quotas.map_or_else(Quotas::default, |bytes| Quotas::new(bytes, kept as u64, retentions.collect()));
    let forward = Forward {
        upstream: Upstream::new(settings.target()?),
        keep_host: settings.keep_host,
        end_to_end: settings.read_headers().into(),
        counted: counted.clone(),
        quotas: quotas.clone(),
    };
    let accepts = settings.operations.iter().any(|operation| operation.duplicates.accept);
    let layer =
        layer(settings, guard, &forward, accepts).map_err(|error| Failed::usage(error.to_string()))?;
    let authorize = settings.authorize.clone().map(|question| Authorize {
        question,
        headers: settings.authorize_headers.clone(),
        principal: match &settings.scope {
            ScopeOf::Tenant(Tenant::Auth(name)) => Some(name.clone()),
            ScopeOf::Tenant(Tenant::Header(_)) | ScopeOf::SingleTenant => None,
        },
        forward: forward.clone(),
    });
    let bounds = &settings.limits;
    let limited = bounds.intents.is_some() || bounds.attempts.is_some() || bounds.stored_bytes_max.is_some();
    let limits = limited.then(|| {
        Limits::new(bounds.intents, bounds.attempts, quotas, guard.store().clone(), counted.clone())
    });
    let watch = || Shadow::new(layer.clone(), authorize.clone(), forward.clone(), settings.profile);
    let shadow = settings.shadow.then(watch);
    Ok(Arc::new(Edge {
        guarded: layer.layer(forward),
        layer,
        authorize,
        limits,
        shadow,
        counted: counted.clone(),
        profile: settings.profile,
        status_path: accepts.then(|| settings.status_path.clone()),
        effects: settings.operations.iter().map(Operation::effect_and_settle).collect(),
        headers_max: settings.limits.head.headers_max,
        body_idle: settings.timeouts.body_idle,
    }))
}

fn layer(
    settings: &Settings,
    guard: &Guard<AnyStore>,
    forward: &Forward,
    accepts: bool,
) -> Result<IdempotencyLayer<AnyStore>, BuildError> {
    let mut builder = IdempotencyLayer::builder(guard.clone())
        .header(settings.key_header.clone())
        .buffered_bytes_max(settings.limits.buffered_bytes_max)
        .profile(settings.profile);
    builder = match &settings.scope {
        ScopeOf::SingleTenant => builder.single_tenant(),
        ScopeOf::Tenant(Tenant::Header(name)) => builder.scope_header(name.clone()),
        // Only upstream's answer counts; a header of that name in the request comes from the client.
        ScopeOf::Tenant(Tenant::Auth(_)) => builder.scope(|parts| {
            let principal = parts.extensions.get::<Principal>();
            let name = principal.and_then(|Principal(value)| value.to_str().ok()).unwrap_or("");
            Scope::tenant(name).map_err(|error: ScopeError| error)
        }),
    };
    if accepts {
        builder = builder.status_path(&settings.status_path);
        if let Some(secret) = &settings.status_secret {
            builder = builder.status_secrets(&secret.secrets);
        }
    }
    if settings.require_key {
        builder = builder.default_rule(Rule::default_rule().key(KeyRule::Required));
    }
    // Upstream's own limits end a call earlier; this one is what guard expiry reckons with.
    let call_max = settings.timeouts.connect + settings.timeouts.response + RESPONSE_READ_MAX;
    for operation in &settings.operations {
        builder = builder.rule(operation.rule(forward, call_max));
    }
    builder.build()
}
