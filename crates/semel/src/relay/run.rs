//! The loop: batch, waves, done, and again.

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

/// How often it is said that events wait.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Moves events from a source to a sink until it is stopped.
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
///         // … a signal comes …
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
    pub(super) promise: SinkProbe,
    blame: Blame,
    pub(super) observer: Option<Observer>,
}

/// Who is told, and when the source was last asked for the sake of it.
pub(super) struct Observer {
    metrics: RelayMetrics,
    sampled: Option<Instant>,
    warned: Option<Instant>,
}

impl Observer {
    /// Says that events wait for long, not more often than once a minute.
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
            "events wait to be published for long; see that the sink takes what it is given"
        );
    }
}

/// Wakes a relay of this process: after a commit, instead of the next look. Never needed.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// Looks at once.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// Stops a relay in order: the batch on its way ends, and what it owns is given back.
#[derive(Clone, Debug)]
pub struct RelayStopHandle(watch::Sender<bool>);

impl RelayStopHandle {
    /// Asks for the end. See [`RelayOptions::drain_timeout`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a relay did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RelayStats {
    /// Events the sink has confirmed.
    pub confirmed: u64,
    /// Events set aside, and their successors.
    pub parked: u64,
    /// Batches that were done.
    pub batches: u64,
}

/// Why a relay stopped by itself. What was not confirmed is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The source cannot go on, and trying again would not help.
    #[error(transparent)]
    Outbox(#[from] OutboxReaderError),
    /// Another relay has taken the sink over.
    #[error("another relay has taken the sink over: {0}")]
    Fenced(SinkError),
    /// The position beside the events was written for another outbox.
    #[error(
        "the position in the sink is of the outbox {stored}, and this is {found}: two outboxes share a name in the \
         sink, or the database was restored from a dump or upgraded; find out which, then give this relay a \
         transactional id of its own: it goes on where the outbox's own cursor is"
    )]
    OtherOutbox {
        /// What the sink has.
        stored: OutboxLineage,
        /// What is there.
        found: OutboxLineage,
    },
    /// The position beside the events cannot be used.
    #[error("the position in the sink cannot be used: {0}")]
    Position(String),
}

/// How a batch ended.
enum Sent {
    Done,
    /// It is no longer ours, or was left; it is given again by `next`.
    Left,
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    /// A relay that has not begun.
    pub fn new(source: S, sink: K, options: RelayOptions) -> Self {
        let (stop, _) = watch::channel(false);
        let (wake, pruned, promise) = (Wake::default(), Instant::now(), SinkProbe::unknown());
        let blame = Blame::default();
        Self { source, sink, options, wake, stop, pruned, promise, blame, observer: None }
    }

    /// Counts here. Then, and only then, the source is asked every few seconds how much is left.
    pub fn observed_by(mut self, metrics: &RelayMetrics) -> Self {
        self.observer = Some(Observer { metrics: metrics.clone(), sampled: None, warned: None });
        self
    }

    /// Wakes it.
    pub fn wake_handle(&self) -> Wake {
        self.wake.clone()
    }

