//! Outputs and offsets in one transaction of Kafka's. Everything here may block.
//!
//! ```text
//!  begin ─▶ outputs ─▶ offsets, as that member of the group ─▶ commit      all of it, or nothing
//! ```
//!
//! It is open only from here to there: not while messages are waited for, nor while they are transformed. And nobody polls
//! meanwhile, so no partition is given up under it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer;

use super::held;
use super::message::{Input, Output};
use super::reader::Reader;
use crate::crash;
use crate::sink::SinkError;
use crate::sink::kafka::line::{Batch, Line, Report};
use crate::sink::kafka::steps::{Failed, Steps, left};
use crate::sink::kafka::verdict::{self, Verdict};
use crate::sink::kafka::{KafkaOptions, is_unknown_topic};
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
    /// Nobody knows, or somebody else has our transactional id: everything has to begin again.
    Lost(SinkError),
}

/// A consumer and two producers. They take turns: a broker that has committed still writes the marks of that into every
/// partition, and a producer that began again before they are there would be told to wait, which librdkafka does for
/// longer than it takes. The other one's marks do not concern it.
pub(super) struct Engine {
    pub(super) reader: Reader,
    lines: [(Line, String); 2],
    turns: AtomicUsize,
    options: KafkaOptions,
}

impl Engine {
    /// Ends what was left open under these transactional ids, and then joins the group: where it begins is what was
    /// committed.
    pub(super) fn open(
        source: &KafkaSourceOptions,
        sink: &KafkaOptions,
        ids: &[String; 2],
    ) -> Result<Self, SinkError> {
        let open = |id: &String| {
            let line = Line::open(&sink.transactional(id))?;
            Steps { line: &line, id }.fence(Instant::now() + sink.timeout)?;
            Ok::<_, SinkError>((line, id.clone()))
        };
        let lines = [open(&ids[0])?, open(&ids[1])?];
        let reader = Reader::open(source)
            .map_err(|error| SinkError::not_published(format!("Kafka's client cannot be made: {error}")))?;
        Ok(Self { reader, lines, turns: AtomicUsize::new(0), options: sink.clone() })
    }

    /// What these messages were made to, and that they are done, in one transaction.
    pub(super) fn transact(&self, tried: &[Input], outputs: &[Output]) -> Transacted {
        let (line, id) = &self.lines[self.turns.fetch_add(1, Ordering::Relaxed) % 2];
        let transaction = Transaction { steps: Steps { line, id }, options: &self.options };
        match transaction.run(&self.reader, tried, outputs) {
            Ok(()) => {
                self.reader.held().committed();
                Transacted::Committed
            }
            Err(other) => other,
        }
    }
}

struct Transaction<'a> {
    steps: Steps<'a>,
    options: &'a KafkaOptions,
}

impl Transaction<'_> {
    fn run(&self, reader: &Reader, tried: &[Input], outputs: &[Output]) -> Result<(), Transacted> {
        let until = Instant::now() + self.options.timeout;
        let stale = || Transacted::Stale("partitions were taken away".to_owned());
        let credentials = reader.credentials().ok_or_else(stale)?;
        let Some(offsets) = list(&held::positions(tried)) else { return Err(stale()) };
        self.steps.begin().map_err(ended)?;
        let batch = Batch::of(outputs.len());
        for (place, output) in outputs.iter().enumerate() {
            let queued = self.steps.queue(output.record(&batch, place), until);
            queued.map_err(|code| self.refused(output.topic(), code, outputs.len()))?;
        }
        crash::point(crash::BEFORE_OFFSETS);
        // While the outputs are under way.
        loop {
            let Some(producer) = self.steps.line.producer() else { return Err(stale()) };
            match producer.send_offsets_to_transaction(&offsets, &credentials, left(until)) {
                Ok(()) => break,
                Err(KafkaError::Transaction(cause)) if cause.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(self.not_ours(&error)),
            }
        }
        crash::point(crash::AFTER_OFFSETS);
        if !batch.wait(until) {
            let late = "the broker did not take the outputs in time";
            // Where it has said something, it has heard the rest too, and hears of the end.
            let silent = batch.reports().iter().all(Option::is_none);
            return Err(if silent { self.late(late) } else { self.abort(late) });
        }
        let failed = |(place, report): (usize, Option<Report>)| Some((place, report?.err()?));
        let mut failed = batch.reports().into_iter().enumerate().filter_map(failed);
        let first = failed.next();
        // What is only thrown away behind another one tells nothing.
        let to_blame = failed.chain(first).find(|(_, code)| *code != Code::PurgeQueue).or(first);
        if let Some((place, code)) = to_blame {
            return Err(self.refused(outputs[place].topic(), code, outputs.len()));
        }
        self.steps.commit(until).map_err(ended)
    }

    /// An output was not taken. Whose fault it is shows when it is alone.
    fn refused(&self, topic: &str, code: Code, outputs: usize) -> Transacted {
        let told = format!(
            "Kafka did not take an output (of {outputs}) for {topic}: {code}{}",
            verdict::advice(code)
        );
        if matches!(code, Code::QueueFull | Code::MessageTimedOut) {
            return self.late(&told);
        }
        let refused = verdict::of(code, self.options.missing) == Verdict::Refused;
        match self.abort(&told) {
            Transacted::Aborted(told) if refused => Transacted::Refused(told),
            // librdkafka remembers for minutes that a topic is not there; a new producer asks again.
            Transacted::Aborted(told) if is_unknown_topic(code) => {
                Transacted::Lost(SinkError::not_published(told))
            }
            other => other,
        }
    }

    /// The offsets were not taken.
    fn not_ours(&self, error: &KafkaError) -> Transacted {
        if let KafkaError::Transaction(cause) = error
            && cause.is_fatal()
        {
            return ended(self.steps.lost(error));
        }
        let stale = matches!(
            verdict::code(error),
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
        match self.abort(&told) {
            Transacted::Aborted(told) if stale => Transacted::Stale(told),
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
