//! `semel relay`: publishes from the outbox of a database to a broker.
//!
//! | module | what |
//! |---|---|
//! | `args` | arguments and help |
//! | `from` | the outbox a URL names |
//! | `to` | the sink a URL names |
//! | `check` | `--check`: the guarantee, and whether it can be kept |
//! | `admin` | health and metrics |

mod admin;
mod args;
mod check;
mod from;
mod to;

use std::future::Future;
use std::time::Duration;

use semel::relay::{
    OutboxReader, Poison, RelayError, RelayMetrics, RelayOptions, RelayStats, RelayStopHandle,
};
use semel::sink::Sink;
use serde_json::json;
use tokio::sync::watch;

pub(crate) use self::args::Relay;
use self::args::{Bounds, Prune};
use self::from::{From, Severity};
use self::to::To;
use crate::failure::Failed;
use crate::stop::on_signal;
use crate::url::without_password;
use crate::{log, stdout};

/// Publishes until it is stopped.
pub(crate) async fn run(args: &Relay, json: bool) -> Result<(), Failed> {
    args.admin.check()?;
    from::fits(args)?;
    let to = to::open(&args.to, &args.sink, args.exactly_once.as_deref())?;
    if args.check {
        return check::run(args, to, json).await;
    }
    log::to_stderr(args.run.log);
    let from = From::open(args).await?;
    // Checked before it reports that it runs; later the relay waits for a database that becomes unreachable.
    for finding in from.check(args).await?.into_iter().filter(|finding| finding.severity != Severity::Fine) {
        tracing::warn!(
            about = finding.about,
            says = finding.says,
            "a check found a problem; see `says`, or run with --check"
        );
    }
    let listener = args.admin.listener().await?;
    let (stopping, stopped) = watch::channel(false);
    let metrics = listener.as_ref().map(|_| RelayMetrics::new());
    let mut addresses = Vec::new();
    if let (Some(listener), Some(metrics)) = (listener, &metrics) {
        addresses.push(listener.local_addr()?);
        let patience = args.admin.patience();
        let ours = admin::Admin { metrics: metrics.clone(), patience };
        tokio::spawn(crate::admin::listen(listener, ours, stopped));
    }
    let (source, into) = (without_password(&args.from), without_password(&args.to));
    if json {
        let admin = addresses.first().map(ToString::to_string);
        stdout::json(&json!({ "from": source, "to": into, "admin": admin }))?;
    } else {
        let admin = addresses.first().map_or_else(String::new, |admin| format!("admin on {admin}\n"));
        stdout::text(&format!("relaying from {source} to {into}\n{admin}"))?;
    }
    let guarantee = to.guarantee();
    tracing::info!(from = %source, to = %into, guarantee = guarantee.sentence, "started");
    let running = Running { args, metrics: metrics.as_ref(), stopping };
    let ended = match to {
        To::AtLeastOnce(sink) => running.relay(from.source(), *sink).await,
        #[cfg(feature = "kafka")]
        To::ExactlyOnce(sink) => running.exactly_once(from.source(), *sink).await,
    }?;
    tracing::info!(
        confirmed = ended.confirmed,
        parked = ended.parked,
        batches = ended.batches,
        "stopped; unconfirmed events are still in the outbox"
    );
    Ok(())
}

struct Running<'a> {
    args: &'a Relay,
    metrics: Option<&'a RelayMetrics>,
    stopping: watch::Sender<bool>,
}

impl Running<'_> {
    async fn relay<S: OutboxReader, K: Sink>(&self, source: S, sink: K) -> Result<RelayStats, Failed> {
        let relay = self.observed(source, sink);
        self.until_stopped(relay.stop_handle(), Box::pin(relay.run())).await
    }

    #[cfg(feature = "kafka")]
    async fn exactly_once<S: OutboxReader, K: semel::sink::ExactlyOnce>(
        &self,
        source: S,
        sink: K,
    ) -> Result<RelayStats, Failed> {
        let relay = self.observed(source, sink);
        self.until_stopped(relay.stop_handle(), Box::pin(relay.run_exactly_once())).await
    }

    fn observed<S: OutboxReader, K: Sink>(&self, source: S, sink: K) -> semel::relay::Relay<S, K> {
        let relay = semel::relay::Relay::new(source, sink, self.args.bounds.options());
        match self.metrics {
            Some(metrics) => relay.observed_by(metrics),
            None => relay,
        }
    }

    async fn until_stopped(
        &self,
        stop: RelayStopHandle,
        run: impl Future<Output = Result<RelayStats, RelayError>>,
    ) -> Result<RelayStats, Failed> {
        let ended = on_signal(run, self.args.run.until_stdin_ends, || {
            tracing::info!(limit_ms = self.args.bounds.drain, "stopping; finishing the batch in flight");
            let _ = self.stopping.send(true);
            stop.stop();
        });
        ended.await?.map_err(failed)
    }
}

fn failed(error: RelayError) -> Failed {
    match error {
        RelayError::Outbox(error) => error.into(),
        error @ RelayError::Fenced(_) => {
            Failed::not_done(format!("{error}; stop the other relay, then start this one again"))
        }
        error => Failed::not_done(error.to_string()),
    }
}

impl Bounds {
    fn outbox(&self) -> crate::outbox::Bounds {
        crate::outbox::Bounds {
            batch_events: usize::try_from(self.batch_events).unwrap_or(usize::MAX),
            batch_bytes: self.batch_bytes,
            lease: Duration::from_millis(self.lease),
            retry_after: Duration::from_millis(self.retry_after),
        }
    }

    fn options(&self) -> RelayOptions {
        let options = RelayOptions::default()
            .attempts_max(self.tries)
            .drain_timeout(Duration::from_millis(self.drain))
            .warn_age(Duration::from_millis(self.warn_age))
            .poison(match self.poison {
                args::Poison::Key => Poison::ParksItsKey,
                args::Poison::Event => Poison::ParksItself,
            });
        match self.prune {
            Prune::After(ms) => options.prune(Duration::from_secs(60), Duration::from_millis(ms)),
            Prune::Never => options.keep_all(),
        }
    }
}
