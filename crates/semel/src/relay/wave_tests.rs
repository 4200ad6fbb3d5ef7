use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::outbox::Event;

fn pending(key: Option<&str>, topic: &str) -> Pending {
    let event = Event::new(topic, "made", "{}").unwrap();
    let event = key.map_or(event.clone(), |key| event.key(key).unwrap());
    Pending { event: Arc::new(event), held: false }
}

fn batch(events: &[(&str, &str)]) -> Vec<Pending> {
    events.iter().map(|(key, topic)| pending((!key.is_empty()).then_some(*key), topic)).collect()
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
fn a_key_waits_where_its_topic_changes() {
    let mut waves = Waves::new(
        &batch(&[("a", "t"), ("a", "t"), ("b", "u"), ("a", "u"), ("a", "t"), ("", "u")]),
        &RelayOptions::default(),
    );
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
    assert_eq!(waves.settled(), vec![Settled::Confirmed; 6]);
}

#[test]
fn a_refused_event_holds_its_key_or_only_itself() {
    let events = batch(&[("a", "t"), ("a", "t"), ("b", "t"), ("a", "t"), ("", "t")]);
    let answers = || vec![Published::Confirmed, refused(), Published::Confirmed, failed(), refused()];
    let mut waves = Waves::new(&events, &RelayOptions::default());
    let folded = waves.fold(&waves.ready(), answers());
    assert_eq!((folded.confirmed, folded.parked), (2, 2));
    assert!(waves.ready().is_empty());
    let (behind, alone) = (parked("too large", true, false), parked("too large", true, true));
    let settled = [Settled::Confirmed, behind, Settled::Confirmed, Settled::Held, alone.clone()];
    assert_eq!(waves.settled(), settled);

    let mut waves = Waves::new(&events, &RelayOptions::default().poison(Poison::ParksItself));
    waves.fold(&waves.ready(), answers());
    assert_eq!(waves.ready(), [3]);
    waves.fold(&[3], vec![Published::Confirmed]);
    let settled = [Settled::Confirmed, alone.clone(), Settled::Confirmed, Settled::Confirmed, alone];
    assert_eq!(waves.settled(), settled);
}

#[test]
fn an_event_that_fails_too_often_is_parked_but_not_while_the_sink_is_down() {
    let options = RelayOptions::default().tries_max(3).suspects_max(1);
    let mut waves = Waves::new(&batch(&[("a", "t"), ("a", "t"), ("b", "t")]), &options);
    // Two keys fail and nothing gets through: the sink is down, for as long as it likes.
    for _ in 0..100 {
        assert_eq!(waves.fold(&[0, 1, 2], vec![failed(), failed(), failed()]).parked, 0);
    }
    waves.fold(&[0, 1, 2], vec![failed(), failed(), Published::Confirmed]);
    waves.fold(&[0, 1], vec![failed(), failed()]);
    assert_eq!(waves.ready(), [0, 1]);
    assert_eq!(waves.fold(&[0, 1], vec![failed(), failed()]).parked, 1);
    assert_eq!(waves.settled(), [parked("down", false, false), Settled::Held, Settled::Confirmed]);
}

#[test]
fn what_is_held_is_not_sent_and_a_missing_answer_is_a_failure() {
    let mut events = batch(&[("a", "t"), ("b", "t"), ("c", "t")]);
    events[1].held = true;
    let mut waves = Waves::new(&events, &RelayOptions::default());
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
        let mut waves = Waves::new(&batch(&events), &options);
        let mut answers = answers.into_iter();
        let mut told: Vec<usize> = Vec::new();
        let same_key = |one: usize, other: usize| !events[one].0.is_empty() && events[one].0 == events[other].0;
        for round in 0.. {
            let ready = waves.ready();
            if ready.is_empty() {
                break;
            }
            prop_assert!(ready.is_sorted());
            let open: Vec<usize> = (0..events.len()).filter(|at| waves.events[*at].settled.is_none()).collect();
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
        let settled = waves.settled();
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
    let events: Vec<Pending> = (0..20).map(|n| pending(Some(&n.to_string()), "t")).collect();
    let options = RelayOptions::default();
    let mut waves = Waves::new(&events, &options);
    let away = || Published::Failed(SinkError::not_published("away").of_one_place());
    for _ in 0..options.tries_max {
        // Ten of them say so; the others may as well be the sink.
        waves.fold(&waves.ready(), (0..20).map(|n| if n < 10 { away() } else { failed() }).collect());
    }
    assert_eq!(waves.ready(), (10..20).collect::<Vec<_>>());
}

#[test]
fn what_was_not_sent_was_not_tried() {
    let events: Vec<Pending> = (0..3).map(|n| pending(Some(&n.to_string()), "t")).collect();
    let options = RelayOptions::default();
    let mut waves = Waves::new(&events, &options);
    let unsent = || Published::Failed(SinkError::not_tried("no time was left"));
    for _ in 0..options.tries_max * 2 {
        let folded = waves.fold(&waves.ready(), vec![unsent(), unsent(), unsent()]);
        assert!(folded.failure.is_some(), "it is told");
    }
    assert_eq!(waves.ready(), [0, 1, 2]);
    // One that is tried and fails is to blame as ever.
    for _ in 0..options.tries_max {
        waves.fold(
            &waves.ready(),
            vec![Published::Confirmed, failed(), unsent()][3 - waves.ready().len()..].to_vec(),
        );
    }
    assert_eq!(waves.ready(), [2]);
}
