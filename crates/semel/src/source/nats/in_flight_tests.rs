use super::*;

fn held(sequences: &[u64], until: Instant) -> InFlight {
    let mut held = InFlight::default();
    sequences.iter().for_each(|sequence| come(&mut held, *sequence, until, false));
    held
}

fn come(held: &mut InFlight, sequence: u64, until: Instant, ahead: bool) {
    let mut delivery = Delivery::new(Receipt(0), "s", sequence.to_string(), "");
    delivery.deliveries = Some(1);
    held.came(sequence, delivery, Subject::from(format!("ack.{sequence}")), until, ahead);
}

fn places(given: &[Delivery]) -> Vec<&str> {
    given.iter().map(|delivery| delivery.place.as_str()).collect()
}

fn returned(held: &mut InFlight) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(reply) = held.next_returned() {
        held.is_returned();
        all.push(reply.to_string());
    }
    all
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn what_is_given_back_comes_before_what_was_never_given() {
    let mut held = held(&[1, 2, 3, 4], later());
    let first = held.give(3);
    assert_eq!(places(&first), ["1", "2", "3"]);
    held.settle(&[(first[1].receipt, Settle::Nack), (first[2].receipt, Settle::Nack)]);
    let second = held.give(10);
    assert_eq!(places(&second), ["2", "3", "4"]);
    assert_eq!(second[0].deliveries, Some(2));
    // The old receipts are worth nothing.
    assert!(held.settle(&[(first[1].receipt, Settle::Ack)]).is_empty());
}

#[test]
fn what_is_done_is_told_until_the_server_knows_it() {
    let mut held = held(&[1], later());
    let given = held.give(1);
    let done = [(given[0].receipt, Settle::Ack)];
    assert_eq!(held.settle(&done).len(), 1);
    assert_eq!(held.settle(&done).len(), 1, "nobody said that it was heard");
    assert_eq!(held.pending(u64::MAX), 0, "it may have been heard all the same");
    held.settle(&[(given[0].receipt, Settle::Nack)]);
    assert!(held.give(1).is_empty(), "what is done stays done");
    held.told(given[0].receipt);
    assert!(held.settle(&done).is_empty());
    assert_eq!(held.pending(u64::MAX), 0);
}

#[test]
fn a_lease_that_ran_out_takes_everything_with_it() {
    let now = Instant::now();
    let mut held = held(&[1, 2], now);
    come(&mut held, 3, later(), false);
    let given = held.give(1);
    assert!(held.expire(now));
    assert_eq!(held.lost(), [given[0].receipt]);
    assert_eq!(returned(&mut held), ["ack.3"], "the server has the others by itself");
    assert_eq!(held.pending(u64::MAX), 0);
    assert!(held.settle(&[(given[0].receipt, Settle::Ack)]).is_empty());
}

#[test]
fn what_is_kept_is_ours_for_longer() {
    let (now, later) = (Instant::now(), later());
    let mut held = held(&[1, 2, 3], now);
    let given = held.give(2);
    let kept: Vec<u64> =
        held.to_keep(&[given[0].receipt]).into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(kept, [1, 3], "what waits is kept too");
    held.kept(&[1, 2, 3], later);
    assert_eq!(held.first_until(), Some(later));
    assert!(!held.expire(now));
    assert!(held.lost().is_empty());
}

#[test]
fn what_comes_again_from_the_server_replaces_what_we_had() {
    let mut held = held(&[1, 2], later());
    let given = held.give(1);
    come(&mut held, 1, later(), false);
    come(&mut held, 2, later(), false);
    assert_eq!(held.lost(), [given[0].receipt]);
    assert_eq!(places(&held.give(10)), ["1", "2"]);
}

#[test]
fn what_is_ahead_of_others_is_held_back() {
    let mut held = InFlight::default();
    come(&mut held, 5, later(), true);
    come(&mut held, 2, later(), false);
    assert_eq!(places(&held.give(10)), ["2"]);
    come(&mut held, 4, later(), true);
    held.release();
    assert_eq!(places(&held.give(10)), ["4", "5"]);
}

#[test]
fn who_leaves_gives_back_what_is_not_done() {
    let mut held = held(&[1, 2, 3], later());
    let given = held.give(2);
    held.settle(&[(given[0].receipt, Settle::Ack)]);
    held.give_up(|_| true);
    assert_eq!(returned(&mut held), ["ack.2", "ack.3"]);
}

#[test]
fn of_a_stream_that_was_made_anew_nothing_is_said() {
    let now = Instant::now();
    let mut held = held(&[1], now);
    come(&mut held, 2, later(), false);
    held.give(1);
    assert!(held.expire(now));
    held.lost();
    assert!(held.next_returned().is_some());
    for sequence in 3..=6 {
        come(&mut held, sequence, later(), sequence == 6);
    }
    let given = held.give(2);
    held.settle(&[(given[0].receipt, Settle::Ack)]);
    held.abandon();
    assert_eq!(held.lost(), [given[0].receipt, given[1].receipt]);
    assert!(returned(&mut held).is_empty());
    assert!(held.settle(&[(given[0].receipt, Settle::Ack)]).is_empty());
    assert_eq!(held.pending(u64::MAX), 0);
}

#[test]
fn what_the_server_does_not_know_to_have_sent_is_not_among_those_it_waits_for() {
    let mut held = held(&[1, 2, 3], later());
    held.give(1);
    come(&mut held, 4, later(), true);
    assert_eq!([1, 3, 4].map(|up_to| held.pending(up_to)), [1, 3, 4]);
}

#[test]
fn what_came_again_and_is_held_back_is_not_overtaken_by_what_came_with_it_before() {
    let mut held = held(&[1, 2, 3, 4], later());
    let given = held.give(2);
    // The server has forgotten that it sent the second, and sends it once more.
    come(&mut held, 2, later(), true);
    assert_eq!(held.lost(), [given[1].receipt]);
    assert!(held.give(4).is_empty(), "they are behind it");
    held.release();
    assert_eq!(held.give(4).len(), 3);
}
