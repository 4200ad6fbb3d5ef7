//! `semel demo`: the guard under duplicates, impatient callers and a killed process, judged by a ledger.
//!
//! ```text
//!  64 tasks ──────────┐
//!  worker process 1 ✗ ├─▶ guard ─▶ SQLite        each effect ─▶ ledger file (append, fsync)
//!  worker process 2 ──┘                                             ▲
//!                            the table is counted from here ────────┘
//! ```

mod client;
mod directory;
mod ledger;
mod plan;
mod progress;
mod report;
mod settle;
mod worker;

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use semel::State;
use semel::store::sqlite::SqliteStore;
use semel::store::{Filter, PAGE_RECORDS_MAX, Store};

use self::client::{Client, LEASE, Told, charge, from_tasks, guarded};
use self::directory::Directory;
use self::ledger::{Counted, Ledger};
use self::plan::{IntentNo, Luck, Send};
use self::progress::Progress;
use self::report::{Report, Side1, Side2};
use self::worker::{DRAIN_MAX, Workers};
use crate::args::Demo;
use crate::failure::Failed;
use crate::stdout;

pub(crate) use self::worker::work;

/// How long a killed worker's claims may take to lapse before something is wrong.
const LAPSE_MAX: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: &Demo, json: bool) -> Result<(), Failed> {
    if args.sends < args.intents {
        return Err(Failed::usage(
            "each intent is sent at least once: give as many --sends as --intents, or more",
        ));
    }
    // Outlives the run below also when that is dropped in the middle.
    let directory = Directory::new(args.keep)?;
    let report = tokio::select! {
        report = Box::pin(demonstrate(args, directory.path())) => report?,
        _ = tokio::signal::ctrl_c() => return Err(Failed::not_done("interrupted")),
    };
    if json {
        stdout::json(&report)?;
    } else {
        stdout::text(&report.text())?;
    }
    match report.wrong.first() {
        None => {
            let s = Duration::from_millis(report.elapsed_ms).as_secs_f64();
            eprintln!("every intent happened exactly once; {s:.1} s");
            Ok(())
        }
        Some(first) => {
            let more = report.wrong.len() - 1;
            Err(Failed::not_done(format!("not exactly once: {first} (and {more} more findings)")))
        }
    }
}

async fn demonstrate(args: &Demo, directory: &Path) -> Result<Report, Failed> {
    let started = Instant::now();
    // Short enough to be read out loud.
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u16(..)));
    let sends = plan::sends(seed, args.intents, args.sends);
    let mut progress = Progress::new();
    let mut report = Report {
        seed,
        intents: args.intents.into(),
        sends: sends.len() as u64,
        tasks: args.tasks,
        ..Report::default()
    };

    progress.phase(format!("seed {seed}; without semel"), sends.len());
    report.without = without(args, directory, seed, sends.clone(), &mut progress).await?;

    progress.phase("with semel; a worker process is killed on the way", sends.len());
    let store = SqliteStore::open(directory::store(directory)).await?;
    with(args, directory, seed, &sends, &store, &mut report, &mut progress).await?;

    progress.phase("waiting for the leases of the killed process to end", 0);
    wait_for_leases(&store).await?;
    let held = held(&store).await?;
    let counted = Counted::read(&directory::ledger(directory))?;
    report.before_settling = Side2::new(args.intents, &counted, &held);
    report.wrong.extend(report.before_settling.judge("before settling", args.intents, &counted, &held));

    progress.phase("settling the held intents from the ledger", held.len());
    let client = client(args, directory, seed, &store)?;
    settle::run(client, &held, counted, &mut report, &mut progress).await;
    let held = self::held(&store).await?;
    let counted = Counted::read(&directory::ledger(directory))?;
    report.after_settling = Side2::new(args.intents, &counted, &held);
    report.wrong.extend(report.after_settling.judge("after settling", args.intents, &counted, &held));
    if !held.is_empty() {
        report.wrong.push(format!("after settling: {} are still held", held.len()));
    }
    let completed = count(&store, State::Completed).await?;
    if completed != report.intents {
        report.wrong.push(format!("the store has {completed} completed intents of {}", report.intents));
    }
    store.close().await;
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}

