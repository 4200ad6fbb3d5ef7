use super::*;
use crate::inbox::Identity;
use crate::source::Delivery;

fn message(n: u64, key: Option<&str>) -> (Receipt, Message) {
    copy(n, n, key)
}

/// The message with that id, delivered again under another number.
fn copy(n: u64, id: u64, key: Option<&str>) -> (Receipt, Message) {
    let mut delivery = Delivery::new(Receipt(n), "payments", n.to_string(), n.to_string());
    delivery.key = key.map(str::to_owned);
    (Receipt(n), Message::new(Identity::new("payments", &id.to_string()).unwrap(), delivery))
}

fn scheduler(keys: &[Option<&str>]) -> KeyScheduler {
    let mut scheduler = KeyScheduler::default();
    for (n, key) in (0..).zip(keys) {
        let (receipt, message) = message(n, *key);
        scheduler.add(receipt, message);
    }
    scheduler
}

fn numbers(batches: &[Batch]) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> =
        batches.iter().map(|batch| batch.messages.iter().map(|queued| queued.receipt.0).collect()).collect();
    all.sort();
    all
}

fn slots(all: usize) -> Slots {
    Slots { all, retries: all, retried_last: false }
}

fn ready(scheduler: &KeyScheduler, now: Instant, options: &ConsumerOptions) -> Vec<Vec<u64>> {
    numbers(&scheduler.ready(now, options, &HashSet::new(), slots(options.concurrency)))
}

fn failed(kind: HandlerErrorKind) -> AttemptResult {
    AttemptResult::Failed { error: "no".into(), kind, after: None, too_long: false }
}

/// A round whose failing messages are to blame.
const BLAMED: Round = Round { is_blamed: true, crowding: None };
/// A round whose failures may be an outage.
const NOT_BLAMED: Round = Round { is_blamed: false, crowding: None };

/// A call with that message begins.
fn begin(scheduler: &mut KeyScheduler, receipt: u64) {
    let messages =
        scheduler.messages.values().filter(|queued| queued.receipt.0 == receipt).cloned().collect();
    scheduler.begin(&Batch { messages, retries: true });
}

fn dead_lettered() -> Option<Verdict> {
    Some(Verdict::DeadLetter { error: "no".into() })
}

#[test]
fn a_line_is_in_one_batch_only_and_in_its_order() {
    let (a, b) = (Some("a"), Some("b"));
    let scheduler = scheduler(&[a, b, a, None, b, a]);
    let options = ConsumerOptions::default().concurrency(64);
    assert_eq!(ready(&scheduler, Instant::now(), &options), [vec![0, 2, 5], vec![1, 4], vec![3]]);
    let one_call = ConsumerOptions::default().concurrency(1);
    assert_eq!(ready(&scheduler, Instant::now(), &one_call), [[0, 1, 2, 3, 4, 5]]);
}

#[test]
fn what_stands_behind_a_call_waits_and_the_others_go_on() {
    let (a, b) = (Some("a"), Some("b"));
    let scheduler = scheduler(&[a, b, a, None, b, a]);
    let options = ConsumerOptions::default().concurrency(3);
    let busy = scheduler.messages[&0].queue();
    let ready =
        |most| numbers(&scheduler.ready(Instant::now(), &options, &HashSet::from([busy]), slots(most)));
    assert_eq!(ready(2), [vec![1, 4], vec![3]]);
    assert_eq!(ready(1), [[1, 3, 4]]);
    assert!(ready(0).is_empty());
}

#[test]
fn what_comes_again_without_a_key_stands_behind_itself_and_others_do_not() {
    let mut scheduler = scheduler(&[None, None]);
    let (receipt, again) = copy(2, 0, None);
    scheduler.add(receipt, again);
    let options = ConsumerOptions::default().concurrency(8);
    assert_eq!(ready(&scheduler, Instant::now(), &options), [vec![0, 2], vec![1]]);
    let busy = HashSet::from([scheduler.messages[&0].queue()]);
    assert_eq!(numbers(&scheduler.ready(Instant::now(), &options, &busy, slots(8))), [[1]]);
    // It moves to the front when the original is done, and is nacked when the original is lost.
    scheduler.tried(Receipt(0), AttemptResult::Done, BLAMED, Instant::now(), &options);
    assert_eq!(ready(&scheduler, Instant::now(), &options), [[1], [2]]);
    let (receipt, again) = copy(3, 1, None);
    scheduler.add(receipt, again);
    assert_eq!(scheduler.drop_lost(&[Receipt(1)]), [Receipt(3)]);
}

