use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::outbox::Event;
use crate::relay::outbox_reader::{BatchCursor, OutboxLineage, Pending, Position};

/// The progress of a batch, with its own clock.
struct Trial<'a> {
    progress: BatchProgress<'a>,
    blame: Blame,
    now: Instant,
}

impl<'a> Trial<'a> {
    fn new(batch: &'a Batch, options: &RelayOptions) -> Self {
        Self { progress: BatchProgress::new(batch, options), blame: Blame::default(), now: Instant::now() }
    }

    fn ready(&self) -> Vec<usize> {
        self.progress.ready()
    }

    fn apply(&mut self, sent: &[usize], answers: Vec<Published>) -> RoundResult {
        self.progress.apply(sent, answers, self.now, &mut self.blame)
    }

    /// All ready events fail.
    fn all_fail(&mut self, after_ms: u64) -> RoundResult {
        self.now += Duration::from_millis(after_ms);
        let ready = self.ready();
        self.apply(&ready, ready.iter().map(|_| failed()).collect())
    }
}

fn of(events: Vec<Pending>) -> Batch {
    Batch::new(Position { lineage: OutboxLineage::read("a/1"), cursor: BatchCursor::of("here") }, events)
}

fn pending(key: Option<&str>, topic: &str) -> Pending {
    let event = Event::new(topic, "made", "{}").unwrap();
    let event = key.map_or(event.clone(), |key| event.key(key).unwrap());
    Pending { event: Arc::new(event), held: false, unreadable: None }
}

fn batch(events: &[(&str, &str)]) -> Batch {
    of(events.iter().map(|(key, topic)| pending((!key.is_empty()).then_some(*key), topic)).collect())
}

/// This many keys, one event each.
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
    let mut trial = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(trial.ready(), [2]);
    trial.apply(&[2], vec![Published::Confirmed]);
    let settled = trial.progress.settled();
    assert_eq!(settled[0], parked("no text", true, false));
    assert_eq!(settled[1..3], [Settled::Held, Settled::Confirmed]);
    assert_eq!(settled[3..], [parked("no text", true, true), Settled::Held]);
}

#[test]
fn a_key_waits_where_its_topic_changes() {
    let batch = batch(&[("a", "t"), ("a", "t"), ("b", "u"), ("a", "u"), ("a", "t"), ("", "u")]);
    let mut trial = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(trial.ready(), [0, 1, 2, 5]);
    trial.apply(
        &[0, 1, 2, 5],
        vec![Published::Confirmed, failed(), Published::Confirmed, Published::Confirmed],
    );
    assert_eq!(trial.ready(), [1]);
    trial.apply(&[1], vec![Published::Confirmed]);
    assert_eq!(trial.ready(), [3]);
    trial.apply(&[3], vec![Published::Confirmed]);
    assert_eq!(trial.ready(), [4]);
    trial.apply(&[4], vec![Published::Confirmed]);
    assert!(trial.ready().is_empty());
    assert_eq!(trial.progress.settled(), vec![Settled::Confirmed; 6]);
}

#[test]
fn a_refused_event_holds_its_key_or_only_itself() {
    let events = batch(&[("a", "t"), ("a", "t"), ("b", "t"), ("a", "t"), ("", "t")]);
    let answers = || vec![Published::Confirmed, refused(), Published::Confirmed, failed(), refused()];
    let mut trial = Trial::new(&events, &RelayOptions::default());
    let result = trial.apply(&trial.ready(), answers());
    assert_eq!((result.confirmed, result.parked), (2, 2));
    assert!(trial.ready().is_empty());
    let (behind, alone) = (parked("too large", true, false), parked("too large", true, true));
    let settled = [Settled::Confirmed, behind, Settled::Confirmed, Settled::Held, alone.clone()];
    assert_eq!(trial.progress.settled(), settled);

    let mut trial = Trial::new(&events, &RelayOptions::default().poison(Poison::ParksItself));
    trial.apply(&trial.ready(), answers());
    assert_eq!(trial.ready(), [3]);
    trial.apply(&[3], vec![Published::Confirmed]);
    let settled = [Settled::Confirmed, alone.clone(), Settled::Confirmed, Settled::Confirmed, alone];
    assert_eq!(trial.progress.settled(), settled);
}

