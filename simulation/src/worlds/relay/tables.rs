//! The tables of the simulated outbox: events, cursors with leases and epochs, parked keys. As the SQL statements of the
//! real ones, each method is one commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use semel::outbox::Event;
use semel::relay::parking::{OF_KEY_MAX, ParkedRows, RetryBatch, RetryResult};

use super::plan::Settings;
use crate::stage::Stage;

/// Keys of one batch of parked events.
const DUE_KEYS_MAX: usize = 100;
/// The longest pause before a parked key is tried again, unless the first is longer.
const RETRY_LONGEST_MS: u64 = 60_000;

/// An appended event.
pub(super) struct Row {
    pub(super) event: Arc<Event>,
    /// What orders it and what it is parked with.
    pub(super) key: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// Everything before this number is published or parked.
    pub(super) after: i64,
    /// The batch that is written down ends here.
    pub(super) until: Option<i64>,
    pub(super) epoch: u64,
    owner: Option<u64>,
    lease_until_ms: u64,
}

#[derive(Debug)]
pub(super) struct ParkedKey {
    pub(super) due: Option<i64>,
    tries: u32,
    pub(super) partition: usize,
}

pub(super) struct ParkedRow {
    pub(super) key: String,
    pub(super) seq: i64,
}

/// All of it.
pub(super) struct Tables {
    stage: Stage,
    batch_max: usize,
    lease_ms: u64,
    retry_ms: u64,
    pub(super) rows: BTreeMap<i64, Row>,
    /// The numbers of the rows of each partition, in order.
    pub(super) by_partition: Vec<Vec<i64>>,
    pub(super) cursors: Vec<Cursor>,
    pub(super) parked_keys: BTreeMap<String, ParkedKey>,
    pub(super) parked: BTreeMap<i64, ParkedRow>,
    parked_last: i64,
    /// Relays that have shown themselves, and until when that counts.
    relays: BTreeMap<u64, u64>,
    /// When each key was parked: for the laws.
    pub(super) parked_at: Vec<(u64, String)>,
}

