use super::*;
use crate::inbox::Identity;
use crate::source::Delivery;

fn message(n: u64, key: Option<&str>) -> (Receipt, Message) {
    copy(n, n, key)
}

/// The message of that number, delivered under another.
fn copy(n: u64, id: u64, key: Option<&str>) -> (Receipt, Message) {
    let mut delivery = Delivery::new(Receipt(n), "payments", n.to_string(), n.to_string());
    delivery.key = key.map(str::to_owned);
    (Receipt(n), Message::new(Identity::new("payments", &id.to_string()).unwrap(), delivery))
}

fn desk(keys: &[Option<&str>]) -> KeyScheduler {
    let mut desk = KeyScheduler::default();
    for (n, key) in (0..).zip(keys) {
        let (receipt, message) = message(n, *key);
        desk.add(receipt, message);
    }
    desk
}

fn numbers(batches: &[Batch]) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> =
        batches.iter().map(|batch| batch.held.iter().map(|held| held.receipt.0).collect()).collect();
    all.sort();
    all
}

fn slots(all: usize) -> Slots {
    Slots { all, retries: all, retried_last: false }
}

fn ready(desk: &KeyScheduler, now: Instant, options: &ConsumerOptions) -> Vec<Vec<u64>> {
    numbers(&desk.ready(now, options, &HashSet::new(), slots(options.concurrency)))
}

fn failed(kind: HandlerErrorKind) -> AttemptResult {
    AttemptResult::Failed { error: "no".into(), kind, after: None, too_long: false }
}

/// A round whose failures are the messages' own.
const BLAMED: Round = Round { is_blamed: true, crowding: None };
/// A round whose failures may be nobody's.
const NOT_BLAMED: Round = Round { is_blamed: false, crowding: None };

/// A call with that message begins.
fn begin(desk: &mut KeyScheduler, receipt: u64) {
    let held = desk.held.values().filter(|held| held.receipt.0 == receipt).cloned().collect();
    desk.begin(&Batch { held, retries: true });
}

fn buried() -> Option<Verdict> {
    Some(Verdict::Bury { error: "no".into() })
}

#[test]
fn a_line_is_in_one_batch_only_and_in_its_order() {
    let (a, b) = (Some("a"), Some("b"));
    let desk = desk(&[a, b, a, None, b, a]);
    let options = ConsumerOptions::default().concurrency(64);
    assert_eq!(ready(&desk, Instant::now(), &options), [vec![0, 2, 5], vec![1, 4], vec![3]]);
    let one_call = ConsumerOptions::default().concurrency(1);
    assert_eq!(ready(&desk, Instant::now(), &one_call), [[0, 1, 2, 3, 4, 5]]);
}

#[test]
fn what_stands_behind_a_call_waits_and_the_others_go_on() {
    let (a, b) = (Some("a"), Some("b"));
    let desk = desk(&[a, b, a, None, b, a]);
    let options = ConsumerOptions::default().concurrency(3);
    let busy = desk.held[&0].line();
    let ready = |most| numbers(&desk.ready(Instant::now(), &options, &HashSet::from([busy]), slots(most)));
    assert_eq!(ready(2), [vec![1, 4], vec![3]]);
    assert_eq!(ready(1), [[1, 3, 4]]);
    assert!(ready(0).is_empty());
}

#[test]
fn what_comes_again_without_a_key_stands_behind_itself_and_others_do_not() {
    let mut desk = desk(&[None, None]);
    let (receipt, again) = copy(2, 0, None);
    desk.add(receipt, again);
    let options = ConsumerOptions::default().concurrency(8);
    assert_eq!(ready(&desk, Instant::now(), &options), [vec![0, 2], vec![1]]);
    let busy = HashSet::from([desk.held[&0].line()]);
    assert_eq!(numbers(&desk.ready(Instant::now(), &options, &busy, slots(8))), [[1]]);
    // At the front where the original was done, and given back where it was lost.
    desk.tried(Receipt(0), AttemptResult::Done, BLAMED, Instant::now(), &options);
    assert_eq!(ready(&desk, Instant::now(), &options), [[1], [2]]);
    let (receipt, again) = copy(3, 1, None);
    desk.add(receipt, again);
    assert_eq!(desk.drop_lost(&[Receipt(1)]), [Receipt(3)]);
}

