//! How long after its commit an event is with a consumer, at a steady 2,000 events a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::producer::Producer;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Relay, RelayOptions};
use semel::sink::kafka::KafkaSink;
use tokio_postgres::NoTls;

use super::broker::Broker;
use super::floor::{self, Bare};
use super::place::{KEYS, PAYLOAD_BYTES, Place, TOPIC};
use crate::Failed;
use crate::table::Table;
use crate::times::Times;

const PER_S: u64 = 2_000;
/// Sessions that append: each commits one event at a time, so that commits go together as they do in a service.
const WRITERS: u64 = 16;
/// The events of the first second come with the first connections and metadata, and do not count.
const WARM_UP: usize = PER_S as usize;
/// How long the last events may take.
const TAIL: Duration = Duration::from_secs(10);
const APPEND: &str =
    "INSERT INTO semel_outbox (topic, type, key, payload) VALUES ($1, 'payment.completed', $2, $3)";

pub(super) async fn measure(
    place: &Place,
    broker: &Broker,
    size: usize,
    table: &mut Table,
) -> Result<(), Failed> {
    let events = PER_S * 4 * size as u64;
    let bare = bare(broker, events).await.map_err(of("a bare producer"))?;
    tell("a bare producer, from the send", bare, events, table);
    let polling = polling(place, broker, events).await.map_err(of("polling"))?;
    tell("polling", polling, events, table);
    let log = log(place, broker, events).await.map_err(of("CDC"))?;
    tell("CDC", log, events, table);
    Ok(())
}

fn of(what: &str) -> impl FnOnce(Failed) -> Failed {
    move |error| format!("{what}: {error}").into()
}

/// What came, and over how long it was sent.
struct Seen {
    times: Times,
    sending: Duration,
}

fn tell(name: &str, mut seen: Seen, events: u64, table: &mut Table) {
    let rate = events as f64 / seen.sending.as_secs_f64();
    for (share, percent) in [(0.5, "p50"), (0.99, "p99")] {
        let ms = seen.times.percentile_us(share) / 1_000.0;
        table.row(&format!("latency: {name}, {percent}"), ms, "ms", format!("{rate:.0} events/s"));
    }
}

/// The floor: a producer and a consumer, and nothing between them.
async fn bare(broker: &Broker, events: u64) -> Result<Seen, Failed> {
    broker.fresh_topic().await?;
    let clock = Clock::new(events);
    let reader = clock.read(broker)?;
    let producer: Bare = broker.producer().create()?;
    let writer = Arc::clone(&clock);
    let sending = tokio::task::spawn_blocking(move || {
        let begin = Instant::now();
        for n in 0..events {
            std::thread::sleep(due(begin, n).saturating_duration_since(Instant::now()));
            writer.stamp(n);
            floor::send(&producer, n, &payload(n))?;
        }
        let sending = begin.elapsed();
        // Dropped at once, it would take the last ones with it.
        producer.flush(TAIL)?;
        Ok::<_, Failed>(sending)
    });
    let sending = sending.await??;
    Ok(Seen { times: reader.join().await?, sending })
}

async fn polling(place: &Place, broker: &Broker, events: u64) -> Result<Seen, Failed> {
    // Only what is appended from here on.
    PostgresOutbox::rebase(&place.url(), semel::relay::Rebase::FromNow).await?;
    let outbox = PostgresOutbox::open(&place.url()).await?;
    relayed(place, broker, outbox.source(), events).await
}

/// From the server's log. The first event comes with the relay's start, long before the paced ones end.
async fn log(place: &Place, broker: &Broker, events: u64) -> Result<Seen, Failed> {
    PostgresOutbox::rebase(&place.url(), semel::relay::Rebase::FromNow).await?;
    relayed(place, broker, place.log().await?.source(), events).await
}

