//! `semel consume`: from a broker to a service in any language, over HTTP.
//!
//! | module | what |
//! |---|---|
//! | `args` | arguments and help |
//! | `from` | the source a URL names |
//! | `poison` | where poison messages go: nowhere, or to the dead letters |
//! | `check` | `--check`: the guarantee, and whether it can be kept |
//! | `admin` | health and metrics |

mod admin;
mod args;
mod check;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, unused))]
mod from;
mod poison;

use std::time::Duration;

use semel::Guard;
use semel::inbox::consumer::{Consumer, ConsumerMetrics, ConsumerOptions};
use semel::inbox::forward::Forward;
use semel::inbox::store_dedup::Dedup;
use semel::recover::Sweeper;
use semel::source::Source;
use semel::store::{self, Store};
use serde_json::json;
use tokio::sync::watch;

pub(crate) use self::args::Consume;
use self::from::From;
use self::poison::DeadLetterPolicy;
use crate::args::Cli;
use crate::failure::Failed;
use crate::stop::on_signal;
use crate::url::without_password;
use crate::{log, stdout, store_url, with_keys_and_cache};

/// The first backoff after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Prefetch per request that may be in flight: this many messages may wait behind a key that waits.
const PREFETCH_EACH: usize = 32;
/// Time a call takes beside the endpoint, for two store operations.
const STORE_TIME: Duration = Duration::from_secs(30);
/// Timeout for asking the broker's retention, which only matters for a warning.
const RETENTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Consumes until it is stopped.
pub(crate) async fn run(cli: &Cli, args: &Consume) -> Result<(), Failed> {
    args.admin.check()?;
    let from = from::open(args)?;
    let to = endpoint(args)?;
    let poison = poison::choice(args.bounds.poison, store_url(cli))?;
    if args.check {
        return check::run(cli, args, from, &to, poison).await;
    }
    log::to_stderr(args.run.log);
    let url = store_url(cli);
    let store = with_keys_and_cache(cli, store::open(url).await?).await?;
    if !store.capabilities().durable {
        tracing::warn!(
            about = "store",
            says = check::not_durable(url),
            "a setting weakens the guarantee; see `says`, or run with --check"
        );
    }
    let dead_letters = DeadLetterPolicy::open(poison, url).await?;
    let guard = Guard::new(store);
    let name = args.name.clone().unwrap_or_else(|| from.group.clone());
    let dedup = Dedup::new(&guard, &name)
        .and_then(|dedup| dedup.lease(Duration::from_millis(args.bounds.lease)))
        .and_then(|dedup| dedup.window(Duration::from_millis(args.bounds.window)));
    let handler = dedup.and_then(|dedup| dedup.claim_finish(args.effect.into(), to));
    let handler = handler.map_err(|error| Failed::usage(error.to_string()))?;
    tokio::spawn(Sweeper::new(&guard).run());
    let listener = args.admin.listener().await?;
    let (stopping, stopped) = watch::channel(false);
    let metrics = ConsumerMetrics::new();
    let mut admin = None;
    if let Some(listener) = listener {
        admin = Some(listener.local_addr()?.to_string());
        let patience = args.admin.patience();
        let (metrics, guard) = (metrics.clone(), guard.clone());
        let ours = admin::Admin { metrics, guard, patience };
        tokio::spawn(crate::admin::listen(listener, ours, stopped));
    }
    let (source, into) = (without_password(&args.from), without_password(&args.to));
    if cli.json {
        stdout::json(&json!({ "from": source, "to": into, "name": name, "admin": admin }))?;
    } else {
        let admin = admin.map_or_else(String::new, |admin| format!("admin on {admin}\n"));
        stdout::text(&format!("consuming from {source} to {into} as {name}\n{admin}"))?;
    }
    tracing::info!(from = %source, to = %into, name, guarantee = check::guarantee(args.effect), "started");
    let source = watched(from, args.bounds.window).await;
    let dead_letters = dead_letters.pruned(&name, Duration::from_millis(args.bounds.window));
    let consumer =
        Consumer::new(&name, source, handler, options(args)).dead_letters(dead_letters).observed_by(&metrics);
    let stop = consumer.stop_handle();
    let ended = on_signal(Box::pin(consumer.run()), args.run.until_stdin_ends, || {
        tracing::info!(limit_ms = args.bounds.drain, "stopping; finishing the requests in flight");
        let _ = stopping.send(true);
        stop.stop();
    })
    .await?;
    // A request that outlived its message's timeout still has to be recorded.
    let left = guard.drain(Duration::from_millis(args.bounds.drain)).await;
    if !left.is_clean() {
        tracing::warn!(
            calls = left.calls,
            unrecorded = left.unrecorded,
            "some requests that were sent are not recorded; they may be sent again"
        );
    }
    let ended = ended.map_err(|error| Failed::not_done(error.to_string()))?;
    tracing::info!(
        handled = ended.handled,
        failed = ended.failed,
        dead_letters = ended.dead_letters,
        "stopped; unanswered messages are still at the broker"
    );
    Ok(())
}

fn endpoint(args: &Consume) -> Result<Forward, Failed> {
    let wrong = |error: semel::inbox::forward::ForwardError| Failed::usage(format!("--to: {error}"));
    let mut options =
        Forward::to(&args.to).map_err(wrong)?.attempt_timeout(Duration::from_millis(args.bounds.timeout));
    if let Some(path) = &args.trust {
        let pem = std::fs::read(path);
        let pem = pem.map_err(|error| Failed::usage(format!("--trust {}: {error}", path.display())))?;
        options = options.trust(&pem).map_err(wrong)?;
    }
    options.open().map_err(wrong)
}

fn options(args: &Consume) -> ConsumerOptions {
    let bounds = &args.bounds;
    let concurrency = usize::from(bounds.concurrency);
    ConsumerOptions::default()
        .identify(args.identify.clone())
        .concurrency(concurrency)
        .in_flight_max(concurrency * PREFETCH_EACH)
        .attempts_max(bounds.tries)
        .window(Duration::from_millis(bounds.window))
        .backoff(BACKOFF_FIRST, Duration::from_millis(bounds.pause_max))
        .handle_timeout(Duration::from_millis(bounds.timeout) + STORE_TIME)
        .drain_timeout(Duration::from_millis(bounds.drain))
}

/// The source, after a warning if it keeps messages for longer than the dedup window.
async fn watched(mut from: From, window_ms: u64) -> from::AnySource {
    let kept = tokio::time::timeout(RETENTION_TIMEOUT, from.source.retention()).await;
    if let Some(says) = kept.ok().flatten().and_then(|kept| check::too_long(kept, window_ms)) {
        tracing::warn!(
            about = "window",
            says,
            "a setting weakens the guarantee; see `says`, or run with --check"
        );
    }
    from.source
}
