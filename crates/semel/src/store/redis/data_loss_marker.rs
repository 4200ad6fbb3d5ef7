//! Whether Redis still knows what it knew.
//!
//! A flushed or freshly started Redis answers "never heard of it" to everything, and every retry would run again.
//! So each bucket has a marker, looked at by every script in the same step as the record. Without it the answer is
//! [`ErrorKind::Lost`]: neither "absent" nor "cannot be asked", and no outage policy runs on it.
//!
//! That only works if nobody makes the markers in passing: a service that did so at its start would turn every loss
//! into a fresh store, because after a flush somebody always restarts it. The first start cannot be told from the
//! first start after a loss by looking at an empty server. Therefore a person says so, once: `semel migrate` makes
//! a store where none is, `semel redis accept-loss` makes the markers anew where some are gone.

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::{Cmd, Value};

use super::connection::Link;
use super::error::{self, Failed};
use super::layout::{BUCKETS, marker_key};
use super::options::RedisOptions;
use super::script::Script;
use crate::intent::key::hex;
use crate::store::{ErrorKind, Fate, StoreError};

/// Buckets asked at the same time.
const TOGETHER: usize = 128;
/// The layout this build reads and writes.
pub(super) const VERSION: u32 = 1;

/// What the markers of a store say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// How many buckets there are.
    pub buckets: usize,
    /// How many of them have no marker: what was in them is lost.
    pub missing: usize,
    /// The generations of the others; more than one after a part was lost and that was accepted.
    pub generations: Vec<String>,
    /// The newest layout among them; 0 where there is none.
    pub version: u32,
}

impl Memory {
    /// Nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// There is nothing at all: no store was ever made, or all of it is gone.
    pub fn is_empty(&self) -> bool {
        self.missing == self.buckets
    }
}

pub(super) async fn look(link: &Link, prefix: &str) -> Result<Memory, StoreError> {
    let marks = stream::iter(0..BUCKETS).map(|bucket| async move {
        let mut ask = Cmd::new();
        ask.arg("HMGET").arg(marker_key(prefix, bucket)).arg("g").arg("v");
        link.call(ask, 0).await.map_err(Failed::explain)
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

/// Makes a marker for every bucket that has none. With `again` all of them get the new generation.
async fn make(link: &Link, prefix: &str, again: bool) -> Result<(), StoreError> {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&crate::store::Lineage::random().as_bytes()[..8]);
    let generation = hex(&bytes);
    let script = Script::new(include_str!("lua/mark.lua"));
    let mode: &[u8] = if again { b"again" } else { b"new" };
    let (script, generation) = (&script, generation.as_bytes());
    let made = stream::iter(0..BUCKETS).map(|bucket| async move {
        script.run(link, &[&marker_key(prefix, bucket)], &[generation, mode]).await
    });
    made.buffer_unordered(TOGETHER).try_for_each(|_| async { Ok(()) }).await
}

/// What opening a store asks of its markers.
pub(super) async fn check(link: &Link, options: &RedisOptions) -> Result<Memory, StoreError> {
    let memory = look(link, &options.prefix).await?;
    if memory.version > VERSION {
        let message = format!(
            "this store in Redis was made by a newer semel (its layout is {}, this build knows {VERSION}); upgrade",
            memory.version
        );
        return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message));
    }
    if memory.is_empty() && options.create {
        make(link, &options.prefix, false).await?;
        return look(link, &options.prefix).await;
    }
    if memory.is_empty() {
        let message = "this Redis holds no store: make one with `semel migrate`; but if there was one, its memory is \
                       lost, and only `semel redis accept-loss` goes on without it";
        return Err(StoreError::new(ErrorKind::Lost, Fate::NotApplied, message));
    }
    if !memory.is_whole() {
        tracing::error!(
            missing = memory.missing,
            buckets = memory.buckets,
            "a part of this store in Redis is lost; its intents are refused until `semel redis accept-loss`"
        );
    }
    Ok(memory)
}

pub(super) async fn memory_of(options: RedisOptions) -> Result<Memory, StoreError> {
    let link = Link::new(&options)?;
    look(&link, &options.prefix).await
}

pub(super) async fn accept_loss(options: RedisOptions) -> Result<Memory, StoreError> {
    let link = Link::new(&options)?;
    make(&link, &options.prefix, true).await?;
    look(&link, &options.prefix).await
}
