//! A relay as a process, for killing: `proof-worker relay SOURCE BOOTSTRAP MODE NAME BATCH LEASE_MS`.
//!
//! SOURCE is the URL of a PostgreSQL or MySQL database, or the path of an SQLite file. It says `up` when it has begun, runs
//! until it is asked to end (SIGTERM) and says what it did, or `stopped: …` with status 1 when a person is needed. It
//! stops at the points of [`semel::crash`] it is given. NAME is what a relay that publishes exactly once is called by
//! the broker.

use std::process::ExitCode;
use std::time::Duration;

use proof::planted::{By, ConfirmedEarly, DoneEarly, Naive};
use semel::relay::cdc::{CdcOutbox, CdcOutboxReader, PlantedBug};
use semel::relay::poll::mysql::MysqlOutbox;
use semel::relay::poll::postgres::{PostgresOutbox, PostgresOutboxReader};
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{OutboxReader, Relay, RelayError, RelayOptions, RelayStats};
use semel::sink::Sink;
use semel::sink::kafka::{KafkaSink, KafkaTransactions};
use tokio::signal::unix::{SignalKind, signal};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How events get from the table to the broker.
#[derive(Clone, Copy)]
enum Mode {
    /// By polling, at least once.
    Poll,
    /// By polling, exactly once.
    ExactlyOnce,
    /// From PostgreSQL's log.
    Log(Log),
    /// A planted bug: confirmed before the broker has it.
    ConfirmedEarly,
    /// A planted bug: marked before it is sent.
    DoneEarly,
    /// A planted bug: a cursor that remembers a number.
    BySeq,
    /// A planted bug: in the order of transactions.
    ByXid,
}

/// How the log is read.
#[derive(Clone, Copy, Default)]
struct Log {
    exactly_once: bool,
    /// Also that of a standby that was promoted.
    following: bool,
    /// A planted bug: what the broker does not have is acked to the server.
    acked_early: bool,
}

impl Mode {
    fn read(text: &str) -> Result<Self, Failed> {
        Ok(match text {
            "poll" => Self::Poll,
            "exactly-once" => Self::ExactlyOnce,
            "cdc" => Self::Log(Log::default()),
            "cdc-following" => Self::Log(Log { following: true, ..Log::default() }),
            "cdc-exactly-once" => Self::Log(Log { exactly_once: true, ..Log::default() }),
            "cdc-exactly-once-following" => {
                Self::Log(Log { exactly_once: true, following: true, ..Log::default() })
            }
            "cdc-exactly-once-acked-early" => {
                Self::Log(Log { exactly_once: true, acked_early: true, ..Log::default() })
            }
            "confirmed-early" => Self::ConfirmedEarly,
            "done-early" => Self::DoneEarly,
            "by-seq" => Self::BySeq,
            "by-xid" => Self::ByXid,
            other => return Err(format!("there is no mode {other:?}").into()),
        })
    }
}

/// One thread: at a crash point the whole process stands still, but for what librdkafka has been given.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    match Box::pin(relay(&args)).await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn relay(args: &[String]) -> Result<String, Failed> {
    let [source, bootstrap, mode, name, batch, lease_ms] = args else {
        return Err("usage: proof-worker relay SOURCE BOOTSTRAP MODE NAME BATCH LEASE_MS".into());
    };
    let (batch, lease) = (batch.parse()?, Duration::from_millis(lease_ms.parse()?));
    let (mode, kafka) = (Mode::read(mode)?, Kafka { bootstrap, name });
    if source.starts_with("mysql:") {
        let outbox = MysqlOutbox::new(source)?.batch_max(batch, 1 << 20).lease(lease);
        return as_it_is(mode, outbox.source(), kafka).await;
    }
    if !source.starts_with("postgres:") {
        let outbox = SqliteOutbox::new(source).batch_max(batch, 1 << 20).lease(lease);
        return as_it_is(mode, outbox.source(), kafka).await;
    }
    let sink = kafka.sink()?;
    match mode {
        Mode::ExactlyOnce => as_it_is(mode, postgres(source, batch, lease).await?, kafka).await,
        Mode::Log(how) => {
            let mode = if how.exactly_once { Mode::ExactlyOnce } else { Mode::Poll };
            as_it_is(mode, log(source, batch, lease, how).await?, kafka).await
        }
        Mode::Poll => run(postgres(source, batch, lease).await?, sink).await,
        Mode::ConfirmedEarly => run(postgres(source, batch, lease).await?, ConfirmedEarly::new(sink)).await,
        Mode::DoneEarly => run(DoneEarly(postgres(source, batch, lease).await?), sink).await,
        Mode::BySeq => run(naive(source, By::Seq).await?, sink).await,
        Mode::ByXid => run(naive(source, By::Xid).await?, sink).await,
    }
}