#[test]
fn a_full_batch_leaves_out_the_rest_of_a_line_and_not_its_middle() {
    let (a, b) = (Some("a"), Some("b"));
    let scheduler = scheduler(&[a, a, b, a, b]);
    let options = ConsumerOptions::default().concurrency(1).batch_max(2);
    assert_eq!(ready(&scheduler, Instant::now(), &options), [[0, 1]]);
}

#[test]
fn a_failed_line_rests_for_longer_each_time_and_others_go_on() {
    let (a, b) = (Some("a"), Some("b"));
    let mut scheduler = scheduler(&[a, b, a]);
    let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
    let options = ConsumerOptions::default().concurrency(1).backoff(first, longest);
    let now = Instant::now();
    assert_eq!(
        scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now, &options),
        Some(Verdict::Retry)
    );
    assert_eq!(ready(&scheduler, now, &options), [[1]]);
    // It gets the only call after the others had it, and alone.
    assert_eq!(ready(&scheduler, now + first, &options), [[0]]);
    let due = |scheduler: &KeyScheduler| scheduler.due().unwrap() - now;
    assert!(due(&scheduler) <= first);
    for most in [200, 300, 300] {
        scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now, &options);
        let rest = due(&scheduler);
        assert!(rest <= Duration::from_millis(most) && rest >= Duration::from_millis(most / 2), "{rest:?}");
    }
    // Success ends the backoff.
    scheduler.tried(Receipt(0), AttemptResult::Done, BLAMED, now, &options);
    assert_eq!((scheduler.due(), ready(&scheduler, now, &options)), (None, vec![vec![1, 2]]));
}

#[test]
fn only_what_may_be_the_message_s_fault_counts_and_poison_does_not_wait() {
    let mut scheduler = scheduler(&[Some("a"), Some("b")]);
    let options = ConsumerOptions::default().attempts_max(2);
    let now = Instant::now();
    let mut tried = |kind, round| scheduler.tried(Receipt(0), failed(kind), round, now, &options);
    for _ in 0..10 {
        assert_eq!(tried(HandlerErrorKind::Transient, BLAMED), Some(Verdict::Retry));
        assert_eq!(tried(HandlerErrorKind::Retry, NOT_BLAMED), Some(Verdict::Retry));
    }
    assert_eq!(tried(HandlerErrorKind::Retry, BLAMED), Some(Verdict::Retry));
    assert_eq!(tried(HandlerErrorKind::Retry, BLAMED), Some(Verdict::DeadLetter { error: "no".into() }));
    let at_once = scheduler.tried(Receipt(1), failed(HandlerErrorKind::Permanent), BLAMED, now, &options);
    assert_eq!(at_once, Some(Verdict::DeadLetter { error: "no".into() }));
    scheduler.dead_lettered(Receipt(0));
    scheduler.dead_lettered(Receipt(1));
    assert_eq!((scheduler.receipts(), scheduler.due()), (Vec::new(), None));
}

#[test]
fn what_was_lost_is_forgotten_and_so_is_what_would_overtake_it() {
    let (a, b) = (Some("a"), Some("b"));
    let mut scheduler = scheduler(&[a, a, b, a, a]);
    let options = ConsumerOptions::default();
    assert_eq!(scheduler.drop_lost(&[Receipt(1), Receipt(3), Receipt(7)]), [Receipt(4)]);
    assert_eq!(
        scheduler.tried(Receipt(1), failed(HandlerErrorKind::Retry), BLAMED, Instant::now(), &options),
        None
    );
    assert_eq!(scheduler.receipts(), [Receipt(0), Receipt(2)]);
    assert_eq!(scheduler.drop_lost(&[Receipt(0), Receipt(2)]), []);
    assert!(scheduler.by_name.is_empty() && scheduler.queues.is_empty() && scheduler.by_receipt.is_empty());
}