#[test]
fn a_full_batch_leaves_out_the_rest_of_a_line_and_not_its_middle() {
    let (a, b) = (Some("a"), Some("b"));
    let desk = desk(&[a, a, b, a, b]);
    let options = ConsumerOptions::default().concurrency(1).batch_max(2);
    assert_eq!(ready(&desk, Instant::now(), &options), [[0, 1]]);
}

#[test]
fn a_failed_line_rests_for_longer_each_time_and_others_go_on() {
    let (a, b) = (Some("a"), Some("b"));
    let mut desk = desk(&[a, b, a]);
    let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
    let options = ConsumerOptions::default().concurrency(1).pause(first, longest);
    let now = Instant::now();
    assert_eq!(
        desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now, &options),
        Some(Verdict::Again)
    );
    assert_eq!(ready(&desk, now, &options), [[1]]);
    // It has the only call when the others have had it, and alone.
    assert_eq!(ready(&desk, now + first, &options), [[0]]);
    let rested = |desk: &KeyScheduler| desk.due().unwrap() - now;
    assert!(rested(&desk) <= first);
    for most in [200, 300, 300] {
        desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now, &options);
        let rest = rested(&desk);
        assert!(
            rest <= Duration::from_millis(most) && rest >= Duration::from_millis(most * 8 / 10),
            "{rest:?}"
        );
    }
    // Success ends the rest.
    desk.tried(Receipt(0), AttemptResult::Done, BLAMED, now, &options);
    assert_eq!((desk.due(), ready(&desk, now, &options)), (None, vec![vec![1, 2]]));
}

#[test]
fn only_what_may_be_the_message_s_fault_counts_and_poison_does_not_wait() {
    let mut desk = desk(&[Some("a"), Some("b")]);
    let options = ConsumerOptions::default().tries_max(2);
    let now = Instant::now();
    let mut tried = |kind, round| desk.tried(Receipt(0), failed(kind), round, now, &options);
    for _ in 0..10 {
        assert_eq!(tried(HandlerErrorKind::Transient, BLAMED), Some(Verdict::Again));
        assert_eq!(tried(HandlerErrorKind::Retry, NOT_BLAMED), Some(Verdict::Again));
    }
    assert_eq!(tried(HandlerErrorKind::Retry, BLAMED), Some(Verdict::Again));
    assert_eq!(tried(HandlerErrorKind::Retry, BLAMED), Some(Verdict::Bury { error: "no".into() }));
    let at_once = desk.tried(Receipt(1), failed(HandlerErrorKind::Permanent), BLAMED, now, &options);
    assert_eq!(at_once, Some(Verdict::Bury { error: "no".into() }));
    desk.buried(Receipt(0));
    desk.buried(Receipt(1));
    assert_eq!((desk.receipts(), desk.due()), (Vec::new(), None));
}

#[test]
fn what_was_lost_is_forgotten_and_so_is_what_would_overtake_it() {
    let (a, b) = (Some("a"), Some("b"));
    let mut desk = desk(&[a, a, b, a, a]);
    let options = ConsumerOptions::default();
    assert_eq!(desk.drop_lost(&[Receipt(1), Receipt(3), Receipt(7)]), [Receipt(4)]);
    assert_eq!(
        desk.tried(Receipt(1), failed(HandlerErrorKind::Retry), BLAMED, Instant::now(), &options),
        None
    );
    assert_eq!(desk.receipts(), [Receipt(0), Receipt(2)]);
    assert_eq!(desk.drop_lost(&[Receipt(0), Receipt(2)]), []);
    assert!(desk.by_name.is_empty() && desk.lines.is_empty() && desk.by_receipt.is_empty());
}

#[test]
fn a_line_does_not_go_on_before_it_was_asked_to() {
    let mut desk = desk(&[Some("a"), None]);
    let options = ConsumerOptions::default().pause(Duration::from_millis(1), Duration::from_millis(2));
    let (now, minute) = (Instant::now(), Duration::from_secs(60));
    let tried = AttemptResult::Failed {
        error: "busy".into(),
        kind: HandlerErrorKind::Transient,
        after: Some(minute),
        too_long: false,
    };
    desk.tried(Receipt(0), tried, BLAMED, now, &options);
    assert_eq!(ready(&desk, now + minute - Duration::from_millis(1), &options), [[1]]);
    assert_eq!(ready(&desk, now + minute, &options).concat().len(), 2);
}