/// Through a relay that reads from this source.
async fn relayed<S: OutboxReader>(
    place: &Place,
    broker: &Broker,
    source: S,
    events: u64,
) -> Result<Seen, Failed> {
    broker.fresh_topic().await?;
    let clock = Clock::new(events);
    let reader = clock.read(broker)?;
    let sink = KafkaSink::options(broker.bootstrap()).open()?;
    let relay = Relay::new(source, sink, RelayOptions::default().keep_all());
    let stop = relay.stop_handle();
    let relay = tokio::spawn(relay.run());
    let begin = Instant::now();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, connection) = tokio_postgres::connect(place.server(), NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&format!("SET search_path = {}", place.schema())).await?;
        let append = client.prepare(APPEND).await?;
        let clock = Arc::clone(&clock);
        writers.push(tokio::spawn(async move {
            for n in (writer..events).step_by(WRITERS as usize) {
                tokio::time::sleep_until(due(begin, n).into()).await;
                let key = format!("account-{}", n % KEYS);
                // A statement alone is a transaction: its answer is the commit's.
                client.execute(&append, &[&TOPIC, &key, &payload(n)]).await?;
                clock.stamp(n);
            }
            Ok::<_, Failed>(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    let sending = begin.elapsed();
    let times = reader.join().await?;
    stop.stop();
    relay.await??;
    Ok(Seen { times, sending })
}

fn due(begin: Instant, n: u64) -> Instant {
    begin + Duration::from_micros(n * 1_000_000 / PER_S)
}

/// Begins with its number.
fn payload(n: u64) -> Vec<u8> {
    let mut payload = format!("{n:020}").into_bytes();
    payload.resize(PAYLOAD_BYTES, b'x');
    payload
}

/// When each event was committed and when it came, in nanoseconds since the beginning; 0 for not yet.
struct Clock {
    begin: Instant,
    committed: Vec<AtomicU64>,
    came: Vec<AtomicU64>,
}

impl Clock {
    fn new(events: u64) -> Arc<Self> {
        let zeros = || (0..events).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { begin: Instant::now(), committed: zeros(), came: zeros() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn stamp(&self, n: u64) {
        if let Some(slot) = self.committed.get(n as usize) {
            slot.store(self.now(), Ordering::Relaxed);
        }
    }

    /// A consumer on a thread of its own, until everything has come.
    fn read(self: &Arc<Self>, broker: &Broker) -> Result<Reader, Failed> {
        let (consumer, clock) = (broker.consumer()?, Arc::clone(self));
        let gone = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&gone);
        let thread = std::thread::spawn(move || {
            let mut left = clock.came.len();
            while left > 0 && !end.load(Ordering::Relaxed) {
                let Some(message) = consumer.poll(Duration::from_millis(50)) else { continue };
                let message = message?;
                let number = message.payload().and_then(|payload| payload.get(..20));
                let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
                let Some(slot) = number.and_then(|n: usize| clock.came.get(n)) else { continue };
                if slot.swap(clock.now(), Ordering::Relaxed) == 0 {
                    left -= 1;
                }
            }
            Ok::<usize, Failed>(left)
        });
        Ok(Reader { thread, gone, clock: Arc::clone(self) })
    }
}

struct Reader {
    thread: std::thread::JoinHandle<Result<usize, Failed>>,
    gone: Arc<AtomicBool>,
    clock: Arc<Clock>,
}

impl Reader {
    /// Waits for the last events. One that came before its writer saw the commit confirmed took no time.
    async fn join(self) -> Result<Times, Failed> {
        let until = Instant::now() + TAIL;
        while !self.thread.is_finished() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.gone.store(true, Ordering::Relaxed);
        let left = self.thread.join().map_err(|_| "the consumer panicked")??;
        if left > 0 {
            let came = self.clock.came.iter().enumerate();
            let missing = came.filter(|(_, came)| came.load(Ordering::Relaxed) == 0).map(|(n, _)| n);
            let first: Vec<usize> = missing.take(20).collect();
            return Err(format!(
                "{left} events did not come within {TAIL:?} after the last commit; the first of them: {first:?}"
            )
            .into());
        }
        let mut times = Times::default();
        let all = self.clock.committed.iter().zip(&self.clock.came);
        for (committed, came) in all.skip(WARM_UP) {
            let took = came.load(Ordering::Relaxed).saturating_sub(committed.load(Ordering::Relaxed));
            times.push(Duration::from_nanos(took));
        }
        Ok(times)
    }
}
