//! Parking: sorts the results of a batch by what has to be stored.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::outbox::{Event, NAME_BYTES_MAX};
use crate::relay::outbox_reader::{Pending, Settled};

/// Most parked events of one key in a batch.
pub const OF_KEY_MAX: i64 = 100;

/// How often parked events are checked.
pub const DUE_EVERY: Duration = Duration::from_millis(250);

/// Delay until parked events are checked again after a retry. Zero if the sink took them all, else [`DUE_EVERY`]: many
/// failing events must not starve the others.
pub fn due_after(tried: &[Settled]) -> Duration {
    let all_taken = tried.iter().all(|settled| *settled == Settled::Confirmed);
    if all_taken { Duration::ZERO } else { DUE_EVERY }
}

/// The key an event is parked under: its own key, or its id and topic if it has none or is parked alone. One id may be
/// on two topics.
pub fn parked_key(event: &Event, alone: bool) -> String {
    match event.ordered_by() {
        Some(key) if !alone => key.to_owned(),
        _ => {
            // Services in other languages may write any topic, and index entries are limited.
            let topic: String = event.topic().chars().take(NAME_BYTES_MAX).collect();
            format!("{}/{topic}", event.id())
        }
    }
}

/// The events of a chunk to park, column by column.
#[derive(Default)]
pub struct ParkedRows {
    pub seqs: Vec<i64>,
    /// The parked key of each.
    pub keys: Vec<String>,
    pub errors: Vec<Option<String>>,
    pub for_good: Vec<bool>,
}

impl ParkedRows {
    pub fn of(seqs: &[i64], events: &[Pending], settled: &[Settled]) -> Self {
        let mut rows = Self::default();
        // A missing result counts as in doubt: the event is held, not dropped.
        let results = settled.iter().chain(std::iter::repeat(&Settled::Held));
        for ((seq, pending), settled) in seqs.iter().zip(events).zip(results) {
            let (error, alone, for_good) = match settled {
                Settled::Confirmed => continue,
                Settled::Held => (None, false, false),
                Settled::Parked { error, alone, for_good } => (Some(error.clone()), *alone, *for_good),
            };
            rows.seqs.push(*seq);
            rows.keys.push(parked_key(&pending.event, alone));
            rows.errors.push(error);
            rows.for_good.push(for_good);
        }
        rows
    }
}

/// A batch of parked events to retry.
#[derive(Clone, Debug, Default)]
pub struct RetryBatch {
    pub ns: Vec<i64>,
    /// The key of each.
    pub keys: Vec<String>,
    /// When each key was due, as stored.
    pub due: Vec<Option<i64>>,
    /// Keys without parked events: somebody skipped the last one.
    pub empty: Vec<String>,
}

impl RetryBatch {
    /// The cursor of this batch.
    pub fn cursor(&self) -> ParkedCursor {
        ParkedCursor(self.ns.clone())
    }
}

/// The cursor of a retry batch: the numbers of its events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkedCursor(pub Vec<i64>);

impl fmt::Display for ParkedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parked {:?}", self.0)
    }
}

impl FromStr for ParkedCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let ns = text.strip_prefix("parked [").and_then(|text| text.strip_suffix(']')).ok_or(())?;
        ns.split(", ").map(|n| n.parse().map_err(drop)).collect::<Result<_, _>>().map(Self)
    }
}

/// A retry of parked events.
#[derive(Debug, Default)]
pub struct Retry {
    pub tried: RetryBatch,
    /// Partition and epoch of their keys: its results are stored under these.
    pub fence: Vec<(i16, i64)>,
}

/// The results of a retry batch.
#[derive(Debug, Default)]
pub struct RetryResult {
    pub confirmed: Vec<i64>,
    pub failed: Vec<i64>,
    pub errors: Vec<String>,
    /// Keys that stay parked, and whether for good (no automatic retry).
    pub later: Vec<String>,
    pub for_good: Vec<bool>,
    /// The due times of these keys when the batch was read. If the stored time differs now, an operator has changed it,
    /// and it is kept.
    pub due: Vec<Option<i64>>,
    /// Keys that did not fail: they continue with the rest of their events, or are no longer parked.
    pub on: Vec<String>,
}

