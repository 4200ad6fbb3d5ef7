//! The at-least-once loop: batch, rounds, ack, repeat.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::batch_progress::BatchProgress;
use super::blame::Blame;
use super::metrics::{RelayMetrics, SAMPLE_EVERY};
use super::options::RelayOptions;
use super::outbox_reader::{Batch, Lag, OutboxLineage, OutboxReader, OutboxReaderError};
use super::sink_probe::SinkProbe;
use crate::crash;
use crate::observe::names;
use crate::outbox::Event;
use crate::sink::{Published, Sink, SinkError};
use crate::stop::{self, asked_to_stop};

/// How often the log warns about waiting events.
const WARN_EVERY: Duration = Duration::from_secs(60);

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
    wake: Wake,
    pub(super) stop: watch::Sender<bool>,
    pruned: Instant,
    pub(super) sink_probe: SinkProbe,
    blame: Blame,
    pub(super) observer: Option<Observer>,
}

/// Where the relay counts, and when it last sampled and warned.
pub(super) struct Observer {
    metrics: RelayMetrics,
    sampled: Option<Instant>,
    warned: Option<Instant>,
}

impl Observer {
    /// Warns about waiting events, at most once a minute.
    fn warn_of(&mut self, lag: Lag, age: Duration) {
        let Some(oldest) = lag.oldest.filter(|oldest| *oldest > age) else { return };
        if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned = Some(Instant::now());
        tracing::warn!(
            oldest_seconds = oldest.as_secs(),
            events = lag.events,
            bytes = lag.bytes,
            "events have been waiting long to be published; check that the sink accepts them"
        );
    }
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

/// How a batch ended.
enum Sent {
    Done,
    /// The lease was lost, or the drain timed out; `next` gives the batch again.
    Left,
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    /// Creates a relay. [`run`](Self::run) starts it.
    pub fn new(source: S, sink: K, options: RelayOptions) -> Self {
        let (stop, _) = watch::channel(false);
        let (wake, pruned, sink_probe) = (Wake::default(), Instant::now(), SinkProbe::unknown());
        let blame = Blame::default();
        Self { source, sink, options, wake, stop, pruned, sink_probe, blame, observer: None }
    }

