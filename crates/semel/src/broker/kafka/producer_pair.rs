//! Two producers that alternate, for the sink and for the [pipeline](crate::inbox::pipeline).
//!
//! The broker answers a commit before it has written the markers. Until then it rejects the producer's next
//! transaction, and librdkafka retries every 20 ms. With a second producer, under its own transactional id, the markers
//! are written while that one works.
//!
//! **They act as one.** Earlier producers with either id are fenced before the position is read, so they can no longer
//! commit. And a producer begins a transaction only after the other one's has ended for certain, so their writes have
//! one order: the last committed position belongs to the last transaction, whichever producer ran it.

use std::mem;
use std::time::Instant;

use super::producer::KafkaProducer;
use super::sink::KafkaOptions;
use super::transaction_steps::TransactionSteps;
use crate::sink::SinkError;

/// The producer of the next transaction, and the other one.
pub(crate) struct ProducerPair {
    now: WithId,
    then: WithId,
}

/// A producer and its transactional id.
struct WithId {
    producer: KafkaProducer,
    id: String,
}

impl WithId {
    fn open(options: &KafkaOptions, id: String) -> Result<Self, SinkError> {
        Ok(Self { producer: KafkaProducer::open(&options.transactional(&id))?, id })
    }

    fn steps(&self) -> TransactionSteps<'_> {
        TransactionSteps { line: &self.producer, id: &self.id }
    }
}

impl ProducerPair {
    /// Opens both producers, without fencing.
    pub(crate) fn open(options: &KafkaOptions, [first, second]: [String; 2]) -> Result<Self, SinkError> {
        Ok(Self { now: WithId::open(options, first)?, then: WithId::open(options, second)? })
    }

    /// Takes over both transactional ids (fencing). Stops when `wanted` returns `false`.
    pub(crate) fn fence(&self, until: Instant, wanted: impl Fn() -> bool) -> Result<(), SinkError> {
        self.now.steps().fence(until, &wanted)?;
        self.then.steps().fence(until, &wanted)
    }

    /// Runs a transaction with the next producer.
    ///
    /// **Committed**: the other producer is next. **Failed**: the same one stays next. After a record that the broker
    /// refused, librdkafka continues its sequence numbers as if the broker had accepted it. The broker rejects the next
    /// transaction of that producer, librdkafka discards it, and only then the numbers start anew. Running the
    /// transaction `again` fixes this at once. If the other producer were next, the error would hit an unrelated one
    /// two transactions later.
    pub(crate) fn transact<E>(
        &mut self,
        run: impl Fn(TransactionSteps<'_>) -> Result<(), E>,
        again: impl Fn(&E) -> bool,
    ) -> Result<(), E> {
        let done = match run(self.now.steps()) {
            Err(failed) if again(&failed) => run(self.now.steps()),
            done => done,
        };
        if done.is_ok() {
            mem::swap(&mut self.now, &mut self.then);
        }
        done
    }
}
