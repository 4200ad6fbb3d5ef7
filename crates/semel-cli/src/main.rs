//! The `semel` command: guard a service, see it work, look at intents, decide about them, look after the store.

mod advice;
mod args;
mod decide;
mod demo;
mod duration;
mod failure;
mod gateway;
mod ls;
mod migrate;
mod moment;
mod outcome;
mod redis;
mod show;
mod stdout;
mod sweep;
mod table;
mod target;
mod usage;
mod values;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use semel::store;

use crate::args::{Cli, Command, STORE_DEFAULT};
use crate::failure::Failed;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

fn run(cli: &Cli) -> Result<(), Failed> {
    match &cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "semel", &mut script);
            stdout::bytes(&script)
        }
        // The demo works on both cores; looking at a store takes one thread.
        Command::Demo(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(demo::run(args, cli.json)),
        Command::Gateway(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(gateway::run(args, cli.store.as_deref(), cli.cache.as_deref(), cli.json)),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(operate(cli)),
    }
}

async fn operate(cli: &Cli) -> Result<(), Failed> {
    let (url, json) = (cli.store.as_deref().unwrap_or(STORE_DEFAULT), cli.json);
    if let Command::Migrate(args) = &cli.command {
        return migrate::run(args, url, json).await;
    }
    if let Command::Redis(args) = &cli.command {
        return redis::run(&args.command, url, json).await;
    }
    let mut store = store::open_existing(url).await?;
    if let Some(cache) = &cli.cache {
        store = store::behind_cache(store, cache, &semel::observe::Metrics::new()).await?;
    }
    match &cli.command {
        Command::Ls(args) => ls::run(&store, args, json).await,
        Command::Show(args) => show::run(&store, args, url, json).await,
        Command::Resolve(args) => decide::resolve(&store, args, url, json).await,
        Command::Release(args) => decide::release(&store, args, url, json).await,
        Command::Sweep(args) => sweep::run(&store, args, json).await,
        Command::Migrate(_)
        | Command::Redis(_)
        | Command::Completions { .. }
        | Command::Demo(_)
        | Command::Gateway(_) => Ok(()),
    }
}
