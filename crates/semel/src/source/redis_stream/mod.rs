//! Redis Streams: a consumer of a group.
//!
//! | in the delivery | from the entry |
//! |---|---|
//! | `from` | stream |
//! | `place` | `stream/id` |
//! | `key` | the field `semel-key` |
//! | payload | the field `semel-payload` |
//! | `headers` | the other fields, those that are text |
//! | `deliveries` | as the group counts; given back here counts too |
//!
//! There is no `lineage`: Redis has no name that stays over a restart and a failover and ends with the stream. Ids come from
//! the server's clock, so a stream that is made anew goes on with higher ones as long as the clock does. After a failover
//! that lost entries, one of the same millisecond may have the id of another: name messages by their own ids.
//!
//! **Acknowledged** is what is done and still ours (`XACK`); until Redis has answered it is told again, over a new
//! connection too. `NOACK` is never used. A new group begins with the oldest entry.
//!
//! **Restarts.** Who comes back under its name ([`consumer`](RedisStreamSourceOptions::consumer)) gets what it had first. What
//! a dead consumer had goes to another after [`claim_after`](RedisStreamSourceOptions::claim_after) (`XAUTOCLAIM`); what one had that
//! left goes at once. While messages are worked on they are made young again, three times as often, if they are still ours;
//! else they are [lost](Source::lost).
//!
//! **Order** is the stream's for one consumer that keeps its name. Several consumers of a group each have some messages of a
//! key: each message has its effect once, in no order.
//!
//! **Trimmed** entries are gone, handled or not: a stream with a limit (`MAXLEN`, [`entries_max`](
//! crate::sink::redis_stream::RedisStreamOptions::entries_max)) drops the oldest also while they wait. Redis tells it of those that were delivered
//! before, and then it is an error in the log and counted ([`trimmed`](RedisStreamSource::trimmed)); of those that were not, it
//! says nothing. What is out when it is trimmed is handled all the same.
//!
//! **Durable** is what Redis keeps: with `appendonly yes`, `appendfsync always` and `noeviction`. Where it can be asked and says
//! otherwise there is a warning in the log. A group that is gone is made again from the beginning of the stream, and the
//! inbox knows what was handled.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use self::entries::{Entry, EntryId};
use self::group::{Failed, Group};
use super::backoff::Backoff;
use super::in_flight::InFlight;
use super::{Delivery, Receipt, Settle, Source, SourceError};

mod entries;
mod group;
mod options;

pub use options::RedisStreamSourceOptions;

/// How often it is looked for what the dead have left.
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
    taken: InFlight<EntryId>,
    /// Done, and Redis has not said that it knows.
    done: BTreeSet<EntryId>,
    /// Of these only the copy here is left.
    orphans: BTreeSet<EntryId>,
    /// Behind which of our own entries there may be some that we do not have: after a restart, or an answer that was lost.
    history: Option<String>,
    /// From where on the dead are looked for, and when next.
    claim: (String, Instant),
    again: Backoff,
    trimmed: u64,
    warned: bool,
    left: bool,
}

impl RedisStreamSource {
    /// A consumer of that stream in that group, at the server with this `redis://` address.
    ///
    /// # Errors
    /// When it is no such address.
    pub fn options(url: &str, stream: &str, group: &str) -> Result<RedisStreamSourceOptions, SourceError> {
        RedisStreamSourceOptions::new(url, stream, group)
    }

    /// Entries that were trimmed away before they were handled, as far as Redis told. Those that were out are among them when
    /// they were given up.
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    fn open(options: RedisStreamSourceOptions) -> Result<Self, SourceError> {
        if options.stream.is_empty() || options.group.is_empty() || options.consumer.is_empty() {
            return Err(SourceError::for_good("stream, group and consumer need a name"));
        }
        Ok(Self {
            options,
            group: None,
            taken: InFlight::default(),
            done: BTreeSet::new(),
            orphans: BTreeSet::new(),
            history: None,
            claim: (BEGINNING.to_owned(), Instant::now()),
            again: Backoff::default(),
            trimmed: 0,
            warned: false,
            left: false,
        })
    }

