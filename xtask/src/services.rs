//! `cargo xtask services`: the servers of this checkout by hand.

use std::time::Instant;

use clap::Subcommand;
use testkit::services::{self, Condition, Service, Up};

use crate::selection::Selection;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install what is missing, start what does not run, wait until it serves.
    ///
    /// Private instances on loopback with their data under target/services/, on free ports of
    /// this checkout's own. Safe to call again. A service whose address is in the environment
    /// (see `env`) is left to you.
    Up(Selection),
    /// Stop what runs. The data stays under target/services/.
    Down(Selection),
    /// Show what runs, where, and where its log is.
    Status {
        #[command(flatten)]
        selection: Selection,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Print the addresses for a shell: eval "$(cargo xtask services env)".
    Env(Selection),
}

/// The result of starting, service by service.
pub(crate) type Outcome = (Service, services::Result<Up>);

pub(crate) fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Up(selection) => {
            let outcomes = up(&selection.chosen());
            let failed: Vec<_> = outcomes
                .iter()
                .filter_map(|(service, done)| done.is_err().then_some(service.name()))
                .collect();
            match failed.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "not up: {}; --without {} leaves them out",
                    failed.join(", "),
                    failed.join(",")
                )),
            }
        }
        Command::Down(selection) => down(&selection.chosen()),
        Command::Status { selection, json: true } => status_json(&selection.chosen()),
        Command::Status { selection, json: false } => {
            status_table(&selection.chosen());
            Ok(())
        }
        Command::Env(selection) => {
            env(&selection.chosen());
            Ok(())
        }
    }
}

/// Installs and starts, one progress line each. All start at the same time: most of a start is
/// waiting, and the slowest decides.
pub(crate) fn up(chosen: &[Service]) -> Vec<Outcome> {
    let begin = Instant::now();
    match services::install(chosen) {
        Ok(packages) if packages.is_empty() => {}
        Ok(packages) => {
            eprintln!("  install       {} in {}", packages.join(" "), seconds(begin));
        }
        // Not fatal by itself: what is installed can still be started, and the rest is named.
        Err(error) => eprintln!("  install       FAILED: {error}"),
    }
    std::thread::scope(|scope| {
        let starts: Vec<_> = chosen.iter().map(|service| scope.spawn(|| start(*service))).collect();
        chosen.iter().copied().zip(starts.into_iter().filter_map(|start| start.join().ok())).collect()
    })
}

fn start(service: Service) -> services::Result<Up> {
    let begin = Instant::now();
    let done = services::up(service);
    let url = services::find(service).unwrap_or_default();
    match &done {
        Ok(Up::Started) => eprintln!("  {service:<13} up in {:<8} {url}", seconds(begin)),
        Ok(Up::Already) => eprintln!("  {service:<13} was up          {url}"),
        Ok(Up::Given) => eprintln!("  {service:<13} given by {}", service.env()),
        Err(error) => eprintln!("  {service:<13} FAILED after {}: {error}", seconds(begin)),
    }
    done
}

/// Stops, one progress line each.
pub(crate) fn down(chosen: &[Service]) -> Result<(), String> {
    let stop = |service: Service| {
        let begin = Instant::now();
        let done = services::down(service);
        match &done {
            Ok(true) => eprintln!("  {service:<13} stopped in {}", seconds(begin)),
            Ok(false) => eprintln!("  {service:<13} was not running"),
            Err(error) => eprintln!("  {service:<13} FAILED: {error}"),
        }
        done.is_ok()
    };
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let stops: Vec<_> = chosen.iter().map(|service| scope.spawn(move || stop(*service))).collect();
        let done = stops.into_iter().map(|stop| stop.join().unwrap_or(false));
        chosen.iter().zip(done).filter(|(_, done)| !done).map(|(service, _)| service.name()).collect()
    });
    failed.is_empty().then_some(()).ok_or_else(|| format!("could not stop {}", failed.join(", ")))
}

fn condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Ready => "up",
        Condition::Unresponsive => "deaf",
        Condition::Down => "down",
        Condition::Given => "given",
    }
}

fn status_table(chosen: &[Service]) {
    for service in chosen {
        let status = services::status(*service);
        let pids: Vec<_> = status.processes.iter().map(|(role, pid)| format!("{role} {pid}")).collect();
        println!(
            "{service:<13} {:<5} {}{}",
            condition(status.condition),
            status.url.as_deref().unwrap_or("-"),
            if pids.is_empty() { String::new() } else { format!("  ({})", pids.join(", ")) },
        );
    }
    println!("logs: {}/<service>/log", services::root().display());
}

fn status_json(chosen: &[Service]) -> Result<(), String> {
    let entries: Vec<_> = chosen
        .iter()
        .map(|service| {
            let status = services::status(*service);
            let processes: Vec<_> = status
                .processes
                .iter()
                .map(|(role, pid)| serde_json::json!({ "role": role, "pid": pid }))
                .collect();
            serde_json::json!({
                "service": service.name(),
                "state": condition(status.condition),
                "url": status.url,
                "env": service.env(),
                "processes": processes,
                "log": status.log,
            })
        })
        .collect();
    println!("{}", serde_json::to_string_pretty(&entries).map_err(|error| error.to_string())?);
    Ok(())
}

/// Only what runs is printed; what does not is a comment, which a shell ignores too.
fn env(chosen: &[Service]) {
    for service in chosen {
        match services::find(*service) {
            Some(url) => println!("export {}={}", service.env(), quoted(&url)),
            None => println!("# {service} is not running: cargo xtask services up --only {service}"),
        }
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn seconds(begin: Instant) -> String {
    format!("{:.1} s", begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_is_quoted() {
        for text in ["redis://a,redis://b", "it's $HOME `x`", ""] {
            let echoed = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(echoed.stdout).unwrap(), text);
        }
    }
}
