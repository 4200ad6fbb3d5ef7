//! `semel demo`: the gateway between careless clients and a service with bad days, judged by the service's ledger.
//!
//! ```text
//!  clients ──▶ semel gateway (killed half way, restarted) ──▶ service ──▶ ledger (append, fsync)
//!   twice, at once,    │                                       500s, delays,        ▲
//!   hang up, reuse     └─▶ SQLite                              lost answers         │
//!                                                                                   │
//!  the same clients ─────────────────────────────────────────▶ service ──▶ ledger   │
//!                                     the table is counted from here ───────┴───────┘
//! ```

mod client;
mod directory;
mod ledger;
mod line;
mod mischief;
mod plan;
mod process;
mod progress;
mod report;
mod service;
mod settle;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use semel::State;
use semel::store::sqlite::SqliteStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use self::client::{Client, Ending, Told, from_tasks};
use self::directory::Directory;
use self::ledger::{Counted, Ledger};
use self::plan::{IntentNo, Send};
use self::process::Gateway;
use self::progress::Progress;
use self::report::Report;
use self::service::{Running, Service};
use crate::args::{Bug, Demo};
use crate::failure::Failed;
use crate::stdout;

/// How long charges may stay on their way after everybody has gone.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// What is stopped in the end, whatever the end is.
#[derive(Default)]
struct Stage {
    service: Option<Running>,
    gateway: Option<Gateway>,
}

pub(crate) async fn run(args: &Demo, json: bool) -> Result<(), Failed> {
    if args.sends < args.intents {
        return Err(Failed::usage(
            "each intent is sent at least once: give as many --sends as --intents, or more",
        ));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    // Both outlive the run below also when that is dropped in the middle.
    let directory = Directory::new(args.keep)?;
    let mut stage = Stage::default();
    let ended = tokio::select! {
        ended = Box::pin(play(args, json, directory.path(), &mut stage)) => ended,
        _ = tokio::signal::ctrl_c() => Err(Failed::not_done("interrupted")),
        _ = terminate.recv() => Err(Failed::not_done("interrupted")),
    };
    let ended = match ended {
        Ok(()) if args.stay => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            Ok(())
        }
        ended => ended,
    };
    if let Some(gateway) = stage.gateway.take() {
        gateway.stop().await;
    }
    ended
}

