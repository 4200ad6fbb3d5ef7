//! Redis Streams: one consumer of a consumer group.
//!
//! | in the delivery | from the entry |
//! |---|---|
//! | `from` | stream |
//! | `place` | `stream/id` |
//! | `key` | the field `semel-key` |
//! | payload | the field `semel-payload` |
//! | `headers` | the other fields, those that are text |
//! | `deliveries` | the group's count, plus nacks here |
//!
//! There is no `lineage`: Redis has no name that survives restart and failover and ends with the stream. Ids come from
//! the server's clock, so a recreated stream continues with higher ids as long as the clock does not go back. After a
//! failover that lost entries, a new entry of the same millisecond may reuse an id: give messages ids of their own.
//!
//! **Acks.** `XACK`, only for entries that are still ours; repeated until Redis answers, over a new connection too.
//! `NOACK` is never used. A new group begins with the oldest entry.
//!
//! **Restarts.** A consumer that restarts under its name ([`consumer`](RedisStreamSourceOptions::consumer)) first gets
//! the entries it had. Those of a crashed consumer go to another after
//! [`claim_after`](RedisStreamSourceOptions::claim_after) (`XAUTOCLAIM`), those of one that left go at once. The idle
//! time of entries in flight is reset three times within `claim_after`. Those that another has claimed are
//! [lost](Source::lost).
//!
//! **Order** is the stream's, for a single consumer that keeps its name. Several consumers of a group share the
//! messages of a key: each message has its effect once, in no order.
//!
//! **Trimmed** entries are gone, handled or not: a stream with a limit (`MAXLEN`,
//! [`entries_max`](crate::sink::redis_stream::RedisStreamOptions::entries_max)) drops the oldest, even unread ones.
//! Redis reports those that were delivered before: they are logged as an error and counted
//! ([`trimmed`](RedisStreamSource::trimmed)). It does not report the others. An entry that is trimmed while in flight
//! is still handled.
//!
//! **Durability** needs `appendonly yes`, `appendfsync always` and `noeviction`. If Redis reports other settings, there
//! is a warning in the log. A missing group is recreated at the beginning of the stream; the inbox deduplicates.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use self::entries::{Entry, EntryId};
use self::group::{Failed, Group};
use crate::source::in_flight::InFlight;
use crate::source::reconnect::Reconnect;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};
use crate::timeout::bounded;

mod entries;
mod group;
mod options;

pub use options::RedisStreamSourceOptions;

/// How often entries of crashed consumers are claimed.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// Most entries in one answer.
const READ_MAX: usize = 1_000;
/// The beginning of a stream.
const BEGINNING: &str = "0-0";

/// Receives from a stream as one consumer of a group.
///
/// ```no_run
/// use semel::source::redis_stream::RedisStreamSource;
///
/// let options = RedisStreamSource::options("redis://127.0.0.1", "payments", "notifications")?;
/// let source = options.consumer("notifications-1").open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct RedisStreamSource {
    options: RedisStreamSourceOptions,
    group: Option<Group>,
    in_flight: InFlight<EntryId>,
    /// Acked here; Redis has not confirmed yet.
    done: BTreeSet<EntryId>,
    /// Trimmed in Redis while in flight: only the copy here is left.
    orphans: BTreeSet<EntryId>,
    /// Cursor into our own pending entries, some of which we may not have: after a restart or a lost answer.
    history: Option<String>,
    /// Cursor of the next `XAUTOCLAIM`, and when it is due.
    claim: (String, Instant),
    reconnect: Reconnect,
    trimmed: u64,
    warned: bool,
    left: bool,
}

impl RedisStreamSource {
    /// A consumer of that stream in that group, at the server with this `redis://` URL.
    ///
    /// # Errors
    /// The URL is not a Redis URL.
    pub fn options(url: &str, stream: &str, group: &str) -> Result<RedisStreamSourceOptions, SourceError> {
        RedisStreamSourceOptions::new(url, stream, group)
    }

    /// Entries that were trimmed before they were handled, as far as Redis reports them. Entries in flight count once
    /// they are given up.
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    fn open(options: RedisStreamSourceOptions) -> Result<Self, SourceError> {
        if options.stream.is_empty() || options.group.is_empty() || options.consumer.is_empty() {
            return Err(SourceError::for_good("stream, group and consumer must have a name"));
        }
        Ok(Self {
            options,
            group: None,
            in_flight: InFlight::default(),
            done: BTreeSet::new(),
            orphans: BTreeSet::new(),
            history: None,
            claim: (BEGINNING.to_owned(), Instant::now()),
            reconnect: Reconnect::default(),
            trimmed: 0,
            warned: false,
            left: false,
        })
    }

