//! A real process for the crash tests: guards real work on a SQLite file, and is killed while it does so.
//!
//! `proof-worker protocol once STORE LEDGER EFFECT LEASE_MS KEY` makes one call and says on stdout what it got.
//! `proof-worker protocol bare LEDGER KEY` does the same work without a guard: what the judge has to catch.
//! `proof-worker protocol load STORE LEDGER LEASE_MS SEED BEGAN_MS` makes calls until SIGTERM, drains, and says so. When the load
//! began, in ms since 1970, is the same for all its processes.
//!
//! The effect appends its downstream key to the ledger and fsyncs: what the ledger says happened, happened.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use semel::guard::Guarded;
use semel::store::sqlite::SqliteStore;
use semel::{Effect, Failure, Guard, GuardError, Key, OnceError, Scope};
use testkit::ledger::Ledger;
use tokio::signal::unix::{SignalKind, signal};

const DRAIN: Duration = Duration::from_secs(60);
/// A new intent this often, of which no process ever runs out.
const BIRTH_MS: u128 = 20;
/// Calls go mostly to intents as young as this, so that duplicates meet, also in different processes.
const YOUNG: u64 = 25;
const TASKS: u64 = 16;

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["once", store, ledger, effect, lease_ms, key] => once(store, ledger, effect, lease_ms, key).await,
        ["bare", ledger, key] => bare(ledger, key),
        ["load", store, ledger, lease_ms, seed, began_ms] => {
            load(store, ledger, lease_ms, seed, began_ms).await
        }
        _ => Err("usage: proof-worker protocol once|load …".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn guarded(store: &str, effect: &str, lease_ms: &str) -> Result<Guarded<SqliteStore>, Failed> {
    let store = SqliteStore::open(store).await?;
    let effect = if effect == "keyed" { Effect::Keyed } else { Effect::Opaque };
    let lease = Duration::from_millis(lease_ms.parse()?);
    Ok(Guard::new(store).operation("pay")?.effect(effect)?.lease(lease)?)
}

async fn once(store: &str, ledger: &str, effect: &str, lease_ms: &str, key: &str) -> Result<(), Failed> {
    let pay = guarded(store, effect, lease_ms).await?;
    let ledger = Ledger::open(ledger)?;
    let result = pay
        .once(&Scope::tenant("acme")?, &Key::new(key)?, &("EUR", 42), move |attempt| async move {
            ledger.append(attempt.child("charge").as_str())?;
            Ok::<_, Failure>("charged".to_owned())
        })
        .await;
    println!("{}", result_line(result.map(|reply| (reply.replayed, reply.stored))));
    let drained = pay.guard().drain(DRAIN).await;
    println!("{}", if drained.is_clean() { "drained" } else { "not drained" });
    Ok(())
}

fn bare(ledger: &str, key: &str) -> Result<(), Failed> {
    Ledger::open(ledger)?.append(key)?;
    semel::crash::point(semel::crash::AFTER_EFFECT);
    println!("ran");
    Ok(())
}

fn result_line(result: Result<(bool, bool), OnceError>) -> &'static str {
    match result {
        Ok((true, _)) => "replayed",
        Ok((false, true)) => "ran",
        Ok((false, false)) => "ran, not stored",
        Err(OnceError::Guard(GuardError::InFlight { .. })) => "in flight",
        Err(OnceError::Guard(GuardError::Uncertain { .. })) => "uncertain",
        Err(OnceError::Guard(GuardError::Draining)) => "draining",
        Err(OnceError::Guard(GuardError::StoreUnavailable(error))) => {
            eprintln!("{error}");
            "store unavailable"
        }
        Err(error) => {
            eprintln!("{error}");
            "failed"
        }
    }
}

/// Calls from many tasks over few intents at a time, until SIGTERM.
async fn load(store: &str, ledger: &str, lease_ms: &str, seed: &str, began_ms: &str) -> Result<(), Failed> {
    let pay = guarded(store, "opaque", lease_ms).await?;
    let ledger = Arc::new(Ledger::open(ledger)?);
    let (seed, began_ms): (u64, u128) = (seed.parse()?, began_ms.parse()?);
    let mut term = signal(SignalKind::terminate())?;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (pay, ledger) = (pay.clone(), Arc::clone(&ledger));
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(TASKS).wrapping_add(task));
                while call(&pay, &ledger, &mut rng, began_ms).await {}
            })
        })
        .collect();
    println!("working");
    term.recv().await;
    let drained = pay.guard().drain(DRAIN).await;
    for task in tasks {
        task.await?;
    }
    println!("{}", if drained.is_clean() { "drained" } else { "not drained" });
    Ok(())
}

/// One call; false when the guard takes no more.
async fn call(
    pay: &Guarded<SqliteStore>,
    ledger: &Arc<Ledger>,
    rng: &mut fastrand::Rng,
    began_ms: u128,
) -> bool {
    let now_ms = UNIX_EPOCH.elapsed().map_or(began_ms, |since| since.as_millis());
    let age = now_ms.saturating_sub(began_ms) / BIRTH_MS;
    let born = u64::try_from(age).unwrap_or(u64::MAX).saturating_add(1);
    // Some go to any there ever was: what a killed process left is asked for again.
    let oldest = if rng.u8(0..4) == 0 { 0 } else { born.saturating_sub(YOUNG) };
    let name = format!("intent-{}", rng.u64(oldest..born));
    let (Ok(scope), Ok(key)) = (Scope::tenant("acme"), Key::new(name)) else { return false };
    let (ledger, pause) = (Arc::clone(ledger), Duration::from_micros(rng.u64(0..20_000)));
    let call = pay.once(&scope, &key, &("EUR", 42), move |attempt| async move {
        tokio::time::sleep(pause).await;
        let entry = attempt.child("charge");
        tokio::task::spawn_blocking(move || ledger.append(entry.as_str())).await??;
        tokio::time::sleep(pause).await;
        Ok::<_, Failure>("charged".to_owned())
    });
    // Some callers do not wait for their answer.
    let leaves = rng.u32(0..8) == 0;
    let patience = if leaves { Duration::from_micros(rng.u64(0..20_000)) } else { DRAIN };
    !matches!(tokio::time::timeout(patience, call).await, Ok(Err(OnceError::Guard(GuardError::Draining))))
}
