//! The commands of one consumer of a consumer group. Each is one round trip, with a timeout.

use std::time::Duration;

use futures_util::TryFutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, Script, Value, cmd};
use tokio::time::timeout;

use super::entries::{self, Entry, EntryId};
use super::options::RedisStreamSourceOptions;
use crate::broker::redis_stream::client::connect;
use crate::broker::redis_stream::durability;
use crate::source::SourceError;
use crate::timeout::bounded;

/// Placeholder consumer that owns entries given back by `leave`.
const GIVEN_BACK: &str = "semel-given-back";
/// Longer than any `claim_after`: every consumer may claim them at once.
const GIVEN_BACK_AGE_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// Most ids in one run of a script: Redis is blocked meanwhile.
const SCRIPT_IDS_MAX: usize = 500;

pub(super) struct Group {
    connection: MultiplexedConnection,
}

/// Why a command failed.
pub(super) enum Failed {
    /// Close the connection. Also after a refused command: the server may have become a replica.
    Connection(SourceError),
    /// The group does not exist.
    NoGroup,
}

impl From<Failed> for SourceError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Connection(error) => error,
            Failed::NoGroup => SourceError::later(
                "the consumer group was missing in Redis; recreating it, which redelivers the whole stream",
            ),
        }
    }
}

fn classify(error: &RedisError) -> Failed {
    match error.code() {
        Some("NOGROUP") => Failed::NoGroup,
        _ => Failed::Connection(SourceError::later(format!("a Redis command failed: {error}"))),
    }
}

fn unexpected() -> Failed {
    Failed::Connection(SourceError::for_good(
        "unexpected answer from Redis; it has to be version 6.2 or newer",
    ))
}

fn late() -> Failed {
    Failed::Connection(SourceError::later("Redis did not answer in time"))
}

impl Group {
    /// Connects. Creates a missing stream, and a missing group at the beginning of the stream. Also returns the
    /// durability settings that may lose messages.
    pub(super) async fn open(options: &RedisStreamSourceOptions) -> Result<(Self, Vec<String>), SourceError> {
        let mut connection = connect(&options.client, options.timeout).await.map_err(SourceError::later)?;
        // Continue without an answer: if Redis is down, the next command fails.
        let asked = timeout(options.timeout, durability::violations(&mut connection)).await;
        let violations = asked.ok().and_then(Result::ok).unwrap_or_default();
        let mut group = Self { connection };
        let mut make = cmd("XGROUP");
        make.arg("CREATE").arg(&options.stream).arg(&options.group).arg("0").arg("MKSTREAM");
        let made: Result<Value, _> = make.query_async(&mut group.connection).await;
        match made {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(classify(&error).into()),
            _ => Ok((group, violations)),
        }
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd, limit: Duration) -> Result<T, Failed> {
        let answer = command.query_async(&mut self.connection).map_err(|error| classify(&error));
        bounded(limit, answer, late).await
    }

