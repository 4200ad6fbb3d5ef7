//! The exactly-once loop, for a sink that stores its checkpoint beside the events: batch, transaction, ack, repeat.
//!
//! ```text
//!  lease the whole outbox ─▶ begin: fence, then read the checkpoint ─▶ resume ─▶ batch ─▶ events and checkpoint ─▶ ack
//!            ▲                                                                                   │
//!            └──────────────── lease lost, or in doubt what was published ◀──────────────────────┘
//! ```
//!
//! **Only the checkpoint's batch can be published but not acked.** The relay acks a batch before it publishes the next,
//! and the outbox gives the checkpoint's batch first. So after a restart one comparison tells what was published.
//!
//! **The relay leases the outbox before it takes over the sink.** The other way round, a standby would fence the active
//! relay, which would then fence the standby. With the lease first, the standby waits; then its `begin` ends any
//! transaction that the last owner left open: if it was committed before, the checkpoint shows it; if not, it never
//! will be.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument;

use super::checkpoint::LEFT_OUT_MAX;
use super::metrics::RelayMetrics;
use super::outbox_reader::{Batch, OutboxReader, OutboxReaderError, Position, SinkCheckpoint};
use super::run::{Relay, RelayError, RelayStats, record, spans, while_renewing};
use super::transaction_split::{GivenUp, TransactionSplitter};
use crate::crash;
use crate::observe::names;
use crate::outbox::Event;
use crate::sink::{ExactlyOnce, SinkError};
use crate::stop::{self, asked_to_stop};

/// What the relay knows about the sink.
struct SinkState {
    /// The sink's checkpoint, which only this relay can change. `None`: it has to be read from the sink.
    known: Option<Option<SinkCheckpoint>>,
    /// The checkpoint when it was last known.
    before: Option<SinkCheckpoint>,
    /// Most events of the next transaction.
    events_max: usize,
    /// A take-over of the sink was abandoned and may still be running.
    begins: bool,
    /// The sink committed a transaction, maybe an empty one, since the last backoff, or turned out to have: the next
    /// backoff is short.
    works: bool,
    /// Batches that were interrupted because the checkpoint had to be read. Newest last.
    unfinished: Vec<Unfinished>,
}

/// Most unfinished batches. Usually two: the checkpoint's batch comes between. Others belong to lost leases.
const UNFINISHED_MAX: usize = 8;

/// What was found out about the events of a batch before the checkpoint had to be read.
struct Unfinished {
    position: Position,
    given_up: Vec<GivenUp>,
    doubt: Option<Doubt>,
}

/// A transaction of one event that ended in doubt. Taking over the sink again resolves the doubt. If the event was not
/// published, that counts as a failure, so a destination that never answers is found like one that refuses.
struct Doubt {
    /// Index in the batch.
    at: usize,
    event: Arc<Event>,
    /// How often in a row.
    times: u32,
    error: SinkError,
}

impl SinkState {
    /// The checkpoint has to be read from the sink.
    fn forget(&mut self) {
        if let Some(known) = self.known.take() {
            self.before = known;
        }
    }

    /// The checkpoint was read. If it moved, a transaction in doubt was committed, or another relay worked meanwhile: that
    /// is progress like any other, so the backoff starts anew. Otherwise a sink that loses its confirms would be
    /// retried ever more slowly.
    fn found(&mut self, checkpoint: Option<SinkCheckpoint>) {
        self.works |= checkpoint != self.before;
        self.known = Some(checkpoint);
    }

    /// What is known about an interrupted batch.
    fn unfinished(&mut self, position: &Position) -> &mut Unfinished {
        let at = match self.unfinished.iter().position(|one| one.position == *position) {
            Some(at) => at,
            None => {
                if self.unfinished.len() >= UNFINISHED_MAX {
                    self.unfinished.remove(0);
                }
                let position = position.clone();
                self.unfinished.push(Unfinished { position, given_up: Vec::new(), doubt: None });
                self.unfinished.len() - 1
            }
        };
        &mut self.unfinished[at]
    }

