//! Outputs and offsets in one transaction of Kafka's. Everything here may block.
//!
//! ```text
//!  begin ─▶ outputs ─▶ offsets, as that member of the group ─▶ commit      all of it, or nothing
//! ```
//!
//! It is open only from here to there: not while its messages are waited for, nor while they are transformed.
//!
//! **The next messages are polled for meanwhile**, so a partition may be given away under it. The broker decides then. Where
//! the offsets come after the group has a new generation, it does not take them, because they are a former member's.
//! Where it has taken them before, it tells nobody where that partition begins until the transaction has ended.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer;

use super::buffer;
use super::message::{Input, Output};
use super::reader::Reader;
use crate::crash;
use crate::sink::SinkError;
use crate::sink::kafka::error_class::{self, ErrorClass};
use crate::sink::kafka::producer::{Batch, Report, is_librdkafkas};
use crate::sink::kafka::producer_pair::ProducerPair;
use crate::sink::kafka::transaction_steps::{Failed, TransactionSteps, left};
use crate::sink::kafka::{KafkaOptions, is_unknown_topic, version};
use crate::source::kafka::KafkaSourceOptions;
use crate::source::kafka::reader::list;

/// What became of a transaction.
pub(super) enum Transacted {
    Committed,
    /// Nothing of it is seen, because we are not who we were in the group.
    Stale(String),
    /// Nothing of it is seen, because Kafka will never take an output.
    Refused(String),
    /// Nothing of it is seen.
    Aborted(String),
    /// Nothing of it is seen, by librdkafka's own doing: the same again will do.
    Again(String),
    /// Nobody knows, or somebody else has our transactional id: everything has to begin again.
    Lost(SinkError),
}

/// A consumer and two producers.
pub(super) struct Engine {
    pub(super) reader: Reader,
    turns: Mutex<ProducerPair>,
    options: KafkaOptions,
}

impl Engine {
    /// Ends what was left open under these transactional ids, and then joins the group: where it begins is what was
    /// committed. Gives up when it is not wanted any more.
    pub(super) fn open(
        source: &KafkaSourceOptions,
        sink: &KafkaOptions,
        ids: &[String; 2],
        wanted: impl Fn() -> bool,
    ) -> Result<Self, SinkError> {
        let turns = ProducerPair::open(sink, ids.clone())?;
        turns.fence(Instant::now() + sink.timeout, &wanted)?;
        if !wanted() {
            return Err(SinkError::not_published("nobody wants it any more"));
        }
        version::ask_and_warn(sink.first_broker());
        let reader = Reader::open(source)
            .map_err(|error| SinkError::not_published(format!("Kafka's client cannot be made: {error}")))?;
        Ok(Self { reader, turns: Mutex::new(turns), options: sink.clone() })
    }

    /// What these messages were made to, and that they are done, in one transaction.
    pub(super) fn transact(&self, tried: &[Input], outputs: &[Output]) -> Transacted {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let run = |steps: TransactionSteps<'_>| {
            Transaction { steps, options: &self.options }.run(&self.reader, tried, outputs)
        };
        match turns.transact(run, |failed| matches!(failed, Transacted::Again(_))) {
            Ok(()) => {
                self.reader.held().committed();
                Transacted::Committed
            }
            Err(Transacted::Again(told)) => Transacted::Aborted(told),
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
        let stale = || Transacted::Stale("partitions were taken away".to_owned());
        let credentials = reader.credentials().ok_or_else(stale)?;
        let Some(offsets) = list(&buffer::positions(tried)) else { return Err(stale()) };
        self.steps.begin().map_err(ended)?;
        let batch = Batch::of(outputs.len());
        for (place, output) in outputs.iter().enumerate() {
            let queued = self.steps.queue(output.record(&batch, place), until);
            queued.map_err(|code| self.not_queued(place, code, &batch, outputs))?;
        }
        crash::point(crash::BEFORE_OFFSETS);
        // While the outputs are under way.
        loop {
            let Some(producer) = self.steps.line.producer() else { return Err(stale()) };
            match producer.send_offsets_to_transaction(&offsets, &credentials, left(until)) {
                Ok(()) => break,
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(self.not_ours(&error, &batch, outputs)),
            }
        }
        crash::point(crash::AFTER_OFFSETS);
        if !batch.wait(until) {
            let late = "the broker did not take the outputs in time";
            // Where it has said something, it has heard the rest too, and hears of the end.
            let silent = batch.reports().iter().all(Option::is_none);
            return Err(if silent { self.late(late) } else { self.abort(late) });
        }
        if batch.reports().iter().flatten().any(Result::is_err) {
            return Err(self.not_taken("outputs were not taken", &batch, outputs));
        }
        self.steps.commit(until).map_err(ended)
    }

