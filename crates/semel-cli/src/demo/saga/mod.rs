//! `semel demo --saga`: orders of several steps, with workers that are killed and participants that lose answers,
//! checked against the participants' ledgers.
//!
//! ```text
//!  clients ──▶ workers (killed, restarted) ──▶ stock     ──▶ ledger (append, fsync)
//!                 │                        ├─▶ provider  ──▶ ledger         ▲
//!                 └─▶ SQLite:              └─▶ mail      ──▶ ledger         │
//!                     orders, journal, outbox         the table is counted from here
//! ```
//!
//! | module | what |
//! |---|---|
//! | `plan` | by the seed: which orders are refused, which worker is killed when |
//! | `order` | the order as a saga |
//! | `naive` | the same order without sagas |
//! | `participant` | stock, provider and mail, their faults and ledgers |
//! | `process` | the processes: participants and workers |
//! | `http` | requests between them |
//! | `clients` | placing the orders |
//! | `settle` | parked sagas, resolved with the provider's ledger |
//! | `verdict` | what the ledgers say about each order |
//! | `report` | the table |

mod clients;
mod http;
mod naive;
mod order;
mod participant;
mod plan;
mod process;
mod report;
mod settle;
mod verdict;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel::outbox;
use semel::saga::{self, Status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub(crate) use self::process::{DemoSagaProcess, run as run_process};

use self::clients::{Replies, Reply, place_all};
use self::participant::Ask;
use self::plan::Kill;
use self::process::{Part, database, database_url, ledger};
use self::report::Report;
use self::verdict::{Ledgers, Side};
use super::directory::Directory;
use super::process::Process;
use super::progress::Progress;
use crate::args::{Bug, Demo};
use crate::failure::Failed;
use crate::stdout;

/// Workers on one database.
const WORKERS: usize = 3;
/// How long requests may stay under way after all clients have finished.
const QUIET_MAX: Duration = Duration::from_secs(10);
const QUIET_PAUSE: Duration = Duration::from_millis(10);

/// What to try next, printed after the table.
const NEXT: &str = "
next:
  semel demo --saga --keep           keeps the database: semel saga ls, semel saga show
  docs/sagas.md                      a saga of your own
  examples/payments                  the same order in a service, on PostgreSQL or SQLite
(if `semel` is not installed, use `cargo run --release --` instead)
";

/// The processes of one side; killed when dropped.
struct Stage {
    participants: Vec<Process>,
    workers: Vec<Process>,
}

pub(super) async fn run(args: &Demo, json: bool) -> Result<(), Failed> {
    let mut terminate = signal(SignalKind::terminate())?;
    // Outlives the run below, even if that is dropped halfway.
    let directory = Directory::new(args.keep, |path| format!("semel saga ls sqlite:{path}/with/orders.db"))?;
    tokio::select! {
        ended = Box::pin(play(args, json, directory.path())) => ended,
        _ = tokio::signal::ctrl_c() => Err(Failed::not_done("interrupted")),
        _ = terminate.recv() => Err(Failed::not_done("interrupted")),
    }
}

async fn play(args: &Demo, json: bool, directory: &Path) -> Result<(), Failed> {
    let report = demonstrate(args, directory).await?;
    if json {
        stdout::json(&report)?;
    } else {
        stdout::text(&report.text())?;
    }
    if let Some(first) = report.wrong.first() {
        let more = report.wrong.len() - 1;
        return Err(Failed::not_done(format!("not all or undone: {first} (and {more} more findings)")));
    }
    let s = Duration::from_millis(report.elapsed_ms).as_secs_f64();
    eprintln!("every order is complete or undone, and nothing happened twice; {s:.1} s");
    eprint!("{NEXT}");
    Ok(())
}

async fn demonstrate(args: &Demo, directory: &Path) -> Result<Report, Failed> {
    let started = Instant::now();
    // Short enough to type again.
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u16(..)));
    let mut progress = Progress::new();
    let mut report = Report { seed, orders: args.orders, tasks: args.tasks, ..Report::default() };

    progress.phase(
        format!("seed {seed}; without sagas, each step retried; workers are killed"),
        args.orders as usize,
    );
    let folder = directory.join("without");
    make_folder(&folder, false).await?;
    let mut stage = Stage::start(&folder, seed, Part::Naive, None).await?;
    place(args, seed, &mut stage, &mut report.without, &mut progress).await?;
    stage.quiet().await?;
    stage.stop().await;
    Ledgers::read(&folder, args.orders)?.count(&mut report.without);

    progress.phase("with sagas; workers are killed", args.orders as usize);
    let folder = directory.join("with");
    make_folder(&folder, true).await?;
    let mut stage = Stage::start(&folder, seed, Part::Worker, args.bug).await?;
    let replies = place(args, seed, &mut stage, &mut report.with, &mut progress).await?;
    report.answered_parked =
        replies.by_order.values().filter(|reply| **reply == Reply::Parked).count() as u64;
    progress.phase("waiting for sagas that are still at work", 0);
    let admin = settle::open(&database_url(&folder)).await?;
    settle::come_to_rest(&admin, false).await?;
    stage.quiet().await?;
    progress.phase("resolving by hand what no lookup found out", 0);
    report.resolved = settle::resolve_all(&admin, &ledger(&folder, Part::Provider)).await?;
    stage.calm_down().await?;
    settle::come_to_rest(&admin, true).await?;
    let [completed, undone] =
        [settle::keys(&admin, Status::Completed).await?, settle::keys(&admin, Status::Undone).await?];
    stage.quiet().await?;
    stage.stop().await;

    let ledgers = Ledgers::read(&folder, args.orders)?;
    ledgers.count(&mut report.with);
    report.wrong.splice(0..0, ledgers.wrong(seed, &completed, &undone));
    report.wrong.extend(wrong_replies(&replies, &completed, &undone));
    (report.completed, report.undone) = (completed.len() as u64, undone.len() as u64);
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}

