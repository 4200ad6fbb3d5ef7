//! A relay as a process, for killing: `relay_worker SOURCE BOOTSTRAP MODE BATCH LEASE_MS`.
//!
//! SOURCE is the URL of a PostgreSQL or MySQL database, or the path of an SQLite file. It says `up` when it has begun, runs
//! until it is asked to end (SIGTERM) and says what it did, or `stopped: …` with status 1 when a person is needed. It
//! stops at the points of [`semel::crash`] if it is told to.

use std::process::ExitCode;
use std::time::Duration;

use proof::planted::{By, ConfirmedEarly, DoneEarly, Naive};
use semel::relay::poll::mysql::MysqlOutbox;
use semel::relay::poll::postgres::{PostgresOutbox, PostgresSource};
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{Relay, RelayOptions, Source};
use semel::sink::Sink;
use semel::sink::kafka::KafkaSink;
use tokio::signal::unix::{SignalKind, signal};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How events get from the table to the broker.
#[derive(Clone, Copy)]
enum Mode {
    /// By polling, at least once.
    Poll,
    /// A planted bug: confirmed before the broker has it.
    ConfirmedEarly,
    /// A planted bug: marked before it is sent.
    DoneEarly,
    /// A planted bug: a cursor that remembers a number.
    BySeq,
    /// A planted bug: in the order of transactions.
    ByXid,
}

impl Mode {
    fn read(text: &str) -> Result<Self, Failed> {
        Ok(match text {
            "poll" => Self::Poll,
            "confirmed-early" => Self::ConfirmedEarly,
            "done-early" => Self::DoneEarly,
            "by-seq" => Self::BySeq,
            "by-xid" => Self::ByXid,
            other => return Err(format!("there is no mode {other:?}").into()),
        })
    }
}

/// One thread: whoever stands at a crash point stands there whole, but for what librdkafka has been given.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match relay(&args).await {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn relay(args: &[String]) -> Result<String, Failed> {
    let [source, bootstrap, mode, batch, lease_ms] = args else {
        return Err("usage: relay_worker SOURCE BOOTSTRAP MODE BATCH LEASE_MS".into());
    };
    let (batch, lease) = (batch.parse()?, Duration::from_millis(lease_ms.parse()?));
    let sink = KafkaSink::options(bootstrap).timeout(Duration::from_secs(5)).open()?;
    let mode = Mode::read(mode)?;
    if source.starts_with("mysql:") {
        let outbox = MysqlOutbox::new(source)?.batch_max(batch, 1 << 20).lease(lease);
        return run(outbox.source(), sink).await;
    }
    if !source.starts_with("postgres:") {
        let outbox = SqliteOutbox::new(source).batch_max(batch, 1 << 20).lease(lease);
        return run(outbox.source(), sink).await;
    }
    match mode {
        Mode::Poll => run(postgres(source, batch, lease).await?, sink).await,
        Mode::ConfirmedEarly => run(postgres(source, batch, lease).await?, ConfirmedEarly::new(sink)).await,
        Mode::DoneEarly => run(DoneEarly(postgres(source, batch, lease).await?), sink).await,
        Mode::BySeq => run(naive(source, By::Seq).await?, sink).await,
        Mode::ByXid => run(naive(source, By::Xid).await?, sink).await,
    }
}

async fn postgres(url: &str, batch: usize, lease: Duration) -> Result<PostgresSource, Failed> {
    Ok(PostgresOutbox::options(url)?.batch_max(batch, 1 << 20).lease(lease).open().await?.source())
}

async fn naive(url: &str, by: By) -> Result<Naive, Failed> {
    let (server, schema) = url.split_once("?schema=").ok_or("a schema is needed")?;
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await?;
    Ok(Naive::new(client, by))
}

async fn run(source: impl Source, sink: impl Sink) -> Result<String, Failed> {
    let options = RelayOptions::default().pause(Duration::from_millis(10), Duration::from_millis(200));
    let relay = Relay::new(source, sink, options.keep_all());
    let stop = relay.stop_handle();
    let mut asked = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        asked.recv().await;
        stop.stop();
    });
    println!("up");
    let ended = relay.run().await?;
    Ok(format!("confirmed {} parked {} batches {}", ended.confirmed, ended.parked, ended.batches))
}
