//! `semel demo`: the gateway between careless clients and an unreliable service, checked against the service's ledger.
//!
//! ```text
//!  clients ──▶ semel gateway (killed halfway, restarted) ───▶ service ──▶ ledger (append, fsync)
//!   twice, at once,    │                                       500s, delays,        ▲
//!   hang up, reuse     └─▶ SQLite                              lost answers         │
//!                                                                                   │
//!  the same clients ─────────────────────────────────────────▶ service ──▶ ledger   │
//!                                     the table is counted from here ───────┴───────┘
//! ```
//!
//! With PostgreSQL, the gateway's store is there, and the same clients also pay at the reference service, which claims
//! in its own transactions (killed halfway, restarted). Its result is counted from its tables.

#[cfg(feature = "postgres")]
mod books;
#[cfg(not(feature = "postgres"))]
#[path = "no_books.rs"]
mod books;
mod client;
mod directory;
mod faults;
mod ledger;
mod line;
mod picture;
mod plan;
mod process;
mod progress;
mod report;
mod saga;
mod service;
mod settle;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use semel::State;
use semel::store::{self, AnyStore};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

pub(crate) use self::books::serve;
pub(crate) use self::saga::{DemoSagaProcess, run_process};

use self::books::Books;
use self::client::{Client, Ending, SendResult, from_tasks};
use self::directory::Directory;
use self::ledger::{Counted, Ledger};
use self::plan::{IntentNo, Send};
use self::process::{Process, Servers};
use self::progress::Progress;
use self::report::{Report, Side};
use self::service::{Running, Service};
use crate::args::{Bug, Demo};
use crate::failure::Failed;
use crate::stdout;

/// How long charges may stay in flight after all clients have finished.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// The payments path of the sample service and the gateway, and that of the reference service.
const PATH: &str = "/payments";
const SERVICE_PATH: &str = "/api/v1/payments";

/// What to try next, printed after the table.
const NEXT: &str = "
next:
  semel demo --stay                  keeps service and gateway running, with requests to try
  semel demo --svg demo.svg          draws the result, one square per payment
  semel gateway --upstream http://127.0.0.1:3000 --single-tenant
                                     guards your own service, in any language
(if `semel` is not installed, use `cargo run --release --` instead)
";

/// Everything that is stopped when the demo ends, for whatever reason.
#[derive(Default)]
struct Stage {
    service: Option<Running>,
    gateway: Option<Process>,
    /// The reference service.
    payments: Option<Process>,
    books: Option<Books>,
    cache: Option<String>,
}