    async fn connect(&mut self, until: Instant) -> Result<(), SourceError> {
        if !self.reconnect.wait(until).await {
            return Err(SourceError::later("Redis could not be reached; reconnecting after a backoff"));
        }
        let late = || SourceError::later("Redis did not answer in time");
        match bounded(self.options.timeout, Group::open(&self.options), late).await {
            Ok((group, violations)) => {
                if !std::mem::replace(&mut self.warned, true) {
                    for why in violations {
                        tracing::warn!(target: "semel::redis_stream", why, "messages may be lost; change the setting");
                    }
                }
                self.reconnect.went_well();
                self.group = Some(group);
                self.history = Some(BEGINNING.to_owned());
                self.claim = (BEGINNING.to_owned(), Instant::now());
                Ok(())
            }
            Err(error) => {
                self.reconnect.failed(Instant::now());
                Err(error)
            }
        }
    }

    /// Updates the state after a failed command.
    fn failed(&mut self, failed: Failed) -> SourceError {
        match failed {
            Failed::Connection(_) => self.group = None,
            Failed::NoGroup => {
                tracing::error!(
                    target: "semel::redis_stream", stream = self.options.stream, group = self.options.group,
                    "the consumer group is gone: Redis lost data, or it was deleted; recreating it from the first entry"
                );
                self.group = None;
                self.done.clear();
                self.give_up_orphans();
                self.in_flight.lose(|_| true);
            }
        }
        failed.into()
    }

    /// Redis has dropped these from the group. Those in flight are still handled; none is counted twice.
    fn take_trimmed(&mut self, mut trimmed: Vec<EntryId>) {
        let here: BTreeSet<EntryId> = self.in_flight.open().copied().collect();
        self.orphans.extend(trimmed.extract_if(.., |id| here.contains(id)));
        trimmed.retain(|id| !self.done.remove(id));
        self.count_trimmed(&trimmed);
    }

    /// Everything in flight is given up. Redis redelivers the rest; of these only the copy here was left.
    fn give_up_orphans(&mut self) {
        let orphans: Vec<EntryId> = std::mem::take(&mut self.orphans).into_iter().collect();
        self.count_trimmed(&orphans);
    }

    fn count_trimmed(&mut self, trimmed: &[EntryId]) {
        if !trimmed.is_empty() {
            self.trimmed += trimmed.len() as u64;
            let ids: Vec<String> = trimmed.iter().map(ToString::to_string).collect();
            tracing::error!(
                target: "semel::redis_stream", stream = self.options.stream, ?ids,
                "entries were trimmed before they were handled, and are lost; raise the stream's MAXLEN"
            );
        }
    }

    /// Takes in new entries, except those we have. Trimmed ones are acked: they can no longer be handled.
    fn take_in(&mut self, received: Vec<Entry>, counts: &[(EntryId, u32)]) {
        let known: BTreeSet<EntryId> = self.in_flight.open().chain(&self.done).copied().collect();
        let mut gone = Vec::new();
        for (id, fields) in received {
            if known.contains(&id) {
                continue;
            }
            let Some(fields) = fields else {
                gone.push(id);
                continue;
            };
            let count = counts.iter().find(|(of, _)| *of == id).map_or(1, |(_, count)| *count);
            self.in_flight.arrived(id, entries::delivery(id, fields, Some(count), &self.options), ());
        }
        self.count_trimmed(&gone);
        self.done.extend(gone);
    }

    async fn send_acks(&mut self) -> Result<(), Failed> {
        let (Some(group), false) = (&mut self.group, self.done.is_empty()) else { return Ok(()) };
        let done: Vec<EntryId> = self.done.iter().copied().collect();
        group.done(&self.options, &done).await?;
        self.done.retain(|id| done.binary_search(id).is_err());
        Ok(())
    }

    async fn counts(&mut self, received: &[Entry]) -> Result<Vec<(EntryId, u32)>, Failed> {
        let (Some(group), Some((first, _)), Some((last, _))) =
            (&mut self.group, received.first(), received.last())
        else {
            return Ok(Vec::new());
        };
        let most = received.len() + self.in_flight.open().count() + self.done.len();
        group.deliveries(&self.options, (*first, *last), most).await
    }

    /// Reads our own pending entries: those we had before a crash, and those of a lost answer.
    async fn take_history(&mut self, most: usize) -> Result<(), Failed> {
        while let Some(behind) = self.history.clone() {
            if self.in_flight.ready.len() >= most {
                return Ok(());
            }
            let Some(group) = &mut self.group else { return Ok(()) };
            let received = group.read(&self.options, &behind, most.min(READ_MAX), Duration::ZERO).await?;
            let counts = self.counts(&received).await?;
            self.history = received.last().map(|(id, _)| id.to_string());
            self.take_in(received, &counts);
        }
        Ok(())
    }

