//! The loop: fill the buffer, transform, commit, repeat.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;
use tokio::sync::{oneshot, watch};

use super::adaptive_batch::{AdaptiveBatch, Next};
use super::message::{Input, Output};
use super::options::PipelineOptions;
use super::reader::Full;
use super::startup::{self, Open};
use super::transaction::{Engine, Transacted};
use super::transform::Transform;
use crate::broker::kafka::producer::KafkaProducer;
use crate::broker::kafka::sink::KafkaOptions;
use crate::broker::kafka::source::{KafkaSourceOptions, shutdown};
use crate::crash;
use crate::inbox::consumer::call::{Called, call};
use crate::inbox::consumer::{ConsumerStopHandle, HandlerError};
use crate::sink::SinkError;
use crate::source::SourceError;
use crate::stop::{self, asked_to_stop};

/// How long to wait for messages in one turn, when there is nothing else to do.
const IDLE: Duration = Duration::from_secs(1);
/// Most outputs of one batch.
pub const OUTPUTS_MAX: usize = 1_000_000;

/// Transforms messages from Kafka to Kafka, exactly once, until it is stopped. See the [module](super).
pub struct Pipeline<T> {
    source: KafkaSourceOptions,
    sink: KafkaOptions,
    ids: [String; 2],
    transform: Arc<T>,
    options: PipelineOptions,
    stop: watch::Sender<bool>,
    engine: Open,
    batch: AdaptiveBatch,
    /// The next messages were already received during the last transaction (prefetch).
    filled: bool,
    dead_in_a_row: u32,
    stats: PipelineStats,
}

/// What a pipeline did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PipelineStats {
    /// Messages committed, dead letters included.
    pub messages: u64,
    /// Outputs committed, dead letters included.
    pub outputs: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Transactions that were aborted, or in doubt for a while.
    pub aborted: u64,
    /// Messages in the dead-letter topic.
    pub dead_letters: u64,
}

/// Why a pipeline stopped by itself. Messages that were not committed are redelivered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// Its configuration is invalid.
    #[error("the pipeline cannot be set up: {0}")]
    Setup(String),
    /// A poison message, and no dead-letter topic is configured.
    #[error(
        "the message at {place} cannot be transformed: {error}; fix the transform and restart, or configure a \
         dead-letter topic"
    )]
    Poison {
        /// `topic/partition/offset`.
        place: String,
        /// What went wrong the last time.
        error: String,
    },
    /// So many messages in a row became dead letters that the transform must be at fault.
    #[error(
        "{in_a_row} messages in a row could not be transformed, so the transform is at fault: {error}; fix it, \
         publish the dead letters again, and restart at {place}"
    )]
    AllFail {
        /// How many.
        in_a_row: u32,
        /// The next one: `topic/partition/offset`.
        place: String,
        /// What went wrong the last time.
        error: String,
    },
    /// Another process runs under the same instance name, or this one stalled for longer than its transaction timeout.
    #[error("{0}; give every process its own instance name, and restart this one")]
    Fenced(String),
    /// The source failed for good.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// What to do after a turn.
enum Turn {
    /// A transaction was committed. Continue at once.
    Well,
    /// Nothing was committed. Continue at once.
    On,
    /// Continue after a pause.
    Later,
}

/// The result of one call of the transform.
enum Made {
    Outputs(Vec<Output>),
    Failed(HandlerError),
    /// A partition was revoked, or the pipeline stops.
    Dropped,
}

impl<T: Transform> Pipeline<T> {
    /// A pipeline that is not running yet. The broker need not be reachable. Of the sink's options, those about exactly
    /// once apply: timeouts, sizes, compression.
    ///
    /// # Errors
    /// If there is no group or no topic, or librdkafka does not accept a property.
    pub fn new(
        source: KafkaSourceOptions,
        sink: KafkaOptions,
        transform: T,
        options: PipelineOptions,
    ) -> Result<Self, PipelineError> {
        let setup = |error: &dyn std::fmt::Display| PipelineError::Setup(error.to_string());
        source.check().map_err(|error| setup(&error))?;
        let name = match options.instance.as_deref() {
            Some(name) if name.trim().is_empty() => return Err(setup(&"the instance name is empty")),
            Some(name) => name.to_owned(),
            None => uuid::Uuid::now_v7().to_string(),
        };
        let ids = transactional_ids(&source.group, &name);
        // Opened once, so that a configuration error shows up here.
        drop(KafkaProducer::open(&sink.transactional(&ids[0])).map_err(|error| setup(&error))?);
        let consumer: BaseConsumer = source.consumer().create().map_err(|error| setup(&error))?;
        shutdown::on_own_thread(move || drop(consumer));
        let (stop, _) = watch::channel(false);
        Ok(Self {
            batch: AdaptiveBatch::new(options.batch_max, options.attempts_max),
            transform: Arc::new(transform),
            engine: Open::default(),
            filled: false,
            dead_in_a_row: 0,
            stats: PipelineStats::default(),
            source,
            sink,
            ids,
            options,
            stop,
        })
    }

