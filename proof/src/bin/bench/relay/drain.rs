//! A backlog, drained in every way there is.

use std::sync::Arc;
use std::time::Instant;

use semel::outbox::Event;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{Relay, RelayOptions, Source};
use semel::sink::kafka::KafkaSink;
use semel::sink::{Guarantee, Published, Sink};
use tokio::sync::Notify;
use tokio_postgres::NoTls;

use super::broker::Broker;
use super::floor;
use super::place::Place;
use crate::Failed;
use crate::table::Table;

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

    let polling = polling(place, broker, events).await?;
    table.row("drain: polling, at least once", polling, "/s", of_floor(polling));
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
    Ok(())
}

/// Asking again and again.
pub(super) async fn polling(place: &Place, broker: &Broker, events: u64) -> Result<f64, Failed> {
    place.rewind().await?;
    let outbox = PostgresOutbox::open(&place.url()).await?;
    let sink = KafkaSink::options(broker.bootstrap()).open()?;
    drain(broker, outbox.source(), sink, events).await
}

/// The same while somebody else has a transaction open that has written, from before the drain to behind its end.
async fn held_up(place: &Place, broker: &Broker, events: u64) -> Result<f64, Failed> {
    let (holder, connection) = tokio_postgres::connect(place.server(), NoTls).await?;
    tokio::spawn(connection);
    holder.batch_execute("BEGIN; SELECT pg_current_xact_id()").await?;
    let rate = polling(place, broker, events).await;
    holder.batch_execute("ROLLBACK").await?;
    rate
}

/// Events per second from the start of a relay until the sink has confirmed that many.
async fn drain<S: Source, K: Sink>(broker: &Broker, source: S, sink: K, events: u64) -> Result<f64, Failed> {
    broker.fresh_topic().await?;
    let all = Arc::new(Notify::new());
    let sink = Counted { sink, left: events, all: Arc::clone(&all) };
    let relay = Relay::new(source, sink, RelayOptions::default().keep_all());
    let stop = relay.stop_handle();
    let stopper = tokio::spawn(async move {
        all.notified().await;
        stop.stop();
    });
    let begin = Instant::now();
    let ended = relay.run().await?;
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    stopper.await?;
    let there = broker.records()?;
    if (ended.confirmed, there) == (events, events) {
        return Ok(rate);
    }
    Err(format!("{} events confirmed and {there} there instead of {events}", ended.confirmed).into())
}

/// A sink that tells when it has confirmed so many events.
struct Counted<K> {
    sink: K,
    left: u64,
    all: Arc<Notify>,
}

impl<K: Sink> Sink for Counted<K> {
    fn guarantee(&self) -> Guarantee {
        self.sink.guarantee()
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let answers = self.sink.publish(events).await;
        let confirmed = answers.iter().filter(|answer| **answer == Published::Confirmed).count() as u64;
        self.left = self.left.saturating_sub(confirmed);
        if self.left == 0 {
            self.all.notify_one();
        }
        answers
    }
}
