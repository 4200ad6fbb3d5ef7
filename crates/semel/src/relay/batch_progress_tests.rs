use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::outbox::Event;
use crate::relay::outbox_reader::{OutboxLineage, Pending, Position};

/// A batch on its way, with a clock of its own.
struct Trial<'a> {
    waves: BatchProgress<'a>,
    blame: Blame,
    now: Instant,
}

impl<'a> Trial<'a> {
    fn new(batch: &'a Batch, options: &RelayOptions) -> Self {
        Self { waves: BatchProgress::new(batch, options), blame: Blame::default(), now: Instant::now() }
    }

    fn ready(&self) -> Vec<usize> {
        self.waves.ready()
    }

    fn fold(&mut self, sent: &[usize], answers: Vec<Published>) -> RoundResult {
        self.waves.fold(sent, answers, self.now, &mut self.blame)
    }

    /// All that is ready fails.
    fn all_fail(&mut self, after_ms: u64) -> RoundResult {
        self.now += Duration::from_millis(after_ms);
        let ready = self.ready();
        self.fold(&ready, ready.iter().map(|_| failed()).collect())
    }
}

fn of(events: Vec<Pending>) -> Batch {
    Batch::new(Position { lineage: OutboxLineage::read("a/1"), place: "here".into() }, events)
}

fn pending(key: Option<&str>, topic: &str) -> Pending {
    let event = Event::new(topic, "made", "{}").unwrap();
    let event = key.map_or(event.clone(), |key| event.key(key).unwrap());
    Pending { event: Arc::new(event), held: false, unreadable: None }
}

fn batch(events: &[(&str, &str)]) -> Batch {
    of(events.iter().map(|(key, topic)| pending((!key.is_empty()).then_some(*key), topic)).collect())
}

/// So many keys, one event each.
fn keys(count: usize) -> Batch {
    of((0..count).map(|n| pending(Some(&n.to_string()), "t")).collect())
}

fn failed() -> Published {
    Published::Failed(SinkError::not_published("down"))
}

fn refused() -> Published {
    Published::Refused(SinkError::not_published("too large"))
}

fn parked(error: &str, for_good: bool, alone: bool) -> Settled {
    Settled::Parked { error: error.into(), for_good, alone }
}

#[test]
fn one_that_cannot_be_read_is_parked_and_never_sent() {
    let odd = |key: Option<&str>| Pending { unreadable: Some("no text".into()), ..pending(key, "t") };
    let batch = of(vec![
        odd(Some("a")),
        pending(Some("a"), "t"),
        pending(Some("b"), "t"),
        odd(None),
        Pending { held: true, ..odd(Some("c")) },
    ]);
    let mut waves = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(waves.ready(), [2]);
    waves.fold(&[2], vec![Published::Confirmed]);
    let settled = waves.waves.settled();
    assert_eq!(settled[0], parked("no text", true, false));
    assert_eq!(settled[1..3], [Settled::Held, Settled::Confirmed]);
    assert_eq!(settled[3..], [parked("no text", true, true), Settled::Held]);
}

#[test]
fn a_key_waits_where_its_topic_changes() {
    let batch = batch(&[("a", "t"), ("a", "t"), ("b", "u"), ("a", "u"), ("a", "t"), ("", "u")]);
    let mut waves = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(waves.ready(), [0, 1, 2, 5]);
    waves.fold(
        &[0, 1, 2, 5],
        vec![Published::Confirmed, failed(), Published::Confirmed, Published::Confirmed],
    );
    assert_eq!(waves.ready(), [1]);
    waves.fold(&[1], vec![Published::Confirmed]);
    assert_eq!(waves.ready(), [3]);
    waves.fold(&[3], vec![Published::Confirmed]);
    assert_eq!(waves.ready(), [4]);
    waves.fold(&[4], vec![Published::Confirmed]);
    assert!(waves.ready().is_empty());
    assert_eq!(waves.waves.settled(), vec![Settled::Confirmed; 6]);
}

#[test]
fn a_refused_event_holds_its_key_or_only_itself() {
    let events = batch(&[("a", "t"), ("a", "t"), ("b", "t"), ("a", "t"), ("", "t")]);
    let answers = || vec![Published::Confirmed, refused(), Published::Confirmed, failed(), refused()];
    let mut waves = Trial::new(&events, &RelayOptions::default());
    let folded = waves.fold(&waves.ready(), answers());
    assert_eq!((folded.confirmed, folded.parked), (2, 2));
    assert!(waves.ready().is_empty());
    let (behind, alone) = (parked("too large", true, false), parked("too large", true, true));
    let settled = [Settled::Confirmed, behind, Settled::Confirmed, Settled::Held, alone.clone()];
    assert_eq!(waves.waves.settled(), settled);

    let mut waves = Trial::new(&events, &RelayOptions::default().poison(Poison::ParksItself));
    waves.fold(&waves.ready(), answers());
    assert_eq!(waves.ready(), [3]);
    waves.fold(&[3], vec![Published::Confirmed]);
    let settled = [Settled::Confirmed, alone.clone(), Settled::Confirmed, Settled::Confirmed, alone];
    assert_eq!(waves.waves.settled(), settled);
}