#[test]
fn an_event_that_fails_too_often_is_parked_but_not_while_the_sink_is_down() {
    let options = RelayOptions::default().attempts_max(3).failing_keys_max(1);
    let batch = batch(&[("a", "t"), ("a", "t"), ("b", "t")]);
    let mut trial = Trial::new(&batch, &options);
    // Nothing gets through: the sink may be down.
    for _ in 0..100 {
        assert_eq!(trial.all_fail(10).parked, 0);
    }
    trial.apply(&[0, 1, 2], vec![failed(), failed(), Published::Confirmed]);
    trial.all_fail(10);
    assert_eq!(trial.ready(), [0, 1]);
    assert_eq!(trial.all_fail(10).parked, 1);
    assert_eq!(trial.progress.settled(), [parked("down", false, false), Settled::Held, Settled::Confirmed]);
}

/// The number of failing events must not decide: nine once never ended in 100,000 calls, eight after three.
#[test]
fn however_many_fail_they_are_to_blame_once_others_got_through() {
    for failing in [1, 8, 9, 50, 1_000] {
        let batch = keys(failing + 100);
        let mut trial = Trial::new(&batch, &RelayOptions::default());
        let answers = (0..failing + 100).map(|n| if n < failing { failed() } else { Published::Confirmed });
        assert_eq!(trial.apply(&trial.ready(), answers.collect()).confirmed, 100);
        assert_eq!(trial.all_fail(1).parked, 0, "{failing}");
        assert_eq!(trial.all_fail(1).parked, failing);
        assert!(trial.ready().is_empty());
    }
}

#[test]
fn where_nothing_gets_through_the_batch_is_read_past_after_a_while() {
    // Keys, and the milliseconds after which they are skipped: more than eight look like an outage.
    for (count, at_ms) in [(1, 125), (8, 1_000), (9, 30_000), (480, 60_000), (4_000, 60_000)] {
        let batch = keys(count);
        let mut trial = Trial::new(&batch, &RelayOptions::default());
        for after_ms in [0, 1, 1, at_ms - 3] {
            let result = trial.all_fail(after_ms);
            assert_eq!((result.read_past, result.parked), (0, 0), "{count}");
        }
        assert_eq!(trial.all_fail(1).read_past, count);
        assert!(trial.ready().is_empty());
    }
    // Not before its attempts are used up, however long a call takes.
    let batch = keys(1);
    let mut trial = Trial::new(&batch, &RelayOptions::default().attempts_max(3));
    assert_eq!(trial.all_fail(30_000).read_past, 0);
    assert_eq!(trial.all_fail(30_000).read_past, 0);
    assert_eq!(trial.all_fail(30_000).read_past, 1);
    // Never, if configured so.
    let mut trial = Trial::new(&batch, &RelayOptions::default().failing_keys_max(0));
    assert!((0..10_000).all(|_| trial.all_fail(60_000).read_past == 0));
}

#[test]
fn a_topic_that_was_read_past_is_to_blame_once_another_gets_through() {
    let options = RelayOptions::default().attempts_max(2);
    let (away, there) = (batch(&[("a", "away"), ("b", "away")]), batch(&[("c", "there")]));
    let mut trial = Trial::new(&away, &options);
    trial.all_fail(0);
    assert_eq!(trial.all_fail(250).read_past, 2);
    let blame = trial.blame;
    let mut trial = Trial { blame, ..Trial::new(&there, &options) };
    trial.apply(&[0], vec![Published::Confirmed]);
    let blame = trial.blame;
    let mut trial = Trial { blame, ..Trial::new(&away, &options) };
    assert_eq!(trial.all_fail(0).parked, 0);
    let result = trial.all_fail(0);
    assert_eq!((result.parked, result.read_past), (2, 0));
}

#[test]
fn what_was_parked_before_is_parked_again_at_once() {
    let mut batch = keys(9);
    batch.is_retry = true;
    let mut trial = Trial::new(&batch, &RelayOptions::default());
    assert_eq!(trial.all_fail(0).parked, 9);
    assert!(trial.ready().is_empty());
    // An event that was not sent gets another call as long as the calls confirm anything.
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    let mut trial = Trial::new(&batch, &RelayOptions::default());
    let answers = (0..9).map(|n| if n == 0 { Published::Confirmed } else { unsent() });
    assert_eq!(trial.apply(&trial.ready(), answers.collect()).parked, 0);
    assert_eq!(trial.apply(&trial.ready(), (1..9).map(|_| unsent()).collect()).parked, 8);
    assert!(trial.ready().is_empty());
}

