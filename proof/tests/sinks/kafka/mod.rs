//! Kafka.

mod at_least_once;
mod exactly_once;
mod killed;
mod laws;
mod reader;