impl RetryResult {
    pub fn of(tried: &RetryBatch, settled: &[Settled]) -> Self {
        let mut retried = Self::default();
        let mut again: BTreeMap<&str, (bool, Option<i64>)> = BTreeMap::new();
        let due = tried.due.iter().copied().chain(std::iter::repeat(None));
        for (((n, key), due), settled) in tried.ns.iter().zip(&tried.keys).zip(due).zip(settled) {
            match settled {
                Settled::Confirmed => retried.confirmed.push(*n),
                Settled::Parked { error, for_good, .. } => {
                    retried.failed.push(*n);
                    retried.errors.push(error.clone());
                    // The first event of a key decides when it is retried; a later one may be refused for good.
                    again.entry(key).or_insert((*for_good, due));
                }
                Settled::Held => {}
            }
        }
        let mut on: Vec<String> = tried.keys.iter().chain(&tried.empty).cloned().collect();
        on.sort_unstable();
        on.dedup();
        on.retain(|key| !again.contains_key(key.as_str()));
        retried.on = on;
        for (key, (for_good, due)) in again {
            retried.later.push(key.to_owned());
            retried.for_good.push(for_good);
            retried.due.push(due);
        }
        retried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(for_good: bool) -> Settled {
        Settled::Parked { error: "no".into(), for_good, alone: false }
    }

    #[test]
    fn parked_events_that_fail_again_wait_before_the_next_try() {
        assert_eq!(due_after(&[Settled::Confirmed, Settled::Confirmed]), Duration::ZERO);
        assert_eq!(due_after(&[]), Duration::ZERO);
        assert_eq!(due_after(&[Settled::Confirmed, parked(false)]), DUE_EVERY);
    }

    #[test]
    fn what_is_not_confirmed_is_set_aside_in_order() {
        let events = ["a", "b", "b", "c"]
            .map(|key| Pending::new(Event::new("t", "made", "").unwrap().key(key).unwrap()));
        let rows = ParkedRows::of(&[1, 2, 3, 4], &events, &[Settled::Confirmed, parked(true), Settled::Held]);
        assert_eq!(rows.seqs, [2, 3, 4]);
        assert_eq!(rows.keys, ["b", "b", "c"]);
        assert_eq!(rows.errors, [Some("no".to_owned()), None, None]);
        assert_eq!(rows.for_good, [true, false, false]);
    }

    #[test]
    fn one_id_on_two_topics_is_parked_under_two_keys() {
        let one = Event::new("paid", "made", "").unwrap();
        let other = Event::new("mail", "made", "").unwrap().with_id(one.id());
        assert_eq!(parked_key(&one, false), format!("{}/paid", one.id()));
        assert_eq!(parked_key(&other, true), format!("{}/mail", one.id()));
        let keyed = other.key("k").unwrap();
        assert_eq!(
            (parked_key(&keyed, false).as_str(), parked_key(&keyed, true)),
            ("k", format!("{}/mail", one.id()))
        );
    }

    #[test]
    fn a_cursor_names_the_events_of_a_retry() {
        let tried = RetryBatch { ns: vec![7, 12], ..RetryBatch::default() };
        assert_eq!(tried.cursor().to_string(), "parked [7, 12]", "it is stored in sinks");
        assert_eq!("parked [7, 12]".parse(), Ok(tried.cursor()));
        for other in ["parked []", "[0, 1] 3:3:..5:5: 0-7"] {
            assert_eq!(other.parse::<ParkedCursor>(), Err(()));
        }
    }

    #[test]
    fn the_first_of_a_key_decides_when_it_is_tried_again() {
        let tried =
            RetryBatch { ns: vec![1, 2], keys: vec!["a".into(), "a".into()], ..RetryBatch::default() };
        assert_eq!(RetryResult::of(&tried, &[parked(false), parked(true)]).for_good, [false]);
        assert_eq!(RetryResult::of(&tried, &[parked(true), Settled::Held]).for_good, [true]);
        assert_eq!(RetryResult::of(&tried, &[Settled::Confirmed, parked(true)]).for_good, [true]);
    }

    #[test]
    fn a_key_goes_on_unless_it_is_parked_again() {
        let keys = ["a", "a", "b"].map(str::to_owned).to_vec();
        let due = vec![Some(7), Some(7), None];
        let tried = RetryBatch { ns: vec![1, 2, 3], keys, due, empty: vec!["c".into()] };
        let retried = RetryResult::of(&tried, &[Settled::Confirmed, parked(false), Settled::Confirmed]);
        assert_eq!((retried.confirmed, retried.failed), (vec![1, 3], vec![2]));
        assert_eq!((retried.later, retried.for_good), (vec!["a".to_owned()], vec![false]));
        assert_eq!(retried.due, [Some(7)]);
        assert_eq!(retried.on, ["b", "c"]);
    }
}
