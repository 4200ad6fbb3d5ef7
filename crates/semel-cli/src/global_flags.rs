//! Global flags that a command does not use: not in its `--help`, and refused when they are given.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::Cli;

/// The flags that a command does not use. In the environment they are ignored: they are meant for other commands.
fn unused(command: &str) -> &'static [&'static str] {
    match command {
        "relay" | "outbox" | "inbox" => &["store", "keys", "cache"],
        "migrate" | "redis" => &["keys", "cache"],
        "demo" => &["keys"],
        "completions" => &["store", "keys", "cache", "json"],
        _ => &[],
    }
}

/// The command line of this process.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    parse_from(std::env::args_os())
}

fn parse_from(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    if let Some(name) = matches.subcommand_name() {
        let given = |flag: &&&str| matches.value_source(flag) == Some(ValueSource::CommandLine);
        if let Some(flag) = unused(name).iter().find(given) {
            let message = format!("`semel {name}` does not use --{flag}");
            return Err(command.error(ErrorKind::UnknownArgument, message));
        }
    }
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The command line, with unused flags hidden.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    // Hands the global flags down to the subcommands, where they can be hidden.
    command.build();
    for subcommand in command.get_subcommands_mut() {
        let flags = unused(subcommand.get_name());
        hide(subcommand, flags);
    }
    command
}

fn hide(command: &mut Command, flags: &[&'static str]) {
    for &flag in flags {
        if command.get_arguments().any(|argument| argument.get_id() == flag) {
            *command = std::mem::take(command).mut_arg(flag, |argument| argument.hide(true));
        }
    }
    for subcommand in command.get_subcommands_mut() {
        hide(subcommand, flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(path: &[&str]) -> String {
        let words = ["semel"].iter().chain(path).chain(&["--help"]).map(ToString::to_string);
        parse_from(words).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn help_shows_the_global_flags_that_a_command_uses() {
        for (path, shown, hidden) in [
            (&["ls"][..], &["--store", "--keys", "--cache", "--json"][..], &[][..]),
            (&["relay"], &["--json", "--from"], &["--store", "--keys", "--cache"]),
            (&["outbox"], &["--json"], &["--store", "--keys", "--cache"]),
            (&["outbox", "ls"], &["--json"], &["--store", "--keys", "--cache"]),
            (&["inbox", "dead"], &["--json"], &["--store", "--keys", "--cache"]),
            (&["migrate"], &["--store"], &["--keys", "--cache"]),
            (&["demo"], &["--store", "--cache"], &["--keys"]),
            (&["gateway"], &["--store", "--keys", "--cache"], &[]),
        ] {
            let help = help(path);
            let has = |flag: &str| help.lines().any(|line| line.trim_start().starts_with(flag));
            for flag in shown {
                assert!(has(flag), "{path:?} lacks {flag}:\n{help}");
            }
            for flag in hidden {
                assert!(!has(flag), "{path:?} shows {flag}:\n{help}");
            }
        }
    }

    #[test]
    fn a_flag_that_a_command_does_not_use_is_refused() {
        for words in [
            &["semel", "outbox", "--store", "memory:", "ls"][..],
            &["semel", "--store", "memory:", "outbox", "ls"],
            &["semel", "demo", "--keys", "env:KEYS"],
        ] {
            let error = parse_from(words).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("does not use --"), "{words:?}: {error}");
        }
        assert!(parse_from(["semel", "--store", "memory:", "ls"]).is_ok());
    }
}
