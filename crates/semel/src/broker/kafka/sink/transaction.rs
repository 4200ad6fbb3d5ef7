//! Events and the relay's position (its checkpoint) in one Kafka transaction.
//!
//! ```text
//!  begin:       init_transactions ──▶ fences earlier producers: they cannot commit any more
//!               read the position ──▶ so it cannot change any more
//!  publish_at:  begin ─▶ events ─▶ position ─▶ commit      all of it, or nothing
//! ```
//!
//! If the position were read before the fence, a zombie could commit in between, and its events would be published
//! again.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::BaseRecord;
use tokio::sync::Mutex;

use super::error_class::{self, ErrorClass};
use super::options::KafkaOptions;
use super::position;
use crate::broker::kafka::producer::{Batch, Report, Ticket, is_librdkafkas, record};
use crate::broker::kafka::producer_pair::ProducerPair;
use crate::broker::kafka::transaction_steps::{Failed, TransactionSteps, in_doubt, not_begun};
use crate::broker::kafka::version::{self, Features};
use crate::outbox::Event;
use crate::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};

/// Publishes to Kafka exactly once, for readers with `isolation.level=read_committed`.
///
/// One relay at a time: [`begin`](ExactlyOnce::begin) takes over the transactional id from its last owner. Events for
/// several topics in one call become visible together. Two producers alternate: the second uses the transactional id
/// with the suffix `.2`, which may need its own permission; so a transactional id must not end in `.2`.
///
/// ```no_run
/// # async fn f() -> Result<(), semel::sink::SinkError> {
/// use semel::sink::ExactlyOnce;
/// use semel::sink::kafka::KafkaSink;
///
/// let mut sink = KafkaSink::options("127.0.0.1:9092").exactly_once("relay-payments")?;
/// let position = sink.begin().await?;
/// # let _ = position; Ok(()) }
/// ```
pub struct KafkaTransactions {
    options: Arc<KafkaOptions>,
    id: Arc<str>,
    /// `None` before `begin`, and after a transaction that is in doubt.
    producers: Option<ProducerPair>,
    /// One operation at a time, also if its caller was cancelled.
    exclusive: Arc<Mutex<()>>,
    features: Option<Features>,
    violations: Vec<String>,
}

impl KafkaTransactions {
    pub(super) fn open(options: KafkaOptions, id: &str) -> Result<Self, SinkError> {
        if id.trim().is_empty() {
            return Err(SinkError::not_published("the transactional id must not be empty"));
        }
        if let Some(first) = id.strip_suffix(SECOND) {
            return Err(SinkError::not_published(format!(
                "the transactional id must not end in {SECOND:?}: the second producer of {first:?} uses {id:?}, so two \
                 relays would end each other's transactions; choose another"
            )));
        }
        // Opened once, so that a mistake in the configuration is reported here.
        drop(ProducerPair::open(&options, ids(id))?);
        Ok(Self {
            options: Arc::new(options),
            id: id.into(),
            producers: None,
            exclusive: Arc::default(),
            features: None,
            violations: Vec::new(),
        })
    }

    /// The broker's transaction version (KIP-890 is version 2), if it could be asked: only brokers without TLS and SASL
    /// can be, and only after [`begin`](ExactlyOnce::begin).
    pub fn transaction_version(&self) -> Option<u16> {
        self.features.map(|features| features.transactions)
    }

