//! The commands of a consumer of a group. Each is one round trip, within a bound.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, Script, Value, cmd};
use tokio::time::timeout;

use super::entries::{self, Entry, EntryId};
use super::options::RedisStreamSourceOptions;
use crate::sink::redis_stream::{connect, durability};
use crate::source::SourceError;

/// Who has entries that were given back.
const NOBODY: &str = "semel-given-back";
/// Older than any silence: everybody claims them at once.
const GIVEN_BACK_AGE_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// Most ids in one run of a script, during which Redis does nothing else.
const SCRIPT_IDS_MAX: usize = 500;

pub(super) struct Group {
    connection: MultiplexedConnection,
}

/// Why a command failed.
pub(super) enum Failed {
    /// The connection is not to be used any more: also where the server refuses, for it may be a replica by now.
    Line(SourceError),
    /// The group is not there.
    NoGroup,
}

impl From<Failed> for SourceError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Line(error) => error,
            Failed::NoGroup => SourceError::later(
                "the group was gone from Redis and is made again: everything in the stream comes again",
            ),
        }
    }
}

fn judge(error: &RedisError) -> Failed {
    match error.code() {
        Some("NOGROUP") => Failed::NoGroup,
        _ => Failed::Line(SourceError::later(format!("Redis did not do it: {error}"))),
    }
}

fn odd() -> Failed {
    Failed::Line(SourceError::for_good(
        "Redis answered in a way that is not understood; it has to be 6.2 or newer",
    ))
}

impl Group {
    /// Connects, and makes stream and group where they are missing: from the beginning of the stream.
    pub(super) async fn open(options: &RedisStreamSourceOptions) -> Result<(Self, Vec<String>), SourceError> {
        let mut connection = connect(&options.client, options.timeout).await.map_err(SourceError::later)?;
        // Without an answer it goes on: what comes next needs one.
        let asked = timeout(options.timeout, durability::violations(&mut connection)).await;
        let violations = asked.ok().and_then(Result::ok).unwrap_or_default();
        let mut group = Self { connection };
        let mut make = cmd("XGROUP");
        make.arg("CREATE").arg(&options.stream).arg(&options.group).arg("0").arg("MKSTREAM");
        let made: Result<Value, _> = make.query_async(&mut group.connection).await;
        match made {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(judge(&error).into()),
            _ => Ok((group, violations)),
        }
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd, patience: Duration) -> Result<T, Failed> {
        match timeout(patience, command.query_async(&mut self.connection)).await {
            Ok(answer) => answer.map_err(|error| judge(&error)),
            Err(_) => Err(Failed::Line(SourceError::later("Redis did not answer in time"))),
        }
    }

    /// Entries behind this one that were delivered to us and are not acknowledged; `>`: that were delivered to nobody.
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
        // Zero would be for ever.
        if millis > 0 {
            read.arg("BLOCK").arg(millis);
        }
        read.arg("STREAMS").arg(&options.stream).arg(behind);
        let answer = self.ask(&read, options.timeout + wait).await?;
        entries::read(answer).ok_or_else(odd)
    }

    /// Takes over from this place on what has been silent for too long: where to go on, what it is, what is trimmed away.
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
        entries::claimed(answer).ok_or_else(odd)
    }

    /// How often these were delivered to anybody.
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
        entries::deliveries(answer).ok_or_else(odd)
    }

    /// How old the oldest entry is, by its id and the server's clock. Of an empty stream nothing is.
    pub(super) async fn age(&mut self, options: &RedisStreamSourceOptions) -> Result<Duration, Failed> {
        let (seconds, micros): (u64, u32) = self.ask(&cmd("TIME"), options.timeout).await?;
        let mut oldest = cmd("XRANGE");
        oldest.arg(&options.stream).arg("-").arg("+").arg("COUNT").arg(1);
        let answer = self.ask(&oldest, options.timeout).await?;
        let first = entries::first(answer).ok_or_else(odd)?;
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
        match timeout(options.timeout, call.invoke_async(&mut self.connection)).await {
            Ok(answer) => answer.map_err(|error| judge(&error)),
            Err(_) => Err(Failed::Line(SourceError::later("Redis did not answer in time"))),
        }
    }

    /// Acknowledges these, so far as they are ours. Told twice it is the same.
    pub(super) async fn done(
        &mut self,
        options: &RedisStreamSourceOptions,
        ids: &[EntryId],
    ) -> Result<(), Failed> {
        for some in ids.chunks(SCRIPT_IDS_MAX) {
            let some: Vec<String> = some.iter().map(ToString::to_string).collect();
            let others = entries::ids(self.run(options, include_str!("settle.lua"), &some).await?);
            let others = others.ok_or_else(odd)?;
            if !others.is_empty() {
                tracing::debug!(target: "semel::redis_stream", ?others, "done, and others' by now: they acknowledge them");
            }
        }
        Ok(())
    }

    /// Makes these young, and adds those that are others' by now, and those that are trimmed away: also what was told of
    /// before it failed.
    pub(super) async fn keep(
        &mut self,
        options: &RedisStreamSourceOptions,
        ids: &[EntryId],
        others: &mut Vec<EntryId>,
        trimmed: &mut Vec<EntryId>,
    ) -> Result<(), Failed> {
        for some in ids.chunks(SCRIPT_IDS_MAX) {
            let some: Vec<String> = some.iter().map(ToString::to_string).collect();
            let Value::Array(told) = self.run(options, include_str!("keep.lua"), &some).await? else {
                return Err(odd());
            };
            let mut told = told.into_iter().map(entries::ids);
            others.extend(told.next().flatten().ok_or_else(odd)?);
            trimmed.extend(told.next().flatten().ok_or_else(odd)?);
        }
        Ok(())
    }

    /// Gives back all that is ours, and is forgotten: how many of it were trimmed away.
    pub(super) async fn leave(&mut self, options: &RedisStreamSourceOptions) -> Result<u64, Failed> {
        let arguments = [NOBODY.to_owned(), GIVEN_BACK_AGE_MS.to_string()];
        match self.run(options, include_str!("leave.lua"), &arguments).await? {
            Value::Int(trimmed) => u64::try_from(trimmed).map_err(|_| odd()),
            _ => Err(odd()),
        }
    }
}
