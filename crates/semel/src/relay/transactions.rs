//! Publishes exactly once, for a sink that stores its checkpoint beside the events: one transaction for a batch, or
//! several if the sink rejects an event of it.
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

use super::checkpoint::LEFT_OUT_MAX;
use super::metrics::RelayMetrics;
use super::observer::{record, spans};
use super::outbox_reader::{Batch, OutboxReader, OutboxReaderError, Position, Settled, SinkCheckpoint};
use super::publish::{Attempts, Publish, Step, call};
use super::run::{Relay, RelayError, RelayStats};
use super::sink_state::{Doubt, SinkState};
use super::transaction_split::TransactionSplitter;
use crate::crash;
use crate::sink::{ExactlyOnce, SinkError};
use crate::stop::asked_to_stop;

impl<S: OutboxReader, K: ExactlyOnce> Relay<S, K> {
    /// Like [`run`](Relay::run), but the sink commits its checkpoint in one transaction with the events: readers of
    /// committed data see each event once, whichever process crashes in between.
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
    pub async fn run_exactly_once(self) -> Result<RelayStats, RelayError> {
        Box::pin(self.run_with(SinkState::default())).await
    }

    /// Takes over the sink, and resumes the outbox from the sink's checkpoint. `false`: start over.
    async fn take_over_sink(&mut self, state: &mut SinkState) -> Result<bool, RelayError> {
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, .. } = self;
        // A stop does not wait for a broker that is down.
        let begun = async {
            state.taking_over = true;
            tokio::select! {
                biased;
                begun = sink.begin() => Some(begun),
                () = asked_to_stop(&mut stopped) => None,
            }
        };
        let called = call(source, observer.as_ref(), crash::BEFORE_BEGIN, begun).await?;
        let Some((begun, took)) = called else { return Ok(false) };
        self.observe(|metrics| metrics.transaction_ends(took, 0, begun.as_ref().err()));
        state.taking_over = false;
        let position = match begun {
            Ok(position) => position,
            Err(error) if error.is_fenced() => return Err(RelayError::Fenced(error)),
            Err(error) => {
                tracing::warn!(%error, "failed to take over the sink; will retry");
                return Ok(false);
            }
        };
        crash::point(crash::AFTER_BEGIN);
        // If the lease was lost meanwhile, another relay may have continued, and the checkpoint may be stale.
        if !self.source.holds_lease() {
            return Ok(false);
        }
        let checkpoint = position.as_deref().map(read).transpose()?;
        Box::pin(self.source.resume(checkpoint.as_ref())).await.map_err(|error| match error {
            OutboxReaderError::OutboxLineage { stored, found } => RelayError::OtherOutbox { stored, found },
            error => error.into(),
        })?;
        state.found(checkpoint);
        Ok(true)
    }

    /// Publishes transaction by transaction until all events are settled. `false`: start over.
    async fn send_transactions(
        &mut self,
        batch: &Batch,
        splitter: &mut TransactionSplitter<'_>,
        state: &mut SinkState,
    ) -> Result<bool, RelayError> {
        if !self.resolve_doubt(batch, splitter, state).await? {
            return Ok(false);
        }
        let mut attempts = Attempts::new(self);
        loop {
            let sending = splitter.next();
            if sending.is_empty() || attempts.are_over() {
                return Ok(sending.is_empty());
            }
            let Some(committed) = self.commit(batch, splitter, &sending, state).await? else {
                return Ok(false);
            };
            let Err(error) = committed else {
                splitter.confirm(&sending);
                state.events_max = splitter.events_max();
                attempts.delay.reset();
                continue;
            };
            if error.refused_event().is_some_and(|event| splitter.refuse(&sending, event, &error)) {
                continue;
            }
            tracing::warn!(%error, events = sending.len(), "a transaction failed; nothing of it was published");
            // An empty transaction shows whether the events are to blame or the sink.
            let Some(empty) = self.commit(batch, splitter, &[], state).await? else { return Ok(false) };
            let is_retried = empty.is_err() || splitter.blame(&sending, &error);
            if is_retried && !attempts.back_off(self).await? {
                return Ok(false);
            }
        }
    }

    /// Resolves a doubt, now that the sink was taken over again: an event that was not published has failed. `false`:
    /// start over.
    async fn resolve_doubt(
        &mut self,
        batch: &Batch,
        splitter: &mut TransactionSplitter<'_>,
        state: &mut SinkState,
    ) -> Result<bool, RelayError> {
        let (next, doubt) = (splitter.next().first().copied(), &mut state.unfinished(&batch.position).doubt);
        // The event was published after all.
        doubt.take_if(|doubt| Some(doubt.at) != next);
        let Some(Doubt { at, times, error, .. }) = doubt else { return Ok(true) };
        let (at, times, error) = (*at, *times, error.clone());
        let Some(empty) = self.commit(batch, splitter, &[], state).await? else { return Ok(false) };
        if empty.is_ok() {
            splitter.was_in_doubt(times - 1);
            splitter.blame(&[at], &error);
        }
        Ok(true)
    }

    /// Commits one transaction: these events, and a checkpoint that names the others as left out. An error: nothing of
    /// it was published. `None`: start over, because the lease was lost, or it is in doubt what was published.
    async fn commit(
        &mut self,
        batch: &Batch,
        splitter: &TransactionSplitter<'_>,
        sending: &[usize],
        state: &mut SinkState,
    ) -> Result<Option<Result<(), SinkError>>, RelayError> {
        let checkpoint =
            SinkCheckpoint { position: batch.position.clone(), left_out: splitter.left_out(sending) };
        let position = checkpoint.to_bytes().ok_or_else(|| {
            let left = checkpoint.left_out.len();
            RelayError::Position(format!(
                "{left} events of one batch are left out, but a checkpoint holds at most {LEFT_OUT_MAX}; lower the \
                 outbox reader's batch_max, and let an at-least-once relay publish the current batch"
            ))
        })?;
        let events = batch.events_at(sending);
        let spans = spans(&events);
        let Self { source, sink, observer, .. } = self;
        let committed = async { Some(sink.publish_at(&events, &position).await) };
        let called = call(source, observer.as_ref(), crash::BEFORE_PUBLISH, committed).await?;
        let Some((committed, took)) = called else { return Ok(None) };
        crash::point(crash::AFTER_PUBLISH);
        let (error, outcome) =
            (committed.as_ref().err(), if committed.is_ok() { "confirmed" } else { "failed" });
        spans.iter().for_each(|span| record(span, outcome, error));
        self.observe(|metrics| metrics.transaction_ends(took, events.len(), error));
        match committed {
            Ok(()) => state.committed(checkpoint),
            Err(error) if error.is_fenced() => return Err(RelayError::Fenced(error)),
            Err(error) if error.is_maybe_published() => {
                tracing::warn!(%error, "a transaction is in doubt; will ask the sink for its checkpoint");
                state.in_doubt(batch, sending, error);
                return Ok(None);
            }
            Err(error) => return Ok(Some(Err(error))),
        }
        Ok(Some(Ok(())))
    }
}