/// Where it publishes to.
#[derive(Clone, Copy)]
struct Kafka<'a> {
    bootstrap: &'a str,
    name: &'a str,
}

impl Kafka<'_> {
    fn sink(self) -> Result<KafkaSink, Failed> {
        Ok(KafkaSink::options(self.bootstrap).timeout(Duration::from_secs(5)).open()?)
    }

    fn transactions(self) -> Result<KafkaTransactions, Failed> {
        let options = KafkaSink::options(self.bootstrap).timeout(Duration::from_secs(5));
        Ok(options.position_topic(&format!("{}-positions", self.name)).exactly_once(self.name)?)
    }
}

/// Without a mistake.
async fn as_it_is(mode: Mode, source: impl OutboxReader, kafka: Kafka<'_>) -> Result<String, Failed> {
    match mode {
        Mode::Poll => run(source, kafka.sink()?).await,
        Mode::ExactlyOnce => {
            let relay = relay_of(source, kafka.transactions()?)?;
            println!("up");
            match relay.run_exactly_once().await {
                Ok(ended) => Ok(summary(ended)),
                Err(RelayError::Fenced(_)) => Ok("fenced".to_owned()),
                Err(error) => Err(error.into()),
            }
        }
        _ => Err("mistakes are made in PostgreSQL only".into()),
    }
}

async fn postgres(url: &str, batch: usize, lease: Duration) -> Result<PostgresOutboxReader, Failed> {
    Ok(PostgresOutbox::options(url)?.batch_max(batch, 1 << 20).lease(lease).open().await?.source())
}

async fn log(url: &str, batch: usize, lease: Duration, how: Log) -> Result<CdcOutboxReader, Failed> {
    let mut options = CdcOutbox::options(url)?.batch_max(batch, 1 << 20).lease(lease);
    options = options.follow_promotions(how.following);
    if how.acked_early {
        options = options.checkpoint_interval(Duration::from_millis(1)).plant(PlantedBug::AckUnconfirmed);
    }
    Ok(options.open().await?.source())
}

async fn naive(url: &str, by: By) -> Result<Naive, Failed> {
    let (server, schema) = url.split_once("?schema=").ok_or("a schema is needed")?;
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await?;
    Ok(Naive::new(client, by))
}

async fn run(source: impl OutboxReader, sink: impl Sink) -> Result<String, Failed> {
    let relay = relay_of(source, sink)?;
    println!("up");
    Ok(summary(relay.run().await?))
}

fn summary(ended: RelayStats) -> String {
    format!("confirmed {} parked {} batches {}", ended.confirmed, ended.parked, ended.batches)
}

/// A relay that ends when it is asked to.
fn relay_of<S: OutboxReader, K: Sink>(source: S, sink: K) -> Result<Relay<S, K>, Failed> {
    let options = RelayOptions::default().backoff(Duration::from_millis(10), Duration::from_millis(200));
    let relay = Relay::new(source, sink, options.keep_all());
    let stop = relay.stop_handle();
    let mut asked = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        asked.recv().await;
        stop.stop();
    });
    Ok(relay)
}
