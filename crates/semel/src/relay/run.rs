//! The relay's loop: a batch is read, published, acked. How it is published is a [strategy](super::publish).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::metrics::RelayMetrics;
use super::observer::Observer;
use super::options::{Delay, RelayOptions};
use super::outbox_reader::{Batch, OutboxLineage, OutboxReader, OutboxReaderError, Settled};
use super::publish::{Publish, Step, while_renewing};
use super::rounds::Rounds;
use super::sink_probe::SinkProbe;
use crate::crash;
use crate::observe::names;
use crate::sink::{Sink, SinkError};
use crate::stop::{self, asked_to_stop};

/// Publishes events from an outbox to a sink until it is stopped.
///
/// ```no_run
/// # #[cfg(feature = "postgres")] {
/// use semel::relay::{Relay, RelayOptions, poll::postgres::PostgresOutbox};
/// use semel::sink::Sink;
///
/// async fn relay(sink: impl Sink) -> Result<(), Box<dyn std::error::Error>> {
///     let outbox = PostgresOutbox::open("postgres://relay@db/payments").await?;
///     let relay = Relay::new(outbox.source(), sink, RelayOptions::default());
///     let stop = relay.stop_handle();
///     tokio::spawn(async move {
///         // … on a signal …
///         stop.stop();
///     });
///     relay.run().await?;
///     Ok(())
/// }
/// # }
/// ```
pub struct Relay<S, K> {
    pub(super) source: S,
    pub(super) sink: K,
    pub(super) options: RelayOptions,
    pub(super) stop: watch::Sender<bool>,
    pub(super) sink_probe: SinkProbe,
    pub(super) observer: Option<Observer>,
    wake: Wake,
    pruned_at: Instant,
}

/// Wakes a relay of this process after a commit, before its next poll. Optional.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// Makes the relay poll at once.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// Stops a relay gracefully: it drains the batch in flight and releases its leases.
#[derive(Clone, Debug)]
pub struct RelayStopHandle(watch::Sender<bool>);

impl RelayStopHandle {
    /// Asks the relay to stop. See [`RelayOptions::drain_timeout`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a relay did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RelayStats {
    /// Events that the sink confirmed.
    pub confirmed: u64,
    /// Events that were parked, and events held behind them.
    pub parked: u64,
    /// Batches that were acked.
    pub batches: u64,
}

