//! The loop: fill, transform, commit, and again.

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
use crate::crash;
use crate::inbox::consumer::call::{Called, call};
use crate::inbox::consumer::run::asked_to_stop;
use crate::inbox::consumer::{ConsumerStopHandle, HandlerError};
use crate::sink::SinkError;
use crate::sink::kafka::KafkaOptions;
use crate::sink::kafka::producer::KafkaProducer;
use crate::source::SourceError;
use crate::source::kafka::{KafkaSourceOptions, shutdown};

/// How long messages are waited for in one turn, where there is nothing else to do.
const IDLE: Duration = Duration::from_secs(1);
/// Most outputs of one batch.
pub const OUTPUTS_MAX: usize = 1_000_000;

/// Makes messages of messages, exactly once, until it is stopped. See the [module](super).
pub struct Pipeline<T> {
    source: KafkaSourceOptions,
    sink: KafkaOptions,
    ids: [String; 2],
    transform: Arc<T>,
    options: PipelineOptions,
    stop: watch::Sender<bool>,
    engine: Open,
    pace: AdaptiveBatch,
    /// The next messages were taken in already, while a transaction was on its way.
    filled: bool,
    dead_in_a_row: u32,
    ended: PipelineStats,
}

/// What a pipeline did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PipelineStats {
    /// Messages committed, buried ones included.
    pub messages: u64,
    /// Outputs committed, dead letters included.
    pub outputs: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Transactions that were not committed, or of which it was not known for a while.
    pub aborted: u64,
    /// Messages in the dead-letter topic.
    pub buried: u64,
}

/// Why a pipeline stopped by itself. What was not committed comes again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// It cannot work as it is configured.
    #[error("the pipeline cannot be set up: {0}")]
    Setup(String),
    /// A message cannot be transformed, and there is nowhere to put it.
    #[error(
        "the message at {place} cannot be transformed: {error}; mend the transform and start again, or name a topic for \
         dead letters"
    )]
    Poison {
        /// `topic/partition/offset`.
        place: String,
        /// What went wrong the last time.
        error: String,
    },
    /// So many messages in a row went to the dead letters that no message is to blame.
    #[error(
        "{in_a_row} messages in a row could not be transformed, so it is not the messages: {error}; mend the transform, \
         publish the dead letters again, and start again at {place}"
    )]
    AllFail {
        /// How many.
        in_a_row: u32,
        /// The next one: `topic/partition/offset`.
        place: String,
        /// What went wrong the last time.
        error: String,
    },
    /// Another process runs under the same instance name, or this one stood still for longer than its transaction.
    #[error("{0}; give every process an instance name of its own, and start this one again")]
    Fenced(String),
    /// The source cannot go on.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// What to do after a turn.
enum Turn {
    /// Something was committed.
    Well,
    /// Go on.
    On,
    /// Go on after a pause.
    Later,
}

/// What became of one call of the transform.
enum Made {
    Outputs(Vec<Output>),
    Failed(HandlerError),
    /// Some messages are not ours any more, or it is to stop.
    Dropped,
}