    /// Claims the entries of crashed consumers, one pass over the group.
    async fn take_claims(&mut self, most: usize) -> Result<(), Failed> {
        while self.claim.1 <= Instant::now() && self.in_flight.ready.len() < most {
            let Some(group) = &mut self.group else { return Ok(()) };
            // If the answer is lost, the claimed entries are ours all the same.
            self.history = Some(BEGINNING.to_owned());
            let (next, received, trimmed) = group
                .claim(&self.options, &self.claim.0, (most - self.in_flight.ready.len()).min(READ_MAX))
                .await?;
            let counts = self.counts(&received).await?;
            self.take_trimmed(trimmed);
            self.take_in(received, &counts);
            self.history = None;
            if next == BEGINNING {
                self.claim.1 = Instant::now() + CLAIM_EVERY.min(self.options.claim_after / 2);
            }
            self.claim.0 = next;
        }
        Ok(())
    }

    async fn take_new(&mut self, most: usize, until: Instant) -> Result<(), Failed> {
        let ready = self.in_flight.ready.len();
        if ready >= most || self.claim.1 <= Instant::now() {
            return Ok(());
        }
        let Some(group) = &mut self.group else { return Ok(()) };
        let left = until.min(self.claim.1).saturating_duration_since(Instant::now());
        let left = left.min(self.options.timeout / 2);
        let wait = if ready == 0 { left } else { Duration::ZERO };
        self.history = Some(BEGINNING.to_owned());
        let received = group.read(&self.options, ">", (most - ready).min(READ_MAX), wait).await?;
        self.history = None;
        self.take_in(received, &[]);
        Ok(())
    }

    async fn take(&mut self, most: usize, until: Instant) -> Result<(), Failed> {
        self.send_acks().await?;
        loop {
            self.take_history(most).await?;
            self.take_claims(most).await?;
            self.take_new(most, until).await?;
            if !self.in_flight.ready.is_empty() || Instant::now() >= until {
                return Ok(());
            }
        }
    }
}

impl Source for RedisStreamSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        if self.left {
            return Err(SourceError::for_good("the source has left its consumer group"));
        }
        let until = Instant::now() + wait;
        if self.group.is_none() {
            self.connect(until).await?;
        }
        if most > 0
            && let Err(failed) = self.take(most, until).await
        {
            return Err(self.failed(failed));
        }
        Ok(self.in_flight.give(most, |_| true))
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        for (receipt, settle) in settled {
            if let Some(id) = self.in_flight.settle(*receipt, *settle)
                && !self.orphans.remove(&id)
            {
                self.done.insert(id);
            }
        }
        if self.group.is_none() && !self.done.is_empty() {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        self.send_acks().await.map_err(|failed| self.failed(failed))
    }

    /// Resets the idle time of entries in flight, and finds those that are no longer ours.
    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        if self.group.is_none() {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        let Some(group) = &mut self.group else { return Ok(()) };
        let in_flight: Vec<EntryId> =
            self.in_flight.open().filter(|id| !self.orphans.contains(id)).copied().collect();
        let (mut others, mut trimmed) = (Vec::new(), Vec::new());
        let kept = group.keep(&self.options, &in_flight, &mut others, &mut trimmed).await;
        // What was found before an error is valid.
        let others: BTreeSet<EntryId> = others.into_iter().collect();
        self.in_flight.lose(|id| others.contains(id));
        if !trimmed.is_empty() {
            tracing::warn!(
                target: "semel::redis_stream", stream = self.options.stream, count = trimmed.len(),
                "entries were trimmed while in flight; they are lost if this process dies before it has handled them"
            );
            self.orphans.extend(trimmed);
        }
        kept.map_err(|failed| self.failed(failed))
    }

    fn renew_after(&self) -> Duration {
        self.options.claim_after / 3
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.in_flight.lost()
    }

    /// The age of the oldest entry: entries only go when the stream is trimmed.
    async fn retention(&mut self) -> Option<Duration> {
        self.group.as_mut()?.age(&self.options).await.ok()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.left = true;
        self.give_up_orphans();
        let has_something = !self.done.is_empty() || self.in_flight.open().next().is_some();
        if self.group.is_none() && has_something {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        let acked = self.send_acks().await;
        self.in_flight = InFlight::default();
        let Some(mut group) = self.group.take() else { return Ok(()) };
        acked?;
        let trimmed = group.leave(&self.options).await?;
        if trimmed > 0 {
            self.trimmed += trimmed;
            tracing::error!(
                target: "semel::redis_stream", stream = self.options.stream, trimmed,
                "entries were trimmed before they were handled, and are lost; raise the stream's MAXLEN"
            );
        }
        Ok(())
    }
}