    /// Runs one transaction on a blocking thread. After an error that makes the producers unusable, the sink has to
    /// begin again.
    async fn transact(&mut self, events: &[Arc<Event>], position: Option<&[u8]>) -> Result<(), SinkError> {
        // Taken out: if the caller is cancelled, the transaction is in doubt, and the sink has to begin again.
        let Some(mut producers) = self.producers.take() else { return Err(not_begun()) };
        let exclusive = Arc::clone(&self.exclusive).lock_owned().await;
        let (options, id) = (Arc::clone(&self.options), Arc::clone(&self.id));
        let (events, position) = (events.to_vec(), position.map(<[u8]>::to_vec));
        let work = tokio::task::spawn_blocking(move || {
            let run = |steps: TransactionSteps<'_>| {
                let transaction = Transaction { steps, id: &id, options: &options };
                transaction.run(&events, position.as_deref())
            };
            let done = producers.transact(run, |failed| failed.usable && failed.again);
            drop(exclusive);
            (producers, done)
        });
        let (producers, done) =
            work.await.map_err(|error| in_doubt(format!("the transaction was interrupted: {error}")))?;
        match done {
            Ok(()) => self.producers = Some(producers),
            Err(Failed { usable, error, .. }) => {
                self.producers = usable.then_some(producers);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Sink for KafkaTransactions {
    fn guarantee(&self) -> Guarantee {
        let mut violations = self.violations.clone();
        violations.extend(self.features.map(Features::violations).unwrap_or_default());
        Guarantee {
            delivery: DeliverySemantics::ExactlyOnce,
            sentence: "Kafka transactions: readers with isolation.level=read_committed see every event once, in the \
                       order of its key; other readers may see some more often, with the same semel-id."
                .to_owned(),
            violations,
        }
    }

    /// Does not begin: the current owner keeps the transactional id.
    async fn probe(&mut self) -> Result<(), SinkError> {
        self.violations = super::probe::reach(&self.options).await?;
        let options = Arc::clone(&self.options);
        let asked = tokio::task::spawn_blocking(move || version::ask(options.first_broker()));
        self.features = asked.await.ok().flatten().or(self.features);
        Ok(())
    }

    /// Publishes events without a position, in one transaction: all are confirmed, or none.
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        if events.is_empty() {
            return Vec::new();
        }
        match self.transact(events, None).await {
            Ok(()) => vec![Published::Confirmed; events.len()],
            Err(error) => {
                // If several events share that id, it is unknown which one was refused.
                let named = |event: &&Arc<Event>| error.refused_event() == Some(event.id());
                let is_known = events.iter().filter(named).count() == 1;
                events.iter().map(|event| answer(event, &error, is_known)).collect()
            }
        }
    }
}

fn answer(event: &Event, error: &SinkError, is_known: bool) -> Published {
    match error.refused_event() {
        Some(id) if is_known && id == event.id() => Published::Refused(error.clone()),
        Some(_) => {
            Published::Failed(SinkError::not_published("another event of its transaction was refused"))
        }
        None => Published::Failed(error.clone()),
    }
}

impl ExactlyOnce for KafkaTransactions {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.producers = None;
        let exclusive = Arc::clone(&self.exclusive).lock_owned().await;
        position::ensure(&self.options).await?;
        let (options, id) = (Arc::clone(&self.options), Arc::clone(&self.id));
        // Dropped with this future: a cancelled `begin` soon stops fencing.
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let work = tokio::task::spawn_blocking(move || {
            let until = Instant::now() + options.timeout;
            let producers = ProducerPair::open(&options, ids(&id))?;
            producers.fence(until, || watched.strong_count() > 0)?;
            let position = position::read(&options, &id, until)?;
            let features = version::ask_and_warn(options.first_broker());
            drop(exclusive);
            Ok((producers, position, features))
        });
        let (producers, position, features) = work
            .await
            .map_err(|error| in_doubt(format!("the take-over of the sink was interrupted: {error}")))??;
        self.features = features.or(self.features);
        self.producers = Some(producers);
        Ok(position)
    }

    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        self.transact(events, Some(position)).await
    }
}

/// Suffix of the second producer's transactional id.
const SECOND: &str = ".2";

/// The transactional ids of both producers.
fn ids(id: &str) -> [String; 2] {
    [id.to_owned(), format!("{id}{SECOND}")]
}

struct Transaction<'a> {
    steps: TransactionSteps<'a>,
    /// The key of the position, for both producers.
    id: &'a str,
    options: &'a KafkaOptions,
}

