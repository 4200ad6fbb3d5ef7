//! What a seed decides: the settings, what is appended, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::tables::partition_of;

/// What a seed decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How the relays, the outbox and the sink are set.
    pub settings: Settings,
    /// What is appended, in the order of its time.
    pub appends: Vec<Append>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// How the relays, the outbox and the sink are set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// With a sink that keeps the position beside the events.
    pub exactly_once: bool,
    /// Relays of one outbox.
    pub relays: usize,
    /// Partitions of the outbox.
    pub partitions: usize,
    /// Most events of a batch.
    pub batch_max: usize,
    /// How often one event may fail.
    pub attempts_max: u32,
    /// The option of that name.
    pub failing_keys_max: usize,
    /// A refused event parks only itself, not its key.
    pub parks_itself: bool,
    /// The first pause after a failure.
    pub backoff_first_ms: u64,
    /// The longest.
    pub backoff_max_ms: u64,
    /// The longest wait of an idle relay.
    pub idle_ms: u64,
    /// The lease of a partition.
    pub lease_ms: u64,
    /// When a parked key is tried again, at first.
    pub retry_ms: u64,
    /// How long a call to the sink takes.
    pub call_ms: u64,
}

/// An event that a transaction appended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Append {
    /// When it was committed.
    pub at_ms: u64,
    /// The key that orders it.
    pub key: Option<u8>,
    /// Where it goes.
    pub topic: u8,
    /// It has the id of the event appended before it, on another topic.
    pub twin: bool,
}

/// What a failure looks like to the relay, and what the broker has of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum How {
    /// The broker does not have it, which is known.
    NotPublished,
    /// The broker does not have it, which is not known.
    InDoubt,
    /// The broker has it and the confirm is lost.
    Unconfirmed,
    /// Only its destination is away, and the sink says so.
    OneDestination,
    /// The sink did not even try.
    NotTried,
}

/// Something that goes wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// Every event of a key fails. Without an end: for ever.
    KeyFails { key: u8, at_ms: u64, for_ms: Option<u64>, how: How },
    /// Every event of a destination fails.
    TopicFails { topic: u8, at_ms: u64, for_ms: Option<u64>, how: How },
    /// The broker will never take this event.
    Refused { event: usize },
    /// Nothing gets through.
    SinkDown { at_ms: u64, for_ms: u64, how: How },
    /// So many of a hundred fail, by chance.
    SinkFlaky { at_ms: u64, for_ms: u64, percent: u8 },
    /// Every call takes this much longer.
    SinkSlow { at_ms: u64, for_ms: u64, by_ms: u64 },
    /// The outbox cannot be reached.
    OutboxDown { at_ms: u64, for_ms: u64 },
    /// The outbox commits, and its answers are lost.
    OutboxSilent { at_ms: u64, for_ms: u64 },
    /// A relay is killed and started again.
    Crash { relay: usize, at_ms: u64, down_ms: u64 },
    /// A relay does not run for a while, and then goes on.
    Stall { relay: usize, at_ms: u64, for_ms: u64 },
    /// The relay that makes this call to the sink is killed in it, before or after the broker has got the events.
    CrashInCall { call: u64, written: bool },
    /// The relay that makes this call to the sink stalls in it, before the broker has got the events.
    StallInCall { call: u64, for_ms: u64 },
    /// This `done` of all relays is on its way to the outbox for so long: the lease may be over when it arrives.
    LateDone { done: u64, by_ms: u64 },
    /// A relay is asked to stop and started again.
    Stop { relay: usize, at_ms: u64, down_ms: u64 },
    /// The lease of a partition ends in the table.
    LeaseEnds { partition: usize, at_ms: u64 },
    /// A person has all that is parked tried again.
    RetryAll { at_ms: u64 },
}

/// The id of an event: a twin has that of the event before it.
pub(super) fn id(event: usize, twin: bool) -> Uuid {
    Uuid::from_u128(if twin { event } else { event + 1 } as u128)
}

/// What is known of a batch before it is read.
pub(super) struct BatchPlan {
    /// Keys that fail at some time.
    pub(super) failing: usize,
    /// Whether any event of it never does.
    pub(super) healthy: bool,
    /// How often it is waited for: where an event parks only itself, the next of its key may be waited for anew.
    pub(super) rounds: usize,
}

impl Plan {
    /// The events that fail or are refused in some way of their own: not because the sink or the outbox is down.
    pub(super) fn fails_by_itself(&self, event: usize) -> bool {
        self.ends_failing(event).is_some()
    }