#[test]
fn a_letter_stands_in_the_line_of_its_key_and_one_failure_is_enough() {
    let mut desk = desk(&[Some("a"), Some("b")]);
    let (receipt, letter) = message(9, Some("a"));
    desk.add_letter(receipt, letter, 7);
    let options = ConsumerOptions::default().concurrency(1);
    let now = Instant::now();
    assert_eq!(ready(&desk, now, &options), [[0, 1, 9]]);
    assert_eq!(desk.receipts(), [Receipt(0), Receipt(1)], "the source knows nothing of it");
    assert_eq!(desk.letters(), HashSet::from([7]));
    // Not the message's fault: again. Its fault: back to where it was, whatever else fails.
    assert_eq!(
        desk.tried(receipt, failed(HandlerErrorKind::Transient), NOT_BLAMED, now, &options),
        Some(Verdict::Again)
    );
    let told = desk.tried(receipt, failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
    assert_eq!(told, Some(Verdict::Bury { error: "no".into() }));
    // What would overtake a message that was lost is dropped, and is not the source's to be given back.
    assert_eq!(desk.drop_lost(&[Receipt(0)]), []);
    assert!(desk.letters().is_empty());
}

#[test]
fn a_line_whose_front_is_doomed_waits_for_its_burial_and_for_nothing_else() {
    let (a, b) = (Some("a"), Some("b"));
    let mut desk = desk(&[a, b, a]);
    let first = Duration::from_millis(100);
    let options = ConsumerOptions::default().concurrency(1).pause(first, first);
    let now = Instant::now();
    let verdict = desk.tried(Receipt(0), failed(HandlerErrorKind::Permanent), BLAMED, now, &options);
    assert_eq!(verdict, Some(Verdict::Bury { error: "no".into() }));
    desk.doom(Receipt(0), "no");
    let doomed = |desk: &KeyScheduler, at| -> Vec<(u64, String)> {
        desk.doomed(at).into_iter().map(|(held, error)| (held.receipt.0, error)).collect()
    };
    assert_eq!(doomed(&desk, now), [], "it rests");
    // The rest is over: it is buried again, and neither it nor what is behind it is tried.
    assert_eq!(doomed(&desk, now + first), [(0, "no".into())]);
    assert_eq!(ready(&desk, now + first, &options), [[1]]);
    assert!(desk.is_doomed(desk.held[&0].line()) && !desk.is_doomed(desk.held[&1].line()));
    // What is behind it may go, and it stays.
    assert_eq!(desk.drop_lost(&[Receipt(2)]), []);
    assert_eq!(doomed(&desk, now + first), [(0, "no".into())]);
    let (receipt, behind) = message(3, a);
    desk.add(receipt, behind);
    desk.buried(Receipt(0));
    assert_eq!((doomed(&desk, now + first), ready(&desk, now, &options)), (vec![], vec![vec![3]]));
}

#[test]
fn of_lines_that_fail_the_fronts_are_tried_apart_and_who_waits_longest_is_first() {
    let keys = ["a", "b", "c", "d", "a", "d"].map(Some);
    let mut desk = desk(&keys);
    let first = Duration::from_millis(100);
    let options = ConsumerOptions::default().pause(first, first);
    let now = Instant::now();
    let too_long = AttemptResult::Failed {
        error: "no".into(),
        kind: HandlerErrorKind::Retry,
        after: None,
        too_long: true,
    };
    desk.tried(Receipt(2), failed(HandlerErrorKind::Retry), BLAMED, now, &options);
    desk.tried(Receipt(1), too_long, BLAMED, now + first, &options);
    desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now + first * 2, &options);
    let ready = |all: usize, retried_last| {
        let slots = Slots { all, retries: all, retried_last };
        let batches = desk.ready(now + first * 4, &options, &HashSet::new(), slots);
        let batches = batches
            .iter()
            .map(|batch| (batch.retries, batch.held.iter().map(|held| held.receipt.0).collect::<Vec<_>>()));
        batches.collect::<Vec<_>>()
    };
    assert_eq!(ready(1, true), [(false, vec![3, 5])], "the others, with all of their line");
    assert_eq!(ready(1, false), [(true, vec![2, 0])], "fronts only, and without the one that took too long");
    let both = [(false, vec![3, 5]), (true, vec![2]), (true, vec![1])];
    assert_eq!(ready(4, false), both, "that one is alone in its call, and had to wait less than 0");
}

