//! Events and the relay's position in one transaction of Kafka's.
//!
//! ```text
//!  begin:       init_transactions ──▶ nobody from before can commit any more
//!               read the position ──▶ and so it cannot change any more
//!  publish_at:  begin ─▶ events ─▶ position ─▶ commit      all of it, or nothing
//! ```
//!
//! The other order at the start would let a zombie commit between the reading and the fence, and its events would be
//! published again.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::BaseRecord;
use tokio::sync::Mutex;

use super::error_class::{self, ErrorClass};
use super::options::KafkaOptions;
use super::producer::{Batch, Report, Ticket, is_librdkafkas, record};
use super::producer_pair::ProducerPair;
use super::transaction_steps::{Failed, TransactionSteps, in_doubt, not_begun};
use super::version::Features;
use super::{position, version};
use crate::outbox::Event;
use crate::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};

/// Publishes to Kafka exactly once, for readers with `isolation.level=read_committed`.
///
/// One relay at a time: [`begin`](ExactlyOnce::begin) takes over from whoever had the transactional id. Events for
/// several topics in one call become visible together. There are two producers that take turns: the second has the
/// transactional id with `.2` behind it, and may have to be allowed too; so a transactional id does not end in `.2`.
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
    /// `None` until it is begun, and when nobody knows what became of a transaction.
    turns: Option<ProducerPair>,
    /// One piece of work at a time, also when its caller has gone away.
    turn: Arc<Mutex<()>>,
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
                "the transactional id must not end in {SECOND:?}: {id:?} is what the second producer of {first:?} is called, \
                 and two relays would end each other's transactions; choose another"
            )));
        }
        // Tried once, so that a mistake in the configuration is told here.
        drop(ProducerPair::open(&options, ids(id))?);
        Ok(Self {
            options: Arc::new(options),
            id: id.into(),
            turns: None,
            turn: Arc::default(),
            features: None,
            violations: Vec::new(),
        })
    }

    /// The transaction version the broker said it has (KIP-890 is version 2), as far as it could be asked: only brokers
    /// without TLS and SASL can be, and only after [`begin`](ExactlyOnce::begin).
    pub fn transaction_version(&self) -> Option<u16> {
        self.features.map(|features| features.transactions)
    }

    /// Runs one transaction where blocking is allowed. After an error with which the producers cannot go on it has to begin
    /// again.
    async fn transact(&mut self, events: &[Arc<Event>], position: Option<&[u8]>) -> Result<(), SinkError> {
        // Taken out: should the caller leave, nobody knows what became of the transaction, and it has to begin again.
        let Some(mut turns) = self.turns.take() else { return Err(not_begun()) };
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let (options, id) = (Arc::clone(&self.options), Arc::clone(&self.id));
        let (events, position) = (events.to_vec(), position.map(<[u8]>::to_vec));
        let work = tokio::task::spawn_blocking(move || {
            let run = |steps: TransactionSteps<'_>| {
                let transaction = Transaction { steps, id: &id, options: &options };
                transaction.run(&events, position.as_deref())
            };
            let done = turns.transact(run, |failed| failed.usable && failed.again);
            drop(turn);
            (turns, done)
        });
        let (turns, done) =
            work.await.map_err(|error| in_doubt(format!("the transaction broke off: {error}")))?;
        match done {
            Ok(()) => self.turns = Some(turns),
            Err(Failed { usable, error, .. }) => {
                self.turns = usable.then_some(turns);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Sink for KafkaTransactions {
    fn guarantee(&self) -> Guarantee {
        let mut violations = self.violations.clone();
        violations.extend(self.features.map(Features::complaints).unwrap_or_default());
        Guarantee {
            delivery: DeliverySemantics::ExactlyOnce,
            sentence: "Kafka transactions: readers with isolation.level=read_committed see every event once, in the \
                       order of its key; other readers may see some more often, with the same semel-id."
                .to_owned(),
            violations,
        }
    }

    /// Does not begin: whoever has the transactional id keeps it.
    async fn probe(&mut self) -> Result<(), SinkError> {
        self.violations = super::probe::reach(&self.options).await?;
        let options = Arc::clone(&self.options);
        let asked = tokio::task::spawn_blocking(move || version::ask(options.first_broker()));
        self.features = asked.await.ok().flatten().or(self.features);
        Ok(())
    }

    /// Events without a position, in one transaction: all are confirmed, or none.
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        if events.is_empty() {
            return Vec::new();
        }
        match self.transact(events, None).await {
            Ok(()) => vec![Published::Confirmed; events.len()],
            Err(error) => {
                // Of several with that id it is not known which one was refused.
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
        self.turns = None;
        let turn = Arc::clone(&self.turn).lock_owned().await;
        position::ensure(&self.options).await?;
        let (options, id) = (Arc::clone(&self.options), Arc::clone(&self.id));
        // Gone when this is dropped: then soon nobody is fenced any more.
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let work = tokio::task::spawn_blocking(move || {
            let until = Instant::now() + options.timeout;
            let turns = ProducerPair::open(&options, ids(&id))?;
            turns.fence(until, || watched.strong_count() > 0)?;
            let position = position::read(&options, &id, until)?;
            let features = version::ask_and_warn(options.first_broker());
            drop(turn);
            Ok((turns, position, features))
        });
        let (turns, position, features) =
            work.await.map_err(|error| in_doubt(format!("beginning broke off: {error}")))??;
        self.features = features.or(self.features);
        self.turns = Some(turns);
        Ok(position)
    }

    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        self.transact(events, Some(position)).await
    }
}

/// Behind the transactional id of the second producer.
const SECOND: &str = ".2";

/// The transactional ids of both producers.
fn ids(id: &str) -> [String; 2] {
    [id.to_owned(), format!("{id}{SECOND}")]
}

struct Transaction<'a> {
    steps: TransactionSteps<'a>,
    /// What the position is kept under, whoever of the two writes it.
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
        // Waited for here and not in the commit, so that what is then to be committed is there.
        if !batch.wait(until) {
            let late = SinkError::not_published("the broker did not take a transaction in time");
            // Where it has said something, it has heard the rest too, and hears of the end.
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

    /// Ended here, a transaction may be open there: what the broker did not answer it may still read. Taking the ids over
    /// ends that too.
    fn late(&self, error: SinkError) -> Failed {
        let told = error.to_string();
        let failed = self.steps.abort(error);
        if failed.error.is_fenced() { failed } else { Failed::lost(in_doubt(told)) }
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
        // The position comes last: of a transaction that is cut off while it is written, it is what is missing.
        let position = position.map(|position| {
            let ticket = Box::new(Ticket::new(batch, events.len()));
            BaseRecord::with_opaque_to(&self.options.positions, ticket)
                .partition(0)
                .key(self.id)
                .payload(position)
        });
        for (n, record) in records.chain(position).enumerate() {
            self.steps.queue(record, until).map_err(|code| self.told(events.get(n), code))?;
        }
        Ok(())
    }

    /// The error for the first event that was not taken. Which event was to blame is only sure if it was the only one:
    /// a batch is refused as a whole.
    fn blame(&self, events: &[Arc<Event>], reports: &[Option<Report>]) -> Option<SinkError> {
        let failed: Vec<(usize, Code)> = reports
            .iter()
            .enumerate()
            .filter_map(|(n, report)| report.and_then(Result::err).map(|code| (n, code)))
            .collect();
        let (n, code) = *failed.iter().find(|(_, code)| *code != Code::PurgeQueue).or(failed.first())?;
        let told = self.told(events.get(n), code);
        let sure = events.len() == 1 || failed.len() == 1;
        Some(if sure { told } else { SinkError::not_published(told.to_string()) })
    }

    fn told(&self, event: Option<&Arc<Event>>, code: Code) -> SinkError {
        let Some(event) = event else {
            return SinkError::not_published(format!(
                "the position could not be written to {}: {code}{}",
                self.options.positions,
                error_class::advice(code)
            ));
        };
        let told = format!(
            "Kafka did not take the event {} for {}: {code}{}",
            event.id(),
            event.topic(),
            error_class::advice(code)
        );
        match error_class::of(code, self.options.missing) {
            ErrorClass::Refused => SinkError::refused(event.id(), told),
            _ => SinkError::not_published(told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_called_like_the_second_producer_of_another() {
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
