//! `cargo xtask bench`: speed as ratios against a floor that is measured in the same run.

mod allocations;
mod load;
mod memory;
mod sqlite;
mod table;
mod times;
#[cfg(feature = "stores")]
mod tx;
#[cfg(not(feature = "stores"))]
#[path = "without_tx.rs"]
mod tx;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

// Counts allocations; everything timed runs through it as well, floor and subject alike.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().any(|arg| arg == "--json");
    let quick = args.iter().any(|arg| arg == "--quick");
    let size = if quick { 1 } else { 5 };
    let subjects: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    let known = |arg: &String| ["stores", "tx", "--json", "--quick"].contains(&arg.as_str());
    let measured = match subjects.as_slice() {
        ["stores"] if args.iter().all(known) => stores(size),
        ["tx"] if args.iter().all(known) => transactions(size),
        _ => {
            eprintln!("usage: bench stores|tx [--quick] [--json]");
            return ExitCode::from(2);
        }
    };
    match measured {
        Ok(table) => {
            print!("{}", if json { table.json() } else { table.text() });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `size` scales how long everything takes.
fn stores(size: usize) -> Result<Table, Failed> {
    let directory = Directory::new()?;
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    eprintln!("memory …");
    memory::measure(&runtime, size, &mut table)?;
    eprintln!("guard …");
    allocations::measure(size, &mut table)?;
    eprintln!("sqlite …");
    sqlite::measure(&runtime, size, &directory.0, &mut table)?;
    Ok(table)
}

fn transactions(size: usize) -> Result<Table, Failed> {
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    eprintln!("transactions …");
    tx::measure(&runtime, size, &mut table)?;
    Ok(table)
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
