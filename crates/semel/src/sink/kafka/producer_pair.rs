//! Two producers that take turns, for the sink and for the [pipeline](crate::inbox::pipeline).
//!
//! A commit is answered before the broker has written its markers, and until it has, the same producer is sent away with
//! its next transaction, for 20 ms each time. With a second producer, which has a transactional id of its own, the markers
//! are written while that one works.
//!
//! **They are one.** Both are taken over before it is read where to go on, so nobody from before can commit under either. And
//! the one begins when the other's transaction has ended and is known to have, so what they write has one order: the last
//! committed position is of the last transaction, whoever of the two had it.

use std::mem;
use std::time::Instant;

use super::options::KafkaOptions;
use super::producer::KafkaProducer;
use super::transaction_steps::TransactionSteps;
use crate::sink::SinkError;

/// The producer whose turn it is, and the other.
pub(crate) struct ProducerPair {
    now: Named,
    then: Named,
}

/// A producer and its transactional id.
struct Named {
    line: KafkaProducer,
    id: String,
}

impl Named {
    fn open(options: &KafkaOptions, id: String) -> Result<Self, SinkError> {
        Ok(Self { line: KafkaProducer::open(&options.transactional(&id))?, id })
    }

    fn steps(&self) -> TransactionSteps<'_> {
        TransactionSteps { line: &self.line, id: &self.id }
    }
}

impl ProducerPair {
    /// Both, not yet taken over.
    pub(crate) fn open(options: &KafkaOptions, [first, second]: [String; 2]) -> Result<Self, SinkError> {
        Ok(Self { now: Named::open(options, first)?, then: Named::open(options, second)? })
    }

    /// Takes both over. Gives up when that is not wanted any more.
    pub(crate) fn fence(&self, until: Instant, wanted: impl Fn() -> bool) -> Result<(), SinkError> {
        self.now.steps().fence(until, &wanted)?;
        self.then.steps().fence(until, &wanted)
    }

    /// Runs a transaction with the one whose turn it is.
    ///
    /// **Committed**, it is the other's turn. **Failed**, it is not: after a record that the broker refused librdkafka numbers
    /// on as if the broker had taken it. The broker objects to the next transaction of the same producer, which librdkafka
    /// throws away, and only then the numbers start anew. That is put right at once, by running the same `again`. Had the
    /// other one its turn, it would come up two transactions later, and there spoil one that has nothing to do with it.
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
