//! The steps of a transaction of Kafka's, whatever is in it.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::ToBytes;
use rdkafka::producer::Producer;

use super::error_class;
use super::producer::{KafkaProducer, Record};
use crate::crash;
use crate::sink::SinkError;

/// How long an abort may take beyond the call's own time.
const ABORT_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait in one piece for a transactional id: one that nobody wants any more is given up that soon.
const FENCE_MAX: Duration = Duration::from_millis(250);
/// How long a full queue is left to drain before it is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(2);

/// A producer and the transactional id it was opened with. Every step may block.
#[derive(Clone, Copy)]
pub(crate) struct TransactionSteps<'a> {
    pub(crate) line: &'a KafkaProducer,
    pub(crate) id: &'a str,
}

/// Why a transaction was not committed.
pub(crate) struct Failed {
    /// The producer can have another transaction.
    pub(crate) usable: bool,
    /// It was librdkafka's own doing, and the same again will do.
    pub(crate) again: bool,
    pub(crate) error: SinkError,
}

impl Failed {
    pub(crate) fn lost(error: SinkError) -> Self {
        Self { usable: false, again: false, error }
    }
}

impl TransactionSteps<'_> {
    /// Takes the transactional id over: what anybody left open under it is ended, and nobody from before can commit.
    pub(crate) fn fence(&self, until: Instant, wanted: impl Fn() -> bool) -> Result<(), SinkError> {
        let Some(producer) = self.line.producer() else { return Err(not_begun()) };
        loop {
            if !wanted() {
                return Err(SinkError::not_published("the sink is not wanted any more"));
            }
            // Asked again, librdkafka goes on where it was.
            match producer.init_transactions(left(until).min(FENCE_MAX)) {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => {
                    let code = error_class::code(&error);
                    return Err(SinkError::not_published(format!(
                        "the transactional id {:?} could not be taken over: {error}{}",
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

    /// Queues a record, and waits for room.
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
                    let told = format!("not committed: {}", cause.string());
                    return Err(self.abort(SinkError::not_published(told)));
                }
                // Asked again, librdkafka takes up the same commit.
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
        crash::point(crash::AFTER_SINK_COMMIT);
        Ok(())
    }

    /// Aborts. Only then is it known that nothing of the transaction is seen, and can the next one begin.
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
                    let told = format!("{error}; nor could the transaction be aborted: {failed}");
                    return if fenced { lost } else { Failed::lost(in_doubt(told)) };
                }
            }
        }
    }

    /// After an error with which this producer cannot go on.
    pub(crate) fn lost(&self, error: &KafkaError) -> Failed {
        let fatal = self.line.fatal().map(|(code, _)| code);
        let fenced =
            error_class::is_fenced(error_class::code(error)) || fatal.is_some_and(error_class::is_fenced);
        let error = match fenced {
            true => SinkError::fenced(format!(
                "somebody else has taken over the transactional id {:?}, or the broker has given up on this one: {error}",
                self.id
            )),
            false => in_doubt(format!("it is not known whether the transaction was committed: {error}")),
        };
        Failed::lost(error)
    }
}

pub(super) fn not_begun() -> SinkError {
    in_doubt(
        "nothing was published: the sink has to begin first, which also clears what is in doubt".to_owned(),
    )
}

pub(super) fn in_doubt(told: String) -> SinkError {
    SinkError::maybe_published(told)
}

pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