    /// A handle that stops it (drain): the batch being transformed is committed if it does not take too long
    /// ([`PipelineOptions::drain_timeout`]). It does not wait for a broker that is down, except for a transaction in
    /// flight: that may take the sink's [timeout](KafkaOptions::timeout), and ten seconds more to abort. Leaving the
    /// group takes at most the source's [timeout](KafkaSourceOptions::timeout).
    pub fn stop_handle(&self) -> ConsumerStopHandle {
        ConsumerStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped. Dropping the future is like a crash: messages that were not committed are redelivered.
    ///
    /// # Errors
    /// When a retry would not help. Messages that were not committed are redelivered.
    pub async fn run(mut self) -> Result<PipelineStats, PipelineError> {
        let mut stopped = self.stop.subscribe();
        let worked = self.work(&mut stopped).await;
        if let Err(error) = &worked {
            tracing::error!(%error, group = self.source.group, "the pipeline failed and stops");
        }
        self.leave().await;
        worked.map(|()| self.stats)
    }

    async fn work(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<(), PipelineError> {
        let mut pause = self.options.backoff.first;
        while !*stopped.borrow() {
            let turn = match self.turn(stopped).await {
                Err(PipelineError::Source(error)) if error.may_retry() => {
                    tracing::warn!(%error, group = self.source.group, "the source failed; will retry");
                    Turn::Later
                }
                turn => turn?,
            };
            match turn {
                Turn::Well => pause = self.options.backoff.first,
                Turn::On => {}
                Turn::Later => {
                    self.back_off(pause, stopped).await?;
                    pause = self.options.backoff.next(pause);
                }
            }
        }
        Ok(())
    }

    async fn turn(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<Turn, PipelineError> {
        let Some(engine) = self.begin(stopped).await else { return Ok(Turn::Later) };
        if engine.reader.polled().elapsed() >= self.source.keep_every() {
            tokio::select! {
                kept = self.heartbeat(&engine) => kept?,
                () = asked_to_stop(stopped) => return Ok(Turn::On),
            }
        }
        engine.reader.buffer().put_back();
        if !mem::take(&mut self.filled) {
            self.fill(&engine, self.batch.take(), stop::pause(IDLE, stopped)).await?;
        }
        let tried = engine.reader.buffer().begin(self.batch.take(), self.options.batch_bytes);
        if tried.is_empty() {
            return Ok(Turn::On);
        }
        crash::point(crash::BEFORE_TRANSFORM);
        let begun = Instant::now();
        let mut made = self.transformed(&engine, &tried, stopped).await?;
        let slowly = begun.elapsed() > self.options.transform_timeout / 4;
        crash::point(crash::AFTER_TRANSFORM);
        let mut dead = false;
        loop {
            let outputs = match made {
                Made::Outputs(outputs) => outputs,
                Made::Dropped => {
                    self.batch.others();
                    return Ok(Turn::On);
                }
                Made::Failed(failed) => match self.batch.failed(tried.len(), failed.kind()) {
                    Next::Blame => {
                        dead = true;
                        vec![self.dead_letter(&tried, &failed)?]
                    }
                    next => {
                        let (error, messages) = (failed.to_string(), tried.len());
                        tracing::warn!(error, messages, ?next, "failed to transform a batch; will retry");
                        return Ok(if next == Next::Retry { Turn::Later } else { Turn::On });
                    }
                },
            };
            let outputs = Arc::new(outputs);
            let ((transacted, took), filled) = self.transact(&engine, &tried, &outputs, stopped).await;
            if !matches!(transacted, Transacted::Committed) {
                self.stats.aborted += 1;
                if took >= self.sink.timeout {
                    self.batch.too_slow(tried.len());
                }
                match &filled {
                    Err(error) if !error.may_retry() => return Err(error.clone().into()),
                    Err(error) => {
                        tracing::warn!(%error, group = self.source.group, "the source failed; will retry")
                    }
                    Ok(()) => {}
                }
            }
            match transacted {
                Transacted::Committed => {
                    self.batch.succeeded(tried.len(), slowly || took > self.sink.timeout / 4);
                    self.committed(&tried, &outputs, dead);
                    filled?;
                    self.filled = true;
                    return Ok(Turn::Well);
                }
                Transacted::Refused(error) if !dead => made = Made::Failed(HandlerError::permanent(error)),
                Transacted::Refused(error) => {
                    return Err(PipelineError::Poison { place: tried[0].place(), error });
                }
                Transacted::Stale(error) => {
                    tracing::info!(
                        error,
                        group = self.source.group,
                        "partitions of a batch were revoked; the rest will be retried"
                    );
                    self.heartbeat(&engine).await?;
                    return Ok(Turn::Later);
                }
                Transacted::Aborted(error) | Transacted::Retry(error) => {
                    tracing::warn!(
                        error,
                        group = self.source.group,
                        "a Kafka transaction was aborted; will retry"
                    );
                    return Ok(Turn::Later);
                }
                Transacted::Lost(error) => {
                    // Dropping the last reference closes it, and that blocks.
                    drop(engine);
                    return self.lost(&error).await;
                }
            }
        }
    }

    fn committed(&mut self, tried: &[Input], outputs: &[Output], dead: bool) {
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        self.dead_in_a_row = if dead { self.dead_in_a_row.saturating_add(1) } else { 0 };
        self.stats.messages += count(tried.len());
        self.stats.outputs += count(outputs.len());
        self.stats.transactions += 1;
        self.stats.dead_letters += u64::from(dead);
    }

    /// The dead letter of the only message tried, or why the pipeline stops instead.
    fn dead_letter(&self, tried: &[Input], failed: &HandlerError) -> Result<Output, PipelineError> {
        let (place, error) = (tried[0].place(), failed.to_string());
        let Some(topic) = &self.options.dead_letters else {
            return Err(PipelineError::Poison { place, error });
        };
        if self.dead_in_a_row >= self.options.dead_letters_in_a_row_max {
            return Err(PipelineError::AllFail { in_a_row: self.dead_in_a_row, place, error });
        }
        tracing::warn!(error, place, "a message cannot be transformed; it goes to the dead-letter topic");
        Ok(Output::dead(&tried[0], topic, &error))
    }

    /// The engine. It is opened again after anything in doubt: that ends the open transaction, and the committed
    /// offsets say where to continue.
    async fn begin(&mut self, stopped: &mut watch::Receiver<bool>) -> Option<Arc<Engine>> {
        if self.engine.get().is_none() {
            let opening = startup::open(self.source.clone(), self.sink.clone(), self.ids.clone());
            let opened = tokio::select! {
                opened = opening => opened,
                () = asked_to_stop(stopped) => return None,
            };
            match opened {
                Ok(open) => self.engine = open,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        group = self.source.group,
                        "the pipeline cannot connect to Kafka; will retry"
                    )
                }
            }
        }
        self.engine.get().cloned()
    }

    async fn lost(&mut self, error: &SinkError) -> Result<Turn, PipelineError> {
        // No other process has a random name: the broker has timed out a transaction that took too long.
        if error.is_fenced() && self.options.instance.is_some() {
            return Err(PipelineError::Fenced(error.to_string()));
        }
        tracing::warn!(
            %error,
            group = self.source.group,
            "a Kafka transaction was lost; the pipeline starts over from the committed offsets"
        );
        self.leave().await;
        self.batch.others();
        Ok(Turn::Later)
    }

    /// Leaves the group, so that other members get the partitions. Does not wait for a broker that does not answer.
    async fn leave(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        if !shutdown::close(self.source.timeout, move || drop(engine)).await {
            tracing::warn!(
                group = self.source.group,
                "Kafka did not answer in time when leaving the consumer group"
            );
        }
    }

    /// Receives messages until there are enough for a batch, or until `enough` resolves.
    async fn fill(
        &self,
        engine: &Arc<Engine>,
        messages: usize,
        enough: impl Future<Output = ()>,
    ) -> Result<(), SourceError> {
        let PipelineOptions { batch_bytes: bytes, linger, .. } = self.options;
        let full = Full { messages, bytes, linger };
        let engine = Arc::clone(engine);
        // Dropping it ends the wait.
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let mut filling = std::pin::pin!(blocking(move || engine.reader.fill(full, &watched)));
        tokio::select! {
            filled = &mut filling => filled,
            // Still awaited: the group is left only when no one has the reader any more.
            () = enough => {
                drop(wanted);
                filling.await
            }
        }
    }

    async fn heartbeat(&self, engine: &Arc<Engine>) -> Result<(), SourceError> {
        let engine = Arc::clone(engine);
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        blocking(move || engine.reader.heartbeat(&watched)).await
    }

    /// Calls the transform, with heartbeats to the group meanwhile.
    async fn transformed(
        &self,
        engine: &Arc<Engine>,
        tried: &[Input],
        stopped: &watch::Receiver<bool>,
    ) -> Result<Made, SourceError> {
        let (transform, inputs) = (Arc::clone(&self.transform), tried.to_vec());
        let work = async move {
            let outputs = transform.transform(inputs).await?;
            match outputs.len() <= OUTPUTS_MAX {
                true => Ok(outputs),
                false => Err(HandlerError::retry(format!(
                    "the transform returned more than {OUTPUTS_MAX} outputs for one batch"
                ))),
            }
        };
        let mut over = std::pin::pin!(drain_timeout(stopped.clone(), self.options.drain_timeout));
        let mut calling = std::pin::pin!(call("the transform", work, self.options.transform_timeout));
        loop {
            tokio::select! {
                called = &mut calling => return Ok(match called {
                    Called::Done(outputs) => Made::Outputs(outputs),
                    Called::Failed(failed) | Called::Panicked(failed) | Called::TimedOut(failed) => {
                        Made::Failed(failed)
                    },
                }),
                () = &mut over => return Ok(Made::Dropped),
                () = tokio::time::sleep(self.source.keep_every()) => {
                    self.heartbeat(engine).await?;
                    if !engine.reader.buffer().is_whole() {
                        return Ok(Made::Dropped);
                    }
                }
            }
        }
    }

    /// Commits, and prefetches the next messages while waiting for the broker. Returns the result of the transaction,
    /// how long it took, and the result of the prefetch.
    async fn transact(
        &self,
        engine: &Arc<Engine>,
        tried: &Arc<[Input]>,
        outputs: &Arc<Vec<Output>>,
        stopped: &mut watch::Receiver<bool>,
    ) -> ((Transacted, Duration), Result<(), SourceError>) {
        let (over, is_committed) = oneshot::channel();
        let (transacting, tried, outputs) = (Arc::clone(engine), Arc::clone(tried), Arc::clone(outputs));
        let transacting = tokio::task::spawn_blocking(move || transacting.transact(&tried, &outputs));
        let transacted = async {
            let begun = Instant::now();
            let transacted = transacting.await.unwrap_or_else(|error| {
                Transacted::Lost(SinkError::maybe_published(format!("the transaction panicked: {error}")))
            });
            let _ = over.send(matches!(transacted, Transacted::Committed));
            (transacted, begun.elapsed())
        };
        let enough = async {
            let idle = async {
                if is_committed.await == Ok(true) {
                    tokio::time::sleep(IDLE).await;
                }
            };
            tokio::select! {
                () = idle => {}
                () = asked_to_stop(stopped) => {}
            }
        };
        tokio::join!(transacted, self.fill(engine, self.batch.then(), enough))
    }

    /// Backs off, with heartbeats to the group meanwhile.
    async fn back_off(
        &self,
        pause: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<(), PipelineError> {
        let until = Instant::now() + pause;
        while Instant::now() < until && !*stopped.borrow() {
            let piece = until.saturating_duration_since(Instant::now()).min(self.source.keep_every());
            stop::pause(piece, stopped).await;
            let Some(engine) = self.engine.get() else { continue };
            if engine.reader.polled().elapsed() < self.source.keep_every() {
                continue;
            }
            let kept = tokio::select! {
                kept = self.heartbeat(engine) => kept,
                () = asked_to_stop(stopped) => break,
            };
            match kept {
                Err(error) if !error.may_retry() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, group = self.source.group, "the source failed; will retry")
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// The transactional ids of both producers. The length of the group's name is in them, so that `a-b` and `c` differ
/// from `a` and `b-c`: two pipelines that share an id abort each other's transactions.
fn transactional_ids(group: &str, name: &str) -> [String; 2] {
    [0, 1].map(|n| format!("{group}-{name}-{n}-{}", group.len()))
}

/// Runs blocking librdkafka calls. They go on if the caller is dropped; messages they receive stay in the buffer.
async fn blocking(
    work: impl FnOnce() -> Result<(), SourceError> + Send + 'static,
) -> Result<(), SourceError> {
    tokio::task::spawn_blocking(work).await.map_err(SourceError::later)?
}

/// Resolves when the drain timeout after a stop is over.
async fn drain_timeout(mut stopped: watch::Receiver<bool>, patience: Duration) {
    asked_to_stop(&mut stopped).await;
    tokio::time::sleep(patience).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_share_a_transactional_id() {
        let names = ["a", "b", "a-b", "b-a", "a-b-0", "0", "1", "b-0-1", "a-"];
        let mut all = std::collections::HashSet::new();
        for group in names {
            for name in names {
                for id in transactional_ids(group, name) {
                    assert!(all.insert(id.clone()), "{id} of {group:?} and {name:?}");
                }
            }
        }
        assert_eq!(transactional_ids("a", "b"), transactional_ids("a", "b"));
    }
}