impl<S: OutboxReader, K: ExactlyOnce> Publish<S, K> for SinkState {
    /// Leases the outbox and takes over the sink, if the checkpoint is not known.
    async fn prepare(&mut self, relay: &mut Relay<S, K>) -> Result<Option<Step>, RelayError> {
        if self.known.is_some() {
            return Ok(None);
        }
        let leased = Box::pin(relay.source.acquire_exclusive()).await?;
        relay.observe(RelayMetrics::source_answered);
        if !leased {
            self.taking_over = false;
            self.unfinished.clear();
            return Ok(Some(Step::Standby));
        }
        Ok(if relay.take_over_sink(self).await? { None } else { Some(Step::Restart) })
    }

    /// Publishes a batch, in one transaction if possible.
    async fn publish(
        &mut self,
        relay: &mut Relay<S, K>,
        batch: &Batch,
    ) -> Result<Option<Vec<Settled>>, RelayError> {
        let (checkpoint, found) = (self.known.as_ref().and_then(Option::as_ref), &batch.position.lineage);
        if let Some(SinkCheckpoint { position: Position { lineage: stored, .. }, .. }) = checkpoint
            && !stored.matches(found)
        {
            return Err(RelayError::OtherOutbox { stored: stored.clone(), found: found.clone() });
        }
        let mut splitter = TransactionSplitter::new(batch, checkpoint, self.events_max, &relay.options);
        splitter.give_up_again(std::mem::take(&mut self.unfinished(&batch.position).given_up));
        if !relay.send_transactions(batch, &mut splitter, self).await? {
            self.unfinished(&batch.position).given_up = splitter.given_up();
            return Ok(None);
        }
        self.settled(batch);
        crash::point(crash::BEFORE_DONE);
        Ok(Some(splitter.settled()))
    }

    /// To start over, the checkpoint has to be read. An idle outbox shows nothing while a batch is half published.
    fn ended(&mut self, step: &Result<Step, RelayError>) -> bool {
        match step {
            Ok(Step::Done) => true,
            Ok(Step::Idle | Step::Standby) => self.unfinished.is_empty(),
            Ok(Step::Restart) | Err(_) => {
                self.forget();
                std::mem::take(&mut self.works)
            }
        }
    }

    /// After a release another relay starts at once, and the abandoned take-over might fence it.
    fn may_release(&self) -> bool {
        !self.taking_over
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