/// Why a relay stopped by itself. Events that were not confirmed are still in the outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The outbox cannot be read, and a retry would not help.
    #[error(transparent)]
    Outbox(#[from] OutboxReaderError),
    /// Another relay has taken over the sink.
    #[error("another relay has taken over the sink: {0}")]
    Fenced(SinkError),
    /// The sink's checkpoint was written for another outbox.
    #[error(
        "the sink's checkpoint belongs to the outbox {stored}, but this is {found}: two outboxes use the same name in \
         the sink, or the database was restored from a dump or upgraded; find out which, then give this relay its own \
         transactional id: it then continues from the outbox's cursor"
    )]
    OtherOutbox {
        /// The lineage in the sink's checkpoint.
        stored: OutboxLineage,
        /// The lineage of this outbox.
        found: OutboxLineage,
    },
    /// The sink's checkpoint cannot be used.
    #[error("the sink's checkpoint cannot be used: {0}")]
    Position(String),
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    /// Creates a relay. [`run`](Self::run) starts it.
    pub fn new(source: S, sink: K, options: RelayOptions) -> Self {
        let (stop, _) = watch::channel(false);
        let (sink_probe, pruned_at) = (SinkProbe::unknown(), Instant::now());
        Self { source, sink, options, stop, sink_probe, observer: None, wake: Wake::default(), pruned_at }
    }

    /// Counts in these metrics. Only then does the relay sample the outbox's lag every few seconds.
    pub fn observed_by(mut self, metrics: &RelayMetrics) -> Self {
        self.observer = Some(Observer::new(metrics));
        self
    }

    /// A handle that wakes this relay.
    pub fn wake_handle(&self) -> Wake {
        self.wake.clone()
    }

    /// A handle that stops this relay.
    pub fn stop_handle(&self) -> RelayStopHandle {
        RelayStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped, or until something needs a person. First it [probes](Sink::probe) the sink and logs
    /// each violation of the sink's guarantee as an error. Dropping the future is like a crash: nothing is lost, and
    /// the batch in flight is sent again.
    pub async fn run(self) -> Result<RelayStats, RelayError> {
        // Boxed: with the relay in it the future is large.
        Box::pin(self.run_with(Rounds::default())).await
    }

    /// The loop, with one of the strategies.
    pub(super) async fn run_with(
        mut self,
        mut publish: impl Publish<S, K>,
    ) -> Result<RelayStats, RelayError> {
        let mut stats = RelayStats::default();
        let mut stopped = self.stop.subscribe();
        let (mut idle, mut delay) =
            (Delay::new(self.options.poll_interval), Delay::new(self.options.backoff));
        self.probe_sink_if_due().await;
        let ended = loop {
            if *stopped.borrow() {
                break Ok(stats);
            }
            self.sample_if_due().await;
            let step = self.step(&mut publish, &mut stats).await;
            self.observe(|metrics| match &step {
                Ok(Step::Done | Step::Idle | Step::Standby) => metrics.succeeded(),
                Err(RelayError::Outbox(error)) => metrics.source_failed(error),
                Ok(Step::Restart) | Err(_) => {}
            });
            if publish.ended(&step) {
                delay.reset();
            }
            match step {
                Ok(Step::Done) => {
                    idle.reset();
                    self.prune_if_due().await;
                }
                Ok(step @ (Step::Idle | Step::Standby)) => {
                    if matches!(step, Step::Idle) {
                        self.probe_sink_if_due().await;
                        self.prune_if_due().await;
                    }
                    self.rest(idle.next, &mut stopped).await;
                    idle.grow();
                }
                Err(RelayError::Outbox(error)) if error.may_retry() => {
                    tracing::warn!(%error, "failed to read the outbox; will retry");
                    stop::pause(delay.next, &mut stopped).await;
                    delay.grow();
                }
                Ok(Step::Restart) => {
                    let wait = stop::pause(delay.next, &mut stopped);
                    match while_renewing(&mut self.source, self.observer.as_ref(), wait).await {
                        Ok(Some(())) => {}
                        // Not at once: two relays that take each other for dead would keep the database busy.
                        Ok(None) => stop::pause(self.options.backoff.first, &mut stopped).await,
                        Err(error) => break Err(error),
                    }
                    delay.grow();
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = &ended {
            tracing::error!(%error, "the relay stops; fix the cause, then restart it");
        }
        if !publish.may_release() {
            tracing::warn!(
                "stopped before the sink was taken over; the next relay starts when this one's lease expires"
            );
        } else if let Err(error) = self.release().await {
            tracing::warn!(%error, "failed to release the outbox; other relays take over when the lease expires");
        }
        ended
    }

    /// One iteration: at most one batch.
    async fn step(
        &mut self,
        publish: &mut impl Publish<S, K>,
        stats: &mut RelayStats,
    ) -> Result<Step, RelayError> {
        if let Some(unready) = publish.prepare(self).await? {
            return Ok(unready);
        }
        // Boxed: a reader's state would make the relay's future large.
        let batch = Box::pin(self.source.next()).await?;
        self.observe(RelayMetrics::source_answered);
        let Some(batch) = batch else { return Ok(Step::Idle) };
        let span = tracing::info_span!(
            names::SPAN_RELAY_BATCH,
            events = batch.events.len(),
            position = %batch.position.cursor
        );
        self.observe(|metrics| metrics.batch_begins(batch.events.len()));
        let step = self.settle(&batch, publish, stats).instrument(span).await;
        self.observe(RelayMetrics::batch_ends);
        step
    }

    /// Publishes a batch, then acks it.
    async fn settle(
        &mut self,
        batch: &Batch,
        publish: &mut impl Publish<S, K>,
        stats: &mut RelayStats,
    ) -> Result<Step, RelayError> {
        let Some(settled) = publish.publish(self, batch).await? else { return Ok(Step::Restart) };
        Box::pin(self.source.ack(&settled)).await?;
        crash::point(crash::AFTER_DONE);
        self.observe(|metrics| {
            metrics.source_answered();
            metrics.settled(&settled);
        });
        let confirmed = settled.iter().filter(|one| **one == Settled::Confirmed).count();
        stats.confirmed += confirmed as u64;
        stats.parked += (settled.len() - confirmed) as u64;
        stats.batches += 1;
        Ok(Step::Done)
    }

    /// Releases all leases. Drops the sink and its queue first: later, that would overtake what another relay sends.
    async fn release(self) -> Result<(), OutboxReaderError> {
        let Self { mut source, sink, .. } = self;
        drop(sink);
        Box::pin(source.release()).await
    }

    /// Waits until the next poll. A wake or a stop ends the wait.
    async fn rest(&mut self, idle: Duration, stopped: &mut watch::Receiver<bool>) {
        tokio::select! {
            biased;
            () = asked_to_stop(stopped) => {}
            () = self.wake.0.notified() => {}
            () = tokio::time::sleep(idle) => {}
        }
    }

    async fn prune_if_due(&mut self) {
        let Some(prune) = self.options.prune else { return };
        if self.pruned_at.elapsed() < prune.every {
            return;
        }
        self.pruned_at = Instant::now();
        match Box::pin(self.source.prune(prune.older_than)).await {
            Ok(pruned) if pruned != Default::default() => {
                tracing::debug!(?pruned, "pruned published events")
            }
            Ok(_) => {}
            // Nothing depends on it; the next prune tries again.
            Err(error) => tracing::warn!(%error, "failed to prune published events; will retry"),
        }
    }
}
