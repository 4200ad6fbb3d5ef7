//! Global flags that a command does not use: not in its `--help`, and refused when they are given.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::args::Cli;

/// The flags that a command does not use. In the environment they are ignored: they are meant for other commands.
fn unused(command: &str) -> &'static [&'static str] {
    match command {
        "relay" | "outbox" | "inbox" => &["store", "keys", "cache"],
        "saga" => &["store", "cache"],
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
    if let Some(name) = matches.subcommand_name()
        && let Some(flag) = unused(name).iter().find(|flag| is_given(&matches, flag))
    {
        let message = format!("`semel {name}` does not use --{flag}");
        return Err(command.error(ErrorKind::UnknownArgument, message));
    }
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The command line, with unused flags hidden.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    let globals: Vec<Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    for subcommand in command.get_subcommands_mut() {
        let flags = unused(subcommand.get_name());
        // A flag that the subcommand has itself is not handed down to it. It is global, so its own subcommands have it hidden.
        for hidden in globals.iter().filter(|arg| flags.contains(&arg.get_id().as_str())) {
            *subcommand = std::mem::take(subcommand).arg(hidden.clone().hide(true));
        }
    }
    command
}

/// Whether a flag was given on the command line, before or behind a subcommand.
fn is_given(matches: &ArgMatches, flag: &str) -> bool {
    matches.value_source(flag) == Some(ValueSource::CommandLine)
        || matches.subcommand().is_some_and(|(_, inner)| is_given(inner, flag))
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
            (&["saga", "ls"], &["--json", "--keys"], &["--store", "--cache"]),
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
