//! Exactly once: a sink that keeps the position beside the events, judged by what readers of it see.

pub(crate) mod broker;
mod chance;
#[cfg(all(feature = "sinks", feature = "kill"))]
mod kafka;
mod late;
mod misuse;
mod outboxes;
mod partitions;
mod planted;
mod scenes;
mod wrong;