#[test]
fn a_line_does_not_go_on_before_it_was_asked_to() {
    let mut scheduler = scheduler(&[Some("a"), None]);
    let options = ConsumerOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(2));
    let (now, minute) = (Instant::now(), Duration::from_secs(60));
    let tried = AttemptResult::Failed {
        error: "busy".into(),
        kind: HandlerErrorKind::Transient,
        after: Some(minute),
        too_long: false,
    };
    scheduler.tried(Receipt(0), tried, BLAMED, now, &options);
    assert_eq!(ready(&scheduler, now + minute - Duration::from_millis(1), &options), [[1]]);
    assert_eq!(ready(&scheduler, now + minute, &options).concat().len(), 2);
}

#[test]
fn a_letter_stands_in_the_line_of_its_key_and_one_failure_is_enough() {
    let mut scheduler = scheduler(&[Some("a"), Some("b")]);
    let (receipt, dead_letter) = message(9, Some("a"));
    scheduler.add_dead_letter(receipt, dead_letter, 7);
    let options = ConsumerOptions::default().concurrency(1);
    let now = Instant::now();
    assert_eq!(ready(&scheduler, now, &options), [[0, 1, 9]]);
    assert_eq!(scheduler.receipts(), [Receipt(0), Receipt(1)], "it is not one of the source's");
    assert_eq!(scheduler.dead_letters(), HashSet::from([7]));
    // A transient failure is retried. Any other ends it, whatever else fails.
    assert_eq!(
        scheduler.tried(receipt, failed(HandlerErrorKind::Transient), NOT_BLAMED, now, &options),
        Some(Verdict::Retry)
    );
    let verdict = scheduler.tried(receipt, failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
    assert_eq!(verdict, Some(Verdict::DeadLetter { error: "no".into() }));
    // Behind a lost message it is dropped, but not nacked: the source does not know it.
    assert_eq!(scheduler.drop_lost(&[Receipt(0)]), []);
    assert!(scheduler.dead_letters().is_empty());
}

#[test]
fn a_queue_whose_front_becomes_a_dead_letter_waits_for_that_and_for_nothing_else() {
    let (a, b) = (Some("a"), Some("b"));
    let mut scheduler = scheduler(&[a, b, a]);
    let first = Duration::from_millis(100);
    let options = ConsumerOptions::default().concurrency(1).backoff(first, first);
    let now = Instant::now();
    let verdict = scheduler.tried(Receipt(0), failed(HandlerErrorKind::Permanent), BLAMED, now, &options);
    assert_eq!(verdict, Some(Verdict::DeadLetter { error: "no".into() }));
    scheduler.set_pending_dead_letter(Receipt(0), "no");
    let pending = |scheduler: &KeyScheduler, at| -> Vec<(u64, String)> {
        scheduler
            .pending_dead_letters(at)
            .into_iter()
            .map(|(queued, error)| (queued.receipt.0, error))
            .collect()
    };
    assert_eq!(pending(&scheduler, now), [], "it backs off");
    // After the backoff its dead letter is due, and neither it nor the message behind it is tried.
    assert_eq!(pending(&scheduler, now + first), [(0, "no".into())]);
    assert_eq!(ready(&scheduler, now + first, &options), [[1]]);
    assert!(
        scheduler.awaits_dead_letter(scheduler.messages[&0].queue())
            && !scheduler.awaits_dead_letter(scheduler.messages[&1].queue())
    );
    // The message behind it may be lost; it stays.
    assert_eq!(scheduler.drop_lost(&[Receipt(2)]), []);
    assert_eq!(pending(&scheduler, now + first), [(0, "no".into())]);
    let (receipt, behind) = message(3, a);
    scheduler.add(receipt, behind);
    scheduler.dead_lettered(Receipt(0));
    assert_eq!((pending(&scheduler, now + first), ready(&scheduler, now, &options)), (vec![], vec![vec![3]]));
}

#[test]
fn of_lines_that_fail_the_fronts_are_tried_apart_and_who_waits_longest_is_first() {
    let keys = ["a", "b", "c", "d", "a", "d"].map(Some);
    let mut scheduler = scheduler(&keys);
    let first = Duration::from_millis(100);
    let options = ConsumerOptions::default().backoff(first, first);
    let now = Instant::now();
    let too_long = AttemptResult::Failed {
        error: "no".into(),
        kind: HandlerErrorKind::Retry,
        after: None,
        too_long: true,
    };
    scheduler.tried(Receipt(2), failed(HandlerErrorKind::Retry), BLAMED, now, &options);
    scheduler.tried(Receipt(1), too_long, BLAMED, now + first, &options);
    scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), BLAMED, now + first * 2, &options);
    let ready = |all: usize, retried_last| {
        let slots = Slots { all, retries: all, retried_last };
        let batches = scheduler.ready(now + first * 4, &options, &HashSet::new(), slots);
        let batches = batches.iter().map(|batch| {
            (batch.retries, batch.messages.iter().map(|queued| queued.receipt.0).collect::<Vec<_>>())
        });
        batches.collect::<Vec<_>>()
    };
    assert_eq!(ready(1, true), [(false, vec![3, 5])], "the healthy queue, with all of its messages");
    assert_eq!(ready(1, false), [(true, vec![2, 0])], "fronts only, without the one that timed out");
    let both = [(false, vec![3, 5]), (true, vec![2]), (true, vec![1])];
    assert_eq!(
        ready(4, false),
        both,
        "the one that timed out is alone in its call, and has waited longer than 0"
    );
}

