//! `cargo xtask bench`: the benchmarks of the package `proof`, built for speed.

use std::process::Stdio;

use clap::{Args, Subcommand};

use crate::{cargo, saga_peers};

/// Measure speed as ratios against a floor in the same run. Machines are noisy: run it twice.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The stores and the guard: memory, SQLite, and the servers that run (`cargo xtask services up`).
    Stores(StoresArguments),
    /// The HTTP layer alone, called in one thread: time and allocations it adds to a request.
    Layer(BenchArguments),
    /// From the outbox to Kafka: drain, latency, the cost of an append, memory. Needs PostgreSQL and Kafka
    /// (`cargo xtask services up --only postgres,kafka`).
    Relay(RelayArguments),
    /// From a source to effects: the inbox compared with a transaction for each message, and with no marks at all;
    /// the pipeline from Kafka to Kafka compared with one without transactions, and with --streams compared with
    /// Kafka Streams. Needs PostgreSQL and Kafka (`cargo xtask services up --only postgres,kafka`).
    Consume(ConsumeArguments),
    /// Sagas of three steps, many at once and one alone, beside the same commits without an engine; and beside a million
    /// that wait. On SQLite, and on PostgreSQL if it runs (`cargo xtask services up --only postgres`).
    Saga(SagaArguments),
    /// The HTTP layer against the bare handler, the gateway against nginx. Installs wrk and nginx.
    Edge(BenchArguments),
    SagaPeers(saga_peers::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct StoresArguments {
    /// Only these parts, separated by commas: memory, guard, sqlite, postgres, tx, mysql, redis.
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
    /// Also the tail with this many records in a table, such as 10_000_000.
    #[arg(long, value_name = "N")]
    records: Option<String>,
    #[command(flatten)]
    run: BenchArguments,
}

#[derive(Debug, Args)]
pub(crate) struct RelayArguments {
    /// Only these parts, separated by commas: drain, latency, append, memory, debezium.
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
    /// How many events the backlog has: 1_000_000 by default, or 100_000 with --quick.
    #[arg(long, value_name = "N")]
    events: Option<String>,
    /// Also Debezium's engine on the same table. Fetches its jars; needs a JDK.
    #[arg(long)]
    debezium: bool,
    #[command(flatten)]
    run: BenchArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ConsumeArguments {
    /// Only these parts, separated by commas: inbox, eos, streams.
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
    /// How many remembered ids the large run has: 10_000_000 by default, or 1_000_000 with --quick.
    #[arg(long, value_name = "N")]
    ids: Option<String>,
    /// How many messages go from Kafka to Kafka: 500_000 by default, or 100_000 with --quick.
    #[arg(long, value_name = "N")]
    messages: Option<String>,
    /// Also Kafka Streams with exactly_once_v2 on the same messages: speed, work of processors, memory. Fetches its
    /// jars; needs a JDK.
    #[arg(long)]
    streams: bool,
    #[command(flatten)]
    run: BenchArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SagaArguments {
    /// Only these parts, separated by commas: floor, sqlite, postgres, lone, parked.
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
    /// How many sagas sleep or are parked: 1_000_000 by default, or 100_000 with --quick.
    #[arg(long, value_name = "N")]
    parked: Option<String>,
    /// Then also Restate, DBOS and dtm, as `saga-peers` does, with ratios.
    #[arg(long)]
    peers: bool,
    #[command(flatten)]
    run: BenchArguments,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct BenchArguments {
    /// A fifth of the work: for a first look.
    #[arg(long)]
    pub(crate) quick: bool,
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(bench: &Bench) -> Result<(), String> {
    let arguments = match bench {
        Bench::Stores(arguments) => &arguments.run,
        Bench::Relay(arguments) => &arguments.run,
        Bench::Consume(arguments) => &arguments.run,
        Bench::Saga(arguments) => &arguments.run,
        Bench::Layer(arguments) | Bench::Edge(arguments) => arguments,
        Bench::SagaPeers(arguments) => &arguments.run,
    };
    let mut args = Vec::new();
    args.extend(arguments.quick.then(|| "--quick".to_owned()));
    args.extend(arguments.json.then(|| "--json".to_owned()));
    // Without crash points: what is measured is what users run.
    let program = |name, feature| ["--bin", name, "--no-default-features", "--features", feature];
    match bench {
        Bench::Stores(arguments) => {
            args.insert(0, "stores".to_owned());
            args.extend(arguments.only.iter().flat_map(|parts| ["--only".to_owned(), parts.clone()]));
            args.extend(arguments.records.iter().flat_map(|n| ["--records".to_owned(), n.clone()]));
            execute(&program("bench", "bench"), &args)
        }
        Bench::Layer(_) => {
            args.insert(0, "layer".to_owned());
            execute(&program("bench", "bench"), &args)
        }
        Bench::Relay(arguments) => {
            args.insert(0, "relay".to_owned());
            args.extend(arguments.only.iter().flat_map(|parts| ["--only".to_owned(), parts.clone()]));
            args.extend(arguments.events.iter().flat_map(|n| ["--events".to_owned(), n.clone()]));
            args.extend(arguments.debezium.then(|| "--debezium".to_owned()));
            execute(&program("bench", "bench,relay"), &args)
        }
        Bench::Consume(arguments) => {
            args.insert(0, "consume".to_owned());
            args.extend(arguments.only.iter().flat_map(|parts| ["--only".to_owned(), parts.clone()]));
            args.extend(arguments.ids.iter().flat_map(|n| ["--ids".to_owned(), n.clone()]));
            args.extend(arguments.messages.iter().flat_map(|n| ["--messages".to_owned(), n.clone()]));
            args.extend(arguments.streams.then(|| "--streams".to_owned()));
            execute(&program("bench", "bench,relay"), &args)
        }
        Bench::Saga(arguments) => {
            args.insert(0, "saga".to_owned());
            args.extend(arguments.only.iter().flat_map(|parts| ["--only".to_owned(), parts.clone()]));
            args.extend(arguments.parked.iter().flat_map(|n| ["--parked".to_owned(), n.clone()]));
            if !arguments.peers {
                return execute(&program("bench", "bench"), &args);
            }
            args.extend((!arguments.run.json).then(|| "--json".to_owned()));
            saga_peers::beside(arguments.run, &output(&program("bench", "bench"), &args)?)
        }
        Bench::Edge(_) => {
            cargo::run(&["build", "--quiet", "--profile", "dist", "--package", "semel-cli"], &[])?;
            execute(&program("edge", "edge"), &args)
        }
        // Nothing of the package `proof`, and nothing of semel.
        Bench::SagaPeers(arguments) => saga_peers::run(arguments),
    }
}

fn execute(program: &[&str], args: &[String]) -> Result<(), String> {
    cargo::run(&line(program), args)
}

/// What it prints, instead of showing it; its progress is shown.
fn output(program: &[&str], args: &[String]) -> Result<String, String> {
    let mut command = cargo::command(&line(program), args, &[]);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // It has said what failed.
        false => Err(String::new()),
    }
}

fn line<'a>(program: &[&'a str]) -> Vec<&'a str> {
    let mut line = vec!["run", "--quiet", "--profile", "dist", "--package", "proof"];
    line.extend(program);
    line.push("--");
    line
}
