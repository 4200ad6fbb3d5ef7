//! The loop for a sink that keeps the position beside the events: batch, transaction, done, and again.
//!
//! ```text
//!  take all of the source ─▶ begin: fence, then the position ─▶ resume ─▶ batch ─▶ events and position ─▶ done
//!            ▲                                                                              │
//!            └──────────────── lost, or nobody knows what was published ◀───────────────────┘
//! ```
//!
//! **Only the batch of the position can be published and not done.** The next one is published after the last is done,
//! and a source gives the position's batch before any other. So whoever comes compares one position and knows.
//!
//! **The source is taken before the sink.** Begun first, a relay that stands by would fence the one that works, and that
//! one the next. Taken first, it waits until the lease is its own, and then its `begin` ends whatever the last owner
//! may still have under way: committed before, it is seen in the position; not committed, it never is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;

use super::checkpoint::LEFT_OUT_MAX;
use super::metrics::RelayMetrics;
use super::outbox_reader::{Batch, OutboxReader, OutboxReaderError, Position, SinkCheckpoint};
use super::run::{Relay, RelayError, RelayStats, grown, keeping, record, spans, wait, within};
use super::transaction_split::{GivenUp, TransactionSplitter};
use crate::crash;
use crate::observe::names;
use crate::outbox::Event;
use crate::sink::{ExactlyOnce, SinkError};

/// What the relay knows of the sink.
struct SinkState {
    /// How far it has come; nobody but us can change it. `None`: it has to be asked.
    known: Option<Option<SinkCheckpoint>>,
    /// Most events of the next transaction.
    most: usize,
    /// It was left while it was taken over, and may be about it still.
    begins: bool,
    /// It took something, or was seen to work, since the relay last paused: the next pause is a short one.
    works: bool,
    /// Batches that were left when the sink had to be asked. The last at the end.
    unfinished: Vec<Unfinished>,
}

/// Most of them. The batch that the sink has had last comes between, so there are two; others are of lost sources.
const UNFINISHED_MAX: usize = 8;

/// What was found out about the events of a batch before the sink had to be asked what it has.
struct Unfinished {
    position: Position,
    given_up: Vec<GivenUp>,
    doubt: Option<Doubt>,
}

/// A transaction of one event that ended in doubt. Once the sink is taken over again it is known what became of it, and one
/// that was not published has failed: a destination that never answers is found out like one that says no.
struct Doubt {
    /// Its place in the batch.
    at: usize,
    event: Arc<Event>,
    /// How often in a row.
    times: u32,
    error: SinkError,
}

impl SinkState {
    /// What is known of a batch from before.
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

    /// What is known of these events from before is out of date, also where it was found out in another batch: else one that
    /// was parked and is due again would be judged by a doubt of long ago, without being tried.
    fn settled(&mut self, batch: &Batch) {
        self.unfinished.retain(|one| one.position != batch.position);
        // Two events may share an id, each on a topic of its own.
        let name = |event: &Event| (event.id(), event.topic().to_owned());
        let events: HashSet<_> = batch.events.iter().map(|pending| name(&pending.event)).collect();
        for one in &mut self.unfinished {
            one.given_up.retain(|given_up| !events.contains(&name(given_up.event())));
            one.doubt.take_if(|doubt| events.contains(&name(&doubt.event)));
        }
    }
}

/// What taking the sink over brought.
enum Begun {
    /// It is ours, and this is how far it has come.
    At(Option<SinkCheckpoint>),
    /// It did not work.
    No,
    /// It was stopped before its end.
    Left,
}

/// What a turn brought.
enum Turn {
    /// Another has the source.
    Standby,
    Idle,
    Done,
    /// From the start: the source was lost, or nobody knows what the sink has.
    Again,
}

/// What a transaction brought that was not committed.
enum Failed {
    /// From the start.
    Again,
    /// Nothing of it was published.
    No(SinkError),
}