#[test]
fn a_failure_counts_if_anything_was_handled_since_the_one_before() {
    let mut scheduler = scheduler(&[Some("a"), Some("b"), Some("c"), Some("d")]);
    let options = ConsumerOptions::default().outage_keys_min(1).attempts_max(2);
    let now = Instant::now();
    let fail = |scheduler: &mut KeyScheduler, kind| {
        begin(scheduler, 0);
        let results = [(Receipt(0), failed(kind))];
        let round = scheduler.round(&results, now, &options);
        scheduler.tried(Receipt(0), failed(kind), round, now, &options)
    };
    let handle = |scheduler: &mut KeyScheduler, receipt| {
        let round = scheduler.round(&[(receipt, AttemptResult::Done)], now, &options);
        scheduler.tried(receipt, AttemptResult::Done, round, now, &options)
    };
    for _ in 0..10 {
        assert_eq!(
            fail(&mut scheduler, HandlerErrorKind::Retry),
            Some(Verdict::Retry),
            "nothing succeeds: an outage"
        );
    }
    handle(&mut scheduler, Receipt(1));
    assert_eq!(fail(&mut scheduler, HandlerErrorKind::Transient), Some(Verdict::Retry), "never counts");
    assert_eq!(fail(&mut scheduler, HandlerErrorKind::Retry), Some(Verdict::Retry), "one of two");
    assert_eq!(
        fail(&mut scheduler, HandlerErrorKind::Retry),
        Some(Verdict::Retry),
        "nothing was handled since"
    );
    // A message handled during the attempt is no evidence: an outage may just have ended.
    begin(&mut scheduler, 0);
    handle(&mut scheduler, Receipt(2));
    let round = scheduler.round(&[(Receipt(0), failed(HandlerErrorKind::Retry))], now, &options);
    let verdict = scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, now, &options);
    assert_eq!(verdict, Some(Verdict::Retry));
    handle(&mut scheduler, Receipt(3));
    assert_eq!(fail(&mut scheduler, HandlerErrorKind::Retry), dead_lettered());
}

