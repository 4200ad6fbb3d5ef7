//! Outputs and offsets in one Kafka transaction. Everything here may block.
//!
//! ```text
//!  begin ─▶ outputs ─▶ offsets, as that member of the group ─▶ commit      all of it, or nothing
//! ```
//!
//! The transaction is open only for these steps: not while waiting for messages, nor while they are transformed.
//!
//! **The next messages are polled meanwhile**, so a rebalance may revoke a partition during the transaction. Then the
//! broker decides. Offsets that arrive after the group has a new generation are refused: they come from a former
//! member. If it took them before, it gives the partition's committed offset to no one until the transaction has ended.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer;

use super::buffer;
use super::message::{Input, Output};
use super::reader::Reader;
use crate::broker::kafka::producer::{Batch, Report, is_librdkafkas};
use crate::broker::kafka::producer_pair::ProducerPair;
use crate::broker::kafka::sink::error_class::{self, ErrorClass};
use crate::broker::kafka::sink::{KafkaOptions, is_unknown_topic};
use crate::broker::kafka::source::KafkaSourceOptions;
use crate::broker::kafka::source::reader::list;
use crate::broker::kafka::transaction_steps::{Failed, TransactionSteps, left};
use crate::broker::kafka::version;
use crate::crash;
use crate::sink::SinkError;

/// The result of a transaction.
pub(super) enum Transacted {
    Committed,
    /// Aborted: this member of the group was fenced by a rebalance.
    Stale(String),
    /// Aborted: Kafka will never accept one of the outputs.
    Refused(String),
    /// Aborted: no reader of committed data sees any of it.
    Aborted(String),
    /// Aborted by librdkafka itself: a plain retry is enough.
    Retry(String),
    /// The outcome is unknown, or another process has our transactional id: everything has to start over.
    Lost(SinkError),
}

/// A consumer and two producers.
pub(super) struct Engine {
    pub(super) reader: Reader,
    producers: Mutex<ProducerPair>,
    options: KafkaOptions,
}

impl Engine {
    /// Ends transactions left open under these transactional ids, then joins the group, so that it starts at the
    /// committed offsets. Gives up when it is not wanted any more.
    pub(super) fn open(
        source: &KafkaSourceOptions,
        sink: &KafkaOptions,
        ids: &[String; 2],
        wanted: impl Fn() -> bool,
    ) -> Result<Self, SinkError> {
        let producers = ProducerPair::open(sink, ids.clone())?;
        producers.fence(Instant::now() + sink.timeout, &wanted)?;
        if !wanted() {
            return Err(SinkError::not_published("startup was cancelled"));
        }
        version::ask_and_warn(sink.first_broker());
        let reader = Reader::open(source).map_err(|error| {
            SinkError::not_published(format!("cannot create the Kafka consumer: {error}"))
        })?;
        Ok(Self { reader, producers: Mutex::new(producers), options: sink.clone() })
    }

    /// Publishes the outputs and commits the offsets of these inputs, in one transaction.
    pub(super) fn transact(&self, tried: &[Input], outputs: &[Output]) -> Transacted {
        let mut producers = self.producers.lock().unwrap_or_else(PoisonError::into_inner);
        let run = |steps: TransactionSteps<'_>| {
            Transaction { steps, options: &self.options }.run(&self.reader, tried, outputs)
        };
        match producers.transact(run, |failed| matches!(failed, Transacted::Retry(_))) {
            Ok(()) => {
                self.reader.buffer().committed();
                Transacted::Committed
            }
            Err(Transacted::Retry(reason)) => Transacted::Aborted(reason),
            Err(other) => other,
        }
    }
}

struct Transaction<'a> {
    steps: TransactionSteps<'a>,
    options: &'a KafkaOptions,
}