#[test]
fn an_event_that_fails_too_often_is_parked_but_not_while_the_sink_is_down() {
    let options = RelayOptions::default().tries_max(3).suspects_max(1);
    let batch = batch(&[("a", "t"), ("a", "t"), ("b", "t")]);
    let mut waves = Trial::new(&batch, &options);
    // Nothing gets through: that may be the sink.
    for _ in 0..100 {
        assert_eq!(waves.all_fail(10).parked, 0);
    }
    waves.fold(&[0, 1, 2], vec![failed(), failed(), Published::Confirmed]);
    waves.all_fail(10);
    assert_eq!(waves.ready(), [0, 1]);
    assert_eq!(waves.all_fail(10).parked, 1);
    assert_eq!(waves.waves.settled(), [parked("down", false, false), Settled::Held, Settled::Confirmed]);
}

/// How many fail decides nothing: not over after a hundred thousand calls with nine, over after three with eight.
#[test]
fn however_many_fail_they_are_to_blame_once_others_got_through() {
    for failing in [1, 8, 9, 50, 1_000] {
        let batch = keys(failing + 100);
        let mut waves = Trial::new(&batch, &RelayOptions::default());
        let answers = (0..failing + 100).map(|n| if n < failing { failed() } else { Published::Confirmed });
        assert_eq!(waves.fold(&waves.ready(), answers.collect()).confirmed, 100);
        assert_eq!(waves.all_fail(1).parked, 0, "{failing}");
        assert_eq!(waves.all_fail(1).parked, failing);
        assert!(waves.ready().is_empty());
    }
}

#[test]
fn where_nothing_gets_through_the_batch_is_read_past_after_a_while() {
    // Keys, and the milliseconds at which they are read past: more than eight look like an outage.
    for (count, at_ms) in [(1, 125), (8, 1_000), (9, 30_000), (480, 60_000), (4_000, 60_000)] {
        let batch = keys(count);
        let mut waves = Trial::new(&batch, &RelayOptions::default());
        for after_ms in [0, 1, 1, at_ms - 3] {
            let folded = waves.all_fail(after_ms);
            assert_eq!((folded.read_past, folded.parked), (0, 0), "{count}");
        }
        assert_eq!(waves.all_fail(1).read_past, count);
        assert!(waves.ready().is_empty());
    }
    // Not before it had its tries, however long a call takes.
    let batch = keys(1);
    let mut waves = Trial::new(&batch, &RelayOptions::default().tries_max(3));
    assert_eq!(waves.all_fail(30_000).read_past, 0);
    assert_eq!(waves.all_fail(30_000).read_past, 0);
    assert_eq!(waves.all_fail(30_000).read_past, 1);
    // And never if that is asked for.
    let mut waves = Trial::new(&batch, &RelayOptions::default().suspects_max(0));
    assert!((0..10_000).all(|_| waves.all_fail(60_000).read_past == 0));
}

#[test]
fn a_topic_that_was_read_past_is_to_blame_once_another_gets_through() {
    let options = RelayOptions::default().tries_max(2);
    let (away, there) = (batch(&[("a", "away"), ("b", "away")]), batch(&[("c", "there")]));
    let mut waves = Trial::new(&away, &options);
    waves.all_fail(0);
    assert_eq!(waves.all_fail(250).read_past, 2);
    let blame = waves.blame;
    let mut waves = Trial { blame, ..Trial::new(&there, &options) };
    waves.fold(&[0], vec![Published::Confirmed]);
    let blame = waves.blame;
    let mut waves = Trial { blame, ..Trial::new(&away, &options) };
    assert_eq!(waves.all_fail(0).parked, 0);
    let folded = waves.all_fail(0);
    assert_eq!((folded.parked, folded.read_past), (2, 0));
}

#[test]
fn what_was_parked_before_is_parked_again_at_once() {
    let mut batch = keys(9);
    batch.is_retry = true;
    let mut waves = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(waves.all_fail(0).parked, 9);
    assert!(waves.ready().is_empty());
    // One that was not tried gets another call as long as the calls get anywhere.
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    let mut waves = Trial::new(&batch, &RelayOptions::default());
    let answers = (0..9).map(|n| if n == 0 { Published::Confirmed } else { unsent() });
    assert_eq!(waves.fold(&waves.ready(), answers.collect()).parked, 0);
    assert_eq!(waves.fold(&waves.ready(), (1..9).map(|_| unsent()).collect()).parked, 8);
    assert!(waves.ready().is_empty());
}