    async fn connect(&mut self, until: Instant) -> Result<(), SourceError> {
        if let Some(at) = self.again.at().filter(|at| *at > Instant::now()) {
            tokio::time::sleep_until(at.min(until).into()).await;
            if at > until {
                return Err(SourceError::later("Redis could not be reached; it is tried again soon"));
            }
        }
        let opened = tokio::time::timeout(self.options.timeout, Group::open(&self.options)).await;
        match opened.unwrap_or_else(|_| Err(SourceError::later("Redis did not answer in time"))) {
            Ok((group, violations)) => {
                if !std::mem::replace(&mut self.warned, true) {
                    for why in violations {
                        tracing::warn!(target: "semel::redis_stream", why, "messages may be lost");
                    }
                }
                self.again.went_well();
                self.group = Some(group);
                self.history = Some(BEGINNING.to_owned());
                self.claim = (BEGINNING.to_owned(), Instant::now());
                Ok(())
            }
            Err(error) => {
                self.again.failed(Instant::now());
                Err(error)
            }
        }
    }

    /// Takes a failure in.
    fn failed(&mut self, failed: Failed) -> SourceError {
        match failed {
            Failed::Line(_) => self.group = None,
            Failed::NoGroup => {
                tracing::error!(
                    target: "semel::redis_stream", stream = self.options.stream, group = self.options.group,
                    "the group is gone: Redis has lost data, or somebody has deleted it; it is made again from the beginning"
                );
                self.group = None;
                self.done.clear();
                self.give_up_orphans();
                self.taken.lose(|_| true);
            }
        }
        failed.into()
    }

    /// The group has forgotten these. What is here is handled all the same, and what was counted is not counted twice.
    fn take_trimmed(&mut self, mut trimmed: Vec<EntryId>) {
        let here: BTreeSet<EntryId> = self.taken.open().copied().collect();
        self.orphans.extend(trimmed.extract_if(.., |id| here.contains(id)));
        trimmed.retain(|id| !self.done.remove(id));
        self.count_trimmed(&trimmed);
    }

    /// All that is here is given up. The rest comes again, to somebody; of these there was only the copy here.
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
                "entries were trimmed away before they were handled; give the stream more room"
            );
        }
    }

    /// Puts entries among those to be given, but for those that we have. The gone ones are acknowledged: nobody can handle them.
    fn take_in(&mut self, came: Vec<Entry>, counts: &[(EntryId, u32)]) {
        let known: BTreeSet<EntryId> = self.taken.open().chain(&self.done).copied().collect();
        let mut gone = Vec::new();
        for (id, fields) in came {
            if known.contains(&id) {
                continue;
            }
            let Some(fields) = fields else {
                gone.push(id);
                continue;
            };
            let count = counts.iter().find(|(of, _)| *of == id).map_or(1, |(_, count)| *count);
            self.taken.came(id, entries::delivery(id, fields, Some(count), &self.options));
        }
        self.count_trimmed(&gone);
        self.done.extend(gone);
    }

    async fn tell(&mut self) -> Result<(), Failed> {
        let (Some(group), false) = (&mut self.group, self.done.is_empty()) else { return Ok(()) };
        let done: Vec<EntryId> = self.done.iter().copied().collect();
        group.done(&self.options, &done).await?;
        self.done.retain(|id| done.binary_search(id).is_err());
        Ok(())
    }

    async fn counts(&mut self, came: &[Entry]) -> Result<Vec<(EntryId, u32)>, Failed> {
        let (Some(group), Some((first, _)), Some((last, _))) = (&mut self.group, came.first(), came.last())
        else {
            return Ok(Vec::new());
        };
        let most = came.len() + self.taken.open().count() + self.done.len();
        group.deliveries(&self.options, (*first, *last), most).await
    }

    /// What we had when we died, or what an answer brought that we did not hear.
    async fn take_history(&mut self, most: usize) -> Result<(), Failed> {
        while let Some(behind) = self.history.clone() {
            if self.taken.ready() >= most {
                return Ok(());
            }
            let Some(group) = &mut self.group else { return Ok(()) };
            let came = group.read(&self.options, &behind, most.min(READ_MAX), Duration::ZERO).await?;
            let counts = self.counts(&came).await?;
            self.history = came.last().map(|(id, _)| id.to_string());
            self.take_in(came, &counts);
        }
        Ok(())
    }

    /// What the dead have left, once around.
    async fn take_claims(&mut self, most: usize) -> Result<(), Failed> {
        while self.claim.1 <= Instant::now() && self.taken.ready() < most {
            let Some(group) = &mut self.group else { return Ok(()) };
            // An answer that is not heard has made entries ours all the same.
            self.history = Some(BEGINNING.to_owned());
            let (next, came, trimmed) =
                group.claim(&self.options, &self.claim.0, (most - self.taken.ready()).min(READ_MAX)).await?;
            let counts = self.counts(&came).await?;
            self.take_trimmed(trimmed);
            self.take_in(came, &counts);
            self.history = None;
            if next == BEGINNING {
                self.claim.1 = Instant::now() + CLAIM_EVERY.min(self.options.claim_after / 2);
            }
            self.claim.0 = next;
        }
        Ok(())
    }

    async fn take_new(&mut self, most: usize, until: Instant) -> Result<(), Failed> {
        let ready = self.taken.ready();
        if ready >= most || self.claim.1 <= Instant::now() {
            return Ok(());
        }
        let Some(group) = &mut self.group else { return Ok(()) };
        let left = until.min(self.claim.1).saturating_duration_since(Instant::now());
        let left = left.min(self.options.timeout / 2);
        let wait = if ready == 0 { left } else { Duration::ZERO };
        self.history = Some(BEGINNING.to_owned());
        let came = group.read(&self.options, ">", (most - ready).min(READ_MAX), wait).await?;
        self.history = None;
        self.take_in(came, &[]);
        Ok(())
    }

    async fn take(&mut self, most: usize, until: Instant) -> Result<(), Failed> {
        self.tell().await?;
        loop {
            self.take_history(most).await?;
            self.take_claims(most).await?;
            self.take_new(most, until).await?;
            if self.taken.ready() > 0 || Instant::now() >= until {
                return Ok(());
            }
        }
    }
}

