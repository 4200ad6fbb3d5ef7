//! `cargo xtask demo-stack --chaos`: the whole chain while everything is killed in turn, and whether the verdict can fail.
//!
//! `cargo xtask services up --only postgres,redis,kafka`, then `cargo test -p xtask`. `SEMEL_CHAOS` says for how long, such as
//! `10m`; without it, seconds.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;
use testkit::services::{Service, require};

/// Set by `cargo xtask test`, which has built everything with all features.
const AS_BUILT_ENV: &str = "SEMEL_AS_BUILT";

/// `None` when the run goes without one of the servers.
fn chaos(duration: &str, more: &[&str]) -> Option<(Output, Value)> {
    for service in [Service::Postgres, Service::Redis, Service::Kafka] {
        // Only to go without where the run does: the stack takes them alone.
        drop(require(service)?);
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"));
    demo.args(["demo-stack", "--chaos", duration, "--json"]).args(more);
    if std::env::var_os(AS_BUILT_ENV).is_some() {
        demo.arg("--as-built");
    }
    let output = demo.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // Under `cargo xtask prove` its kills print their figures, for the sum.
    let (figures, verdict): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with("figures: "));
    figures.iter().for_each(|line| println!("{line}"));
    let verdict = serde_json::from_str(&verdict.concat()).unwrap_or_else(|error| {
        panic!("{error}: {text:?}; {}", String::from_utf8_lossy(&output.stderr));
    });
    Some((output, verdict))
}

fn stage<'v>(verdict: &'v Value, name: &str) -> &'v Value {
    verdict["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == name).unwrap()
}

/// One after the other: each has the servers alone.
#[test]
#[ignore = "prove: the whole chain, everything killed in turn"]
fn the_whole_chain_is_once_whatever_is_killed_and_a_planted_bug_is_seen() {
    let duration = std::env::var("SEMEL_CHAOS").unwrap_or_else(|_| "15s".to_owned());
    let Some((output, verdict)) = chaos(&duration, &[]) else { return };
    assert!(output.status.success(), "{verdict:#}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(verdict["ok"], true);
    // It was not for want of trying.
    assert!(verdict["killed"]["consumer"].as_u64() >= Some(2), "{verdict:#}");
    assert!(stage(&verdict, "notifications")["found"].as_u64() >= Some(10), "{verdict:#}");

    let Some((output, verdict)) = chaos("4s", &["--planted", "no-inbox"]) else { return };
    assert_eq!(output.status.code(), Some(1), "{verdict:#}");
    assert_eq!(verdict["ok"], false);
    let notifications = stage(&verdict, "notifications");
    assert!(notifications["doubled"].as_u64() > Some(0), "{verdict:#}");
    assert_eq!((&notifications["lost"], &stage(&verdict, "payments")["doubled"]), (&0.into(), &0.into()));
}