impl Tables {
    pub(super) fn new(stage: &Stage, settings: &Settings) -> Self {
        Self {
            stage: stage.clone(),
            batch_max: settings.batch_max,
            lease_ms: settings.lease_ms,
            retry_ms: settings.retry_ms,
            rows: BTreeMap::new(),
            by_partition: vec![Vec::new(); settings.partitions],
            cursors: vec![Cursor::default(); settings.partitions],
            parked_keys: BTreeMap::new(),
            parked: BTreeMap::new(),
            parked_last: 0,
            relays: BTreeMap::new(),
            parked_at: Vec::new(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.stage.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn append(&mut self, event: Event) {
        let key = event.ordered_by().map_or_else(|| event.id().to_string(), str::to_owned);
        let seq = self.rows.len() as i64 + 1;
        let partition = partition_of(&key, self.cursors.len());
        self.by_partition[partition].push(seq);
        self.rows.insert(seq, Row { event: Arc::new(event), key });
    }

    fn owns(&self, partition: usize, epoch: u64) -> bool {
        self.cursors.get(partition).is_some_and(|cursor| cursor.epoch == epoch)
    }

    /// Shows that a relay lives. Returns its place among those that do, and how many they are.
    pub(super) fn show(&mut self, me: u64) -> (usize, usize) {
        let now = self.now_ms();
        self.relays.retain(|_, until| *until >= now);
        self.relays.insert(me, now + self.lease_ms);
        (self.relays.keys().position(|other| *other == me).unwrap_or(0), self.relays.len())
    }

    /// Renews a lease. `false`: it is another's.
    pub(super) fn renew(&mut self, partition: usize, epoch: u64) -> bool {
        let until = self.now_ms() + self.lease_ms;
        let ours = self.owns(partition, epoch);
        if ours {
            self.cursors[partition].lease_until_ms = until;
        }
        ours
    }

    fn is_free(&self, partition: usize, me: u64) -> bool {
        let cursor = &self.cursors[partition];
        let lapsed = cursor.lease_until_ms < self.now_ms() && !self.stage.has("leases_never_end");
        cursor.owner.is_none() || cursor.owner == Some(me) || lapsed
    }

    /// Takes a partition that is free. Returns the epoch.
    pub(super) fn take(&mut self, partition: usize, me: u64) -> Option<u64> {
        if !self.is_free(partition, me) {
            return None;
        }
        let lease_until_ms = self.now_ms() + self.lease_ms;
        let cursor = &mut self.cursors[partition];
        if cursor.owner.is_some_and(|owner| owner != me) {
            self.stage.count("takeovers", 1);
        }
        (cursor.owner, cursor.lease_until_ms) = (Some(me), lease_until_ms);
        cursor.epoch += 1;
        self.stage.trace(format_args!("partition {partition} is taken under epoch {}", cursor.epoch));
        Some(cursor.epoch)
    }

    /// Takes all partitions or none.
    pub(super) fn acquire_exclusive(&mut self, me: u64) -> Option<BTreeMap<usize, u64>> {
        let all = 0..self.cursors.len();
        if !all.clone().all(|partition| self.is_free(partition, me)) {
            return None;
        }
        Some(all.filter_map(|partition| Some((partition, self.take(partition, me)?))).collect())
    }

    pub(super) fn release(&mut self, partition: usize, epoch: u64) {
        if self.owns(partition, epoch) {
            let cursor = &mut self.cursors[partition];
            (cursor.owner, cursor.lease_until_ms) = (None, 0);
        }
    }

    pub(super) fn gone(&mut self, me: u64) {
        self.relays.remove(&me);
    }

    /// The lease ends early: for the owner as for all others.
    pub(super) fn end_lease(&mut self, partition: usize) {
        if let Some(cursor) = self.cursors.get_mut(partition) {
            (cursor.owner, cursor.lease_until_ms) = (None, 0);
            cursor.epoch += 1;
        }
    }

    /// The batch that is written down, or the next one, which then is. `Err`: the partition is another's.
    pub(super) fn chunk(&mut self, partition: usize, epoch: u64) -> Result<Option<(i64, Vec<i64>)>, ()> {
        if !self.owns(partition, epoch) {
            return Err(());
        }
        let cursor = &self.cursors[partition];
        let end = cursor.until.unwrap_or(i64::MAX);
        let rows = self.by_partition[partition].iter().copied();
        let most = if cursor.until.is_some() { usize::MAX } else { self.batch_max };
        let seqs: Vec<i64> = rows.filter(|seq| *seq > cursor.after && *seq <= end).take(most).collect();
        let Some(last) = seqs.last().copied() else { return Ok(None) };
        let until = cursor.until.unwrap_or(last);
        if !self.stage.has("batch_not_written_down") {
            self.cursors[partition].until = Some(until);
        }
        Ok(Some((until, seqs)))
    }

    pub(super) fn is_held(&self, seq: i64) -> bool {
        self.parked_keys.contains_key(&self.rows[&seq].key) && !self.stage.has("overtakes_parked_keys")
    }

    /// The batch is done, but for what is set aside. `false`: fenced, and nothing is changed.
    pub(super) fn advance(&mut self, partition: usize, epoch: u64, until: i64, aside: &ParkedRows) -> bool {
        let written =
            self.cursors[partition].until == Some(until) || self.stage.has("batch_not_written_down");
        let ours = self.owns(partition, epoch) || self.stage.has("done_is_not_fenced");
        if !(ours && written) {
            return false;
        }
        (self.cursors[partition].after, self.cursors[partition].until) = (until, None);
        let now = self.now_ms();
        for (at, seq) in aside.seqs.iter().enumerate() {
            let (error, for_good, key) = (&aside.errors[at], aside.for_good[at], aside.keys[at].clone());
            let row = &self.rows[seq];
            if error.is_some() && !self.stage.has("parks_no_key") && !self.parked_keys.contains_key(&key) {
                self.stage.trace(format_args!("{} is parked with its key", name(&row.event)));
                self.stage.count("keys parked", 1);
                self.parked_at.push((now, key.clone()));
                let due = (!for_good).then_some((now + self.retry_ms) as i64);
                self.parked_keys.insert(key.clone(), ParkedKey { due, tries: 0, partition });
            }
            self.parked_last += 1;
            self.parked.insert(self.parked_last, ParkedRow { key, seq: *seq });
            self.stage.count("events parked", 1);
        }
        true
    }

    /// Parked events that are due in these partitions, and keys of which nothing is left.
    pub(super) fn due(&self, partitions: &BTreeMap<usize, u64>) -> RetryBatch {
        let now = self.now_ms() as i64;
        let due = |key: &&(&String, &ParkedKey)| {
            key.1.due.is_some_and(|due| due <= now) && partitions.contains_key(&key.1.partition)
        };
        let all: Vec<(&String, &ParkedKey)> = self.parked_keys.iter().collect();
        let mut keys: Vec<&(&String, &ParkedKey)> = all.iter().filter(due).collect();
        keys.sort_by_key(|(_, key)| key.due);
        keys.truncate(DUE_KEYS_MAX);
        let mut found: Vec<(i64, String, Option<i64>)> = Vec::new();
        let mut tried = RetryBatch::default();
        for (name, key) in keys {
            let rows = self.parked.iter().filter(|(_, row)| row.key == **name);
            let before = found.len();
            let rows = rows.take(usize::try_from(OF_KEY_MAX).unwrap_or(usize::MAX));
            found.extend(rows.map(|(n, _)| (*n, (*name).clone(), key.due)));
            if found.len() == before {
                tried.empty.push((*name).clone());
            }
        }
        found.sort_by_key(|(n, ..)| *n);
        if self.stage.has("retries_the_last_first") {
            found.reverse();
        }
        for (n, key, due) in found {
            tried.ns.push(n);
            tried.keys.push(key);
            tried.due.push(due);
        }
        tried
    }

    /// Those again, as far as they are still there.
    pub(super) fn again(&self, ns: &[i64]) -> RetryBatch {
        let mut tried = RetryBatch::default();
        for n in ns {
            let Some(row) = self.parked.get(n) else { continue };
            tried.ns.push(*n);
            tried.keys.push(row.key.clone());
            tried.due.push(self.parked_keys.get(&row.key).and_then(|key| key.due));
        }
        tried
    }

    /// What became of parked events that were tried again. `false`: fenced, and nothing is changed.
    pub(super) fn retried(&mut self, epochs: &BTreeMap<usize, u64>, retried: &RetryResult) -> bool {
        if !epochs.iter().all(|(partition, epoch)| self.owns(*partition, *epoch)) {
            return false;
        }
        let now = self.now_ms();
        for n in &retried.confirmed {
            self.parked.remove(n);
            self.stage.count("parked events published", 1);
        }
        for ((name, for_good), due) in retried.later.iter().zip(&retried.for_good).zip(&retried.due) {
            // A person who had it tried again meanwhile is not overruled.
            let Some(key) = self.parked_keys.get_mut(name).filter(|key| key.due == *due) else { continue };
            key.tries += 1;
            let pause = (self.retry_ms << key.tries.min(20)).min(self.retry_ms.max(RETRY_LONGEST_MS));
            let pause = if self.stage.has("retries_without_a_pause") { 0 } else { pause };
            key.due = (!for_good).then_some((now + pause) as i64);
        }
        for name in &retried.on {
            let left = self.parked.values().any(|row| row.key == *name);
            if !left {
                self.parked_keys.remove(name);
            } else if let Some(key) = self.parked_keys.get_mut(name) {
                (key.tries, key.due) = (0, Some(now as i64));
            }
        }
        true
    }

    /// `semel outbox retry --all`.
    pub(super) fn retry_all(&mut self) {
        let now = self.now_ms() as i64;
        for key in self.parked_keys.values_mut() {
            (key.tries, key.due) = (0, Some(now));
        }
    }
}

/// The partition of a key, or of the id of an event that has none.
pub(super) fn partition_of(key: &str, partitions: usize) -> usize {
    key.bytes().fold(7usize, |sum, byte| sum * 31 % 1_009 + usize::from(byte)) % partitions
}

/// How an event is called in the trace.
pub(super) fn name(event: &Event) -> String {
    format!("event {} (key {}, topic {})", number(event), event.ordered_by().unwrap_or("-"), event.topic())
}

/// The number of an event in the plan.
pub(super) fn number(event: &Event) -> usize {
    std::str::from_utf8(event.payload()).ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
}
