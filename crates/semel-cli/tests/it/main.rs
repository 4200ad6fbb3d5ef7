//! The real binary on real files: its output and exit codes.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "consume")]
mod consume;
#[cfg(all(feature = "consume", feature = "kafka"))]
mod consume_world;
mod decide;
mod demo;
mod errors;
mod inbox;
mod ls;
mod outbox;
mod receiver;
mod redis;
mod relay;
mod relay_brokers;
mod relay_promise;
mod relay_servers;
mod relay_world;
mod semel;
mod show;
mod two_versions;
mod upkeep;
mod world;
