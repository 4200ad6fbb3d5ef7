//! Data loss markers: they show whether Redis still has its data.
//!
//! A flushed or freshly started Redis has no records, and every retry would run again. So each bucket has a marker,
//! which every script checks in the same step as the record. Without it the answer is [`ErrorKind::Lost`]: neither
//! "absent" nor "unavailable", and no outage policy runs on it.
//!
//! That only works if markers are never created as a side effect: a service that created them at its start would turn
//! every loss into a fresh store, because after a flush services get restarted. An empty server looks the same before
//! the first start and after a loss. Therefore a person decides, once: `semel migrate` creates a store where there is
//! none, `semel redis accept-loss` creates new markers where some are missing.

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::{Cmd, Value};

use super::connection::Connections;
use super::error::{self, Failed};
use super::layout::{BUCKETS, marker_key};
use super::options::RedisOptions;
use super::script::Script;
use crate::intent::key::hex;
use crate::store::{ErrorKind, Fate, StoreError};

/// Buckets read concurrently.
const TOGETHER: usize = 128;
/// The layout this build reads and writes.
pub(super) const VERSION: u32 = 1;

/// The state of a store's markers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// How many buckets there are.
    pub buckets: usize,
    /// How many of them have no marker: their data is lost.
    pub missing: usize,
    /// The generations of the others; more than one after a partial loss that was accepted.
    pub generations: Vec<String>,
    /// The newest layout among them; 0 if there is none.
    pub version: u32,
}

impl Memory {
    /// No marker is missing.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// There is no marker at all: no store was ever created, or all of it is lost.
    pub fn is_empty(&self) -> bool {
        self.missing == self.buckets
    }
}

pub(super) async fn read(connections: &Connections, prefix: &str) -> Result<Memory, StoreError> {
    let marks = stream::iter(0..BUCKETS).map(|bucket| async move {
        let mut ask = Cmd::new();
        ask.arg("HMGET").arg(marker_key(prefix, bucket)).arg("g").arg("v");
        connections.call(ask, 0).await.map_err(Failed::explain)
    });
    let marks: Vec<Value> = marks.buffer_unordered(TOGETHER).try_collect().await?;
    let mut memory = Memory { buckets: marks.len(), missing: 0, generations: Vec::new(), version: 0 };
    for mark in marks {
        let Value::Array(fields) = &mark else { return Err(error::unexpected(&mark)) };
        let text = |at: usize| match fields.get(at) {
            Some(Value::BulkString(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        let Some(generation) = text(0) else {
            memory.missing += 1;
            continue;
        };
        if !memory.generations.contains(&generation) {
            memory.generations.push(generation);
        }
        let version = text(1).and_then(|version| version.parse().ok()).unwrap_or(0);
        memory.version = memory.version.max(version);
    }
    memory.generations.sort_unstable();
    Ok(memory)
}

/// Creates a marker for every bucket that has none. With `again` all of them get the new generation.
async fn create(connections: &Connections, prefix: &str, again: bool) -> Result<(), StoreError> {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&crate::store::Lineage::random().as_bytes()[..8]);
    let generation = hex(&bytes);
    let script = Script::new(include_str!("lua/mark.lua"));
    let mode: &[u8] = if again { b"again" } else { b"new" };
    let (script, generation) = (&script, generation.as_bytes());
    let made = stream::iter(0..BUCKETS).map(|bucket| async move {
        script.run(connections, &[&marker_key(prefix, bucket)], &[generation, mode]).await
    });
    made.buffer_unordered(TOGETHER).try_for_each(|_| async { Ok(()) }).await
}

/// Checks the markers when a store is opened.
pub(super) async fn check(connections: &Connections, options: &RedisOptions) -> Result<Memory, StoreError> {
    let memory = read(connections, &options.prefix).await?;
    if memory.version > VERSION {
        let message = format!(
            "this store in Redis was created by a newer semel (its layout is {}, this build knows {VERSION}); \
             upgrade semel",
            memory.version
        );
        return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message));
    }
    if memory.is_empty() && options.create {
        create(connections, &options.prefix, false).await?;
        return read(connections, &options.prefix).await;
    }
    if memory.is_empty() {
        let message = "this Redis has no store; create one with `semel migrate`. If there was one before, its data is \
                       lost: investigate, then run `semel redis accept-loss` to go on without it";
        return Err(StoreError::new(ErrorKind::Lost, Fate::NotApplied, message));
    }
    if !memory.is_whole() {
        tracing::error!(
            missing = memory.missing,
            buckets = memory.buckets,
            "part of this store in Redis is lost, and its intents are refused; investigate, then run \
             `semel redis accept-loss`"
        );
    }
    Ok(memory)
}

pub(super) async fn memory_of(options: RedisOptions) -> Result<Memory, StoreError> {
    let connections = Connections::new(&options)?;
    read(&connections, &options.prefix).await
}

pub(super) async fn accept_loss(options: RedisOptions) -> Result<Memory, StoreError> {
    let connections = Connections::new(&options)?;
    create(&connections, &options.prefix, true).await?;
    read(&connections, &options.prefix).await
}