impl Source for RedisStreamSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        if self.left {
            return Err(SourceError::for_good("the source has left its group"));
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
        Ok(self.taken.give(most))
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        for (receipt, settle) in settled {
            if let Some(id) = self.taken.settle(*receipt, *settle)
                && !self.orphans.remove(&id)
            {
                self.done.insert(id);
            }
        }
        if self.group.is_none() && !self.done.is_empty() {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        self.tell().await.map_err(|failed| self.failed(failed))
    }

    /// Makes young what is held, and finds out what is not ours any more.
    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        if self.group.is_none() {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        let Some(group) = &mut self.group else { return Ok(()) };
        let held: Vec<EntryId> = self.taken.open().filter(|id| !self.orphans.contains(id)).copied().collect();
        let (mut others, mut trimmed) = (Vec::new(), Vec::new());
        let kept = group.keep(&self.options, &held, &mut others, &mut trimmed).await;
        // What was told before it failed holds all the same.
        let others: BTreeSet<EntryId> = others.into_iter().collect();
        self.taken.lose(|id| others.contains(id));
        if !trimmed.is_empty() {
            tracing::warn!(
                target: "semel::redis_stream", stream = self.options.stream, count = trimmed.len(),
                "entries were trimmed away while they were worked on; if this process dies now they are lost"
            );
            self.orphans.extend(trimmed);
        }
        kept.map_err(|failed| self.failed(failed))
    }

    fn renew_after(&self) -> Duration {
        self.options.claim_after / 3
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.taken.lost()
    }

    /// As long as its oldest entry is old: nothing is forgotten here but by whoever trims the stream.
    async fn retention(&mut self) -> Option<Duration> {
        self.group.as_mut()?.age(&self.options).await.ok()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.left = true;
        self.give_up_orphans();
        let has_something = !self.done.is_empty() || self.taken.open().next().is_some();
        if self.group.is_none() && has_something {
            self.connect(Instant::now() + self.options.timeout).await?;
        }
        let told = self.tell().await;
        self.taken = InFlight::default();
        let Some(mut group) = self.group.take() else { return Ok(()) };
        told?;
        let trimmed = group.leave(&self.options).await?;
        if trimmed > 0 {
            self.trimmed += trimmed;
            tracing::error!(
                target: "semel::redis_stream", stream = self.options.stream, trimmed,
                "entries were trimmed away before they were handled; give the stream more room"
            );
        }
        Ok(())
    }
}