impl Transaction<'_> {
    fn run(&self, events: &[Arc<Event>], position: Option<&[u8]>) -> Result<(), Failed> {
        let until = Instant::now() + self.options.timeout;
        self.steps.begin()?;
        let batch = Batch::of(events.len() + usize::from(position.is_some()));
        match self.produce(events, position, &batch, until) {
            Err(error) if Instant::now() >= until => return Err(self.late(error)),
            Err(error) => return Err(self.steps.abort(error)),
            Ok(()) => {}
        }
        // Waits here and not in the commit, so that the commit only starts once all records are delivered.
        if !batch.wait(until) {
            let late = SinkError::not_published("the broker did not accept a transaction in time");
            // If the broker reported any record, it is reachable and gets the abort too.
            let silent = batch.reports().iter().all(Option::is_none);
            return Err(if silent { self.late(late) } else { self.steps.abort(late) });
        }
        let reports = batch.reports();
        if let Some(error) = self.blame(events, &reports) {
            let again = is_librdkafkas(&reports);
            return Err(Failed { again, ..self.steps.abort(error) });
        }
        self.steps.commit(until)
    }

    /// A transaction that is aborted here may still be open at the broker, which may yet process unanswered requests.
    /// Taking over the transactional ids ends that too.
    fn late(&self, error: SinkError) -> Failed {
        let message = error.to_string();
        let failed = self.steps.abort(error);
        if failed.error.is_fenced() { failed } else { Failed::lost(in_doubt(message)) }
    }

    fn produce(
        &self,
        events: &[Arc<Event>],
        position: Option<&[u8]>,
        batch: &Arc<Batch>,
        until: Instant,
    ) -> Result<(), SinkError> {
        let records =
            events.iter().enumerate().map(|(n, event)| record(event, &self.options.style, batch, n));
        // The position comes last: if writing the transaction is interrupted, the position is what is missing.
        let position = position.map(|position| {
            let ticket = Box::new(Ticket::new(batch, events.len()));
            BaseRecord::with_opaque_to(&self.options.positions, ticket)
                .partition(0)
                .key(self.id)
                .payload(position)
        });
        for (n, record) in records.chain(position).enumerate() {
            self.steps.queue(record, until).map_err(|code| self.error_of(events.get(n), code))?;
        }
        Ok(())
    }

    /// The error of the first event that was not accepted. It is certain that this event is to blame only if it was the
    /// only one: a batch is refused as a whole.
    fn blame(&self, events: &[Arc<Event>], reports: &[Option<Report>]) -> Option<SinkError> {
        let failed: Vec<(usize, Code)> = reports
            .iter()
            .enumerate()
            .filter_map(|(n, report)| report.and_then(Result::err).map(|code| (n, code)))
            .collect();
        let (n, code) = *failed.iter().find(|(_, code)| *code != Code::PurgeQueue).or(failed.first())?;
        let error = self.error_of(events.get(n), code);
        let sure = events.len() == 1 || failed.len() == 1;
        Some(if sure { error } else { SinkError::not_published(error.to_string()) })
    }

    fn error_of(&self, event: Option<&Arc<Event>>, code: Code) -> SinkError {
        let Some(event) = event else {
            return SinkError::not_published(format!(
                "could not write the position to {}: {code}{}",
                self.options.positions,
                error_class::advice(code)
            ));
        };
        let message = format!(
            "Kafka did not accept the event {} for {}: {code}{}",
            event.id(),
            event.topic(),
            error_class::advice(code)
        );
        match error_class::of(code, self.options.missing) {
            ErrorClass::Refused => SinkError::refused(event.id(), message),
            _ => SinkError::not_published(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_a_second_producer_would_have_is_refused() {
        let open = |id: &str| KafkaOptions::new("127.0.0.1:1").exactly_once(id);
        for id in ["x.2", "x.2.2", ".2"] {
            let refused = open(id).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("must not end in"), "{id}: {refused}");
        }
        for id in ["x", "x.20", "x.2-b"] {
            assert!(open(id).is_ok(), "{id}");
        }
    }
}