impl<S: OutboxReader, K: ExactlyOnce> Relay<S, K> {
    /// As [`run`](Relay::run), with a sink that keeps the position in one transaction with the events: readers of
    /// committed data see each event once, whatever dies on the way.
    ///
    /// One relay works at a time. Others of the same outbox and with the same name in the sink stand by, and one takes
    /// over when the lease is lost. A relay that was replaced and notices by its own clock stands by; one that the sink
    /// has to tell ends with [`RelayError::Fenced`].
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
        let mut sea =
            SinkState { known: None, most: usize::MAX, begins: false, works: false, unfinished: Vec::new() };
        let (mut idle, mut pause) = (self.options.probe.0, self.options.pause.0);
        self.check_promise_first().await;
        while !*stopped.borrow() {
            self.sample_if_due().await;
            let turn = self.turn(&mut sea, &mut ended).await;
            self.observe(|metrics| match &turn {
                Ok(Turn::Idle | Turn::Standby | Turn::Done) => {
                    metrics.source_answered();
                    metrics.succeeded();
                }
                Err(RelayError::Outbox(error)) => metrics.source_failed(error),
                Ok(Turn::Again) | Err(_) => {}
            });
            match turn {
                Ok(Turn::Done) => {
                    (idle, pause) = (self.options.probe.0, self.options.pause.0);
                    self.prune_if_due().await;
                }
                Ok(turn @ (Turn::Idle | Turn::Standby)) => {
                    if matches!(turn, Turn::Idle) {
                        self.check_promise_if_due().await;
                        self.prune_if_due().await;
                    }
                    self.rest(idle, &mut stopped).await;
                    idle = (idle * 2).min(self.options.probe.1);
                }
                Ok(Turn::Again) => {
                    sea.known = None;
                    if std::mem::take(&mut sea.works) {
                        pause = self.options.pause.0;
                    }
                    // Lost meanwhile, it is asked for again; not at once, as below.
                    if self.keeping(within(pause, wait(&mut stopped))).await?.is_none() {
                        within(self.options.pause.0, wait(&mut stopped)).await;
                    }
                    pause = grown(pause, &self.options);
                }
                Err(RelayError::Outbox(error)) if error.may_retry() => {
                    tracing::warn!(%error, "the relay's source failed; trying again");
                    sea.known = None;
                    within(pause, wait(&mut stopped)).await;
                    pause = grown(pause, &self.options);
                }
                Err(error) => {
                    tracing::error!(%error, "the relay stops");
                    let _ = self.release().await;
                    return Err(error);
                }
            }
        }
        // Given back now, it would be taken by another, whom the one that was left in the middle might still fence.
        if sea.begins {
            tracing::warn!("stopped while the sink was taken over; another goes on when the lease is over");
        } else if let Err(error) = self.release().await {
            tracing::warn!(%error, "the source was not given back; another takes it when the lease is over");
        }
        Ok(ended)
    }

    async fn turn(&mut self, sea: &mut SinkState, ended: &mut RelayStats) -> Result<Turn, RelayError> {
        if sea.known.is_none() {
            if !Box::pin(self.source.acquire_exclusive()).await? {
                sea.unfinished.clear();
                return Ok(Turn::Standby);
            }
            match self.begin().await? {
                Begun::At(reached) => sea.known = Some(reached),
                Begun::No => return Ok(Turn::Again),
                Begun::Left => {
                    sea.begins = true;
                    return Ok(Turn::Again);
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
                let sent = self.send_at(&batch, sea, ended).instrument(span).await;
                self.observe(RelayMetrics::batch_ends);
                sent
            }
            None => Ok(Turn::Idle),
        }
    }

    /// Takes the sink over and tells the source how far it has come.
    async fn begin(&mut self) -> Result<Begun, RelayError> {
        if !self.source.holds_lease() {
            return Ok(Begun::No);
        }
        crash::point(crash::BEFORE_BEGIN);
        let began = Instant::now();
        self.observe(RelayMetrics::call_begins);
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, .. } = self;
        // A broker that is away is not waited for when it is to stop.
        let begun = async {
            tokio::select! {
                biased;
                begun = sink.begin() => Some(begun),
                () = wait(&mut stopped) => None,
            }
        };
        let begun = keeping(source, observer.as_ref(), begun).await;
        let told = begun.as_ref().ok().and_then(Option::as_ref).and_then(Option::as_ref);
        self.tell_call(began, 0, told.map(|begun| begun.as_ref().err()));
        let position = match begun? {
            None => return Ok(Begun::No),
            Some(None) => return Ok(Begun::Left),
            Some(Some(Ok(position))) => position,
            Some(Some(Err(error))) if error.is_fenced() => return Err(RelayError::Fenced(error)),
            Some(Some(Err(error))) => {
                tracing::warn!(%error, "the sink could not be taken over; trying again");
                return Ok(Begun::No);
            }
        };
        crash::point(crash::AFTER_BEGIN);
        // It may have taken long. What was read of the source before is another's to go on with, and then the position
        // may be too.
        if !self.source.holds_lease() {
            return Ok(Begun::No);
        }
        let reached = position.as_deref().map(read).transpose()?;
        match Box::pin(self.source.resume(reached.as_ref())).await {
            Ok(()) => Ok(Begun::At(reached)),
            Err(OutboxReaderError::OutboxLineage { stored, found }) => {
                Err(RelayError::OtherOutbox { stored, found })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes a batch, all of it at once where that is possible, until each of its events is confirmed or set aside.
    async fn send_at(
        &mut self,
        batch: &Batch,
        sea: &mut SinkState,
        ended: &mut RelayStats,
    ) -> Result<Turn, RelayError> {
        let reached = sea.known.as_ref().and_then(Option::as_ref);
        let (found, stored) = (&batch.position.lineage, reached.map(|reached| &reached.position.lineage));
        if let Some(stored) = stored.filter(|stored| !stored.matches(found)) {
            return Err(RelayError::OtherOutbox { stored: stored.clone(), found: found.clone() });
        }
        let options = self.options.clone();
        let mut parts = TransactionSplitter::new(batch, reached, sea.most, &options);
        parts.give_up_again(std::mem::take(&mut sea.unfinished(&batch.position).given_up));
        let Some(confirmed) = self.send_parts(batch, &mut parts, sea).await? else {
            sea.unfinished(&batch.position).given_up = parts.given_up();
            return Ok(Turn::Again);
        };
        sea.settled(batch);
        let settled = parts.settled();
        crash::point(crash::BEFORE_DONE);
        Box::pin(self.source.ack(&settled)).await?;
        crash::point(crash::AFTER_DONE);
        self.observe(|metrics| metrics.settled(&settled));
        ended.confirmed += confirmed;
        ended.parked += settled.iter().filter(|one| **one != super::Settled::Confirmed).count() as u64;
        ended.batches += 1;
        Ok(Turn::Done)
    }

    /// Transaction by transaction. Returns how many were confirmed. `None`: from the start.
    async fn send_parts(
        &mut self,
        batch: &Batch,
        parts: &mut TransactionSplitter<'_>,
        sea: &mut SinkState,
    ) -> Result<Option<u64>, RelayError> {
        let options = self.options.clone();
        let (mut confirmed, mut leave_at) = (0, None);
        let (mut stopped, mut pause) = (self.stop.subscribe(), options.pause.0);
        if self.judge_doubt(batch, parts, sea).await?.is_none() {
            return Ok(None);
        }
        loop {
            let sending = parts.next();
            if sending.is_empty() {
                return Ok(Some(confirmed));
            }
            if *stopped.borrow() {
                let at = *leave_at.get_or_insert_with(|| Instant::now() + options.drain_timeout);
                if Instant::now() >= at {
                    return Ok(None);
                }
            }
            let error = match self.commit(batch, parts, &sending, sea).await? {
                Ok(()) => {
                    confirmed += sending.len() as u64;
                    parts.confirm(&sending);
                    sea.most = parts.most();
                    pause = options.pause.0;
                    continue;
                }
                Err(Failed::Again) => return Ok(None),
                Err(Failed::No(error)) => error,
            };
            if error.refused_event().is_some_and(|event| parts.refuse(&sending, event, &error)) {
                continue;
            }
            tracing::warn!(%error, events = sending.len(), "a transaction failed");
            // Is it the events, or the sink? One without events tells.
            let again = match self.commit(batch, parts, &[], sea).await? {
                Ok(()) => parts.blame(&sending, &error),
                Err(Failed::Again) => return Ok(None),
                Err(Failed::No(_)) => true,
            };
            if again {
                if self.pause(pause, &mut stopped, leave_at.is_some()).await?.is_none() {
                    return Ok(None);
                }
                pause = grown(pause, &options);
            }
        }
    }

    /// The sink has been taken over since a transaction of one event was in doubt: if the event is not published, that was a
    /// failure like any other. `None`: from the start.
    async fn judge_doubt(
        &mut self,
        batch: &Batch,
        parts: &mut TransactionSplitter<'_>,
        sea: &mut SinkState,
    ) -> Result<Option<()>, RelayError> {
        let (next, doubt) = (parts.next().first().copied(), &mut sea.unfinished(&batch.position).doubt);
        // Published after all.
        doubt.take_if(|doubt| Some(doubt.at) != next);
        let Some(Doubt { at, times, error, .. }) = doubt else { return Ok(Some(())) };
        let (at, times, error) = (*at, *times, error.clone());
        Ok(match self.commit(batch, parts, &[], sea).await? {
            Ok(()) => {
                parts.was_in_doubt(times - 1);
                parts.blame(&[at], &error);
                Some(())
            }
            Err(Failed::Again) => None,
            Err(Failed::No(_)) => Some(()),
        })
    }

    /// One transaction: these events, and the position that leaves out the others.
    async fn commit(
        &mut self,
        batch: &Batch,
        parts: &TransactionSplitter<'_>,
        sending: &[usize],
        sea: &mut SinkState,
    ) -> Result<Result<(), Failed>, RelayError> {
        if !self.source.holds_lease() {
            return Ok(Err(Failed::Again));
        }
        let reached = SinkCheckpoint { position: batch.position.clone(), left_out: parts.left_out(sending) };
        let position = reached.to_bytes().ok_or_else(|| {
            let left = reached.left_out.len();
            RelayError::Position(format!(
                "{left} events of a batch are left out, and {LEFT_OUT_MAX} can be named; lower the source's batch_max, and \
                 let a relay that runs at least once publish what is under way"
            ))
        })?;
        let events = sending.iter().filter_map(|at| batch.events.get(*at));
        let events: Vec<_> = events.map(|pending| pending.event.clone()).collect();
        let (spans, began) = (spans(&events), Instant::now());
        self.observe(RelayMetrics::call_begins);
        crash::point(crash::BEFORE_PUBLISH);
        let Self { source, sink, observer, .. } = self;
        let answer = keeping(source, observer.as_ref(), sink.publish_at(&events, &position)).await;
        crash::point(crash::AFTER_PUBLISH);
        let told = answer.as_ref().ok().and_then(Option::as_ref).map(|answer| answer.as_ref().err());
        if let Some(error) = told {
            let outcome = if error.is_some() { "failed" } else { "confirmed" };
            spans.iter().for_each(|span| record(span, outcome, error));
        }
        self.tell_call(began, events.len(), told);
        match answer? {
            Some(Ok(())) => {
                (sea.known, sea.works) = (Some(Some(reached)), true);
                Ok(Ok(()))
            }
            Some(Err(error)) if error.is_fenced() => Err(RelayError::Fenced(error)),
            Some(Err(error)) if error.is_maybe_published() => {
                tracing::warn!(%error, "it is in doubt what the sink has; it is asked");
                // It may have been too much for the time there is.
                if !sending.is_empty() {
                    sea.most = (sending.len() / 2).max(1);
                }
                if let [at] = *sending
                    && let Some(event) = batch.events.get(at).map(|pending| Arc::clone(&pending.event))
                {
                    let doubt = &mut sea.unfinished(&batch.position).doubt;
                    let before = doubt.as_ref().filter(|doubt| doubt.at == at).map_or(0, |doubt| doubt.times);
                    *doubt = Some(Doubt { at, event, times: before.saturating_add(1), error });
                }
                Ok(Err(Failed::Again))
            }
            Some(Err(error)) => Ok(Err(Failed::No(error))),
            None => Ok(Err(Failed::Again)),
        }
    }

    /// What the sink said to one call: `None` if it was left before its end.
    fn tell_call(&self, began: Instant, events: usize, told: Option<Option<&SinkError>>) {
        self.observe(|metrics| match told {
            Some(error) => metrics.transaction_ends(began.elapsed(), events, error),
            None => metrics.call_left(),
        });
    }

    /// Waits while the source is kept. A stop ends it, unless it is known already. `None`: the source was lost.
    async fn pause(
        &mut self,
        pause: Duration,
        stopped: &mut tokio::sync::watch::Receiver<bool>,
        stopping: bool,
    ) -> Result<Option<()>, RelayError> {
        let rest = within(pause, async {
            if stopping { std::future::pending().await } else { wait(stopped).await }
        });
        self.keeping(rest).await
    }
}

fn read(position: &[u8]) -> Result<SinkCheckpoint, RelayError> {
    SinkCheckpoint::from_bytes(position).ok_or_else(|| {
        let start = String::from_utf8_lossy(position.get(..60).unwrap_or(position)).into_owned();
        RelayError::Position(format!(
            "{start:?} was not written by this relay or by a version that it knows; find out who else uses its \
             transactional id, or give it one of its own: it goes on where the outbox's own cursor is"
        ))
    })
}