    /// Forgets what is known about these events, also from other batches. Otherwise an old doubt would decide about an
    /// event that was parked and is due again, without sending it.
    fn settled(&mut self, batch: &Batch) {
        self.unfinished.retain(|one| one.position != batch.position);
        // Two events on different topics may share an id.
        let name = |event: &Event| (event.id(), event.topic().to_owned());
        let events: HashSet<_> = batch.events.iter().map(|pending| name(&pending.event)).collect();
        for one in &mut self.unfinished {
            one.given_up.retain(|given_up| !events.contains(&name(given_up.event())));
            one.doubt.take_if(|doubt| events.contains(&name(&doubt.event)));
        }
    }
}

/// The result of taking over the sink.
enum Begun {
    /// This relay owns the sink; the sink's checkpoint.
    Ready(Option<SinkCheckpoint>),
    Failed,
    /// Interrupted by a stop.
    Abandoned,
}

/// The result of one iteration.
enum Turn {
    /// Another relay has the outbox.
    Standby,
    Idle,
    Done,
    /// Start over: the lease was lost, or it is in doubt what was published.
    Restart,
}

/// Why a transaction was not committed.
enum Failed {
    /// Start over.
    Restart,
    /// Nothing of it was published.
    NotPublished(SinkError),
}

impl<S: OutboxReader, K: ExactlyOnce> Relay<S, K> {
    /// As [`run`](Relay::run), with a sink that commits its checkpoint in one transaction with the events: readers of
    /// committed data see each event once, whatever crashes in between.
    ///
    /// One relay is active at a time. Others with the same outbox and the same name in the sink stand by; one of them
    /// takes over when the lease is lost. A relay that was replaced stands by if its own clock shows that its lease
    /// expired. If the sink fences it first, it ends with [`RelayError::Fenced`].
    ///
    /// ```no_run
    /// # #[cfg(all(feature = "postgres", feature = "kafka"))] {
    /// use semel::relay::{Relay, RelayOptions, poll::postgres::PostgresOutbox};
    /// use semel::sink::kafka::KafkaSink;
    ///
    /// async fn relay() -> Result<(), Box<dyn std::error::Error>> {
    ///     let outbox = PostgresOutbox::open("postgres://relay@db/payments").await?;
    ///     let sink = KafkaSink::options("broker:9092").exactly_once("relay-payments")?;
    ///     Relay::new(outbox.source(), sink, RelayOptions::default()).run_exactly_once().await?;
    ///     Ok(())
    /// }
    /// # }
    /// ```
    pub async fn run_exactly_once(mut self) -> Result<RelayStats, RelayError> {
        let mut ended = RelayStats::default();
        let mut stopped = self.stop.subscribe();
        let mut state = SinkState {
            known: None,
            before: None,
            events_max: usize::MAX,
            begins: false,
            works: false,
            unfinished: Vec::new(),
        };
        let (mut idle, mut pause) = (self.options.probe.first, self.options.pause.first);
        self.probe_sink_first().await;
        while !*stopped.borrow() {
            self.sample_if_due().await;
            let turn = self.turn(&mut state, &mut ended).await;
            self.observe(|metrics| match &turn {
                Ok(Turn::Idle | Turn::Standby | Turn::Done) => {
                    metrics.source_answered();
                    metrics.succeeded();
                }
                Err(RelayError::Outbox(error)) => metrics.source_failed(error),
                Ok(Turn::Restart) | Err(_) => {}
            });
            match turn {
                Ok(Turn::Done) => {
                    (idle, pause) = (self.options.probe.first, self.options.pause.first);
                    self.prune_if_due().await;
                }
                Ok(turn @ (Turn::Idle | Turn::Standby)) => {
                    if matches!(turn, Turn::Idle) {
                        self.probe_sink_if_due().await;
                        self.prune_if_due().await;
                    }
                    self.rest(idle, &mut stopped).await;
                    idle = self.options.probe.next(idle);
                }
                Ok(Turn::Restart) => {
                    state.forget();
                    if std::mem::take(&mut state.works) {
                        pause = self.options.pause.first;
                    }
                    // If the lease was lost meanwhile, wait a little before asking for it again.
                    if self.while_renewing(stop::pause(pause, &mut stopped)).await?.is_none() {
                        stop::pause(self.options.pause.first, &mut stopped).await;
                    }
                    pause = self.options.next_pause(pause);
                }
                Err(RelayError::Outbox(error)) if error.may_retry() => {
                    tracing::warn!(%error, "failed to read the outbox; will retry");
                    state.forget();
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
        // After a release another relay starts at once, and the abandoned take-over might fence it.
        if state.begins {
            tracing::warn!(
                "stopped while taking over the sink; another relay continues when the lease expires"
            );
        } else if let Err(error) = self.release().await {
            tracing::warn!(%error, "failed to release the outbox; another relay takes over when the lease expires");
        }
        Ok(ended)
    }

    async fn turn(&mut self, state: &mut SinkState, ended: &mut RelayStats) -> Result<Turn, RelayError> {
        if state.known.is_none() {
            if !Box::pin(self.source.acquire_exclusive()).await? {
                state.unfinished.clear();
                return Ok(Turn::Standby);
            }
            match self.begin().await? {
                Begun::Ready(checkpoint) => state.found(checkpoint),
                Begun::Failed => return Ok(Turn::Restart),
                Begun::Abandoned => {
                    state.begins = true;
                    return Ok(Turn::Restart);
                }
            }
        }
        match Box::pin(self.source.next()).await? {
            Some(batch) => {
                let span = tracing::info_span!(
                    names::SPAN_RELAY_BATCH,
                    events = batch.events.len(),
                    position = %batch.position.place
                );
                self.observe(|metrics| metrics.batch_begins(batch.events.len()));
                let sent = self.send_batch(&batch, state, ended).instrument(span).await;
                self.observe(RelayMetrics::batch_ends);
                sent
            }
            None => Ok(Turn::Idle),
        }
    }

    /// Takes over the sink, and resumes the outbox from the sink's checkpoint.
    async fn begin(&mut self) -> Result<Begun, RelayError> {
        if !self.source.holds_lease() {
            return Ok(Begun::Failed);
        }
        crash::point(crash::BEFORE_BEGIN);
        let began = Instant::now();
        self.observe(RelayMetrics::call_begins);
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, .. } = self;
        // A stop does not wait for a broker that is down.
        let begun = async {
            tokio::select! {
                biased;
                begun = sink.begin() => Some(begun),
                () = asked_to_stop(&mut stopped) => None,
            }
        };
        let begun = while_renewing(source, observer.as_ref(), begun).await;
        let result = begun.as_ref().ok().and_then(Option::as_ref).and_then(Option::as_ref);
        self.record_call(began, 0, result.map(|begun| begun.as_ref().err()));
        let position = match begun? {
            None => return Ok(Begun::Failed),
            Some(None) => return Ok(Begun::Abandoned),
            Some(Some(Ok(position))) => position,
            Some(Some(Err(error))) if error.is_fenced() => return Err(RelayError::Fenced(error)),
            Some(Some(Err(error))) => {
                tracing::warn!(%error, "failed to take over the sink; will retry");
                return Ok(Begun::Failed);
            }
        };
        crash::point(crash::AFTER_BEGIN);
        // If the lease was lost meanwhile, another relay may have continued, and the checkpoint may be stale.
        if !self.source.holds_lease() {
            return Ok(Begun::Failed);
        }
        let checkpoint = position.as_deref().map(read).transpose()?;
        match Box::pin(self.source.resume(checkpoint.as_ref())).await {
            Ok(()) => Ok(Begun::Ready(checkpoint)),
            Err(OutboxReaderError::OutboxLineage { stored, found }) => {
                Err(RelayError::OtherOutbox { stored, found })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes a batch, in one transaction if possible, until each event is confirmed or parked.
    async fn send_batch(
        &mut self,
        batch: &Batch,
        state: &mut SinkState,
        ended: &mut RelayStats,
    ) -> Result<Turn, RelayError> {
        let checkpoint = state.known.as_ref().and_then(Option::as_ref);
        let (found, stored) =
            (&batch.position.lineage, checkpoint.map(|checkpoint| &checkpoint.position.lineage));
        if let Some(stored) = stored.filter(|stored| !stored.matches(found)) {
            return Err(RelayError::OtherOutbox { stored: stored.clone(), found: found.clone() });
        }
        let options = self.options.clone();
        let mut splitter = TransactionSplitter::new(batch, checkpoint, state.events_max, &options);
        splitter.give_up_again(std::mem::take(&mut state.unfinished(&batch.position).given_up));
        let Some(confirmed) = self.send_transactions(batch, &mut splitter, state).await? else {
            state.unfinished(&batch.position).given_up = splitter.given_up();
            return Ok(Turn::Restart);
        };
        state.settled(batch);
        let settled = splitter.settled();
        crash::point(crash::BEFORE_DONE);
        Box::pin(self.source.ack(&settled)).await?;
        crash::point(crash::AFTER_DONE);
        self.observe(|metrics| metrics.settled(&settled));
        ended.confirmed += confirmed;
        ended.parked += settled.iter().filter(|one| **one != super::Settled::Confirmed).count() as u64;
        ended.batches += 1;
        Ok(Turn::Done)
    }

    /// Publishes transaction by transaction. Returns how many events were confirmed. `None`: start over.
    async fn send_transactions(
        &mut self,
        batch: &Batch,
        splitter: &mut TransactionSplitter<'_>,
        state: &mut SinkState,
    ) -> Result<Option<u64>, RelayError> {
        let options = self.options.clone();
        let (mut confirmed, mut leave_at) = (0, None);
        let (mut stopped, mut pause) = (self.stop.subscribe(), options.pause.first);
        if self.resolve_doubt(batch, splitter, state).await?.is_none() {
            return Ok(None);
        }
        loop {
            let sending = splitter.next();
            if sending.is_empty() {
                return Ok(Some(confirmed));
            }
            if *stopped.borrow() {
                let at = *leave_at.get_or_insert_with(|| Instant::now() + options.drain_timeout);
                if Instant::now() >= at {
                    return Ok(None);
                }
            }
            let error = match self.commit(batch, splitter, &sending, state).await? {
                Ok(()) => {
                    confirmed += sending.len() as u64;
                    splitter.confirm(&sending);
                    state.events_max = splitter.events_max();
                    pause = options.pause.first;
                    continue;
                }
                Err(Failed::Restart) => return Ok(None),
                Err(Failed::NotPublished(error)) => error,
            };
            if error.refused_event().is_some_and(|event| splitter.refuse(&sending, event, &error)) {
                continue;
            }
            tracing::warn!(%error, events = sending.len(), "a transaction failed; nothing of it was published");
            // An empty transaction shows whether the events are to blame or the sink.
            let again = match self.commit(batch, splitter, &[], state).await? {
                Ok(()) => splitter.blame(&sending, &error),
                Err(Failed::Restart) => return Ok(None),
                Err(Failed::NotPublished(_)) => true,
            };
            if again {
                if self.pause(pause, &mut stopped, leave_at.is_some()).await?.is_none() {
                    return Ok(None);
                }
                pause = options.next_pause(pause);
            }
        }
    }

    /// Resolves a doubt, now that the sink was taken over again: an event that was not published has failed. `None`:
    /// start over.
    async fn resolve_doubt(
        &mut self,
        batch: &Batch,
        splitter: &mut TransactionSplitter<'_>,
        state: &mut SinkState,
    ) -> Result<Option<()>, RelayError> {
        let (next, doubt) = (splitter.next().first().copied(), &mut state.unfinished(&batch.position).doubt);
        // The event was published after all.
        doubt.take_if(|doubt| Some(doubt.at) != next);
        let Some(Doubt { at, times, error, .. }) = doubt else { return Ok(Some(())) };
        let (at, times, error) = (*at, *times, error.clone());
        Ok(match self.commit(batch, splitter, &[], state).await? {
            Ok(()) => {
                splitter.was_in_doubt(times - 1);
                splitter.blame(&[at], &error);
                Some(())
            }
            Err(Failed::Restart) => None,
            Err(Failed::NotPublished(_)) => Some(()),
        })
    }

    /// Commits one transaction: these events, and a checkpoint that names the others as left out.
    async fn commit(
        &mut self,
        batch: &Batch,
        splitter: &TransactionSplitter<'_>,
        sending: &[usize],
        state: &mut SinkState,
    ) -> Result<Result<(), Failed>, RelayError> {
        if !self.source.holds_lease() {
            return Ok(Err(Failed::Restart));
        }
        let checkpoint =
            SinkCheckpoint { position: batch.position.clone(), left_out: splitter.left_out(sending) };
        let position = checkpoint.to_bytes().ok_or_else(|| {
            let left = checkpoint.left_out.len();
            RelayError::Position(format!(
                "{left} events of one batch are left out, but a checkpoint holds at most {LEFT_OUT_MAX}; lower the \
                 outbox reader's batch_max, and let an at-least-once relay publish the current batch"
            ))
        })?;
        let events = sending.iter().filter_map(|at| batch.events.get(*at));
        let events: Vec<_> = events.map(|pending| pending.event.clone()).collect();
        let (spans, began) = (spans(&events), Instant::now());
        self.observe(RelayMetrics::call_begins);
        crash::point(crash::BEFORE_PUBLISH);
        let Self { source, sink, observer, .. } = self;
        let answer = while_renewing(source, observer.as_ref(), sink.publish_at(&events, &position)).await;
        crash::point(crash::AFTER_PUBLISH);
        let result = answer.as_ref().ok().and_then(Option::as_ref).map(|answer| answer.as_ref().err());
        if let Some(error) = result {
            let outcome = if error.is_some() { "failed" } else { "confirmed" };
            spans.iter().for_each(|span| record(span, outcome, error));
        }
        self.record_call(began, events.len(), result);
        match answer? {
            Some(Ok(())) => {
                (state.known, state.works) = (Some(Some(checkpoint)), true);
                Ok(Ok(()))
            }
            Some(Err(error)) if error.is_fenced() => Err(RelayError::Fenced(error)),
            Some(Err(error)) if error.is_maybe_published() => {
                tracing::warn!(%error, "a transaction is in doubt; will ask the sink for its checkpoint");
                // The transaction may have been too large for the timeout.
                if !sending.is_empty() {
                    state.events_max = (sending.len() / 2).max(1);
                }
                if let [at] = *sending
                    && let Some(event) = batch.events.get(at).map(|pending| Arc::clone(&pending.event))
                {
                    let doubt = &mut state.unfinished(&batch.position).doubt;
                    let before = doubt.as_ref().filter(|doubt| doubt.at == at).map_or(0, |doubt| doubt.times);
                    *doubt = Some(Doubt { at, event, times: before.saturating_add(1), error });
                }
                Ok(Err(Failed::Restart))
            }
            Some(Err(error)) => Ok(Err(Failed::NotPublished(error))),
            None => Ok(Err(Failed::Restart)),
        }
    }

    /// Counts one call to the sink. `None`: the call was abandoned.
    fn record_call(&self, began: Instant, events: usize, result: Option<Option<&SinkError>>) {
        self.observe(|metrics| match result {
            Some(error) => metrics.transaction_ends(began.elapsed(), events, error),
            None => metrics.call_left(),
        });
    }
}

fn read(position: &[u8]) -> Result<SinkCheckpoint, RelayError> {
    SinkCheckpoint::from_bytes(position).ok_or_else(|| {
        let start = String::from_utf8_lossy(position.get(..60).unwrap_or(position)).into_owned();
        RelayError::Position(format!(
            "{start:?} was not written by this version of the relay or one it can read; check what else uses its \
             transactional id, or give the relay its own: it then continues from the outbox's cursor"
        ))
    })
}
