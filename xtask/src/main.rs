//! The project's own commands, run as `cargo xtask …`.

mod api;
mod bench;
mod beside;
mod binaries;
mod cargo;
mod chaos;
mod demo_stack;
#[cfg(test)]
mod docs;
mod features;
mod lines;
mod lint;
mod module_tables;
mod mutants;
#[cfg(test)]
mod observability;
mod old;
mod phase;
mod prove;
mod saga_peers;
mod selection;
mod services;
mod slow;
mod suite;
mod tally;
mod test;
mod tidy;
mod toolchain;
mod tools;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Everything around semel that is not semel: real servers, the whole test run, benchmarks, chaos.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set everything up, run all deterministic tests, and stop what was started.
    ///
    /// Installs what is missing, then: all tests with all features against real servers, doc tests,
    /// examples. Servers that ran before keep running. The output of each phase is in
    /// target/xtask/. The last line is `N passed, N failed, N skipped`. Exits with 0 when all is
    /// well, 1 when something failed, 2 on wrong usage. `lint` checks format, clippy and
    /// documentation; `prove` runs random kills, load and long tests.
    Test(test::Arguments),
    Lint(lint::Arguments),
    Api(api::Arguments),
    Lines(lines::Arguments),
    Prove(prove::Arguments),
    Mutants(mutants::Arguments),
    /// Start, stop and show the private servers of this checkout.
    #[command(subcommand)]
    Services(services::Command),
    DemoStack(demo_stack::Arguments),
    #[command(subcommand)]
    Bench(bench::Bench),
    Chaos(chaos::Arguments),
}

/// 0: all is well; 1: something failed; 2: wrong usage (clap exits with it by itself).
fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Lint(arguments) => lint::run(&arguments),
        Command::Api(arguments) => api::run(&arguments),
        Command::Lines(arguments) => lines::run(&arguments),
        Command::Prove(arguments) => prove::run(&arguments),
        Command::Mutants(arguments) => mutants::run(&arguments),
        Command::Services(command) => services::run(command),
        Command::DemoStack(arguments) => demo_stack::run(&arguments),
        Command::Bench(command) => bench::run(&command),
        Command::Chaos(command) => chaos::run(&command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if !message.is_empty() {
                eprintln!("error: {message}");
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
