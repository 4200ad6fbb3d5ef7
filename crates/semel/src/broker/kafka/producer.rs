//! A librdkafka producer, and the delivery reports of its records.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders, ToBytes};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::{ClientConfig, client::Client};
use tokio::sync::Notify;

use crate::outbox::Event;
use crate::sink::SinkError;
use crate::sink::headers::{self, Style};

/// Longest wait for librdkafka to release reported records; the commit continues anyway.
const SETTLES: Duration = Duration::from_millis(100);
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

/// A record with a key of text or bytes.
pub(crate) type Record<'a, K = str> = BaseRecord<'a, K, [u8], Box<Ticket>>;

/// A producer. When dropped, it is destroyed on a separate thread: that takes librdkafka half a second.
pub(crate) struct KafkaProducer(Option<ThreadedProducer<Reporter>>);

impl KafkaProducer {
    pub(crate) fn open(config: &ClientConfig) -> Result<Self, SinkError> {
        match ThreadedProducer::from_config_and_context(config, Reporter) {
            Ok(producer) => Ok(Self(Some(producer))),
            Err(error) => Err(SinkError::not_published(format!("invalid librdkafka configuration: {error}"))),
        }
    }

    /// The producer; `None` only while it is dropped.
    pub(crate) fn producer(&self) -> Option<&ThreadedProducer<Reporter>> {
        self.0.as_ref()
    }

    /// Queues a record, or returns it with the error code.
    pub(super) fn send<'a, K: ToBytes + ?Sized>(
        &self,
        record: Record<'a, K>,
    ) -> Result<(), (Code, Record<'a, K>)> {
        let Some(producer) = &self.0 else { return Err((Code::Unknown, record)) };
        producer
            .send(record)
            .map_err(|(error, record)| (error.rdkafka_error_code().unwrap_or(Code::Unknown), record))
    }

    /// Purges everything that is queued or in flight: it is reported at once.
    pub(super) fn purge(&self) {
        if let Some(producer) = &self.0 {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Purges only the queue.
    pub(super) fn purge_queue(&self) {
        if let Some(producer) = &self.0 {
            producer.purge(PurgeConfig::default().queue());
        }
    }

    /// Waits briefly until librdkafka has released the records it has reported. A commit before that would poll for
    /// their reports itself, a tenth of a second at a time.
    pub(super) fn settle(&self, until: Instant) {
        let until = until.min(Instant::now() + SETTLES);
        while self.0.as_ref().is_some_and(|producer| producer.in_flight_count() > 0) && Instant::now() < until
        {
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Why this producer will never send again.
    pub(super) fn fatal(&self) -> Option<(Code, String)> {
        self.0.as_ref().map(Producer::client).and_then(Client::fatal_error)
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        let producer = self.0.take();
        let _ = std::thread::Builder::new().name("semel-kafka-end".to_owned()).spawn(move || drop(producer));
    }
}

/// The record of an event, which reports to this index of the batch.
pub(super) fn record<'a>(event: &'a Event, style: &Style, batch: &Arc<Batch>, index: usize) -> Record<'a> {
    let pairs = headers::of(event, style, "ce_");
    let mut all = OwnedHeaders::new_with_capacity(pairs.len());
    for (name, text) in &pairs {
        all = all.insert(Header { key: name, value: Some(text) });
    }
    let ticket = Box::new(Ticket::new(batch, index));
    let record =
        BaseRecord::with_opaque_to(event.topic(), ticket).payload(event.payload().as_ref()).headers(all);
    match event.ordered_by() {
        Some(key) => record.key(key),
        None => record,
    }
}

/// Collects the delivery reports of a batch of records.
pub(crate) struct Batch {
    reports: Mutex<Reports>,
    complete: Notify,
    /// The same for callers that may block.
    over: Condvar,
}

struct Reports {
    left: usize,
    of: Vec<Option<Report>>,
}

/// The delivery report of one record: acked, or the error code.
pub(crate) type Report = Result<(), Code>;

/// Whether librdkafka itself discarded the records of a transaction and the broker rejected none, see
/// [`ProducerPair`](super::producer_pair::ProducerPair::transact).
pub(crate) fn is_librdkafkas(reports: &[Option<Report>]) -> bool {
    !reports.iter().flatten().any(|report| report.is_err_and(|code| code != Code::PurgeQueue))
}

impl Batch {
    pub(crate) fn of(len: usize) -> Arc<Self> {
        let reports = Mutex::new(Reports { left: len, of: vec![None; len] });
        Arc::new(Self { reports, complete: Notify::new(), over: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report(&self, index: usize, report: Report) {
        let mut reports = self.lock();
        if let Some(slot @ None) = reports.of.get_mut(index) {
            *slot = Some(report);
            reports.left = reports.left.saturating_sub(1);
        }
        if reports.left == 0 {
            self.complete.notify_one();
            self.over.notify_all();
        }
    }

    /// Returns when every record has been reported.
    pub(super) async fn complete(&self) {
        while self.lock().left > 0 {
            self.complete.notified().await;
        }
    }

    /// Blocks until every record has been reported, or until the deadline. librdkafka's own flush would poll, a tenth
    /// of a second at a time, for reports that the producer's thread has already taken.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.over.wait_timeout_while(self.lock(), left, |reports| reports.left > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.left == 0
    }

    /// The reports so far.
    pub(crate) fn reports(&self) -> Vec<Option<Report>> {
        self.lock().of.clone()
    }
}

/// Passed through librdkafka with a record, to route its report.
pub(crate) struct Ticket {
    batch: Arc<Batch>,
    index: usize,
}

impl Ticket {
    pub(crate) fn new(batch: &Arc<Batch>, index: usize) -> Self {
        Self { batch: Arc::clone(batch), index }
    }
}

pub(crate) struct Reporter;

impl ClientContext for Reporter {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(target: "semel::kafka", fac, "{text}"),
            _ => tracing::debug!(target: "semel::kafka", fac, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "semel::kafka", %error, "{reason}");
    }
}

impl ProducerContext for Reporter {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let report = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        ticket.batch.report(ticket.index, report);
    }
}
