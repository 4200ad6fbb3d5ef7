//! What became of a batch, sorted by what has to be written.

use std::collections::BTreeMap;

use crate::outbox::{Event, NAME_BYTES_MAX};
use crate::relay::outbox_reader::{Pending, Settled};

/// What an event is parked under: its key. One without a key, or that is parked alone, is parked under its id and topic:
/// an id alone may be on two topics.
pub fn parked_key(event: &Event, alone: bool) -> String {
    match event.ordered_by() {
        Some(key) if !alone => key.to_owned(),
        _ => {
            // Rows of other languages may have any topic, and an index takes no text of any length.
            let topic: String = event.topic().chars().take(NAME_BYTES_MAX).collect();
            format!("{}/{topic}", event.id())
        }
    }
}

/// Events of a chunk that are set aside, column by column.
#[derive(Default)]
pub struct ParkedRows {
    pub seqs: Vec<i64>,
    /// What each is parked under.
    pub keys: Vec<String>,
    pub errors: Vec<Option<String>>,
    pub for_good: Vec<bool>,
}

impl ParkedRows {
    pub fn of(seqs: &[i64], events: &[Pending], settled: &[Settled]) -> Self {
        let mut aside = Self::default();
        // Of one of which nothing was said nothing is known: it is kept.
        let said = settled.iter().chain(std::iter::repeat(&Settled::Held));
        for ((seq, pending), settled) in seqs.iter().zip(events).zip(said) {
            let (error, alone, for_good) = match settled {
                Settled::Confirmed => continue,
                Settled::Held => (None, false, false),
                Settled::Parked { error, alone, for_good } => (Some(error.clone()), *alone, *for_good),
            };
            aside.seqs.push(*seq);
            aside.keys.push(parked_key(&pending.event, alone));
            aside.errors.push(error);
            aside.for_good.push(for_good);
        }
        aside
    }
}

/// Parked events that were tried again.
#[derive(Clone, Debug, Default)]
pub struct RetryBatch {
    pub ns: Vec<i64>,
    /// The key of each.
    pub keys: Vec<String>,
    /// When that was due, as it is stored.
    pub due: Vec<Option<i64>>,
    /// Keys of which nothing is left: somebody skipped it.
    pub empty: Vec<String>,
}

impl RetryBatch {
    /// How a batch of them is named.
    pub fn place(&self) -> String {
        format!("parked {:?}", self.ns)
    }

    /// Which they were, if that is the name of such a batch.
    pub fn named(place: &str) -> Option<Vec<i64>> {
        let ns = place.strip_prefix("parked [")?.strip_suffix(']')?;
        ns.split(", ").map(|n| n.parse().ok()).collect()
    }
}

/// What became of them.
#[derive(Debug, Default)]
pub struct RetryResult {
    pub confirmed: Vec<i64>,
    pub failed: Vec<i64>,
    pub errors: Vec<String>,
    /// Keys that are parked again, and whether for good.
    pub later: Vec<String>,
    pub for_good: Vec<bool>,
    /// When they were due. What has another time by now was given it by a person, after it was read: that stands.
    pub due: Vec<Option<i64>>,
    /// Keys that go on: with the rest of them, or out of here.
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
                    // The first of a key decides when it is tried again: one behind it may be refused for good.
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
    fn what_is_not_confirmed_is_set_aside_in_order() {
        let events = ["a", "b", "b", "c"]
            .map(|key| Pending::new(Event::new("t", "made", "").unwrap().key(key).unwrap()));
        let aside =
            ParkedRows::of(&[1, 2, 3, 4], &events, &[Settled::Confirmed, parked(true), Settled::Held]);
        assert_eq!(aside.seqs, [2, 3, 4]);
        assert_eq!(aside.keys, ["b", "b", "c"]);
        assert_eq!(aside.errors, [Some("no".to_owned()), None, None]);
        assert_eq!(aside.for_good, [true, false, false]);
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
    fn a_name_tells_which_were_tried() {
        let tried = RetryBatch { ns: vec![7, 12], ..RetryBatch::default() };
        assert_eq!(RetryBatch::named(&tried.place()), Some(tried.ns));
        assert_eq!(RetryBatch::named("parked []"), None);
        assert_eq!(RetryBatch::named("[0, 1] 3:3:..5:5: 0-7"), None);
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