    /// When an event stops failing by its key, its destination or its own: `None` if it never fails, infinite if it
    /// always does.
    pub(super) fn ends_failing(&self, event: usize) -> Option<u64> {
        let append = &self.appends[event];
        let ends = self.faults.iter().filter_map(|fault| match fault {
            Fault::KeyFails { key, at_ms, for_ms, .. } if append.key == Some(*key) => {
                Some(for_ms.map_or(u64::MAX, |for_ms| at_ms + for_ms))
            }
            Fault::TopicFails { topic, at_ms, for_ms, .. } if append.topic == *topic => {
                Some(for_ms.map_or(u64::MAX, |for_ms| at_ms + for_ms))
            }
            Fault::Refused { event: refused } if *refused == event => Some(u64::MAX),
            _ => None,
        });
        ends.max()
    }

    /// How many keys (or events without one) fail by themselves. Where an event parks only itself, each fails anew.
    pub(super) fn failing_keys(&self) -> usize {
        let failing = (0..self.appends.len()).filter(|event| self.fails_by_itself(*event));
        if self.settings.parks_itself {
            return failing.count();
        }
        let mut names: Vec<String> = failing
            .map(|event| {
                self.appends[event].key.map_or_else(|| format!("event {event}"), |key| key.to_string())
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Where all events are there from the beginning, in one partition, it is known which batches they are read in.
    pub(super) fn batches_known(&self) -> Option<Vec<BatchPlan>> {
        let known = self.settings.partitions == 1 && self.appends.iter().all(|append| append.at_ms == 0);
        let events: Vec<usize> = (0..self.appends.len()).collect();
        let failing = self.failing();
        let batch = |batch: &[usize]| {
            let mut keys: BTreeMap<String, usize> = BTreeMap::new();
            for event in batch.iter().filter(|event| failing[**event].0) {
                *keys.entry(self.key_of(*event)).or_default() += 1;
            }
            let each = if self.settings.parks_itself { keys.values().max().copied() } else { None };
            BatchPlan {
                failing: keys.len(),
                healthy: batch.iter().any(|event| !failing[*event].0),
                rounds: each.unwrap_or(1),
            }
        };
        known.then(|| events.chunks(self.settings.batch_max).map(batch).collect())
    }

    /// Whether the sink does not even try some events.
    pub(super) fn leaves_untried(&self) -> bool {
        self.faults.iter().any(|fault| {
            matches!(
                fault,
                Fault::KeyFails { how: How::NotTried, .. } | Fault::TopicFails { how: How::NotTried, .. }
            )
        })
    }

    /// Of each event whether it fails at some time, by itself or behind one of its key, and what it is parked as.
    fn failing(&self) -> Vec<(bool, String)> {
        let mut failing = BTreeSet::new();
        let named = |event: usize| {
            let alone = self.settings.parks_itself || self.appends[event].key.is_none();
            let name = if alone { format!("event {event}") } else { self.key_of(event) };
            let fails = self.fails_by_itself(event) || failing.contains(&name);
            if fails {
                failing.insert(name.clone());
            }
            (fails, name)
        };
        (0..self.appends.len()).map(named).collect()
    }

    /// Most keys in a row, of events that are read one after the other, that fail by themselves or stand behind one that
    /// does: so many are waited for before something else shows that the sink works. Relays read partitions by turns.
    pub(super) fn failing_in_a_row(&self) -> usize {
        let partitions = self.settings.partitions;
        let mut rows: Vec<Vec<(bool, String)>> = vec![Vec::new(); partitions];
        for (event, failing) in self.failing().into_iter().enumerate() {
            rows[partition_of(&self.key_of(event), partitions)].push(failing);
        }
        let distinct =
            |run: &[(bool, String)]| run.iter().map(|(_, name)| name).collect::<BTreeSet<_>>().len();
        let longest = |rows: &Vec<(bool, String)>| rows.split(|(fails, _)| !fails).map(distinct).max();
        rows.iter().filter_map(longest).sum()
    }

    /// What orders an event and what it is parked with.
    fn key_of(&self, event: usize) -> String {
        let append = &self.appends[event];
        append.key.map_or_else(|| id(event, append.twin).to_string(), |key| format!("k{key}"))
    }

    /// How often the events of a key change their topic: each time the later ones wait for a call of their own.
    pub(super) fn topic_changes(&self) -> usize {
        let mut last = std::collections::BTreeMap::new();
        let changed = |append: &&Append| {
            let Some(key) = append.key else { return false };
            last.insert(key, append.topic).is_some_and(|before| before != append.topic)
        };
        self.appends.iter().filter(changed).count()
    }
}
