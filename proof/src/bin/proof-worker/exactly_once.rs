//! A relay that publishes exactly once, for killing: from the outbox in PostgreSQL to Kafka, until SIGTERM.
//!
//! `proof-worker exactly-once POSTGRES_URL BOOTSTRAP TRANSACTIONAL_ID POSITION_TOPIC LEASE_MS poll|cdc`. It says `done` after each
//! batch, and at last why it ended. It stops at the points of [`semel::crash`].

use std::process::ExitCode;
use std::time::Duration;

use semel::relay::cdc::CdcOutbox;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{
    Batch, Lag, OutboxReader, OutboxReaderError, Pruned, Relay, RelayError, RelayOptions, Settled,
    SinkCheckpoint,
};
use semel::sink::kafka::KafkaSink;
use tokio::signal::unix::{SignalKind, signal};

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    match relay(&args).await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn relay(args: &[String]) -> Result<String, Failed> {
    let [url, bootstrap, id, positions, lease_ms, mode] = args else {
        return Err(
            "usage: proof-worker exactly-once POSTGRES_URL BOOTSTRAP ID POSITIONS LEASE_MS poll|cdc".into()
        );
    };
    let lease = Duration::from_millis(lease_ms.parse()?);
    let kafka = [bootstrap, id, positions];
    match mode.as_str() {
        "poll" => {
            let outbox = PostgresOutbox::options(url)?.lease(lease).batch_max(40, 1 << 20).open().await?;
            run(outbox.source(), kafka).await
        }
        "cdc" => {
            let outbox = CdcOutbox::options(url)?.lease(lease).batch_max(40, 1 << 20).open().await?;
            run(outbox.source(), kafka).await
        }
        other => Err(format!("there is no mode {other:?}").into()),
    }
}

async fn run(source: impl OutboxReader, [bootstrap, id, positions]: [&String; 3]) -> Result<String, Failed> {
    let sink = KafkaSink::options(bootstrap)
        .position_topic(positions)
        .timeout(Duration::from_secs(5))
        .exactly_once(id)?;
    let options =
        RelayOptions::default().backoff(Duration::from_millis(20), Duration::from_secs(1)).keep_all();
    let relay = Relay::new(Announced(source), sink, options);
    let stop = relay.stop_handle();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.stop();
    });
    println!("working");
    match relay.run_exactly_once().await {
        Ok(ended) => Ok(format!("stopped after {} batches", ended.batches)),
        Err(RelayError::Fenced(_)) => Ok("fenced".to_owned()),
        Err(error) => Err(error.into()),
    }
}

/// A source that says what was done.
struct Announced<S>(S);

impl<S: OutboxReader> OutboxReader for Announced<S> {
    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.0.ack(settled).await?;
        println!("done");
        Ok(())
    }
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.0.next().await
    }
    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.0.acquire_exclusive().await
    }
    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        self.0.resume(reached).await
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        self.0.renew_lease().await
    }
    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }
    fn holds_lease(&self) -> bool {
        self.0.holds_lease()
    }
    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.0.prune(older_than).await
    }
    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.0.lag().await
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.0.release().await
    }
}
