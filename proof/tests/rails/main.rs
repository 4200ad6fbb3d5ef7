//! Events and messages on real servers: relays, sinks, sources, pipelines, and the whole chain.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,sinks --test rails`, with the name of a module
//! or a test to run less. Tests marked `#[ignore = "prove: …"]` need luck, load or minutes: `cargo xtask prove` runs them.
//!
//! | module | what it shows |
//! |---|---|
//! | `relay` | the polling relay on every database: cursor, ownership, parking, pruning, exactly once |
//! | `cdc` | the relay from PostgreSQL's log |
//! | `relay_chaos` | relays as processes: killed at every point, servers killed, restored, promoted |
//! | `sinks` | the laws of sinks on every broker |
//! | `sources` | the laws of sources on every broker, and consumers that are killed |
//! | `pipeline` | Kafka to Kafka, exactly once |
//! | `chain` | from the outbox to the effect of the consumer |
//! | `servers` | the servers themselves are what the other tests take them for |
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod cdc;
mod chain;
mod pipeline;
mod relay;
mod relay_chaos;
mod servers;
mod sinks;
mod sources;