    /// Counts in these metrics. Only then does the relay sample the outbox's lag every few seconds.
    pub fn observed_by(mut self, metrics: &RelayMetrics) -> Self {
        self.observer = Some(Observer { metrics: metrics.clone(), sampled: None, warned: None });
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
    pub async fn run(mut self) -> Result<RelayStats, RelayError> {
        let mut ended = RelayStats::default();
        let mut stopped = self.stop.subscribe();
        let (mut idle, mut pause) = (self.options.probe.first, self.options.pause.first);
        self.probe_sink_first().await;
        while !*stopped.borrow() {
            self.sample_if_due().await;
            // Boxed: a reader's state would make the relay's future large.
            let next = Box::pin(self.source.next()).await;
            self.observe(|metrics| match &next {
                Ok(_) => metrics.source_answered(),
                Err(error) => metrics.source_failed(error),
            });
            let turn = match next {
                Ok(Some(batch)) => self.send_observed(&batch, &mut ended).await,
                Ok(None) => {
                    self.observe(RelayMetrics::succeeded);
                    self.probe_sink_if_due().await;
                    self.prune_if_due().await;
                    self.rest(idle, &mut stopped).await;
                    idle = self.options.probe.next(idle);
                    pause = self.options.pause.first;
                    continue;
                }
                Err(error) => Err(error.into()),
            };
            match turn {
                Ok(Sent::Done) => {
                    (idle, pause) = (self.options.probe.first, self.options.pause.first);
                    self.prune_if_due().await;
                }
                // Not at once: two relays that take each other for dead would keep the database busy.
                Ok(Sent::Left) | Err(RelayError::Outbox(OutboxReaderError::Fenced)) => {
                    stop::pause(self.options.pause.first, &mut stopped).await;
                }
                Err(RelayError::Outbox(error)) if error.may_retry() => {
                    tracing::warn!(%error, "failed to read the outbox; will retry");
                    stop::pause(pause, &mut stopped).await;
                    pause = self.options.next_pause(pause);
                }
                Err(error) => {
                    tracing::error!(%error, "the relay stops; fix the cause, then restart it");
                    let _ = self.release().await;
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.release().await {
            tracing::warn!(%error, "failed to release the outbox; other relays take over when the lease expires");
        }
        Ok(ended)
    }

    /// Releases all leases. Drops the sink and its queue first: later, that would overtake what another relay sends.
    pub(super) async fn release(self) -> Result<(), OutboxReaderError> {
        let Self { mut source, sink, .. } = self;
        drop(sink);
        Box::pin(source.release()).await
    }

    /// Waits until the next poll. A wake or a stop ends the wait.
    pub(super) async fn rest(&mut self, idle: Duration, stopped: &mut watch::Receiver<bool>) {
        tokio::select! {
            biased;
            () = asked_to_stop(stopped) => {}
            () = self.wake.0.notified() => {}
            () = tokio::time::sleep(idle) => {}
        }
    }

    /// Waits while renewing the lease. A stop ends it, unless already stopping. `None`: the lease was lost.
    pub(super) async fn pause(
        &mut self,
        pause: Duration,
        stopped: &mut watch::Receiver<bool>,
        stopping: bool,
    ) -> Result<Option<()>, RelayError> {
        if stopping {
            return self.while_renewing(tokio::time::sleep(pause)).await;
        }
        self.while_renewing(stop::pause(pause, stopped)).await
    }

    async fn send_observed(&mut self, batch: &Batch, ended: &mut RelayStats) -> Result<Sent, RelayError> {
        let span = tracing::info_span!(
            names::SPAN_RELAY_BATCH,
            events = batch.events.len(),
            position = %batch.position.place
        );
        self.observe(|metrics| metrics.batch_begins(batch.events.len()));
        let sent = self.send(batch, ended).instrument(span).await;
        self.observe(|metrics| {
            metrics.batch_ends();
            match &sent {
                Ok(Sent::Done) => metrics.succeeded(),
                Err(RelayError::Outbox(error)) => metrics.source_failed(error),
                Ok(Sent::Left) | Err(_) => {}
            }
        });
        sent
    }

    /// Sends a batch until each of its events is confirmed or parked.
    async fn send(&mut self, batch: &Batch, ended: &mut RelayStats) -> Result<Sent, RelayError> {
        let mut stopped = self.stop.subscribe();
        let mut progress = BatchProgress::new(batch, &self.options);
        let mut pause = self.options.pause.first;
        let (mut confirmed, mut leave_at) = (0, None);
        loop {
            let ready = progress.ready();
            if ready.is_empty() {
                break;
            }
            if *stopped.borrow() {
                let at = *leave_at.get_or_insert_with(|| Instant::now() + self.options.drain_timeout);
                if Instant::now() >= at {
                    return Ok(Sent::Left);
                }
            }
            let events: Vec<Arc<Event>> = ready
                .iter()
                .filter_map(|at| batch.events.get(*at))
                .map(|pending| pending.event.clone())
                .collect();
            let Some(answers) = self.publish_observed(&events, &mut leave_at).await? else {
                return Ok(Sent::Left);
            };
            let round = progress.apply(&ready, answers, Instant::now(), &mut self.blame);
            if let Some(error) = round.fenced {
                return Err(RelayError::Fenced(error));
            }
            confirmed += round.confirmed as u64;
            if round.confirmed + round.parked + round.read_past > 0 {
                pause = self.options.pause.first;
            }
            if round.read_past > 0 {
                tracing::warn!(
                    keys = round.read_past,
                    "the sink confirmed nothing: it is down, or these keys fail; parked them to try other events"
                );
            }
            if let Some(error) = round.failure {
                tracing::warn!(
                    %error,
                    confirmed = round.confirmed,
                    sent = ready.len(),
                    "the sink did not confirm all events; the others are retried or parked"
                );
                // Nothing is left to retry.
                if progress.ready().is_empty() {
                    continue;
                }
                if self.pause(pause, &mut stopped, leave_at.is_some()).await?.is_none() {
                    return Ok(Sent::Left);
                }
                pause = self.options.next_pause(pause);
                self.sample_if_due().await;
            }
        }
        let settled = progress.settled();
        Box::pin(self.source.ack(&settled)).await?;
        crash::point(crash::AFTER_DONE);
        self.observe(|metrics| {
            metrics.source_answered();
            metrics.settled(&settled);
        });
        ended.confirmed += confirmed;
        ended.parked += settled.len() as u64 - confirmed;
        ended.batches += 1;
        Ok(Sent::Done)
    }

    /// Makes one call to the sink, with a span for each of its events.
    async fn publish_observed(
        &mut self,
        events: &[Arc<Event>],
        leave_at: &mut Option<Instant>,
    ) -> Result<Option<Vec<Published>>, RelayError> {
        let spans = spans(events);
        let began = Instant::now();
        self.observe(RelayMetrics::call_begins);
        let answers = self.publish(events, leave_at).await;
        let Ok(Some(results)) = &answers else {
            self.observe(RelayMetrics::call_left);
            return answers;
        };
        for (span, answer) in spans.iter().zip(results) {
            match answer {
                Published::Confirmed => record(span, "confirmed", None),
                Published::Failed(error) => record(span, "failed", Some(error)),
                Published::Refused(error) => record(span, "refused", Some(error)),
            }
        }
        self.observe(|metrics| metrics.call_ends(began.elapsed(), results));
        answers
    }

    /// Gives events to the sink. `None`: the lease was lost, or the drain timed out.
    async fn publish(
        &mut self,
        events: &[Arc<Event>],
        leave_at: &mut Option<Instant>,
    ) -> Result<Option<Vec<Published>>, RelayError> {
        if !self.source.holds_lease() {
            return Ok(None);
        }
        crash::point(crash::BEFORE_PUBLISH);
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, options, .. } = self;
        let drain_timeout = async {
            asked_to_stop(&mut stopped).await;
            let at = *leave_at.get_or_insert_with(|| Instant::now() + options.drain_timeout);
            tokio::time::sleep_until(at).await;
        };
        let publish = async {
            tokio::select! {
                biased;
                answers = sink.publish(events) => Some(answers),
                () = drain_timeout => None,
            }
        };
        let answers = while_renewing(source, observer.as_ref(), publish).await;
        crash::point(crash::AFTER_PUBLISH);
        answers.map(Option::flatten)
    }

    pub(super) async fn while_renewing<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, RelayError> {
        while_renewing(&mut self.source, self.observer.as_ref(), work).await
    }

    pub(super) fn observe(&self, count: impl FnOnce(&RelayMetrics)) {
        if let Some(observer) = &self.observer {
            count(&observer.metrics);
        }
    }

    /// Samples the lag, if the relay is observed and a sample is due.
    pub(super) async fn sample_if_due(&mut self) {
        let Some(observer) = &mut self.observer else { return };
        if observer.sampled.is_some_and(|at| at.elapsed() < SAMPLE_EVERY) {
            return;
        }
        observer.sampled = Some(Instant::now());
        match Box::pin(self.source.lag()).await {
            Ok(lag) => {
                observer.metrics.source_answered();
                observer.metrics.sampled(lag);
                observer.warn_of(lag, self.options.warn_age);
            }
            // Only debug: the next iteration warns.
            Err(error) => {
                observer.metrics.source_failed(&error);
                tracing::debug!(%error, "failed to measure the outbox's lag");
            }
        }
    }

    pub(super) async fn prune_if_due(&mut self) {
        let Some(prune) = self.options.prune else { return };
        if self.pruned.elapsed() < prune.every {
            return;
        }
        self.pruned = Instant::now();
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

/// Runs something slow while renewing the lease (heartbeat). `None`: the lease was lost.
pub(super) async fn while_renewing<S: OutboxReader, T>(
    source: &mut S,
    observer: Option<&Observer>,
    work: impl Future<Output = T>,
) -> Result<Option<T>, RelayError> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(Some(done)),
            () = tokio::time::sleep(source.renew_after()) => {}
        }
        match Box::pin(source.renew_lease()).await {
            Ok(()) => observer.iter().for_each(|observer| observer.metrics.source_answered()),
            Err(OutboxReaderError::Fenced) => return Ok(None),
            Err(error) if !error.may_retry() => return Err(error.into()),
            Err(error) => {
                observer.iter().for_each(|observer| observer.metrics.source_failed(&error));
                tracing::warn!(%error, "failed to renew the relay's lease; will retry");
            }
        }
        if !source.holds_lease() {
            return Ok(None);
        }
    }
}

/// A span for each event, if enabled: below the batch's span, with the trace in which it was appended.
pub(super) fn spans(events: &[Arc<Event>]) -> Vec<tracing::Span> {
    if !tracing::span_enabled!(tracing::Level::INFO) {
        return Vec::new();
    }
    let span = |event: &Arc<Event>| {
        tracing::info_span!(
            names::SPAN_RELAY_PUBLISH,
            event = %event.id(),
            topic = event.topic(),
            kind = event.kind(),
            trace_parent = event.trace(),
            outcome = tracing::field::Empty,
            error = tracing::field::Empty,
        )
    };
    events.iter().map(span).collect()
}

/// Records an event's outcome in its span.
pub(super) fn record(span: &tracing::Span, outcome: &str, error: Option<&SinkError>) {
    span.record("outcome", outcome);
    if let Some(error) = error {
        span.record("error", tracing::field::display(error));
    }
}
