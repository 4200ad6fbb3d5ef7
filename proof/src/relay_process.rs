//! A relay as a process of its own, from an outbox in PostgreSQL to Kafka, until SIGTERM or until its input ends.

use semel::relay::cdc::CdcOutbox;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Relay, RelayOptions};
use semel::sink::kafka::KafkaSink;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Whatever keeps it from running.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How it is called.
const USAGE: &str = "usage: --from postgres://… --to kafka://HOST:PORT [--mode poll|cdc] [--slot NAME]";

/// `--from postgres://… --to kafka://HOST:PORT [--mode poll|cdc] [--slot NAME]`. Says `relaying`, and at the end what was confirmed.
pub async fn run(mut words: impl Iterator<Item = String>) -> Result<(), Failed> {
    let (mut from, mut to, mut slot, mut mode) = (None, None, None, "poll".to_owned());
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--from", Some(url)) => from = Some(url),
            ("--to", Some(url)) => to = url.strip_prefix("kafka://").map(str::to_owned),
            ("--mode", Some(name)) => mode = name,
            ("--slot", Some(name)) => slot = Some(name),
            _ => return Err(USAGE.into()),
        }
    }
    let (Some(from), Some(to)) = (from, to) else { return Err(USAGE.into()) };
    match (mode.as_str(), slot) {
        ("poll", _) => relay(PostgresOutbox::open(&from).await?.source(), &to).await,
        ("cdc", None) => relay(CdcOutbox::open(&from).await?.source(), &to).await,
        ("cdc", Some(name)) => {
            let outbox = CdcOutbox::options(&from)?.slot(&name)?.publication(&name)?.open().await?;
            relay(outbox.source(), &to).await
        }
        (other, _) => Err(format!("{other:?} is no mode; {USAGE}").into()),
    }
}

async fn relay(source: impl OutboxReader, to: &str) -> Result<(), Failed> {
    let relay = Relay::new(source, KafkaSink::options(to).open()?, RelayOptions::default());
    let (stop, mut term) = (relay.stop_handle(), signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            // The process that started it is gone.
            () = input_ended() => {}
        }
        stop.stop();
    });
    println!("relaying");
    let ended = relay.run().await?;
    println!("confirmed {}", ended.confirmed);
    Ok(())
}

/// Standard input is a pipe: it ends with the process that holds its other end.
async fn input_ended() {
    let (mut input, mut byte) = (tokio::io::stdin(), [0]);
    while matches!(input.read(&mut byte).await, Ok(1)) {}
}
