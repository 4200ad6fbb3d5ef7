//! `semel consume`: from a broker to a service in any language, over HTTP.
//!
//! | module | what |
//! |---|---|
//! | `args` | what it can be told |
//! | `from` | the source a URL names |
//! | `poison` | where messages go that cannot be delivered |
//! | `check` | what is promised, and whether it can be kept |
//! | `admin` | what those who run it are told |

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
use self::poison::Graves;
use crate::args::Cli;
use crate::failure::Failed;
use crate::stop::on_signal;
use crate::url::without_password;
use crate::{dressed, log, stdout, store_url};

/// The first pause after a failure.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Messages held for each request that may be under way: so many may wait behind a key that waits.
const HELD_EACH: usize = 32;
/// What a call takes beside the endpoint: the store, asked twice.
const STORE_TIME: Duration = Duration::from_secs(30);
/// How long the broker is asked for what only matters for a warning.
const ASKING: Duration = Duration::from_secs(5);

/// Brings messages until it is told to stop.
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
    let store = dressed(cli, store::open(url).await?).await?;
    if !store.capabilities().durable {
        tracing::warn!(about = "store", says = check::forgetful(url), "this is not as it should be");
    }
    let graves = Graves::open(poison, url).await?;
    let guard = Guard::new(store);
    let name = args.name.clone().unwrap_or_else(|| from.group.clone());
    let marks = Dedup::new(&guard, &name)
        .and_then(|marks| marks.lease(Duration::from_millis(args.bounds.lease)))
        .and_then(|marks| marks.window(Duration::from_millis(args.bounds.window)));
    let handler = marks.and_then(|marks| marks.state_machine(args.effect.into(), to));
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
        let ours = admin::Admin { metrics, guard, patience, stopping: stopped };
        tokio::spawn(crate::admin::listen(listener, ours));
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
    let graves = graves.tidied(&name, Duration::from_millis(args.bounds.window));
    let consumer =
        Consumer::new(&name, source, handler, options(args)).dead_letters(graves).observed_by(&metrics);
    let stop = consumer.stop_handle();
    let ended = on_signal(Box::pin(consumer.run()), args.run.until_stdin_ends, || {
        tracing::info!(limit_ms = args.bounds.drain, "stopping: requests under way are finished");
        let _ = stopping.send(true);
        stop.stop();
    })
    .await?;
    // A request that outlived its message's patience is still to be recorded.
    let left = guard.drain(Duration::from_millis(args.bounds.drain)).await;
    if !left.is_clean() {
        tracing::warn!(
            calls = left.calls,
            unrecorded = left.unrecorded,
            "not everything that was sent is recorded"
        );
    }
    let ended = ended.map_err(|error| Failed::not_done(error.to_string()))?;
    tracing::info!(
        handled = ended.handled,
        failed = ended.failed,
        buried = ended.buried,
        "stopped; what was not answered is still at the broker"
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
        .held_max(concurrency * HELD_EACH)
        .tries_max(bounds.tries)
        .window(Duration::from_millis(bounds.window))
        .pause(PAUSE_FIRST, Duration::from_millis(bounds.pause_max))
        .handle_timeout(Duration::from_millis(bounds.timeout) + STORE_TIME)
        .drain_timeout(Duration::from_millis(bounds.drain))
}

/// The source, of which is told when it keeps messages for longer than we remember them.
async fn watched(mut from: From, window_ms: u64) -> from::AnySource {
    let kept = tokio::time::timeout(ASKING, from.source.retention()).await;
    if let Some(says) = kept.ok().flatten().and_then(|kept| check::too_long(kept, window_ms)) {
        tracing::warn!(about = "window", says, "this is not as it should be");
    }
    from.source
}