#[test]
fn where_nothing_is_handled_few_are_to_blame_and_many_are_not() {
    let (options, now) = (ConsumerOptions::default().outage_keys_min(3), Instant::now());
    for (failing, done, is_blamed) in [(1, 0, true), (2, 0, true), (3, 0, false), (5, 0, false), (5, 1, true)]
    {
        let keys: Vec<String> = (0..6).map(|n| n.to_string()).collect();
        let keys: Vec<Option<&str>> = keys.iter().map(|key| Some(key.as_str())).collect();
        let mut scheduler = scheduler(&keys);
        let mut results: Vec<(Receipt, AttemptResult)> =
            (0..failing).map(|n| (Receipt(n), failed(HandlerErrorKind::Retry))).collect();
        results.extend((0..done).map(|_| (Receipt(5), AttemptResult::Done)));
        assert_eq!(
            scheduler.round(&results, now, &options).is_blamed,
            is_blamed,
            "{failing} failed, {done} done"
        );
    }
    // Over as many rounds as it takes, until something is handled.
    let mut scheduler = scheduler(&[Some("a"), Some("b"), Some("c"), Some("d")]);
    let mut round = |n, tried| scheduler.round(&[(Receipt(n), tried)], now, &options).is_blamed;
    assert!(round(0, failed(HandlerErrorKind::Retry)) && round(1, failed(HandlerErrorKind::Retry)));
    assert!(!round(2, failed(HandlerErrorKind::Retry)) && !round(0, failed(HandlerErrorKind::Retry)));
    assert!(!round(3, AttemptResult::Already), "a duplicate is no evidence");
    assert!(round(3, AttemptResult::Done) && round(0, failed(HandlerErrorKind::Retry)));
}

/// The rest of a call that hangs is not known to be innocent: otherwise the first message found alone would have all its
/// attempts before an outage is taken for one.
#[test]
fn a_call_that_hangs_is_as_many_failures_as_it_had_messages() {
    let (options, now) = (ConsumerOptions::default().outage_keys_min(3), Instant::now());
    let mut scheduler = scheduler(&[Some("a"), Some("b"), Some("c"), Some("d")]);
    let hung = |receipt| {
        let alone = AttemptResult::Failed {
            error: "no".into(),
            kind: HandlerErrorKind::Retry,
            after: None,
            too_long: true,
        };
        [
            (Receipt(receipt), alone),
            (Receipt(1), AttemptResult::Unclear),
            (Receipt(2), AttemptResult::Unclear),
        ]
    };
    assert!(!scheduler.round(&hung(0), now, &options).is_blamed);
    // They are tried again as they were, and when they are handled the one that hangs is to blame.
    assert_eq!(scheduler.tried(Receipt(1), AttemptResult::Unclear, NOT_BLAMED, now, &options), None);
    assert_eq!(ready(&scheduler, now, &options.clone().concurrency(1)), [vec![0, 1, 2, 3]]);
    assert!(scheduler.round(&[(Receipt(1), AttemptResult::Done)], now, &options).is_blamed);
    assert!(scheduler.round(&[(Receipt(0), failed(HandlerErrorKind::Retry))], now, &options).is_blamed);
}

#[test]
fn messages_of_failing_lines_take_up_no_room_up_to_as_many_again() {
    let options = ConsumerOptions::default().in_flight_max(4);
    let (now, none) = (Instant::now(), Vec::new());
    // Messages in flight: of a failing queue, and others.
    for (failing, others, unidentified, room) in [
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
        let mut scheduler = scheduler(&keys);
        if failing > 0 {
            scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
        }
        assert_eq!(
            scheduler.room(unidentified, &options),
            room,
            "{failing} failing, {others} others, {unidentified} unidentified"
        );
    }
}

