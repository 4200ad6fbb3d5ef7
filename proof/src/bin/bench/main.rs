//! `cargo xtask bench`: speed as ratios against a floor that is measured in the same run.

mod allocations;
mod consume;
#[cfg(feature = "relay")]
mod java;
mod layer;
mod load;
mod memory;
mod mysql;
mod postgres;
mod redis;
#[cfg(feature = "relay")]
mod relay;
mod saga;
mod sqlite;
mod table;
mod times;
mod tx;
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

// Counts allocations; everything timed runs through it as well, floor and subject alike.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: bench stores [--only PART[,PART]] [--records N] [--quick] [--json]\n\
    bench layer [--only bare|first|replay] [--quick] [--json]\n\
    bench relay [--only PART[,PART]] [--debezium] [--events N] [--quick] [--json]\n\
    bench consume [--only PART[,PART]] [--streams] [--ids N] [--messages N] [--quick] [--json]\n\
    bench saga [--only PART[,PART]] [--parked N] [--quick] [--json]\n\
    parts of stores: memory, guard, sqlite, postgres, tx, mysql, redis\n\
    parts of relay: drain, latency, append, memory, debezium\n\
    parts of consume: inbox, eos, streams\n\
    parts of saga: floor, sqlite, postgres, lone, parked";

const LAYER_PARTS: [&str; 3] = ["bare", "first", "replay"];
const RELAY_PARTS: [&str; 5] = ["drain", "latency", "append", "memory", "debezium"];
const CONSUME_PARTS: [&str; 3] = ["inbox", "eos", "streams"];
const SAGA_PARTS: [&str; 5] = ["floor", "sqlite", "postgres", "lone", "parked"];
/// What others made is asked for by name.
const BY_NAME: [&str; 2] = ["debezium", "streams"];
const PARTS: [&str; 7] = ["memory", "guard", "sqlite", "postgres", "tx", "mysql", "redis"];

/// What is measured.
#[derive(Clone, Copy)]
enum What {
    Stores,
    /// The HTTP layer.
    Layer,
    /// From the outbox to Kafka.
    Relay,
    /// From a source to effects.
    Consume,
    /// Several steps, each once.
    Saga,
}

/// What is measured, and how much of it.
struct Wanted {
    what: What,
    parts: Vec<String>,
    /// How many records a large table has, where one is wanted.
    records: Option<u64>,
    /// How many events a backlog has.
    events: Option<u64>,
    /// How many ids an inbox remembers.
    ids: Option<u64>,
    /// How many messages go from Kafka to Kafka.
    messages: Option<u64>,
    /// How many sagas wait beside those at work.
    parked: Option<u64>,
    /// Scales how long everything takes.
    size: usize,
    json: bool,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let (what, all): (What, &[&str]) = match args.next()?.as_str() {
            "stores" => (What::Stores, &PARTS),
            "layer" => (What::Layer, &LAYER_PARTS),
            "relay" => (What::Relay, &RELAY_PARTS),
            "consume" => (What::Consume, &CONSUME_PARTS),
            "saga" => (What::Saga, &SAGA_PARTS),
            _ => return None,
        };
        let parts =
            all.iter().filter(|part| !BY_NAME.contains(part)).map(|part| (*part).to_owned()).collect();
        let (records, events, ids, messages, parked) = (None, None, None, None, None);
        let mut wanted = Self { what, parts, records, events, ids, messages, parked, size: 5, json: false };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => wanted.json = true,
                "--quick" => wanted.size = 1,
                "--records" => wanted.records = Some(args.next()?.replace('_', "").parse().ok()?),
                "--events" => wanted.events = Some(args.next()?.replace('_', "").parse().ok()?),
                "--ids" => wanted.ids = Some(args.next()?.replace('_', "").parse().ok()?),
                "--messages" => wanted.messages = Some(args.next()?.replace('_', "").parse().ok()?),
                "--parked" => wanted.parked = Some(args.next()?.replace('_', "").parse().ok()?),
                "--streams" => wanted.parts.push("streams".to_owned()),
                "--debezium" => wanted.parts.push("debezium".to_owned()),
                "--only" => wanted.parts = args.next()?.split(',').map(str::to_owned).collect(),
                _ => return None,
            }
        }
        wanted.parts.iter().all(|part| all.contains(&part.as_str())).then_some(wanted)
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "relay")]
    if let Some(ended) = measured_process() {
        return ended;
    }
    let Some(wanted) = Wanted::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut table = Table::default();
    let measured = match wanted.what {
        What::Stores => stores(&wanted, &mut table),
        What::Layer => layer(&wanted, &mut table),
        What::Relay => relayed(&wanted, &mut table),
        What::Consume => consumed(&wanted, &mut table),
        What::Saga => sagas(&wanted, &mut table),
    };
    // What was measured before something failed is shown as well.
    print!("{}", if wanted.json { table.json() } else { table.text() });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn stores(wanted: &Wanted, table: &mut Table) -> Result<(), Failed> {
    let directory = Directory::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let size = wanted.size;
    for part in &wanted.parts {
        eprintln!("{part} …");
        match part.as_str() {
            "memory" => memory::measure(&runtime, size, table)?,
            "guard" => allocations::measure(size, table)?,
            "sqlite" => sqlite::measure(&runtime, size, wanted.records, &directory.0, table)?,
            "mysql" => mysql::measure(&runtime, size, table)?,
            "redis" => redis::measure(&runtime, size, wanted.records, &directory, table)?,
            "tx" => tx::measure(&runtime, size, table)?,
            _ => postgres::measure(&runtime, size, wanted.records, table)?,
        }
    }
    Ok(())
}