    /// Stops it.
    pub fn stop_handle(&self) -> RelayStopHandle {
        RelayStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped, or until something needs a person. First the sink is [asked](Sink::probe) what stands in
    /// the way of its promise, and each of that is logged as an error. Dropping the future is like a crash: nothing is
    /// lost, and the batch on its way is sent again.
    pub async fn run(mut self) -> Result<RelayStats, RelayError> {
        let mut ended = RelayStats::default();
        let mut stopped = self.stop.subscribe();
        let (mut idle, mut pause) = (self.options.probe.0, self.options.pause.0);
        self.check_promise_first().await;
        while !*stopped.borrow() {
            self.sample_if_due().await;
            // Boxed: what a reader keeps while it reads would make the future of the relay large.
            let next = Box::pin(self.source.next()).await;
            self.observe(|metrics| match &next {
                Ok(_) => metrics.source_answered(),
                Err(error) => metrics.source_failed(error),
            });
            let turn = match next {
                Ok(Some(batch)) => self.send_observed(&batch, &mut ended).await,
                Ok(None) => {
                    self.observe(RelayMetrics::succeeded);
                    self.check_promise_if_due().await;
                    self.prune_if_due().await;
                    self.rest(idle, &mut stopped).await;
                    idle = (idle * 2).min(self.options.probe.1);
                    pause = self.options.pause.0;
                    continue;
                }
                Err(error) => Err(error.into()),
            };
            match turn {
                Ok(Sent::Done) => {
                    (idle, pause) = (self.options.probe.0, self.options.pause.0);
                    self.prune_if_due().await;
                }
                // Not at once: two who take each other for dead would keep the database busy with it.
                Ok(Sent::Left) | Err(RelayError::Outbox(OutboxReaderError::Fenced)) => {
                    within(self.options.pause.0, wait(&mut stopped)).await;
                }
                Err(RelayError::Outbox(error)) if error.may_retry() => {
                    tracing::warn!(%error, "the relay's source failed; trying again");
                    let _ = within(pause, wait(&mut stopped)).await;
                    pause = grown(pause, &self.options);
                }
                Err(error) => {
                    tracing::error!(%error, "the relay stops");
                    let _ = self.release().await;
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.release().await {
            tracing::warn!(%error, "lanes were not given back; others take them when the lease is over");
        }
        Ok(ended)
    }

    /// Gives everything back. First the sink goes, and with it what it has queued and not sent: once another relay has the
    /// lanes, that would overtake what the other sends.
    pub(super) async fn release(self) -> Result<(), OutboxReaderError> {
        let Self { mut source, sink, .. } = self;
        drop(sink);
        Box::pin(source.release()).await
    }

    /// Waits for the next look. A wake or a stop ends it.
    pub(super) async fn rest(&mut self, idle: Duration, stopped: &mut watch::Receiver<bool>) {
        tokio::select! {
            biased;
            () = wait(stopped) => {}
            () = self.wake.0.notified() => {}
            () = tokio::time::sleep(idle) => {}
        }
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

    /// Sends a batch until each of its events is confirmed or set aside.
    async fn send(&mut self, batch: &Batch, ended: &mut RelayStats) -> Result<Sent, RelayError> {
        let mut stopped = self.stop.subscribe();
        let mut waves = BatchProgress::new(batch, &self.options);
        let mut pause = self.options.pause.0;
        let (mut confirmed, mut leave_at) = (0, None);
        loop {
            let ready = waves.ready();
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
            let folded = waves.fold(&ready, answers, Instant::now(), &mut self.blame);
            if let Some(error) = folded.fenced {
                return Err(RelayError::Fenced(error));
            }
            confirmed += folded.confirmed as u64;
            if folded.confirmed + folded.parked + folded.read_past > 0 {
                pause = self.options.pause.0;
            }
            if folded.read_past > 0 {
                tracing::warn!(
                    keys = folded.read_past,
                    "the sink confirms nothing: it is down, or these keys fail; they are parked, and others are tried"
                );
            }
            if let Some(error) = folded.failure {
                tracing::warn!(%error, confirmed = folded.confirmed, sent = ready.len(), "the sink failed");
                // Nothing is left to be tried again.
                if waves.ready().is_empty() {
                    continue;
                }
                let rest = within(pause, async {
                    if leave_at.is_none() {
                        wait(&mut stopped).await;
                    } else {
                        std::future::pending().await
                    }
                });
                if self.keeping(rest).await?.is_none() {
                    return Ok(Sent::Left);
                }
                pause = grown(pause, &self.options);
                self.sample_if_due().await;
            }
        }
        let settled = waves.settled();
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

    /// One call to the sink, and a span for each of its events.
    async fn publish_observed(
        &mut self,
        events: &[Arc<Event>],
        leave_at: &mut Option<Instant>,
    ) -> Result<Option<Vec<Published>>, RelayError> {
        let spans = spans(events);
        let began = Instant::now();
        self.observe(RelayMetrics::call_begins);
        let answers = self.publish(events, leave_at).await;
        let Ok(Some(told)) = &answers else {
            self.observe(RelayMetrics::call_left);
            return answers;
        };
        for (span, answer) in spans.iter().zip(told) {
            match answer {
                Published::Confirmed => record(span, "confirmed", None),
                Published::Failed(error) => record(span, "failed", Some(error)),
                Published::Refused(error) => record(span, "refused", Some(error)),
            }
        }
        self.observe(|metrics| metrics.call_ends(began.elapsed(), told));
        answers
    }

    /// Gives events to the sink. `None`: the batch is not ours any more, or it takes longer than a farewell does.
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
            wait(&mut stopped).await;
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
        let answers = keeping(source, observer.as_ref(), publish).await;
        crash::point(crash::AFTER_PUBLISH);
        answers.map(Option::flatten)
    }

    pub(super) async fn keeping<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, RelayError> {
        keeping(&mut self.source, self.observer.as_ref(), work).await
    }

    pub(super) fn observe(&self, told: impl FnOnce(&RelayMetrics)) {
        if let Some(observer) = &self.observer {
            told(&observer.metrics);
        }
    }

    /// Asks how much is left, if anybody wants to know and it is time.
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
            // Said loudly by what depends on it, at the next turn.
            Err(error) => {
                observer.metrics.source_failed(&error);
                tracing::debug!(%error, "it is not known how much is left");
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
                tracing::debug!(?pruned, "published events forgotten")
            }
            Ok(_) => {}
            // Later: nothing depends on it.
            Err(error) => tracing::warn!(%error, "published events were not forgotten"),
        }
    }
}

/// Does something that takes long while the source is kept. `None`: the source lost what this is about.
pub(super) async fn keeping<S: OutboxReader, T>(
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
                tracing::warn!(%error, "the relay's lease was not renewed; trying again");
            }
        }
        if !source.holds_lease() {
            return Ok(None);
        }
    }
}

/// A span for each event, if anybody looks at them: under the batch, and naming the trace in which it was appended.
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

/// What became of the event of a span.
pub(super) fn record(span: &tracing::Span, outcome: &str, error: Option<&SinkError>) {
    span.record("outcome", outcome);
    if let Some(error) = error {
        span.record("error", tracing::field::display(error));
    }
}

/// Ends with the time or with the work.
pub(super) async fn within(time: Duration, work: impl Future<Output = ()>) {
    let _ = tokio::time::timeout(time, work).await;
}

pub(super) async fn wait(stopped: &mut watch::Receiver<bool>) {
    // The sender is ours: it outlives the wait.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Twice as long, a little by chance so that many do not come at once.
pub(super) fn grown(pause: Duration, options: &RelayOptions) -> Duration {
    let twice = (pause * 2).min(options.pause.1);
    twice.mul_f64(0.8 + 0.2 * fastrand::f64()).max(options.pause.0)
}