    /// Entries after this id that were delivered to us and are not acked; `>`: entries never delivered.
    pub(super) async fn read(
        &mut self,
        options: &RedisStreamSourceOptions,
        behind: &str,
        most: usize,
        wait: Duration,
    ) -> Result<Vec<Entry>, Failed> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&options.group).arg(&options.consumer).arg("COUNT").arg(most);
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        // `BLOCK 0` would block forever.
        if millis > 0 {
            read.arg("BLOCK").arg(millis);
        }
        read.arg("STREAMS").arg(&options.stream).arg(behind);
        let answer = self.ask(&read, options.timeout + wait).await?;
        entries::read(answer).ok_or_else(unexpected)
    }

    /// Claims entries that were idle for too long, from this cursor on. Returns the next cursor, the entries, and those
    /// that were trimmed.
    pub(super) async fn claim(
        &mut self,
        options: &RedisStreamSourceOptions,
        from: &str,
        most: usize,
    ) -> Result<(String, Vec<Entry>, Vec<EntryId>), Failed> {
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&options.stream).arg(&options.group).arg(&options.consumer);
        claim.arg(u64::try_from(options.claim_after.as_millis()).unwrap_or(u64::MAX));
        claim.arg(from).arg("COUNT").arg(most);
        let answer = self.ask(&claim, options.timeout).await?;
        entries::claimed(answer).ok_or_else(unexpected)
    }

    /// How often these were delivered, to any consumer.
    pub(super) async fn deliveries(
        &mut self,
        options: &RedisStreamSourceOptions,
        (first, last): (EntryId, EntryId),
        most: usize,
    ) -> Result<Vec<(EntryId, u32)>, Failed> {
        let mut pending = cmd("XPENDING");
        pending.arg(&options.stream).arg(&options.group);
        pending.arg(first.to_string()).arg(last.to_string()).arg(most).arg(&options.consumer);
        let answer = self.ask(&pending, options.timeout).await?;
        entries::deliveries(answer).ok_or_else(unexpected)
    }

    /// The age of the oldest entry, by its id and the server's clock; zero for an empty stream.
    pub(super) async fn age(&mut self, options: &RedisStreamSourceOptions) -> Result<Duration, Failed> {
        let (seconds, micros): (u64, u32) = self.ask(&cmd("TIME"), options.timeout).await?;
        let mut oldest = cmd("XRANGE");
        oldest.arg(&options.stream).arg("-").arg("+").arg("COUNT").arg(1);
        let answer = self.ask(&oldest, options.timeout).await?;
        let first = entries::first(answer).ok_or_else(unexpected)?;
        let now = Duration::from_secs(seconds) + Duration::from_micros(micros.into());
        Ok(first.map_or(Duration::ZERO, |ms| now.saturating_sub(Duration::from_millis(ms))))
    }

    async fn run(
        &mut self,
        options: &RedisStreamSourceOptions,
        script: &str,
        arguments: &[String],
    ) -> Result<Value, Failed> {
        let script = Script::new(script);
        let mut call = script.prepare_invoke();
        call.key(&options.stream).arg(&options.group).arg(&options.consumer).arg(arguments);
        let answer = call.invoke_async(&mut self.connection).map_err(|error| classify(&error));
        bounded(options.timeout, answer, late).await
    }

    /// Acks these entries, as far as they are still ours. Idempotent.
    pub(super) async fn done(
        &mut self,
        options: &RedisStreamSourceOptions,
        ids: &[EntryId],
    ) -> Result<(), Failed> {
        for some in ids.chunks(SCRIPT_IDS_MAX) {
            let some: Vec<String> = some.iter().map(ToString::to_string).collect();
            let others = entries::ids(self.run(options, include_str!("settle.lua"), &some).await?);
            let others = others.ok_or_else(unexpected)?;
            if !others.is_empty() {
                tracing::debug!(
                    target: "semel::redis_stream", ?others,
                    "did not ack entries that another consumer has claimed; that consumer acks them"
                );
            }
        }
        Ok(())
    }

    /// Resets the idle time of these entries. Appends those that others have claimed, and those that were trimmed;
    /// after an error, what was found before it.
    pub(super) async fn keep(
        &mut self,
        options: &RedisStreamSourceOptions,
        ids: &[EntryId],
        others: &mut Vec<EntryId>,
        trimmed: &mut Vec<EntryId>,
    ) -> Result<(), Failed> {
        for some in ids.chunks(SCRIPT_IDS_MAX) {
            let some: Vec<String> = some.iter().map(ToString::to_string).collect();
            let Value::Array(lists) = self.run(options, include_str!("keep.lua"), &some).await? else {
                return Err(unexpected());
            };
            let mut lists = lists.into_iter().map(entries::ids);
            others.extend(lists.next().flatten().ok_or_else(unexpected)?);
            trimmed.extend(lists.next().flatten().ok_or_else(unexpected)?);
        }
        Ok(())
    }

    /// Gives back all our entries and deletes this consumer. Returns how many entries were trimmed.
    pub(super) async fn leave(&mut self, options: &RedisStreamSourceOptions) -> Result<u64, Failed> {
        let arguments = [GIVEN_BACK.to_owned(), GIVEN_BACK_AGE_MS.to_string()];
        match self.run(options, include_str!("leave.lua"), &arguments).await? {
            Value::Int(trimmed) => u64::try_from(trimmed).map_err(|_| unexpected()),
            _ => Err(unexpected()),
        }
    }
}