#[test]
fn what_is_held_is_not_sent_and_a_missing_answer_is_a_failure() {
    let mut events = batch(&[("a", "t"), ("b", "t"), ("c", "t")]);
    events.events[1].held = true;
    let mut trial = Trial::new(&events, &RelayOptions::default());
    assert_eq!(trial.ready(), [0, 2]);
    let result = trial.apply(&[0, 2], vec![Published::Confirmed]);
    assert_eq!((result.confirmed, result.failure.is_some()), (1, true));
    assert_eq!(trial.ready(), [2]);
    let fenced = trial.apply(&[2], vec![Published::Failed(SinkError::fenced("another"))]);
    assert!(fenced.fenced.is_some());
    assert_eq!(trial.ready(), [2]);
}

proptest! {
    /// Whatever a correct sink returns: an event is sent only when all earlier events of its key are settled or sent
    /// with it to the same topic; confirmed events are in order; everything behind a parked event is held.
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
        let options = RelayOptions::default().poison(poison).attempts_max(4).failing_keys_max(2);
        let batch = batch(&events);
        let mut trial = Trial::new(&batch, &options);
        let mut answers = answers.into_iter();
        let mut confirmed: Vec<usize> = Vec::new();
        let same_key = |one: usize, other: usize| !events[one].0.is_empty() && events[one].0 == events[other].0;
        for round in 0.. {
            let ready = trial.ready();
            if ready.is_empty() {
                break;
            }
            prop_assert!(ready.is_sorted());
            let settled = |at: usize| trial.progress.events[at].settled.is_some();
            let open: Vec<usize> = (0..events.len()).filter(|at| !settled(*at)).collect();
            for &at in &ready {
                for &before in open.iter().filter(|before| **before < at && same_key(**before, at)) {
                    prop_assert!(ready.contains(&before) && events[before].1 == events[at].1);
                }
            }
            let mut given: Vec<Published> = Vec::new();
            for (index, &at) in ready.iter().enumerate() {
                let blocked = (0..index).any(|other| {
                    same_key(ready[other], at) && given[other] != Published::Confirmed
                });
                // In the end the sink recovers, or the test would never end.
                let answer = match answers.next() {
                    _ if blocked => failed(),
                    Some(0) if round < 60 => failed(),
                    Some(1) if round < 60 => refused(),
                    _ => Published::Confirmed,
                };
                if answer == Published::Confirmed {
                    confirmed.push(at);
                }
                given.push(answer);
            }
            trial.apply(&ready, given);
        }
        let settled = trial.progress.settled();
        for at in 0..events.len() {
            prop_assert_eq!(confirmed.contains(&at), settled[at] == Settled::Confirmed);
            for before in (0..at).filter(|before| same_key(*before, at)) {
                let rank = |event: usize| confirmed.iter().position(|other| *other == event);
                if let (Some(one), Some(other)) = (rank(before), rank(at)) {
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
    let mut trial = Trial::new(&events, &options);
    let away = || Published::Failed(SinkError::not_published("away").destination_down());
    for _ in 0..options.attempts_max {
        // Ten name their destination; the others may have failed because of the sink.
        trial.apply(&trial.ready(), (0..20).map(|n| if n < 10 { away() } else { failed() }).collect());
    }
    assert_eq!(trial.ready(), (10..20).collect::<Vec<_>>());
}

#[test]
fn what_was_not_sent_was_not_tried() {
    let events = keys(3);
    let options = RelayOptions::default();
    let mut trial = Trial::new(&events, &options);
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    for _ in 0..options.attempts_max * 2 {
        let result = trial.apply(&trial.ready(), vec![unsent(), unsent(), unsent()]);
        assert!(result.failure.is_some(), "the failure is reported");
    }
    assert_eq!(trial.ready(), [0, 1, 2]);
    // An event that is sent and fails is to blame as usual.
    for _ in 0..options.attempts_max {
        let ready = trial.ready();
        trial.apply(&ready, vec![Published::Confirmed, failed(), unsent()][3 - ready.len()..].to_vec());
    }
    assert_eq!(trial.ready(), [2]);
}

/// The calls that confirm nothing are counted from the first of them, not from the last one that confirmed something.
#[test]
fn a_call_that_confirmed_something_is_no_part_of_the_stall() {
    let events = keys(2);
    let mut trial = Trial::new(&events, &RelayOptions::default().attempts_max(3));
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    trial.apply(&[0, 1], vec![Published::Confirmed, unsent()]);
    for skipped in [0, 0, 1] {
        trial.now += Duration::from_secs(30);
        assert_eq!(trial.apply(&[1], vec![unsent()]).read_past, skipped);
    }
}
