//! A real process under load on any store: killed by tests, and run under another clock.
//!
//! `proof-worker party STORE_URL DIR INTENTS LEASE_MS SEED` says `working` and calls until a line comes on stdin; then it drains
//! and says so. The answers callers got, and what happened, are in DIR.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use proof::load::{Failed, Party, Settings, Traffic};
use semel::store::{AnyStore, ErrorKind};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

const DRAIN: Duration = Duration::from_secs(60);

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    match work(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens, also where a busy machine is too slow for the time-outs of the URL at first.
async fn open_at_last(url: &str) -> Result<AnyStore, Failed> {
    let began = std::time::Instant::now();
    loop {
        match semel::store::open(url).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && began.elapsed() < DRAIN / 2 => {
                eprintln!("not open yet: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            opened => return Ok(opened?),
        }
    }
}

async fn work(args: &[String]) -> Result<(), Failed> {
    let [url, dir, intents, lease_ms, seed] = args else {
        return Err("usage: proof-worker party STORE_URL DIR INTENTS LEASE_MS SEED".into());
    };
    let settings = Settings { lease: Duration::from_millis(lease_ms.parse()?), ..Settings::default() };
    let party = Party::new(open_at_last(url).await?, Path::new(dir), settings)?;
    let traffic = Traffic::start(&party, intents.parse()?, seed.parse()?);
    println!("working at {}", std::time::UNIX_EPOCH.elapsed()?.as_secs());
    BufReader::new(stdin()).read_line(&mut String::new()).await?;
    traffic.stop().await?;
    println!("{}", if party.drain(DRAIN).await { "drained" } else { "not drained" });
    Ok(())
}