fn client(args: &Demo, directory: &Path, seed: u64, store: &SqliteStore) -> Result<Client, Failed> {
    let ledger = Ledger::open(&directory::ledger(directory))?;
    Ok(Client { guarded: guarded(store.clone())?, ledger, seed, bug: args.bug, stall: None })
}

/// The same sends, and nothing in between. Nobody hangs up and nobody is killed here: it is bad enough.
async fn without(
    args: &Demo,
    directory: &Path,
    seed: u64,
    sends: Vec<Send>,
    progress: &mut Progress,
) -> Result<Side1, Failed> {
    let path = directory::bare_ledger(directory);
    let ledger = Ledger::open(&path)?;
    let what = move |send: Send| charge(ledger.clone(), send.intent, Luck::of(seed, send));
    let mut failed = Ok(());
    from_tasks(sends, args.tasks, what, |_, result| {
        progress.step();
        if let Err(error) = result {
            failed = Err(error);
        }
    })
    .await;
    failed?;
    let counted = Counted::read(&path)?;
    Ok(Side1 { effects: counted.effects(), intents_repeated: counted.repeated() })
}

/// Tasks here and worker processes beside them, all on one store.
async fn with(
    args: &Demo,
    directory: &Path,
    seed: u64,
    sends: &[Send],
    store: &SqliteStore,
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let client = client(args, directory, seed, store)?;
    let (ours, theirs) = plan::shared_out(sends);
    let workers = Workers { directory, seed, tasks: (args.tasks / 2).max(4) };
    // Started first: a process takes longer to start than a task, and shall not come too late for everything.
    let first = workers.start_first(&theirs).await?;
    // Both sides are polled by this one task, so they may share the tally.
    let tally = RefCell::new((&mut *report, progress));
    let tell = |_, told: Told| {
        let (report, progress) = &mut *tally.borrow_mut();
        if let Some(why) = report.calls.count(&told) {
            report.wrong.push(why);
        }
        progress.step();
    };
    let sender = client.clone();
    let what = move |send| {
        let client = sender.clone();
        async move { client.send(send).await }
    };
    let ((), killed) =
        tokio::join!(from_tasks(ours, args.tasks, what, tell), workers.run(first, theirs, tell));
    report.calls.processes_killed = killed?;
    // Those who hung up left work behind; it runs to its end.
    match client.guarded.guard().drain(DRAIN_MAX).await.is_clean() {
        true => Ok(()),
        false => {
            Err(Failed::not_done("the demo's own work could not be finished in time; is the disk stalled?"))
        }
    }
}

async fn wait_for_leases(store: &SqliteStore) -> Result<(), Failed> {
    let deadline = Instant::now() + LEASE + LAPSE_MAX;
    while count(store, State::InProgress).await? > 0 {
        if Instant::now() > deadline {
            return Err(Failed::not_done("an intent stays in progress although nobody works on it"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn count(store: &SqliteStore, state: State) -> Result<u64, Failed> {
    let mut count = 0;
    let mut filter = Filter { states: vec![state], limit: PAGE_RECORDS_MAX, ..Filter::default() };
    loop {
        let page = store.list(filter.clone()).await?;
        count += page.records.len() as u64;
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(count),
        }
    }
}

/// What the store holds as uncertain.
async fn held(store: &SqliteStore) -> Result<HashSet<IntentNo>, Failed> {
    let mut held = HashSet::new();
    let mut filter = Filter { states: vec![State::Uncertain], limit: PAGE_RECORDS_MAX, ..Filter::default() };
    loop {
        let page = store.list(filter.clone()).await?;
        held.extend(
            page.records.iter().filter_map(|record| record.intent.key().as_str().parse::<IntentNo>().ok()),
        );
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(held),
        }
    }
}