#[test]
fn failing_lines_that_hold_too_much_are_given_up_sooner_while_others_are_handled() {
    let bad = Some("bad");
    let options = ConsumerOptions::default().in_flight_max(4).outage_keys_min(1).attempts_max(100);
    let now = Instant::now();
    let mut scheduler = scheduler(&[Some("small"), bad, bad, bad, bad, bad, Some("x"), Some("y")]);
    let fail = |scheduler: &mut KeyScheduler, n, at| {
        begin(scheduler, n);
        let results = [(Receipt(n), failed(HandlerErrorKind::Retry))];
        let round = scheduler.round(&results, at, &options);
        scheduler.tried(Receipt(n), failed(HandlerErrorKind::Retry), round, at, &options)
    };
    let handle = |scheduler: &mut KeyScheduler, n, at| {
        let round = scheduler.round(&[(Receipt(n), AttemptResult::Done)], at, &options);
        scheduler.tried(Receipt(n), AttemptResult::Done, round, at, &options);
    };
    for _ in 0..3 {
        assert_eq!(fail(&mut scheduler, 0, now), Some(Verdict::Retry));
        assert_eq!(fail(&mut scheduler, 1, now), Some(Verdict::Retry), "nothing is handled: an outage");
    }
    handle(&mut scheduler, 6, now);
    assert_eq!(fail(&mut scheduler, 0, now), Some(Verdict::Retry), "it holds less than its share");
    assert_eq!(fail(&mut scheduler, 1, now), dead_lettered());
    scheduler.dead_lettered(Receipt(1));
    // The next of its queue, failing for the first time: only if the handler has just been seen to work.
    let later = now + Duration::from_secs(2);
    assert_eq!(fail(&mut scheduler, 2, later), Some(Verdict::Retry));
    handle(&mut scheduler, 7, later);
    assert_eq!(fail(&mut scheduler, 2, later), dead_lettered());
    scheduler.dead_lettered(Receipt(2));
    // Now failing queues do not hold too much.
    assert_eq!(fail(&mut scheduler, 3, later), Some(Verdict::Retry));
}

/// A scheduler whose queue `a` has failed once before `b` was handled.
fn failed_before_another_was_handled(now: Instant, options: &ConsumerOptions) -> KeyScheduler {
    let mut scheduler = scheduler(&[Some("a"), Some("b"), Some("a")]);
    begin(&mut scheduler, 0);
    let verdict = scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, options);
    assert_eq!(verdict, Some(Verdict::Retry));
    scheduler.round(&[(Receipt(1), AttemptResult::Done)], now, options);
    scheduler.tried(Receipt(1), AttemptResult::Done, NOT_BLAMED, now, options);
    begin(&mut scheduler, 0);
    scheduler
}

#[test]
fn a_line_that_holds_its_share_is_given_up_when_others_were_handled_since() {
    let (now, options) = (Instant::now(), ConsumerOptions::default());
    // Handled since its last failure, however long ago. With fewer messages than its share it is not crowding.
    let table = [(1, true), (2, true), (3, false)];
    for (share, is_dead_lettered) in table {
        let mut scheduler = failed_before_another_was_handled(now, &options);
        let round = Round { is_blamed: false, crowding: Some(share) };
        let later = now + 10 * WORKED;
        let verdict = scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, later, &options);
        assert_eq!(verdict == dead_lettered(), is_dead_lettered, "a share of {share}");
    }
    // After a transient failure nothing is given up.
    let mut scheduler = failed_before_another_was_handled(now, &options);
    let round = Round { is_blamed: false, crowding: Some(1) };
    let verdict = scheduler.tried(Receipt(0), failed(HandlerErrorKind::Transient), round, now, &options);
    assert_eq!(verdict, Some(Verdict::Retry));
}

#[test]
fn a_line_that_holds_its_share_is_given_up_while_the_handler_works() {
    let (now, options) = (Instant::now(), ConsumerOptions::default());
    for (after, is_dead_lettered) in
        [(Duration::ZERO, true), (WORKED - Duration::from_millis(1), true), (WORKED, false)]
    {
        let mut scheduler = failed_before_another_was_handled(now, &options);
        // This failure comes after `b` was handled; before the next one nothing is handled.
        scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), NOT_BLAMED, now, &options);
        begin(&mut scheduler, 0);
        let round = Round { is_blamed: false, crowding: Some(2) };
        let verdict =
            scheduler.tried(Receipt(0), failed(HandlerErrorKind::Retry), round, now + after, &options);
        assert_eq!(verdict == dead_lettered(), is_dead_lettered, "{after:?} after something was handled");
    }
}