/// Clients whose answer is not what happened.
fn wrong_replies(replies: &Replies, completed: &BTreeSet<String>, undone: &BTreeSet<String>) -> Vec<String> {
    let wrong = replies.by_order.iter().filter_map(|(order, reply)| {
        let name = order.to_string();
        let holds = match reply {
            Reply::Completed => completed.contains(&name),
            Reply::Undone => undone.contains(&name),
            Reply::Parked => completed.contains(&name) || undone.contains(&name),
            Reply::Nothing => false,
        };
        (!holds).then(|| format!("the client of {name} was answered {reply:?}, and that is not how it ended"))
    });
    wrong.collect()
}

/// The folder of one side, with its database.
async fn make_folder(folder: &Path, sagas: bool) -> Result<(), Failed> {
    std::fs::create_dir(folder)?;
    if sagas {
        saga::sql::migrate(&database_url(folder)).await?;
        outbox::migrate(&database_url(folder)).await?;
    }
    let made = Connection::open(database(folder)).and_then(|db| {
        db.pragma_update(None, "journal_mode", "wal")?;
        // No unique constraint: an order that is there twice shows.
        db.execute_batch(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT NOT NULL, cancelled INTEGER NOT NULL)",
        )
    });
    made.map_err(|error| Failed::not_done(format!("the table of orders could not be created: {error}")))
}

/// All clients, while workers are killed.
async fn place(
    args: &Demo,
    seed: u64,
    stage: &mut Stage,
    side: &mut Side,
    progress: &mut Progress,
) -> Result<Replies, Failed> {
    let kills = plan::kills(seed, args.orders, WORKERS);
    let workers: Vec<SocketAddr> = stage.workers.iter().map(|worker| worker.address).collect();
    let (ended, watched) = watch::channel(0);
    let placing = async { Ok(place_all(&workers, seed, args.orders, args.tasks, &ended, progress).await) };
    let (replies, ()) = tokio::try_join!(placing, kill(&kills, &mut stage.workers, watched))?;
    side.requests = replies.requests;
    side.unanswered = replies.unanswered;
    side.failed = replies.failed;
    side.workers_killed = kills.len() as u64;
    Ok(replies)
}

async fn kill(
    kills: &[Kill],
    workers: &mut [Process],
    mut ended: watch::Receiver<u32>,
) -> Result<(), Failed> {
    for kill in kills {
        // All clients may have gone by then; it is killed all the same.
        let _ = ended.wait_for(|ended| *ended >= kill.after).await;
        tokio::time::sleep(kill.pause).await;
        workers[kill.worker].kill_and_restart().await?;
    }
    Ok(())
}

impl Stage {
    async fn start(folder: &Path, seed: u64, part: Part, bug: Option<Bug>) -> Result<Self, Failed> {
        let words = |part: Part| {
            let mut words = vec!["demo-saga-process".to_owned()];
            let folder = folder.display().to_string();
            for (flag, value) in
                [("--part", part.name()), ("--seed", &seed.to_string()), ("--folder", &folder)]
            {
                words.extend([flag.to_owned(), value.to_owned()]);
            }
            words
        };
        let log: PathBuf = folder.join("processes.log");
        let mut participants = Vec::new();
        for part in Part::PARTICIPANTS {
            participants.push(Process::part(&log, words(part)).await?);
        }
        let addresses: Vec<String> = participants.iter().map(|part| part.address.to_string()).collect();
        let mut of_worker = words(part);
        of_worker.extend(["--participants".to_owned(), addresses.join(",")]);
        if let Some(bug) = bug {
            of_worker.extend(["--break".to_owned(), bug.word().to_owned()]);
        }
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(Process::part(&log, of_worker.clone()).await?);
        }
        Ok(Self { participants, workers })
    }

    /// Waits until no participant works on a request.
    async fn quiet(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + QUIET_MAX;
        for participant in &self.participants {
            while self::ask(participant, "/quiet").await?["quiet"] != true {
                if Instant::now() > deadline {
                    return Err(Failed::not_done(
                        "requests are still under way; check whether the disk is stalled",
                    ));
                }
                tokio::time::sleep(QUIET_PAUSE).await;
            }
        }
        Ok(())
    }

    /// No more faults.
    async fn calm_down(&self) -> Result<(), Failed> {
        for participant in &self.participants {
            ask(participant, "/calm").await?;
        }
        Ok(())
    }

    async fn stop(self) {
        for process in self.workers.into_iter().chain(self.participants) {
            process.stop().await;
        }
    }
}

async fn ask(participant: &Process, path: &str) -> Result<serde_json::Value, Failed> {
    let failed = |error: String| Failed::not_done(format!("a participant does not answer: {error}"));
    let (_, body) = http::call(participant.address, path, &Ask::default())
        .await
        .map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}