impl<T: Transform> Pipeline<T> {
    /// A pipeline that has not begun. The broker need not be there yet. Of the sink's options, those about exactly once
    /// apply: timeouts, sizes, compression.
    ///
    /// # Errors
    /// When there is no group or no topic, or librdkafka does not understand a property.
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
        // Tried once, so that a mistake in the configuration is told here.
        drop(KafkaProducer::open(&sink.transactional(&ids[0])).map_err(|error| setup(&error))?);
        let consumer: BaseConsumer = source.consumer().create().map_err(|error| setup(&error))?;
        shutdown::aside(move || drop(consumer));
        let (stop, _) = watch::channel(false);
        Ok(Self {
            pace: AdaptiveBatch::new(options.batch_max, options.tries_max),
            transform: Arc::new(transform),
            engine: Open::default(),
            filled: false,
            dead_in_a_row: 0,
            ended: PipelineStats::default(),
            source,
            sink,
            ids,
            options,
            stop,
        })
    }

    /// Stops it: what is being transformed is committed, if it does not take too long ([`PipelineOptions::drain_timeout`]). A
    /// broker that is away is not waited for, except by a transaction under way: that may take the sink's
    /// [timeout](KafkaOptions::timeout), and ten seconds more to be aborted. Leaving the group takes at most the source's
    /// [timeout](KafkaSourceOptions::timeout).
    pub fn stop_handle(&self) -> ConsumerStopHandle {
        ConsumerStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped. Dropping the future is like a crash: what was not committed comes again.
    ///
    /// # Errors
    /// When trying again would not help. What was not committed comes again.
    pub async fn run(mut self) -> Result<PipelineStats, PipelineError> {
        let mut stopped = self.stop.subscribe();
        let worked = self.work(&mut stopped).await;
        if let Err(error) = &worked {
            tracing::error!(%error, group = self.source.group, "the pipeline stops");
        }
        self.leave().await;
        worked.map(|()| self.ended)
    }

    async fn work(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<(), PipelineError> {
        let mut pause = self.options.pause.0;
        while !*stopped.borrow() {
            let turn = match self.turn(stopped).await {
                Err(PipelineError::Source(error)) if error.may_retry() => {
                    tracing::warn!(%error, group = self.source.group, "the source failed; trying again");
                    Turn::Later
                }
                turn => turn?,
            };
            match turn {
                Turn::Well => pause = self.options.pause.0,
                Turn::On => {}
                Turn::Later => {
                    self.rest(pause, stopped).await?;
                    pause = (pause * 2).min(self.options.pause.1);
                }
            }
        }
        Ok(())
    }

    async fn turn(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<Turn, PipelineError> {
        let Some(engine) = self.begin(stopped).await else { return Ok(Turn::Later) };
        if engine.reader.polled().elapsed() >= self.source.keep_every() {
            tokio::select! {
                kept = self.keep(&engine) => kept?,
                () = asked_to_stop(stopped) => return Ok(Turn::On),
            }
        }
        engine.reader.held().put_back();
        if !mem::take(&mut self.filled) {
            let idle = async {
                let _ = tokio::time::timeout(IDLE, asked_to_stop(stopped)).await;
            };
            self.fill(&engine, self.pace.take(), idle).await?;
        }
        let tried = engine.reader.held().begin(self.pace.take(), self.options.batch_bytes);
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
                    self.pace.others();
                    return Ok(Turn::On);
                }
                Made::Failed(failed) => match self.pace.failed(tried.len(), failed.kind()) {
                    Next::Blame => {
                        dead = true;
                        vec![self.dead_letter(&tried, &failed)?]
                    }
                    next => {
                        let (error, messages) = (failed.to_string(), tried.len());
                        tracing::warn!(error, messages, ?next, "messages were not transformed");
                        return Ok(if next == Next::Again { Turn::Later } else { Turn::On });
                    }
                },
            };
            let outputs = Arc::new(outputs);
            let ((transacted, took), filled) = self.transact(&engine, &tried, &outputs, stopped).await;
            if !matches!(transacted, Transacted::Committed) {
                self.ended.aborted += 1;
                if took >= self.sink.timeout {
                    self.pace.too_slow(tried.len());
                }
                match &filled {
                    Err(error) if !error.may_retry() => return Err(error.clone().into()),
                    Err(error) => tracing::warn!(%error, group = self.source.group, "the source failed"),
                    Ok(()) => {}
                }
            }
            match transacted {
                Transacted::Committed => {
                    self.pace.succeeded(tried.len(), slowly || took > self.sink.timeout / 4);
                    self.committed(&tried, &outputs, dead);
                    filled?;
                    self.filled = true;
                    return Ok(Turn::Well);
                }
                Transacted::Refused(told) if !dead => made = Made::Failed(HandlerError::permanent(told)),
                Transacted::Refused(error) => {
                    return Err(PipelineError::Poison { place: tried[0].place(), error });
                }
                Transacted::Stale(told) => {
                    tracing::info!(told, group = self.source.group, "a batch is not ours any more");
                    self.keep(&engine).await?;
                    return Ok(Turn::Later);
                }
                Transacted::Aborted(told) | Transacted::Again(told) => {
                    tracing::warn!(
                        told,
                        group = self.source.group,
                        "a transaction was aborted; trying again"
                    );
                    return Ok(Turn::Later);
                }
                Transacted::Lost(error) => {
                    // Whoever holds it last closes it, and that blocks.
                    drop(engine);
                    return self.lost(&error).await;
                }
            }
        }
    }

    fn committed(&mut self, tried: &[Input], outputs: &[Output], dead: bool) {
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        self.dead_in_a_row = if dead { self.dead_in_a_row.saturating_add(1) } else { 0 };
        self.ended.messages += count(tried.len());
        self.ended.outputs += count(outputs.len());
        self.ended.transactions += 1;
        self.ended.buried += u64::from(dead);
    }

    /// The dead letter of the only message that was tried, or why it is not to be buried.
    fn dead_letter(&self, tried: &[Input], failed: &HandlerError) -> Result<Output, PipelineError> {
        let (place, error) = (tried[0].place(), failed.to_string());
        let Some(topic) = &self.options.dead_letters else {
            return Err(PipelineError::Poison { place, error });
        };
        if self.dead_in_a_row >= self.options.dead_in_a_row_max {
            return Err(PipelineError::AllFail { in_a_row: self.dead_in_a_row, place, error });
        }
        tracing::warn!(error, place, "a message goes to the dead letters");
        Ok(Output::dead(&tried[0], topic, &error))
    }

    /// What there is to work with. It begins anew after anything that is in doubt: that ends what was open, and then the
    /// committed offsets say where it goes on.
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
                    tracing::warn!(%error, group = self.source.group, "a pipeline cannot begin; trying again")
                }
            }
        }
        self.engine.get().cloned()
    }

    async fn lost(&mut self, error: &SinkError) -> Result<Turn, PipelineError> {
        // A name that was made up is nobody else's: it was the broker that gave up on a transaction that took too long.
        if error.is_fenced() && self.options.instance.is_some() {
            return Err(PipelineError::Fenced(error.to_string()));
        }
        tracing::warn!(%error, group = self.source.group, "a pipeline begins again");
        self.leave().await;
        self.pace.others();
        Ok(Turn::Later)
    }

    /// Leaves the group, whose others then get the partitions. A broker that does not answer is not waited for.
    async fn leave(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        if !shutdown::close(self.source.timeout, move || drop(engine)).await {
            tracing::warn!(group = self.source.group, "Kafka did not answer a consumer that leaves");
        }
    }

    /// Takes messages in, until there are enough for a try, or until then.
    async fn fill(
        &self,
        engine: &Arc<Engine>,
        messages: usize,
        enough: impl Future<Output = ()>,
    ) -> Result<(), SourceError> {
        let PipelineOptions { batch_bytes: bytes, linger, .. } = self.options;
        let full = Full { messages, bytes, linger };
        let engine = Arc::clone(engine);
        // Gone when this is dropped, which ends the wait.
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let mut filling = std::pin::pin!(apart(move || engine.reader.fill(full, &watched)));
        tokio::select! {
            filled = &mut filling => filled,
            // Waited for all the same: the group is left when nobody has the reader any more.
            () = enough => {
                drop(wanted);
                filling.await
            }
        }
    }

    async fn keep(&self, engine: &Arc<Engine>) -> Result<(), SourceError> {
        let engine = Arc::clone(engine);
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        apart(move || engine.reader.keep(&watched)).await
    }

    /// Calls the transform, and hears from the group meanwhile.
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
                false => {
                    Err(HandlerError::retry(format!("it made more than {OUTPUTS_MAX} outputs of one batch")))
                }
            }
        };
        let mut over = std::pin::pin!(drain_timeout(stopped.clone(), self.options.drain_timeout));
        let mut calling = std::pin::pin!(call("the transform", work, self.options.transform_timeout));
        loop {
            tokio::select! {
                called = &mut calling => return Ok(match called {
                    Called::Done(outputs) => Made::Outputs(outputs),
                    Called::Failed(failed) | Called::Broke(failed) | Called::TooLong(failed) => {
                        Made::Failed(failed)
                    },
                }),
                () = &mut over => return Ok(Made::Dropped),
                () = tokio::time::sleep(self.source.keep_every()) => {
                    self.keep(engine).await?;
                    if !engine.reader.held().is_whole() {
                        return Ok(Made::Dropped);
                    }
                }
            }
        }
    }

    /// Commits, and takes the next messages in meanwhile: whoever waits for the broker's answer has nothing else to do. What
    /// became of it, how long it took, and what became of the messages.
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
                Transacted::Lost(SinkError::maybe_published(format!("the transaction broke off: {error}")))
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
        tokio::join!(transacted, self.fill(engine, self.pace.then(), enough))
    }

    /// A pause in which the group is heard.
    async fn rest(&self, pause: Duration, stopped: &mut watch::Receiver<bool>) -> Result<(), PipelineError> {
        let until = Instant::now() + pause;
        while Instant::now() < until && !*stopped.borrow() {
            let piece = until.saturating_duration_since(Instant::now()).min(self.source.keep_every());
            let _ = tokio::time::timeout(piece, asked_to_stop(stopped)).await;
            let Some(engine) = self.engine.get() else { continue };
            if engine.reader.polled().elapsed() < self.source.keep_every() {
                continue;
            }
            let kept = tokio::select! {
                kept = self.keep(engine) => kept,
                () = asked_to_stop(stopped) => break,
            };
            match kept {
                Err(error) if !error.may_retry() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, group = self.source.group, "the source failed; trying again")
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// The transactional ids of both producers. The length of the group's name is in them, so that `a-b` and `c` differ from `a`
/// and `b-c`: two pipelines that share an id abort each other's transactions.
fn transactional_ids(group: &str, name: &str) -> [String; 2] {
    [0, 1].map(|n| format!("{group}-{name}-{n}-{}", group.len()))
}

/// librdkafka blocks. What was begun goes on when the caller does not wait for it: what it takes in is held.
async fn apart(work: impl FnOnce() -> Result<(), SourceError> + Send + 'static) -> Result<(), SourceError> {
    tokio::task::spawn_blocking(work).await.map_err(SourceError::later)?
}

/// Ends when the time after a stop is over.
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