impl Transaction<'_> {
    fn run(&self, reader: &Reader, tried: &[Input], outputs: &[Output]) -> Result<(), Transacted> {
        let until = Instant::now() + self.options.timeout;
        let stale = || Transacted::Stale("partitions were revoked by a rebalance".to_owned());
        let credentials = reader.credentials().ok_or_else(stale)?;
        let Some(offsets) = list(&buffer::positions(tried)) else { return Err(stale()) };
        self.steps.begin().map_err(ended)?;
        let batch = Batch::of(outputs.len());
        for (index, output) in outputs.iter().enumerate() {
            let queued = self.steps.queue(output.record(&batch, index), until);
            queued.map_err(|code| self.not_queued(index, code, &batch, outputs))?;
        }
        crash::point(crash::BEFORE_OFFSETS);
        // While the outputs are in flight.
        loop {
            let Some(producer) = self.steps.line.producer() else { return Err(stale()) };
            match producer.send_offsets_to_transaction(&offsets, &credentials, left(until)) {
                Ok(()) => break,
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(self.offsets_refused(&error, &batch, outputs)),
            }
        }
        crash::point(crash::AFTER_OFFSETS);
        if !batch.wait(until) {
            let late = "the broker did not accept the outputs in time";
            // If it has answered at all, the connection works and the abort will reach it.
            let silent = batch.reports().iter().all(Option::is_none);
            return Err(if silent { self.late(late) } else { self.abort(late) });
        }
        if batch.reports().iter().flatten().any(Result::is_err) {
            return Err(self.outputs_refused("Kafka did not accept outputs", &batch, outputs));
        }
        self.steps.commit(until).map_err(ended)
    }

    /// Aborts a transaction whose outputs were not accepted, and classifies it by their errors. The abort comes first:
    /// only then is each output reported.
    fn outputs_refused(&self, reason: &str, batch: &Batch, outputs: &[Output]) -> Transacted {
        let ended = self.abort(reason);
        if !matches!(ended, Transacted::Aborted(_)) {
            return ended;
        }
        let reports = batch.reports();
        let failed = |(index, report): (usize, &Option<Report>)| Some((index, (*report)?.err()?));
        let mut failed = reports.iter().enumerate().filter_map(failed);
        let first = failed.next();
        // An output purged because of another one says nothing.
        match failed.chain(first).find(|(_, code)| *code != Code::PurgeQueue).or(first) {
            None => ended,
            Some((index, code)) => match self.classify(outputs[index].topic(), code, outputs.len()) {
                Transacted::Aborted(reason) if is_librdkafkas(&reports) => Transacted::Retry(reason),
                classified => classified,
            },
        }
    }

    /// An output was not queued. If that is because the transaction has already failed, an earlier output was refused,
    /// and this one is not to blame.
    fn not_queued(&self, index: usize, code: Code, batch: &Batch, outputs: &[Output]) -> Transacted {
        let reason = format!("an output was not queued: {code}");
        if code == Code::State {
            return self.outputs_refused(&reason, batch, outputs);
        }
        match self.abort(&reason) {
            Transacted::Aborted(_) => self.classify(outputs[index].topic(), code, outputs.len()),
            other => other,
        }
    }

    /// Classifies an aborted transaction by an output that was not accepted. Which input is to blame shows when it is
    /// alone.
    fn classify(&self, topic: &str, code: Code, outputs: usize) -> Transacted {
        let reason = format!(
            "Kafka did not accept one of {outputs} outputs, for topic {topic}: {code}{}",
            error_class::advice(code)
        );
        match code {
            Code::QueueFull | Code::MessageTimedOut => Transacted::Lost(SinkError::maybe_published(reason)),
            _ if error_class::of(code, self.options.missing) == ErrorClass::Refused => {
                Transacted::Refused(reason)
            }
            // librdkafka caches for minutes that a topic is missing; a new producer asks again.
            _ if is_unknown_topic(code) => Transacted::Lost(SinkError::not_published(reason)),
            _ => Transacted::Aborted(reason),
        }
    }

    /// The offsets were refused.
    fn offsets_refused(&self, error: &KafkaError, batch: &Batch, outputs: &[Output]) -> Transacted {
        if let KafkaError::Transaction(cause) = error
            && cause.is_fatal()
        {
            return ended(self.steps.lost(error));
        }
        let stale = matches!(
            error_class::code(error),
            Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::FencedInstanceId
                | Code::RebalanceInProgress
        );
        let reason = format!("Kafka did not accept the offsets: {error}");
        if let KafkaError::Transaction(cause) = error
            && cause.is_retriable()
        {
            return self.late(&reason);
        }
        // An output that was refused ends the transaction, and the error may show up here first.
        if !stale {
            return self.outputs_refused(&reason, batch, outputs);
        }
        match self.abort(&reason) {
            Transacted::Aborted(reason) => Transacted::Stale(reason),
            other => other,
        }
    }

    /// Aborts here, but the transaction may still be open at the broker: it may read a request it has not answered yet,
    /// as part of this producer's next transaction. Taking the ids over ends that.
    fn late(&self, reason: &str) -> Transacted {
        match self.abort(reason) {
            Transacted::Aborted(reason) => Transacted::Lost(SinkError::maybe_published(reason)),
            other => other,
        }
    }

    fn abort(&self, reason: &str) -> Transacted {
        ended(self.steps.abort(SinkError::not_published(reason)))
    }
}

fn ended(failed: Failed) -> Transacted {
    match failed.usable {
        true => Transacted::Aborted(failed.error.to_string()),
        false => Transacted::Lost(failed.error),
    }
}
