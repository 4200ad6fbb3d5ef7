//! What scripts and deployments rely on, pinned: each listing in `contracts/` of this package changes only on purpose.
//!
//! The settings of the gateway's file, its problems and its metrics are listed beside their code. To write all listings
//! anew: `SEMEL_RENEW_CONTRACTS=1 cargo test -p semel-cli --all-features contract`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Arg, Command};

use crate::failure::Failed;

/// Compares with `contracts/NAME.txt`.
#[track_caller]
pub(crate) fn pinned(name: &str, listing: &str) {
    testkit::contract::pinned(env!("CARGO_MANIFEST_DIR"), name, listing);
}

/// The command and its subcommands, each with its whole name.
fn commands(command: &Command, name: &str) -> Vec<(String, Command)> {
    let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    let inner = inner.flat_map(|inner| commands(inner, &format!("{name} {}", inner.get_name())));
    [(name.to_owned(), command.clone())].into_iter().chain(inner).collect()
}

fn all() -> Vec<(String, Command)> {
    let mut command = crate::global_flags::command();
    command.build();
    commands(&command, "semel")
}

/// One line: how it is written, its values, its default, its variable.
fn line(arg: &Arg) -> String {
    let mut line = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("--{long} -{short}"),
        (Some(long), None) => format!("--{long}"),
        _ => format!("<{}>", arg.get_id()),
    };
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    match (arg.get_action().takes_values(), values.is_empty()) {
        (true, true) => line += " VALUE",
        (true, false) => line += &format!(" {}", values.join("|")),
        (false, _) => {}
    }
    for default in arg.get_default_values().iter().filter(|_| arg.get_action().takes_values()) {
        line += &format!(" default={}", default.to_string_lossy());
    }
    if let Some(variable) = arg.get_env() {
        line += &format!(" env={}", variable.to_string_lossy());
    }
    for (is, what) in [(arg.is_required_set(), "required"), (arg.is_hide_set(), "hidden")] {
        if is {
            line += &format!(" {what}");
        }
    }
    line
}

/// A build without some brokers lacks some flags.
#[cfg(feature = "full")]
#[test]
fn contract_commands_and_flags() {
    let mut lines = BTreeSet::new();
    for (name, command) in all() {
        let hidden = if command.is_hide_set() { " (hidden)" } else { "" };
        lines.insert(format!("{name}{hidden}"));
        let own = command.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()));
        lines.extend(own.map(|arg| format!("{name} {}", line(arg))));
    }
    pinned("flags", &lines.into_iter().map(|line| line + "\n").collect::<String>());
}

#[cfg(feature = "full")]
#[test]
fn contract_environment_variables() {
    let mut names = BTreeSet::new();
    for (_, command) in all() {
        let variables = command.get_arguments().filter_map(Arg::get_env);
        names.extend(variables.map(|variable| format!("{}\n", variable.to_string_lossy())));
    }
    pinned("environment", &String::from_iter(names));
}

#[test]
fn contract_exit_codes() {
    let usage = clap::Command::new("x").try_get_matches_from(["x", "--none"]).unwrap_err();
    let help = clap::Command::new("x").try_get_matches_from(["x", "--help"]).unwrap_err();
    let codes = [
        ("not done", Failed::not_done("a").report()),
        ("usage", Failed::usage("a").report()),
        ("the reader of our output left", Failed::ReaderLeft.report()),
        ("wrong arguments", crate::usage::report(&usage)),
        ("help", crate::usage::report(&help)),
    ];
    let number =
        |code| (0..=u8::MAX).find(|n| format!("{:?}", ExitCode::from(*n)) == format!("{code:?}")).unwrap();
    let listing: String = codes.iter().map(|(what, code)| format!("{what}: {}\n", number(code))).collect();
    pinned("exit_codes", &listing);
}
