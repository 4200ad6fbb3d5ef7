use super::*;
use crate::outbox::Event;
use crate::relay::{BatchCursor, OutboxLineage, Pending, Poison, Position};

fn position(cursor: &str) -> Position {
    Position { lineage: OutboxLineage::read("a/1"), cursor: BatchCursor::of(cursor) }
}

/// Events with these keys and topics.
fn batch(events: &[(&str, &str)]) -> Batch {
    let pending = |(key, topic): &(&str, &str)| {
        Pending::new(Event::new(topic, "made", "{}").unwrap().key(key).unwrap())
    };
    Batch::new(position("here"), events.iter().map(pending).collect())
}

fn parts<'a>(batch: &'a Batch, reached: Option<&SinkCheckpoint>) -> TransactionSplitter<'a> {
    TransactionSplitter::new(batch, reached, usize::MAX, &RelayOptions::default().attempts_max(2))
}

fn id(batch: &Batch, at: usize) -> Uuid {
    batch.events[at].event.id()
}

fn left(batch: &Batch, at: usize) -> LeftOut {
    id(batch, at).into()
}

fn no() -> SinkError {
    SinkError::not_published("no")
}

fn parked(for_good: bool) -> Settled {
    Settled::Parked { error: "no".into(), for_good, alone: false }
}

#[test]
fn all_goes_in_one_transaction_whatever_the_topics() {
    let batch = batch(&[("a", "t"), ("a", "u"), ("b", "t")]);
    let mut parts = parts(&batch, None);
    assert_eq!(parts.next(), [0, 1, 2]);
    assert!(parts.left_out(&[0, 1, 2]).is_empty());
    parts.confirm(&[0, 1, 2]);
    assert!(parts.next().is_empty());
    assert_eq!(parts.settled(), vec![Settled::Confirmed; 3]);
}

#[test]
fn of_the_positions_batch_only_what_was_left_out_is_open() {
    let mut batch = batch(&[("a", "t"), ("b", "t"), ("c", "t"), ("d", "t")]);
    // The first was published and is held since; the last was held from the start.
    batch.events[0].held = true;
    batch.events[3].held = true;
    let reached =
        SinkCheckpoint { position: position("here"), left_out: vec![left(&batch, 2), left(&batch, 3)] };
    let mut again = parts(&batch, Some(&reached));
    assert_eq!(again.next(), [2]);
    assert_eq!(again.left_out(&[2]), [left(&batch, 3)]);
    again.confirm(&[2]);
    let confirmed = Settled::Confirmed;
    assert_eq!(again.settled(), [confirmed.clone(), confirmed.clone(), confirmed, Settled::Held]);
    let elsewhere = SinkCheckpoint { position: position("there"), left_out: Vec::new() };
    assert_eq!(parts(&batch, Some(&elsewhere)).next(), [1, 2]);
}

#[test]
fn a_named_event_parks_its_key_or_itself_and_the_rest_goes() {
    let batch = batch(&[("a", "t"), ("b", "t"), ("a", "t")]);
    let mut keyed = parts(&batch, None);
    assert!(!keyed.refuse(&[0, 1, 2], Uuid::nil(), &no()));
    assert!(keyed.refuse(&[0, 1, 2], id(&batch, 0), &no()));
    assert_eq!(keyed.next(), [1]);
    assert_eq!(keyed.left_out(&[1]), [left(&batch, 0), left(&batch, 2)]);
    keyed.confirm(&[1]);
    assert_eq!(keyed.settled(), [parked(true), Settled::Confirmed, Settled::Held]);
    let options = RelayOptions::default().poison(Poison::ParksItself);
    let mut alone = TransactionSplitter::new(&batch, None, usize::MAX, &options);
    assert!(alone.refuse(&[0, 1, 2], id(&batch, 0), &no()));
    assert_eq!(alone.next(), [1, 2]);
}

/// Publishes to a sink that fails every transaction with a bad event.
fn publish(batch: &Batch, bad: &[usize]) -> (Vec<Settled>, u32) {
    let mut parts = parts(batch, None);
    let mut transactions = 0;
    loop {
        let sending = parts.next();
        if sending.is_empty() {
            return (parts.settled(), transactions);
        }
        transactions += 1;
        assert!(transactions < 1_000);
        if sending.iter().any(|at| bad.contains(at)) {
            parts.blame(&sending, &no());
        } else {
            parts.confirm(&sending);
        }
    }
}

#[test]
fn the_one_to_blame_is_found_by_halves() {
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let events: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "t")).collect();
    let batch = batch(&events);
    for bad in 0..100 {
        let (settled, transactions) = publish(&batch, &[bad]);
        let wanted: Vec<Settled> =
            (0..100).map(|at| if at == bad { parked(false) } else { Settled::Confirmed }).collect();
        assert_eq!(settled, wanted, "{bad}");
        assert!(transactions < 40, "{bad}: {transactions}");
    }
    let all: Vec<usize> = (0..100).collect();
    assert_eq!(publish(&batch, &all).0, vec![parked(false); 100]);
}

#[test]
fn an_event_has_its_tries_and_the_next_of_its_topic_one() {
    let batch = batch(&[("a", "bad"), ("b", "bad"), ("c", "bad")]);
    let mut parts = TransactionSplitter::new(&batch, None, 1, &RelayOptions::default().attempts_max(3));
    assert!(parts.blame(&[0], &no()) && parts.blame(&[0], &no()));
    assert!(!parts.blame(&[0], &no()));
    assert!(!parts.blame(&[1], &no()));
    assert_eq!(parts.next(), [2]);
}

/// The first is left out; the second, with the same id on another topic, is published. The checkpoint tells them apart.
#[test]
fn two_events_with_one_id_are_two_events() {
    let mut batch = batch(&[("a", "t"), ("b", "u"), ("c", "u")]);
    let twin = (*batch.events[1].event).clone().with_id(id(&batch, 0));
    batch.events[1].event = std::sync::Arc::new(twin);
    let mut first = parts(&batch, None);
    assert!(!first.refuse(&[0, 1, 2], id(&batch, 0), &no()), "it could be either");
    assert!(first.refuse(&[0], id(&batch, 0), &no()));
    let left_out = first.left_out(&[1, 2]);
    assert_eq!(left_out, [LeftOut { event: id(&batch, 0), topic: Some("t".into()) }]);
    let reached = SinkCheckpoint { position: position("here"), left_out };
    assert_eq!(parts(&batch, Some(&reached)).next(), [0]);
    // As written by an older relay.
    let reached = SinkCheckpoint { position: position("here"), left_out: vec![left(&batch, 0)] };
    assert_eq!(parts(&batch, Some(&reached)).next(), [0, 1]);
}