#[cfg(feature = "relay")]
fn relayed(wanted: &Wanted, table: &mut Table) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let usual = if wanted.size == 1 { 100_000 } else { 1_000_000 };
    let events = wanted.events.unwrap_or(usual);
    let wanted = relay::Wanted { parts: &wanted.parts, events, size: wanted.size };
    relay::measure(&runtime, &wanted, table)
}

#[cfg(not(feature = "relay"))]
fn relayed(wanted: &Wanted, _: &mut Table) -> Result<(), Failed> {
    Err(format!("built without the feature `relay` (events: {:?})", wanted.events).into())
}

fn consumed(wanted: &Wanted, table: &mut Table) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ids = wanted.ids.unwrap_or(if wanted.size == 1 { 1_000_000 } else { 10_000_000 });
    let messages = wanted.messages.unwrap_or(100_000 * u64::try_from(wanted.size)?);
    let wanted = consume::Wanted { parts: &wanted.parts, ids, messages, size: wanted.size };
    consume::measure(&runtime, &wanted, table)
}

fn sagas(wanted: &Wanted, table: &mut Table) -> Result<(), Failed> {
    let directory = Directory::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let parked = wanted.parked.unwrap_or(if wanted.size == 1 { 100_000 } else { 1_000_000 });
    let wanted = saga::Wanted { parts: &wanted.parts, parked, size: wanted.size };
    saga::measure(&runtime, &wanted, &directory.0, table)
}

/// This program as a relay or as a pipeline, whose memory another one measures.
#[cfg(feature = "relay")]
fn measured_process() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    let word = args.next()?;
    if !["relay-process", consume::pipeline::WORD].contains(&word.as_str()) {
        return None;
    }
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match word.as_str() {
            consume::pipeline::WORD => runtime.block_on(consume::pipeline::run(args)),
            _ => runtime.block_on(proof::relay_process::run(args)),
        }
    };
    Some(match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    })
}

/// One kind of request alone is for a profiler.
fn layer(wanted: &Wanted, table: &mut Table) -> Result<(), Failed> {
    let only = match &wanted.parts[..] {
        [only] => Some(only.as_str()),
        _ => None,
    };
    layer::measure(wanted.size, only, table)
}

/// On the disk of the checkout: a temporary directory may be in memory, where an fsync costs nothing.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failed> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        let path = root.join(std::process::id().to_string());
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
