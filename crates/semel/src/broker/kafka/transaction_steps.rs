//! The steps of a Kafka transaction: fence, begin, queue, commit, abort.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::ToBytes;
use rdkafka::producer::Producer;

use super::producer::{KafkaProducer, Record};
use super::sink::error_class;
use crate::crash;
use crate::sink::SinkError;

/// How long an abort may take beyond the call's timeout.
const ABORT_PATIENCE: Duration = Duration::from_secs(10);
/// Longest single wait while fencing: a cancelled take-over ends within this time.
const FENCE_MAX: Duration = Duration::from_millis(250);
/// Pause before a retry when the queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(2);

/// A producer and its transactional id. Every step may block.
#[derive(Clone, Copy)]
pub(crate) struct TransactionSteps<'a> {
    pub(crate) line: &'a KafkaProducer,
    pub(crate) id: &'a str,
}

/// Why a transaction was not committed.
pub(crate) struct Failed {
    /// The producer can begin another transaction.
    pub(crate) usable: bool,
    /// librdkafka itself discarded the records; running the same transaction again helps.
    pub(crate) again: bool,
    pub(crate) error: SinkError,
}

impl Failed {
    pub(crate) fn lost(error: SinkError) -> Self {
        Self { usable: false, again: false, error }
    }
}

impl TransactionSteps<'_> {
    /// Takes over the transactional id (fencing): ends a transaction left open under it; earlier producers cannot
    /// commit.
    pub(crate) fn fence(&self, until: Instant, wanted: impl Fn() -> bool) -> Result<(), SinkError> {
        let Some(producer) = self.line.producer() else { return Err(not_begun()) };
        loop {
            if !wanted() {
                return Err(SinkError::not_published("the take-over of the sink was cancelled"));
            }
            // A repeated call continues the same take-over in librdkafka.
            match producer.init_transactions(left(until).min(FENCE_MAX)) {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => {
                    let code = error_class::code(&error);
                    return Err(SinkError::not_published(format!(
                        "could not take over the transactional id {:?}: {error}{}",
                        self.id,
                        error_class::advice(code)
                    )));
                }
            }
        }
    }

    pub(crate) fn begin(&self) -> Result<(), Failed> {
        let Some(producer) = self.line.producer() else { return Err(Failed::lost(not_begun())) };
        producer.begin_transaction().map_err(|error| self.lost(&error))
    }

    /// Queues a record, and waits while the queue is full.
    pub(crate) fn queue<K: ToBytes + ?Sized>(
        &self,
        mut record: Record<'_, K>,
        until: Instant,
    ) -> Result<(), Code> {
        loop {
            match self.line.send(record) {
                Ok(()) => return Ok(()),
                Err((Code::QueueFull, back)) if Instant::now() < until => {
                    record = back;
                    std::thread::sleep(QUEUE_PAUSE);
                }
                Err((code, _)) => return Err(code),
            }
        }
    }

    pub(crate) fn commit(&self, until: Instant) -> Result<(), Failed> {
        crash::point(crash::BEFORE_SINK_COMMIT);
        let Some(producer) = self.line.producer() else { return Err(Failed::lost(not_begun())) };
        self.line.settle(until);
        loop {
            match producer.commit_transaction(left(until)) {
                Ok(()) => break,
                Err(KafkaError::Transaction(cause)) if cause.txn_requires_abort() => {
                    let message = format!("the transaction was not committed: {}", cause.string());
                    return Err(self.abort(SinkError::not_published(message)));
                }
                // A repeated call continues the same commit in librdkafka.
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
        crash::point(crash::AFTER_SINK_COMMIT);
        Ok(())
    }

    /// Aborts. Only then is it certain that readers see nothing of it, and the next one can begin.
    pub(crate) fn abort(&self, error: SinkError) -> Failed {
        let Some(producer) = self.line.producer() else { return Failed::lost(not_begun()) };
        let until = Instant::now() + ABORT_PATIENCE;
        loop {
            match producer.abort_transaction(left(until)) {
                Ok(()) => return Failed { usable: true, again: false, error },
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(failed) => {
                    let lost = self.lost(&failed);
                    let fenced = lost.error.is_fenced();
                    let message = format!("{error}; aborting the transaction failed too: {failed}");
                    return if fenced { lost } else { Failed::lost(in_doubt(message)) };
                }
            }
        }
    }

    /// The failure after an error that makes this producer unusable.
    pub(crate) fn lost(&self, error: &KafkaError) -> Failed {
        let fatal = self.line.fatal().map(|(code, _)| code);
        let fenced =
            error_class::is_fenced(error_class::code(error)) || fatal.is_some_and(error_class::is_fenced);
        let error = match fenced {
            true => SinkError::fenced(format!(
                "another producer took over the transactional id {:?}, or the broker has expired this one: {error}",
                self.id
            )),
            false => in_doubt(format!("it is in doubt whether the transaction was committed: {error}")),
        };
        Failed::lost(error)
    }
}

pub(super) fn not_begun() -> SinkError {
    in_doubt(
        "nothing was published: the sink must begin first, which also resolves what is in doubt".to_owned(),
    )
}

pub(super) fn in_doubt(message: String) -> SinkError {
    SinkError::maybe_published(message)
}

pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