#[test]
fn a_failure_counts_if_anything_was_handled_since_the_one_before() {
    let mut desk = desk(&[Some("a"), Some("b"), Some("c"), Some("d")]);
    let options = ConsumerOptions::default().suspects_max(1).tries_max(2);
    let now = Instant::now();
    let fail = |desk: &mut KeyScheduler, kind| {
        begin(desk, 0);
        let told = [(Receipt(0), failed(kind))];
        let round = desk.round(&told, now, &options);
        desk.tried(Receipt(0), failed(kind), round, now, &options)
    };
    let handle = |desk: &mut KeyScheduler, receipt| {
        let round = desk.round(&[(receipt, AttemptResult::Done)], now, &options);
        desk.tried(receipt, AttemptResult::Done, round, now, &options)
    };
    for _ in 0..10 {
        assert_eq!(
            fail(&mut desk, HandlerErrorKind::Retry),
            Some(Verdict::Again),
            "nothing succeeds: an outage"
        );
    }
    handle(&mut desk, Receipt(1));
    assert_eq!(fail(&mut desk, HandlerErrorKind::Transient), Some(Verdict::Again), "never counts");
    assert_eq!(fail(&mut desk, HandlerErrorKind::Retry), Some(Verdict::Again), "one of two");
    assert_eq!(fail(&mut desk, HandlerErrorKind::Retry), Some(Verdict::Again), "nothing was handled since");
    // What was handled while it was being tried says nothing: an outage may just have ended.
    begin(&mut desk, 0);
    handle(&mut desk, Receipt(2));
    let round = desk.round(&[(Receipt(0), failed(HandlerErrorKind::Retry))], now, &options);
    let told = desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, now, &options);
    assert_eq!(told, Some(Verdict::Again));
    handle(&mut desk, Receipt(3));
    assert_eq!(fail(&mut desk, HandlerErrorKind::Retry), buried());
}

#[test]
fn where_nothing_is_handled_few_are_to_blame_and_many_are_not() {
    let (options, now) = (ConsumerOptions::default().suspects_max(3), Instant::now());
    for (failing, done, is_blamed) in [(1, 0, true), (2, 0, true), (3, 0, false), (5, 0, false), (5, 1, true)]
    {
        let keys: Vec<String> = (0..6).map(|n| n.to_string()).collect();
        let keys: Vec<Option<&str>> = keys.iter().map(|key| Some(key.as_str())).collect();
        let mut desk = desk(&keys);
        let mut told: Vec<(Receipt, AttemptResult)> =
            (0..failing).map(|n| (Receipt(n), failed(HandlerErrorKind::Retry))).collect();
        told.extend((0..done).map(|_| (Receipt(5), AttemptResult::Done)));
        assert_eq!(desk.round(&told, now, &options).is_blamed, is_blamed, "{failing} failed, {done} done");
    }
    // Over as many rounds as it takes, until something is handled.
    let mut desk = desk(&[Some("a"), Some("b"), Some("c"), Some("d")]);
    let mut round = |n, tried| desk.round(&[(Receipt(n), tried)], now, &options).is_blamed;
    assert!(round(0, failed(HandlerErrorKind::Retry)) && round(1, failed(HandlerErrorKind::Retry)));
    assert!(!round(2, failed(HandlerErrorKind::Retry)) && !round(0, failed(HandlerErrorKind::Retry)));
    assert!(!round(3, AttemptResult::Already), "it had been handled before, and shows nothing");
    assert!(round(3, AttemptResult::Done) && round(0, failed(HandlerErrorKind::Retry)));
}

#[test]
fn messages_of_failing_lines_take_up_no_room_up_to_as_many_again() {
    let options = ConsumerOptions::default().held_max(4);
    let (now, none) = (Instant::now(), Vec::new());
    // How many are held: behind a line that fails, and others.
    for (failing, others, unnamed, room) in [
        (0, 0, 0, 4),
        (0, 3, 0, 1),
        (0, 3, 1, 0),
        (4, 0, 0, 4),
        (5, 0, 0, 3),
        (4, 3, 0, 1),
        (6, 2, 0, 0),
        (9, 0, 0, 0),
    ] {
        let mut keys = vec![Some("bad"); failing];
        keys.extend(none.iter().chain(std::iter::repeat_n(&None, others)));
        let mut desk = desk(&keys);
        if failing > 0 {
            desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
        }
        assert_eq!(
            desk.room(unnamed, &options),
            room,
            "{failing} failing, {others} others, {unnamed} unnamed"
        );
    }
}

