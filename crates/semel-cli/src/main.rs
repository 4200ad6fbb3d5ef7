//! The `semel` command: guard a service, publish its events, deliver messages; list intents, events and dead letters,
//! decide about them, and maintain the store.

// Unused in a build with all features.
#[cfg_attr(all(feature = "consume", feature = "redis"), allow(dead_code))]
mod absent;
mod admin;
mod advice;
mod args;
mod confirm;
#[cfg(feature = "consume")]
mod consume;
#[cfg(test)]
#[cfg_attr(not(feature = "full"), allow(dead_code, unused_imports))]
mod contracts;
mod decide;
mod demo;
mod duration;
mod failure;
mod flags;
mod gateway;
mod global_flags;
mod inbox;
#[cfg(feature = "kafka")]
mod kafka;
mod keys;
mod log;
mod ls;
mod migrate;
mod moment;
#[cfg_attr(not(all(feature = "kafka", feature = "postgres", feature = "redis")), allow(dead_code, unused))]
mod outbox;
mod outcome;
#[cfg(feature = "redis")]
mod redis;
mod sink_probe;
// A build without some of the brokers or databases leaves parts of these modules unused.
#[cfg_attr(not(all(feature = "kafka", feature = "postgres", feature = "redis")), allow(dead_code, unused))]
mod relay;
mod saga;
mod show;
mod size;
mod stdout;
mod stop;
mod sweep;
mod table;
mod target;
#[cfg_attr(not(all(feature = "kafka", feature = "postgres", feature = "redis")), allow(dead_code, unused))]
mod url;
mod usage;
mod values;
mod view;

use std::process::ExitCode;

use semel::store::protect::Protection;
use semel::store::{self, AnyStore};

use crate::args::{Cli, Command, STORE_DEFAULT};
use crate::failure::Failed;

fn main() -> ExitCode {
    let cli = match global_flags::parse() {
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
            clap_complete::generate(*shell, &mut global_flags::command(), "semel", &mut script);
            stdout::bytes(&script)
        }
        // The demo works on both cores; looking at a store takes one thread.
        Command::Demo(args) => tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(
            demo::run(args, from_flag("--store", &cli.store), from_flag("--cache", &cli.cache), cli.json),
        ),
        Command::DemoService(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(demo::serve(args, cli.store.as_deref(), cli.cache.as_deref())),
        Command::DemoSagaProcess(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(demo::run_process(args)),
        Command::Gateway(args) => tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(
            gateway::run(args, cli.store.as_deref(), cli.cache.as_deref(), cli.keys.as_ref(), cli.json),
        ),
        Command::Relay(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let ended = runtime.block_on(relay::run(args, cli.json));
            // A task may still be waiting for an unreachable broker; do not wait for it.
            runtime.shutdown_background();
            ended
        }
        #[cfg(feature = "consume")]
        Command::Consume(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let ended = runtime.block_on(consume::run(cli, args));
            // As with the relay: do not wait for tasks that wait for an unreachable broker.
            runtime.shutdown_background();
            ended
        }
        #[cfg(not(feature = "consume"))]
        Command::Consume(_) => Err(absent::absent("`semel consume`", "consume,kafka")),
        #[cfg(not(feature = "redis"))]
        Command::Redis(_) => Err(absent::absent("`semel redis`", "redis")),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(operate(cli)),
    }
}

/// The value if it was given as a flag. The demo touches no server that only the environment names.
fn from_flag<'a>(flag: &str, value: &'a Option<String>) -> Option<&'a str> {
    let is_flag = |word: std::ffi::OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    value.as_deref().filter(|_| std::env::args_os().any(is_flag))
}

/// Opens an existing store, with the keys and the cache that were given.
async fn open(cli: &Cli, url: &str) -> Result<AnyStore, Failed> {
    with_keys_and_cache(cli, store::open_existing(url).await?).await
}

/// The store of `--store`, or the default one.
fn store_url(cli: &Cli) -> &str {
    cli.store.as_deref().unwrap_or(STORE_DEFAULT)
}

/// Adds the keys that outcomes are sealed with, and the cache in front.
async fn with_keys_and_cache(cli: &Cli, store: AnyStore) -> Result<AnyStore, Failed> {
    let protection = protection(cli)?;
    let store = behind_cache(store, cli.cache.as_deref()).await?;
    Ok(keys::protected(store, protection))
}

/// With the keys of `--keys`. Also without: what was compressed earlier must stay readable.
fn protection(cli: &Cli) -> Result<Protection, Failed> {
    let mut protection = Protection::none();
    if let Some(source) = &cli.keys {
        let loaded = source.load().map_err(Failed::usage)?;
        if let Some(warning) = loaded.warning {
            eprintln!("semel: {warning}");
        }
        protection = protection.seal(loaded.keys);
    }
    Ok(protection)
}

/// With `--cache`, decisions made here also reach the cache that the gateway replays from.
#[cfg(feature = "redis")]
async fn behind_cache(store: AnyStore, cache: Option<&str>) -> Result<AnyStore, Failed> {
    match cache {
        None => Ok(store),
        Some(cache) => Ok(store::behind_cache(store, cache, &semel::observe::Metrics::new()).await?),
    }
}

#[cfg(not(feature = "redis"))]
async fn behind_cache(store: AnyStore, cache: Option<&str>) -> Result<AnyStore, Failed> {
    match cache {
        None => Ok(store),
        Some(_) => Err(absent::absent("a cache on Redis", "redis")),
    }
}

async fn operate(cli: &Cli) -> Result<(), Failed> {
    let (url, json) = (store_url(cli), cli.json);
    if let Command::Outbox(args) = &cli.command {
        return outbox::run(args, json).await;
    }
    if let Command::Inbox(args) = &cli.command {
        return inbox::run(args, json).await;
    }
    if let Command::Saga(args) = &cli.command {
        return saga::run(args, protection(cli)?, cli.keys.is_some(), json).await;
    }
    if let Command::Migrate(args) = &cli.command {
        return migrate::run(args, url, json).await;
    }
    #[cfg(feature = "redis")]
    if let Command::Redis(args) = &cli.command {
        return redis::run(&args.command, url, json).await;
    }
    let store = open(cli, url).await?;
    match &cli.command {
        Command::Ls(args) => ls::run(&store, args, json).await,
        Command::Show(args) => show::run(&store, args, url, json).await,
        Command::Resolve(args) => decide::resolve(&store, args, url, json).await,
        Command::Release(args) => decide::release(&store, args, url, json).await,
        Command::Sweep(args) => sweep::run(&store, args, json).await,
        Command::Migrate(_)
        | Command::Completions { .. }
        | Command::Demo(_)
        | Command::DemoService(_)
        | Command::DemoSagaProcess(_)
        | Command::Gateway(_)
        | Command::Relay(_)
        | Command::Outbox(_)
        | Command::Inbox(_)
        | Command::Saga(_)
        | Command::Consume(_)
        | Command::Redis(_) => Ok(()),
    }
}