    /// Ends a transaction of which outputs were not taken, and says what became of it by those. The end comes first: only
    /// then is each of them reported.
    fn not_taken(&self, told: &str, batch: &Batch, outputs: &[Output]) -> Transacted {
        let ended = self.abort(told);
        if !matches!(ended, Transacted::Aborted(_)) {
            return ended;
        }
        let reports = batch.reports();
        let failed = |(place, report): (usize, &Option<Report>)| Some((place, (*report)?.err()?));
        let mut failed = reports.iter().enumerate().filter_map(failed);
        let first = failed.next();
        // What is only thrown away behind another one tells nothing.
        match failed.chain(first).find(|(_, code)| *code != Code::PurgeQueue).or(first) {
            None => ended,
            Some((place, code)) => match self.judged(outputs[place].topic(), code, outputs.len()) {
                Transacted::Aborted(told) if is_librdkafkas(&reports) => Transacted::Again(told),
                judged => judged,
            },
        }
    }

    /// An output did not get into the queue. It is not to blame where the transaction cannot go on: one before it was refused
    /// meanwhile.
    fn not_queued(&self, place: usize, code: Code, batch: &Batch, outputs: &[Output]) -> Transacted {
        let told = format!("an output was not queued: {code}");
        if code == Code::State {
            return self.not_taken(&told, batch, outputs);
        }
        match self.abort(&told) {
            Transacted::Aborted(_) => self.judged(outputs[place].topic(), code, outputs.len()),
            other => other,
        }
    }

    /// What became of an aborted transaction by an output that was not taken. Whose fault it is shows when it is alone.
    fn judged(&self, topic: &str, code: Code, outputs: usize) -> Transacted {
        let told = format!(
            "Kafka did not take an output (of {outputs}) for {topic}: {code}{}",
            error_class::advice(code)
        );
        match code {
            Code::QueueFull | Code::MessageTimedOut => Transacted::Lost(SinkError::maybe_published(told)),
            _ if error_class::of(code, self.options.missing) == ErrorClass::Refused => {
                Transacted::Refused(told)
            }
            // librdkafka remembers for minutes that a topic is not there; a new producer asks again.
            _ if is_unknown_topic(code) => Transacted::Lost(SinkError::not_published(told)),
            _ => Transacted::Aborted(told),
        }
    }

    /// The offsets were not taken.
    fn not_ours(&self, error: &KafkaError, batch: &Batch, outputs: &[Output]) -> Transacted {
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
        let told = format!("the offsets were not taken: {error}");
        if let KafkaError::Transaction(cause) = error
            && cause.is_retriable()
        {
            return self.late(&told);
        }
        // An output that was not taken ends the transaction, which may be said here first.
        if !stale {
            return self.not_taken(&told, batch, outputs);
        }
        match self.abort(&told) {
            Transacted::Aborted(told) => Transacted::Stale(told),
            other => other,
        }
    }

    /// Ended here, it may be open there: what the broker did not answer it may still read, in the next transaction of this
    /// producer. Taking the ids over ends that.
    fn late(&self, told: &str) -> Transacted {
        match self.abort(told) {
            Transacted::Aborted(told) => Transacted::Lost(SinkError::maybe_published(told)),
            other => other,
        }
    }

    fn abort(&self, told: &str) -> Transacted {
        ended(self.steps.abort(SinkError::not_published(told)))
    }
}

fn ended(failed: Failed) -> Transacted {
    match failed.usable {
        true => Transacted::Aborted(failed.error.to_string()),
        false => Transacted::Lost(failed.error),
    }
}