async fn play(args: &Demo, json: bool, directory: &Path, stage: &mut Stage) -> Result<(), Failed> {
    let report = demonstrate(args, directory, stage).await?;
    if json {
        stdout::json(&report)?;
    } else {
        stdout::text(&report.text())?;
    }
    if let Some(first) = report.wrong.first() {
        let more = report.wrong.len() - 1;
        return Err(Failed::not_done(format!("not exactly once: {first} (and {more} more findings)")));
    }
    let s = Duration::from_millis(report.elapsed_ms).as_secs_f64();
    eprintln!("every intent was charged exactly once; {s:.1} s");
    match (args.stay, stage) {
        (true, Stage { service: Some(service), gateway: Some(gateway) }) => {
            stay(service, gateway, directory);
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn demonstrate(args: &Demo, directory: &Path, stage: &mut Stage) -> Result<Report, Failed> {
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
    without(args, directory, &sends, &mut report, &mut progress).await?;

    progress.phase("with semel; the gateway is killed half way", sends.len());
    let service = Service::new(Ledger::open(&directory::ledger(directory))?, seed, args.bug).listen().await?;
    let gateway = Gateway::start(directory, service.address, args.bug).await?;
    let beside = (args.bug == Some(Bug::Twice)).then_some(service.address);
    let client = Client { to: gateway.address, seed, guarded: true, beside };
    let (service, gateway) = (stage.service.insert(service), stage.gateway.insert(gateway));
    with(&client, &sends, gateway, &mut report, &mut progress).await?;

    progress.phase("waiting for what is still under way", 0);
    quiet(&service.service).await?;
    let store = SqliteStore::open(directory::store(directory)).await?;
    settle::wait_for_leases(&store).await?;
    let held = settle::list(&store, vec![State::Uncertain]).await?;
    progress.phase("resolving by hand what no lookup could settle", held.len());
    service.service.calm_down();
    let counted = Counted::read(&directory::ledger(directory))?;
    // A bug planted for the run itself stays out of the settling.
    let careful = Client { beside: None, ..client };
    settle::run(&careful, &store, held, &counted, &mut report, &mut progress).await?;
    quiet(&service.service).await?;
    report.settled = settle::settled(&store).await?;
    let completed = settle::list(&store, vec![State::Completed]).await?.len() as u64;
    store.close().await;

    let counted = Counted::read(&directory::ledger(directory))?;
    report.with.judge(args.intents, &counted);
    // First what the ledger says: the rest follows from it.
    report.wrong.splice(0..0, report::off(args.intents, &counted));
    if completed != report.intents {
        report.wrong.push(format!("the store has {completed} completed intents of {}", report.intents));
    }
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}

/// The same clients with the same luck, and nothing in between.
async fn without(
    args: &Demo,
    directory: &Path,
    sends: &[Send],
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let path = directory::bare_ledger(directory);
    let service = Service::new(Ledger::open(&path)?, report.seed, None).listen().await?;
    let client = Client { to: service.address, seed: report.seed, guarded: false, beside: None };
    from_tasks(&client, sends, args.tasks, |_, told| {
        report.without.count(&told);
        progress.step();
    })
    .await;
    quiet(&service.service).await?;
    report.without.judge(args.intents, &Counted::read(&path)?);
    Ok(())
}

/// Through the gateway, which is killed when half of the sends are through.
async fn with(
    client: &Client,
    sends: &[Send],
    gateway: &mut Gateway,
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let half = Notify::new();
    let mut payments: HashMap<IntentNo, String> = HashMap::new();
    let mut heard = 0;
    let tasks = report.tasks;
    let tell = |send: Send, told: Told| {
        report.with.count(&told);
        if let Ending::Wrong(why) = &told.ending {
            report.wrong.push(why.clone());
        }
        if let Some(payment) = told.payment {
            // Whoever asks for the same payment has to be given the same one.
            let first = payments.entry(send.intent).or_insert_with(|| payment.clone());
            if *first != payment {
                report.wrong.push(format!("{} was answered with {first} and {payment}", send.intent));
            }
        }
        progress.step();
        heard += 1;
        if heard == sends.len() / 2 {
            half.notify_one();
        }
    };
    let sending = async {
        from_tasks(client, sends, tasks, tell).await;
        Ok(())
    };
    let killing = async {
        half.notified().await;
        gateway.kill_and_restart().await
    };
    tokio::try_join!(sending, killing)?;
    report.gateways_killed = 1;
    Ok(())
}

/// Waits until no charge is on its way.
async fn quiet(service: &Service) -> Result<(), Failed> {
    let deadline = Instant::now() + QUIET_MAX;
    while !service.is_quiet() {
        if Instant::now() > deadline {
            return Err(Failed::not_done("charges are still on their way; is the disk stalled?"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn stay(service: &Running, gateway: &Gateway, directory: &Path) {
    let (behind, front, admin) = (service.address, gateway.address, gateway.admin);
    let store = directory::store(directory);
    eprintln!(
        "\ngateway  http://{front}\nservice  http://{behind}\nadmin    http://{admin}/metrics\n\n\
         Pay, and pay again with the same key; then ask the service what it was charged for:\n\n  \
         curl -i http://{front}/payments -H 'Idempotency-Key: order-1001' -H 'Content-Type: application/json' \
         -d '{{\"amount\": 4200}}'\n  \
         curl -i http://{behind}/payments/by-key/order-1001\n\n\
         What the gateway remembers: semel ls --store sqlite:{}\nCtrl-C ends it.",
        store.display()
    );
}