#[test]
fn what_is_held_is_not_sent_and_a_missing_answer_is_a_failure() {
    let mut events = batch(&[("a", "t"), ("b", "t"), ("c", "t")]);
    events.events[1].held = true;
    let mut waves = Trial::new(&events, &RelayOptions::default());
    assert_eq!(waves.ready(), [0, 2]);
    let folded = waves.fold(&[0, 2], vec![Published::Confirmed]);
    assert_eq!((folded.confirmed, folded.failure.is_some()), (1, true));
    assert_eq!(waves.ready(), [2]);
    let fenced = waves.fold(&[2], vec![Published::Failed(SinkError::fenced("another"))]);
    assert!(fenced.fenced.is_some());
    assert_eq!(waves.ready(), [2]);
}

proptest! {
    /// Whatever a lawful sink answers: each event goes only when all before it in its key are settled or go with it
    /// to the same topic; what is confirmed is in order; and behind a parked event everything is held.
    #[test]
    fn order_within_a_key_survives_any_answers(
        events in prop::collection::vec((0usize..5, 0usize..3), 1..40),
        answers in prop::collection::vec(0u8..4, 4_000),
        itself in any::<bool>(),
    ) {
        const KEYS: [&str; 5] = ["", "a", "b", "c", "d"];
        const TOPICS: [&str; 3] = ["t", "u", "v"];
        let events: Vec<_> = events.iter().map(|(key, topic)| (KEYS[*key], TOPICS[*topic])).collect();
        let poison = if itself { Poison::ParksItself } else { Poison::ParksItsKey };
        let options = RelayOptions::default().poison(poison).tries_max(4).suspects_max(2);
        let batch = batch(&events);
        let mut waves = Trial::new(&batch, &options);
        let mut answers = answers.into_iter();
        let mut told: Vec<usize> = Vec::new();
        let same_key = |one: usize, other: usize| !events[one].0.is_empty() && events[one].0 == events[other].0;
        for round in 0.. {
            let ready = waves.ready();
            if ready.is_empty() {
                break;
            }
            prop_assert!(ready.is_sorted());
            let open: Vec<usize> = (0..events.len()).filter(|at| waves.waves.events[*at].settled.is_none()).collect();
            for &at in &ready {
                for &before in open.iter().filter(|before| **before < at && same_key(**before, at)) {
                    prop_assert!(ready.contains(&before) && events[before].1 == events[at].1);
                }
            }
            let mut given: Vec<Published> = Vec::new();
            for (place, &at) in ready.iter().enumerate() {
                let blocked = (0..place).any(|other| {
                    same_key(ready[other], at) && given[other] != Published::Confirmed
                });
                // In the end the sink works, or a test would never end.
                let answer = match answers.next() {
                    _ if blocked => failed(),
                    Some(0) if round < 60 => failed(),
                    Some(1) if round < 60 => refused(),
                    _ => Published::Confirmed,
                };
                if answer == Published::Confirmed {
                    told.push(at);
                }
                given.push(answer);
            }
            waves.fold(&ready, given);
        }
        let settled = waves.waves.settled();
        for at in 0..events.len() {
            prop_assert_eq!(told.contains(&at), settled[at] == Settled::Confirmed);
            for before in (0..at).filter(|before| same_key(*before, at)) {
                let place = |event: usize| told.iter().position(|other| *other == event);
                if let (Some(one), Some(other)) = (place(before), place(at)) {
                    prop_assert!(one < other);
                }
                if !itself && settled[before] != Settled::Confirmed {
                    prop_assert_eq!(&settled[at], &Settled::Held);
                }
            }
        }
    }
}

#[test]
fn a_place_that_is_not_there_is_no_sink_that_is_down() {
    let events = keys(20);
    let options = RelayOptions::default();
    let mut waves = Trial::new(&events, &options);
    let away = || Published::Failed(SinkError::not_published("away").destination_down());
    for _ in 0..options.tries_max {
        // Ten of them say so; the others may as well be the sink.
        waves.fold(&waves.ready(), (0..20).map(|n| if n < 10 { away() } else { failed() }).collect());
    }
    assert_eq!(waves.ready(), (10..20).collect::<Vec<_>>());
}

#[test]
fn what_was_not_sent_was_not_tried() {
    let events = keys(3);
    let options = RelayOptions::default();
    let mut waves = Trial::new(&events, &options);
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    for _ in 0..options.tries_max * 2 {
        let folded = waves.fold(&waves.ready(), vec![unsent(), unsent(), unsent()]);
        assert!(folded.failure.is_some(), "it is told");
    }
    assert_eq!(waves.ready(), [0, 1, 2]);
    // One that is tried and fails is to blame as ever.
    for _ in 0..options.tries_max {
        let ready = waves.ready();
        waves.fold(&ready, vec![Published::Confirmed, failed(), unsent()][3 - ready.len()..].to_vec());
    }
    assert_eq!(waves.ready(), [2]);
}
