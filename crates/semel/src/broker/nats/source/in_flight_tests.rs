use super::*;

fn in_flight(sequences: &[u64], until: Instant) -> LeasedInFlight {
    let mut in_flight = LeasedInFlight::default();
    sequences.iter().for_each(|sequence| arrive(&mut in_flight, *sequence, until, false));
    in_flight
}

fn arrive(in_flight: &mut LeasedInFlight, sequence: u64, until: Instant, ahead: bool) {
    let mut delivery = Delivery::new(Receipt(0), "s", sequence.to_string(), "");
    delivery.deliveries = Some(1);
    in_flight.arrived(sequence, delivery, Subject::from(format!("ack.{sequence}")), until, ahead);
}

fn positions(given: &[Delivery]) -> Vec<&str> {
    given.iter().map(|delivery| delivery.place.as_str()).collect()
}

fn returned(in_flight: &mut LeasedInFlight) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(reply) = in_flight.next_returned() {
        in_flight.is_returned();
        all.push(reply.to_string());
    }
    all
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn what_is_given_back_comes_before_what_was_never_given() {
    let mut in_flight = in_flight(&[1, 2, 3, 4], later());
    let first = in_flight.give(3);
    assert_eq!(positions(&first), ["1", "2", "3"]);
    in_flight.settle(&[(first[1].receipt, Settle::Nack), (first[2].receipt, Settle::Nack)]);
    let second = in_flight.give(10);
    assert_eq!(positions(&second), ["2", "3", "4"]);
    assert_eq!(second[0].deliveries, Some(2));
    // The old receipts are invalid.
    assert!(in_flight.settle(&[(first[1].receipt, Settle::Ack)]).is_empty());
}

#[test]
fn an_ack_is_sent_until_the_server_confirms_it() {
    let mut in_flight = in_flight(&[1], later());
    let given = in_flight.give(1);
    let done = [(given[0].receipt, Settle::Ack)];
    assert_eq!(in_flight.settle(&done).len(), 1);
    assert_eq!(in_flight.settle(&done).len(), 1, "not confirmed yet");
    assert_eq!(in_flight.pending(u64::MAX), 0, "the server may have it all the same");
    in_flight.settle(&[(given[0].receipt, Settle::Nack)]);
    assert!(in_flight.give(1).is_empty(), "an ack is final");
    in_flight.ack_confirmed(given[0].receipt);
    assert!(in_flight.settle(&done).is_empty());
    assert_eq!(in_flight.pending(u64::MAX), 0);
}

#[test]
fn a_lease_that_ran_out_takes_everything_with_it() {
    let now = Instant::now();
    let mut in_flight = in_flight(&[1, 2], now);
    arrive(&mut in_flight, 3, later(), false);
    let given = in_flight.give(1);
    assert!(in_flight.expire(now));
    assert_eq!(in_flight.lost(), [given[0].receipt]);
    assert_eq!(returned(&mut in_flight), ["ack.3"], "the server redelivers the others anyway");
    assert_eq!(in_flight.pending(u64::MAX), 0);
    assert!(in_flight.settle(&[(given[0].receipt, Settle::Ack)]).is_empty());
}

#[test]
fn what_is_kept_is_ours_for_longer() {
    let (now, later) = (Instant::now(), later());
    let mut in_flight = in_flight(&[1, 2, 3], now);
    let given = in_flight.give(2);
    let kept: Vec<u64> =
        in_flight.to_keep(&[given[0].receipt]).into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(kept, [1, 3], "the leases of waiting messages are extended too");
    in_flight.extended(&[1, 2, 3], later);
    assert_eq!(in_flight.first_until(), Some(later));
    assert!(!in_flight.expire(now));
    assert!(in_flight.lost().is_empty());
}

#[test]
fn what_comes_again_from_the_server_replaces_what_we_had() {
    let mut in_flight = in_flight(&[1, 2], later());
    let given = in_flight.give(1);
    arrive(&mut in_flight, 1, later(), false);
    arrive(&mut in_flight, 2, later(), false);
    assert_eq!(in_flight.lost(), [given[0].receipt]);
    assert_eq!(positions(&in_flight.give(10)), ["1", "2"]);
}

#[test]
fn what_is_ahead_of_others_is_held_back() {
    let mut in_flight = LeasedInFlight::default();
    arrive(&mut in_flight, 5, later(), true);
    arrive(&mut in_flight, 2, later(), false);
    assert_eq!(positions(&in_flight.give(10)), ["2"]);
    arrive(&mut in_flight, 4, later(), true);
    in_flight.release();
    assert_eq!(positions(&in_flight.give(10)), ["4", "5"]);
}

#[test]
fn who_leaves_gives_back_what_is_not_done() {
    let mut in_flight = in_flight(&[1, 2, 3], later());
    let given = in_flight.give(2);
    in_flight.settle(&[(given[0].receipt, Settle::Ack)]);
    in_flight.give_up(|_| true);
    assert_eq!(returned(&mut in_flight), ["ack.2", "ack.3"]);
}

#[test]
fn of_a_stream_that_was_made_anew_nothing_is_said() {
    let now = Instant::now();
    let mut in_flight = in_flight(&[1], now);
    arrive(&mut in_flight, 2, later(), false);
    in_flight.give(1);
    assert!(in_flight.expire(now));
    in_flight.lost();
    assert!(in_flight.next_returned().is_some());
    for sequence in 3..=6 {
        arrive(&mut in_flight, sequence, later(), sequence == 6);
    }
    let given = in_flight.give(2);
    in_flight.settle(&[(given[0].receipt, Settle::Ack)]);
    in_flight.abandon();
    assert_eq!(in_flight.lost(), [given[0].receipt, given[1].receipt]);
    assert!(returned(&mut in_flight).is_empty());
    assert!(in_flight.settle(&[(given[0].receipt, Settle::Ack)]).is_empty());
    assert_eq!(in_flight.pending(u64::MAX), 0);
}

#[test]
fn what_the_server_does_not_know_to_have_sent_is_not_among_those_it_waits_for() {
    let mut in_flight = in_flight(&[1, 2, 3], later());
    in_flight.give(1);
    arrive(&mut in_flight, 4, later(), true);
    assert_eq!([1, 3, 4].map(|up_to| in_flight.pending(up_to)), [1, 3, 4]);
}

#[test]
fn what_came_again_and_is_held_back_is_not_overtaken_by_what_came_with_it_before() {
    let mut in_flight = in_flight(&[1, 2, 3, 4], later());
    let given = in_flight.give(2);
    // The server has forgotten that it sent the second one, and redelivers it.
    arrive(&mut in_flight, 2, later(), true);
    assert_eq!(in_flight.lost(), [given[1].receipt]);
    assert!(in_flight.give(4).is_empty(), "they are behind it");
    in_flight.release();
    assert_eq!(in_flight.give(4).len(), 3);
}
