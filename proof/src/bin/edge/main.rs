//! `cargo xtask bench edge`: the layer against the bare handler, the gateway against nginx, in one run.
//!
//! The load comes from wrk: a client that costs little, so that what differs is the server. Servers and load
//! share the machine's cores, for floor and subject alike.

mod gateway;
mod layer;
mod process;
mod serve;
#[path = "../bench/table.rs"]
mod table;
mod wrk;

use std::process::ExitCode;

use table::Table;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["serve", kind] => serve::run(kind),
        _ => bench(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[&str]) -> Result<(), Failed> {
    let json = args.contains(&"--json");
    let seconds = if args.contains(&"--quick") { 2 } else { 6 };
    testkit::services::install_packages(&["wrk".to_owned(), "nginx-light".to_owned()])?;
    let mut table = Table::default();
    eprintln!("layer …");
    layer::measure(seconds, &mut table)?;
    eprintln!("gateway …");
    gateway::measure(seconds, &mut table)?;
    print!("{}", if json { table.json() } else { table.text() });
    Ok(())
}