pub(crate) async fn run(
    args: &Demo,
    store: Option<&str>,
    cache: Option<&str>,
    json: bool,
) -> Result<(), Failed> {
    if cache.is_some() && store.is_none() {
        return Err(Failed::usage("--cache needs a store on a server; give --store postgres://… as well"));
    }
    if args.saga {
        if store.is_some() {
            return Err(Failed::usage("--saga runs on a SQLite file; leave --store out"));
        }
        return saga::run(args, json).await;
    }
    if args.sends < args.intents {
        return Err(Failed::usage(
            "each intent is sent at least once; give at least as many --sends as --intents",
        ));
    }
    if let Some(folder) = args.svg.as_deref().and_then(Path::parent)
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(Failed::usage(format!(
            "--svg: there is no folder {}; create it first",
            folder.display()
        )));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    // Both outlive the run below, even if that is dropped halfway.
    let directory = Directory::new(args.keep, |path| format!("semel ls --store sqlite:{path}/semel.db"))?;
    let books = match store {
        Some(url) => Some(Books::make(url).await?),
        None => None,
    };
    let mut stage = Stage { books, cache: cache.map(str::to_owned), ..Stage::default() };
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
    for process in [stage.gateway.take(), stage.payments.take()].into_iter().flatten() {
        process.stop().await;
    }
    if let Some(books) = stage.books.take() {
        books.end(args.keep).await;
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
    if let Some(file) = &args.svg {
        let written = std::fs::write(file, picture::svg(&report));
        written.map_err(|error| {
            Failed::not_done(format!("--svg: could not write {}: {error}", file.display()))
        })?;
        eprintln!("drawn: {}", file.display());
    }
    if let Some(first) = report.wrong.first() {
        let more = report.wrong.len() - 1;
        return Err(Failed::not_done(format!("not exactly once: {first} (and {more} more findings)")));
    }
    let s = Duration::from_millis(report.elapsed_ms).as_secs_f64();
    eprintln!("every intent was charged exactly once; {s:.1} s");
    match (args.stay, stage) {
        (true, Stage { service: Some(service), gateway: Some(gateway), payments, .. }) => {
            stay(service, gateway, payments.as_ref(), directory);
            Ok(())
        }
        _ => {
            eprint!("{NEXT}");
            Ok(())
        }
    }
}

async fn demonstrate(args: &Demo, directory: &Path, stage: &mut Stage) -> Result<Report, Failed> {
    let started = Instant::now();
    // Short enough to type again.
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

    progress.phase("with semel; the gateway is killed halfway", sends.len());
    let service = Service::new(Ledger::open(&directory::ledger(directory))?, seed, args.bug).listen().await?;
    let servers = |url: fn(&Books) -> String| Servers {
        store: stage.books.as_ref().map(url),
        cache: stage.cache.clone(),
    };
    let (gateway_servers, service_servers) = (servers(Books::gateway_url), servers(Books::service_url));
    let store_url = gateway_servers.store.clone().unwrap_or_else(|| directory::store_url(directory));
    let gateway = Process::gateway(directory, service.address, args.bug, gateway_servers).await?;
    let beside = (args.bug == Some(Bug::Twice)).then_some(service.address);
    let client = Client { to: gateway.address, path: PATH, seed, guarded: true, beside };
    let (service, gateway) = (stage.service.insert(service), stage.gateway.insert(gateway));
    let mut side = Side::default();
    with(&client, &sends, args.tasks, gateway, &mut side, &mut report.wrong, &mut progress).await?;
    (report.with, report.gateways_killed) = (side, 1);

    progress.phase("waiting for requests still in flight", 0);
    quiet(&service.service).await?;
    let store: AnyStore = store::open_existing(&store_url).await?;
    settle::wait_for_leases(&store).await?;
    let uncertain = settle::list(&store, vec![State::Uncertain]).await?;
    progress.phase("resolving by hand what no lookup could settle", uncertain.len());
    service.service.calm_down();
    let counted = Counted::read(&directory::ledger(directory))?;
    // The planted bug of the run itself must not affect the settling.
    let careful = Client { beside: None, ..client };
    settle::run(&careful, &store, uncertain, &counted, &mut report, &mut progress).await?;
    quiet(&service.service).await?;
    report.settled = settle::settled(&store).await?;
    let completed = settle::list(&store, vec![State::Completed]).await?.len() as u64;
    drop(store);

    let counted = Counted::read(&directory::ledger(directory))?;
    report.with.judge(args.intents, &counted);
    // The ledger's findings first: the rest follows from them.
    report.wrong.splice(0..0, report::off(args.intents, &counted));
    if completed != report.intents {
        report
            .wrong
            .push(format!("the store has {completed} completed intents instead of {}", report.intents));
    }
    if let Some(books) = &stage.books {
        progress
            .phase("at the reference service, in its own transactions; it is killed halfway", sends.len());
        let payments = Process::service(directory, seed, service_servers).await?;
        let payments = stage.payments.insert(payments);
        let client = Client { to: payments.address, path: SERVICE_PATH, seed, guarded: true, beside: None };
        let mut side = Side::default();
        with(&client, &sends, args.tasks, payments, &mut side, &mut report.wrong, &mut progress).await?;
        let (counted, wrong) = books.audit().await?;
        side.judge(args.intents, &counted);
        report.wrong.extend(report::off(args.intents, &counted).into_iter().chain(wrong));
        (report.in_transaction, report.services_killed) = (Some(side), 1);
    }
    report.elapsed_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}

/// The same clients with the same random choices, directly at the service.
async fn without(
    args: &Demo,
    directory: &Path,
    sends: &[Send],
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let path = directory::bare_ledger(directory);
    let service = Service::new(Ledger::open(&path)?, report.seed, None).listen().await?;
    let client = Client { to: service.address, path: PATH, seed: report.seed, guarded: false, beside: None };
    from_tasks(&client, sends, args.tasks, |_, result| {
        report.without.count(&result);
        progress.step();
    })
    .await;
    quiet(&service.service).await?;
    report.without.judge(args.intents, &Counted::read(&path)?);
    Ok(())
}

/// Through a process that is killed when half of the sends are done.
async fn with(
    client: &Client,
    sends: &[Send],
    tasks: u32,
    process: &mut Process,
    side: &mut Side,
    wrong: &mut Vec<String>,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let half = Notify::new();
    let mut payments: HashMap<IntentNo, String> = HashMap::new();
    let mut finished = 0;
    let on_result = |send: Send, result: SendResult| {
        side.count(&result);
        if let Ending::Wrong(why) = &result.ending {
            wrong.push(why.clone());
        }
        if let Some(payment) = result.payment {
            // Every client that asks for the same payment must get the same one.
            let first = payments.entry(send.intent).or_insert_with(|| payment.clone());
            if *first != payment {
                wrong.push(format!("{} was answered with {first} and {payment}", send.intent));
            }
        }
        progress.step();
        finished += 1;
        if finished == sends.len() / 2 {
            half.notify_one();
        }
    };
    let sending = async {
        from_tasks(client, sends, tasks, on_result).await;
        Ok(())
    };
    let killing = async {
        half.notified().await;
        process.kill_and_restart().await
    };
    tokio::try_join!(sending, killing)?;
    Ok(())
}

/// Waits until no charge is in flight.
async fn quiet(service: &Service) -> Result<(), Failed> {
    let deadline = Instant::now() + QUIET_MAX;
    while !service.is_quiet() {
        if Instant::now() > deadline {
            return Err(Failed::not_done("charges are still in flight; check whether the disk is stalled"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn stay(service: &Running, gateway: &Process, payments: Option<&Process>, directory: &Path) {
    let (behind, front) = (service.address, gateway.address);
    let admin = gateway.admin.map(|admin| format!("admin    http://{admin}/metrics\n")).unwrap_or_default();
    let order =
        "-H 'Idempotency-Key: order-1001' -H 'Content-Type: application/json' -d '{\"amount\": 4200}'";
    let next = match payments {
        None => format!("The gateway's intents: semel ls --store {}", directory::store_url(directory)),
        Some(payments) => format!(
            "At the reference service:\n\n  \
             curl -i http://{}{SERVICE_PATH} -H 'x-merchant-id: demo' {order}",
            payments.address
        ),
    };
    eprintln!(
        "\ngateway  http://{front}\nservice  http://{behind}\n{admin}\n\
         Pay, and pay again with the same key; then ask the service which charge it made:\n\n  \
         curl -i http://{front}/payments {order}\n  \
         curl -i http://{behind}/payments/by-key/order-1001\n\n\
         {next}\nPress Ctrl-C to stop.",
    );
}
