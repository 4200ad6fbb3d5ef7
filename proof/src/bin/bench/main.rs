//! `cargo xtask bench`: speed as ratios against a floor that is measured in the same run.

mod allocations;
mod load;
mod memory;
mod redis;
mod sqlite;
mod table;
mod times;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

// Counts allocations; everything timed runs through it as well, floor and subject alike.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: bench stores [--only PART[,PART]] [--records N] [--quick] [--json]\n\
    parts: memory, guard, sqlite, redis";

const PARTS: [&str; 4] = ["memory", "guard", "sqlite", "redis"];

/// What is measured, and how much of it.
struct Wanted {
    parts: Vec<String>,
    /// How many records there are, where many are wanted.
    records: Option<u64>,
    /// Scales how long everything takes.
    size: usize,
    json: bool,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wanted =
            Self { parts: PARTS.map(str::to_owned).to_vec(), records: None, size: 5, json: false };
        if args.next().as_deref() != Some("stores") {
            return None;
        }
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => wanted.json = true,
                "--quick" => wanted.size = 1,
                "--records" => wanted.records = Some(args.next()?.replace('_', "").parse().ok()?),
                "--only" => wanted.parts = args.next()?.split(',').map(str::to_owned).collect(),
                _ => return None,
            }
        }
        wanted.parts.iter().all(|part| PARTS.contains(&part.as_str())).then_some(wanted)
    }
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut table = Table::default();
    let measured = stores(&wanted, &mut table);
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
            "sqlite" => sqlite::measure(&runtime, size, &directory.0, table)?,
            _ => redis::measure(&runtime, size, wanted.records, &directory, table)?,
        }
    }
    Ok(())
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
