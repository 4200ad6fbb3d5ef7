//! A backlog, drained in every way there is.

use std::sync::Arc;
use std::time::Instant;

use semel::outbox::Event;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Relay, RelayError, RelayOptions};
use semel::sink::kafka::KafkaSink;
use semel::sink::{ExactlyOnce, Guarantee, Published, Sink, SinkError};
use tokio::sync::Notify;
use tokio_postgres::NoTls;

use super::broker::Broker;
use super::floor;
use super::place::Place;
use crate::Failed;
use crate::table::Table;

/// Most events of a batch, unless a relay is configured otherwise.
const USUAL: usize = 4_000;
/// The same where each transaction of Kafka's weighs more.
const SMALL: usize = 1_000;

pub(super) async fn measure(
    place: &Place,
    broker: &Broker,
    events: u64,
    table: &mut Table,
) -> Result<(), Failed> {
    let reading = floor::reading(place, events).await?;
    table.row("drain: pg_recvlogical to nowhere", reading, "/s", "a floor");
    let producing = floor::producing(broker, events).await?;
    table.row("drain: a bare producer from memory", producing, "/s", "a floor");
    let floor = reading.min(producing);
    let of_floor = |rate: f64| format!("{:.2} × the slower floor", rate / floor);

    // First: rewinding the cursor sends a relay to the table instead of the log.
    let log = log(place, broker, events).await?;
    table.row("drain: CDC, at least once", log, "/s", of_floor(log));
    let polling = self::polling(place, broker, events, USUAL).await?;
    let note = format!("{}, {:.2} × CDC", of_floor(polling), polling / log);
    table.row("drain: polling, at least once", polling, "/s", note);
    let (dead, dead_cursors) = place.dead_rows().await?;
    table.row("drain: dead rows of the outbox after it", dead as f64, "", "left for a vacuum");
    let cursors: i64 = place.value("SELECT count(*) FROM semel_outbox_cursor").await?;
    let pages: i64 = place.value("SELECT pg_relation_size('semel_outbox_cursor') / 8192").await?;
    table.row(
        "drain: rows of the cursor",
        cursors as f64,
        "",
        format!("and {dead_cursors} dead, in {pages} pages"),
    );

    let held = held_up(place, broker, events).await?;
    let note = format!("{:.2} × without", held / polling);
    table.row("drain: polling, a transaction open elsewhere", held, "/s", note);

    let once = polling_exactly_once(place, broker, events, USUAL).await?;
    let note = format!("{}, {:.2} × at least once", of_floor(once), once / polling);
    table.row("drain: polling, exactly once", once, "/s", note);
    let polling = self::polling(place, broker, events, SMALL).await?;
    table.row(&format!("drain: polling, batches of {SMALL}"), polling, "/s", of_floor(polling));
    let once = polling_exactly_once(place, broker, events, SMALL).await?;
    let note = format!("{}, {:.2} × at least once", of_floor(once), once / polling);
    table.row(&format!("drain: polling, batches of {SMALL}, exactly once"), once, "/s", note);
    place.refill(events).await?;
    match log_exactly_once(place, broker, events).await {
        Ok(once) => {
            let note = format!("{}, {:.2} × at least once", of_floor(once), once / log);
            table.row("drain: CDC, exactly once", once, "/s", note);
        }
        Err(error) if is_shared(&error) => eprintln!("LEFT OUT: CDC, exactly once: {error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// All of it again, in batches of at most so many.
async fn outbox(place: &Place, batch: usize) -> Result<PostgresOutbox, Failed> {
    place.rewind().await?;
    Ok(PostgresOutbox::options(&place.url())?.batch_max(batch, 4 << 20).open().await?)
}

/// Asking again and again.
async fn polling(place: &Place, broker: &Broker, events: u64, batch: usize) -> Result<f64, Failed> {
    let outbox = outbox(place, batch).await?;
    let sink = KafkaSink::options(broker.bootstrap()).open()?;
    drain(broker, outbox.source(), sink, events).await
}

/// From the server's log.
async fn log(place: &Place, broker: &Broker, events: u64) -> Result<f64, Failed> {
    let sink = KafkaSink::options(broker.bootstrap()).open()?;
    drain(broker, place.log().await?.source(), sink, events).await
}

/// Asking again and again, each batch in a transaction of Kafka's with its position.
async fn polling_exactly_once(
    place: &Place,
    broker: &Broker,
    events: u64,
    batch: usize,
) -> Result<f64, Failed> {
    let outbox = outbox(place, batch).await?;
    drain_exactly_once(broker, outbox.source(), broker.transactions()?, events).await
}

async fn log_exactly_once(place: &Place, broker: &Broker, events: u64) -> Result<f64, Failed> {
    drain_exactly_once(broker, place.log().await?.source(), broker.transactions()?, events).await
}

/// Whether it is a source that cannot be had whole.
fn is_shared(error: &Failed) -> bool {
    matches!(error.downcast_ref(), Some(RelayError::Outbox(OutboxReaderError::Shared)))
}

/// The same while somebody else has a transaction open that has written, from before the drain to behind its end.
async fn held_up(place: &Place, broker: &Broker, events: u64) -> Result<f64, Failed> {
    let (holder, connection) = tokio_postgres::connect(place.server(), NoTls).await?;
    tokio::spawn(connection);
    holder.batch_execute("BEGIN; SELECT pg_current_xact_id()").await?;
    let rate = polling(place, broker, events, USUAL).await;
    holder.batch_execute("ROLLBACK").await?;
    rate
}

/// Events per second from the start of a relay until the sink has confirmed that many.
async fn drain<S: OutboxReader, K: Sink>(
    broker: &Broker,
    source: S,
    sink: K,
    events: u64,
) -> Result<f64, Failed> {
    broker.fresh_topic().await?;
    let (relay, stopper) = counted(source, sink, events);
    let begin = Instant::now();
    let ended = relay.run().await?;
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    stopper.await?;
    // Each of them once: nothing went wrong on the way.
    match (ended.confirmed, broker.records()?) {
        (confirmed, there) if (confirmed, there) == (events, events) => Ok(rate),
        (confirmed, there) => {
            Err(format!("{confirmed} events confirmed and {there} there instead of {events}").into())
        }
    }
}

/// The same with transactions of the broker's.
async fn drain_exactly_once<S: OutboxReader, K: ExactlyOnce>(
    broker: &Broker,
    source: S,
    sink: K,
    events: u64,
) -> Result<f64, Failed> {
    broker.fresh_topic().await?;
    let (relay, stopper) = counted(source, sink, events);
    let begin = Instant::now();
    let ended = relay.run_exactly_once().await?;
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    stopper.await?;
    // The end of each transaction is a record too, so the topic has more.
    match ended.confirmed {
        confirmed if confirmed == events => Ok(rate),
        confirmed => Err(format!("{confirmed} events confirmed instead of {events}").into()),
    }
}

/// A relay that is stopped when the sink has confirmed so many.
fn counted<S: OutboxReader, K: Sink>(
    source: S,
    sink: K,
    events: u64,
) -> (Relay<S, Counted<K>>, tokio::task::JoinHandle<()>) {
    let all = Arc::new(Notify::new());
    let sink = Counted { sink, left: events, all: Arc::clone(&all) };
    let relay = Relay::new(source, sink, RelayOptions::default().keep_all());
    let stop = relay.stop_handle();
    let stopper = tokio::spawn(async move {
        all.notified().await;
        stop.stop();
    });
    (relay, stopper)
}

/// A sink that tells when it has confirmed so many events.
struct Counted<K> {
    sink: K,
    left: u64,
    all: Arc<Notify>,
}

impl<K> Counted<K> {
    fn count(&mut self, confirmed: u64) {
        self.left = self.left.saturating_sub(confirmed);
        if self.left == 0 {
            self.all.notify_one();
        }
    }
}

impl<K: Sink> Sink for Counted<K> {
    fn guarantee(&self) -> Guarantee {
        self.sink.guarantee()
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let answers = self.sink.publish(events).await;
        let confirmed = answers.iter().filter(|answer| **answer == Published::Confirmed).count() as u64;
        self.count(confirmed);
        answers
    }
}

impl<K: ExactlyOnce> ExactlyOnce for Counted<K> {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.sink.begin().await
    }

    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        self.sink.publish_at(events, position).await?;
        self.count(events.len() as u64);
        Ok(())
    }
}