#[test]
fn failing_lines_that_hold_too_much_are_given_up_sooner_while_others_are_handled() {
    let bad = Some("bad");
    let options = ConsumerOptions::default().held_max(4).suspects_max(1).tries_max(100);
    let now = Instant::now();
    let mut desk = desk(&[Some("small"), bad, bad, bad, bad, bad, Some("x"), Some("y")]);
    let fail = |desk: &mut KeyScheduler, n, at| {
        begin(desk, n);
        let told = [(Receipt(n), failed(HandlerErrorKind::Retry))];
        let round = desk.round(&told, at, &options);
        desk.tried(Receipt(n), failed(HandlerErrorKind::Retry), round, at, &options)
    };
    let handle = |desk: &mut KeyScheduler, n, at| {
        let round = desk.round(&[(Receipt(n), AttemptResult::Done)], at, &options);
        desk.tried(Receipt(n), AttemptResult::Done, round, at, &options);
    };
    for _ in 0..3 {
        assert_eq!(fail(&mut desk, 0, now), Some(Verdict::Again));
        assert_eq!(fail(&mut desk, 1, now), Some(Verdict::Again), "nothing is handled: an outage");
    }
    handle(&mut desk, 6, now);
    assert_eq!(fail(&mut desk, 0, now), Some(Verdict::Again), "it holds less than its share");
    assert_eq!(fail(&mut desk, 1, now), buried());
    desk.buried(Receipt(1));
    // The next of its line for the first time: only if the handler was seen to work just now.
    let later = now + Duration::from_secs(2);
    assert_eq!(fail(&mut desk, 2, later), Some(Verdict::Again));
    handle(&mut desk, 7, later);
    assert_eq!(fail(&mut desk, 2, later), buried());
    desk.buried(Receipt(2));
    // They do not hold too much any more.
    assert_eq!(fail(&mut desk, 3, later), Some(Verdict::Again));
}

/// A desk whose line `a` has failed once before `b` was handled.
fn failed_before_another_was_handled(now: Instant, options: &ConsumerOptions) -> KeyScheduler {
    let mut desk = desk(&[Some("a"), Some("b"), Some("a")]);
    begin(&mut desk, 0);
    let verdict = desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, options);
    assert_eq!(verdict, Some(Verdict::Again));
    desk.round(&[(Receipt(1), AttemptResult::Done)], now, options);
    desk.tried(Receipt(1), AttemptResult::Done, NOT_BLAMED, now, options);
    begin(&mut desk, 0);
    desk
}

#[test]
fn a_line_that_holds_its_share_is_given_up_when_others_were_handled_since() {
    let (now, options) = (Instant::now(), ConsumerOptions::default());
    // Since its last failure, however long ago: with one message less, it is not crowding.
    let table = [(1, true), (2, true), (3, false)];
    for (share, is_buried) in table {
        let mut desk = failed_before_another_was_handled(now, &options);
        let round = Round { is_blamed: false, crowding: Some(share) };
        let later = now + 10 * WORKED;
        let verdict = desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, later, &options);
        assert_eq!(verdict == buried(), is_buried, "a share of {share}");
    }
    // A transient failure is not the message's own, and gives nothing up.
    let mut desk = failed_before_another_was_handled(now, &options);
    let round = Round { is_blamed: false, crowding: Some(1) };
    let verdict = desk.tried(Receipt(0), failed(HandlerErrorKind::Transient), round, now, &options);
    assert_eq!(verdict, Some(Verdict::Again));
}

#[test]
fn a_line_that_holds_its_share_is_given_up_while_the_handler_works() {
    let (now, options) = (Instant::now(), ConsumerOptions::default());
    for (after, is_buried) in
        [(Duration::ZERO, true), (WORKED - Duration::from_millis(1), true), (WORKED, false)]
    {
        let mut desk = failed_before_another_was_handled(now, &options);
        // This failure comes after what was handled; at the next one nothing was handled since.
        desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
        begin(&mut desk, 0);
        let round = Round { is_blamed: false, crowding: Some(2) };
        let verdict = desk.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, now + after, &options);
        assert_eq!(verdict == buried(), is_buried, "{after:?} after something was handled");
    }
}
