//! `cargo xtask bench`: speed as ratios against a floor that is measured in the same run.

mod allocations;
mod layer;
mod load;
mod memory;
mod mysql;
mod postgres;
mod redis;
mod sqlite;
mod table;
mod times;
mod tx;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

// Counts allocations; everything timed runs through it as well, floor and subject alike.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: bench stores [--only PART[,PART]] [--records N] [--quick] [--json]\n\
    bench layer [--only bare|first|replay] [--quick] [--json]\n\
    parts: memory, guard, sqlite, postgres, tx, mysql, redis";

const LAYER_PARTS: [&str; 3] = ["bare", "first", "replay"];
const PARTS: [&str; 7] = ["memory", "guard", "sqlite", "postgres", "tx", "mysql", "redis"];

/// What is measured, and how much of it.
struct Wanted {
    /// The HTTP layer instead of the stores.
    layer: bool,
    parts: Vec<String>,
    /// How many records a large table has, where one is wanted.
    records: Option<u64>,
    /// Scales how long everything takes.
    size: usize,
    json: bool,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let layer = match args.next()?.as_str() {
            "stores" => false,
            "layer" => true,
            _ => return None,
        };
        let all: &[&str] = if layer { &LAYER_PARTS } else { &PARTS };
        let parts = all.iter().map(|part| (*part).to_owned()).collect();
        let mut wanted = Self { layer, parts, records: None, size: 5, json: false };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => wanted.json = true,
                "--quick" => wanted.size = 1,
                "--records" => wanted.records = Some(args.next()?.replace('_', "").parse().ok()?),
                "--only" => wanted.parts = args.next()?.split(',').map(str::to_owned).collect(),
                _ => return None,
            }
        }
        wanted.parts.iter().all(|part| all.contains(&part.as_str())).then_some(wanted)
    }
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut table = Table::default();
    let measured = if wanted.layer { layer(&wanted, &mut table) } else { stores(&wanted, &mut table) };
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
