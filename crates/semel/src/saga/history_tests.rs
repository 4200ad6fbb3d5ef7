//! What comes next, as tables: a journal in words, and the answer.

use std::time::Duration;

use super::*;
use crate::saga::entry::NewEntry;

const S: fn(u64) -> StoreTime = |seconds| StoreTime(seconds * 1_000);

/// `0 reserve#0 begin 1` : at second 0, attempt 1 of `reserve#0` begins. `charge!0` is the pivot, `reserve~0` an undo.
fn history(text: &str) -> History {
    let mut history = History::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words[1].find(['#', '!', '~']).unwrap();
        let op = match &words[1][at..=at] {
            "!" => Op::Pivot,
            "~" => Op::Undo,
            _ => Op::Forward,
        };
        let step = StepId { name: words[1][..at].to_owned(), nth: words[1][at + 1..].parse().unwrap() };
        let kind = EntryKind::ALL.into_iter().find(|kind| kind.as_str() == words[2]).unwrap();
        let attempt = words.get(3).map_or(1, |text| text.parse().unwrap());
        let safe = match kind {
            EntryKind::Begin if words.get(4) == Some(&"safe") => Safe::ForMs(60_000),
            _ => Safe::Always,
        };
        let body = match (kind, words.get(4)) {
            (EntryKind::Begin, _) | (EntryKind::Decided, None) => None,
            (_, Some(body)) => Some(Bytes::copy_from_slice(body.as_bytes())),
            (_, None) => Some(Bytes::from_static(b"why")),
        };
        let input = (kind == EntryKind::Begin).then(|| Bytes::from_static(b"in"));
        let entry = NewEntry { kind, step, op, attempt, safe, input, body };
        history.push(entry.stamp(history.next_seq(), 1, S(words[0].parse().unwrap())));
    }
    history
}

fn keyed() -> StepSpec {
    StepSpec::keyed("s").timeout(Duration::from_secs(10)).settle(Duration::from_secs(10)).attempts_max(3)
}

fn opaque() -> StepSpec {
    StepSpec { effect: crate::Effect::Opaque, undo_effect: crate::Effect::Opaque, ..keyed() }
}

fn next(text: &str, spec: &StepSpec, now: u64) -> Next {
    let history = history(text);
    let step = StepId { name: "s".into(), nth: 0 };
    let undo = text.contains('~');
    history.progress(&step, undo).unwrap().next(spec, undo, S(now))
}

fn attempt(attempt: u32) -> Next {
    Next::Attempt { attempt, safe: Safe::Always }
}

#[test]
fn a_result_that_is_unknown() {
    use ParkReason::{GuardExpired, UndoStuck, UnknownResult};
    let looked = opaque().with_lookup();
    let cases = [
        // Keyed: again with its key, after the backoff of 200 ms.
        ("0 s#0 begin 1", keyed(), 0, Next::Wait(StoreTime(200))),
        ("0 s#0 begin 1", keyed(), 1, attempt(2)),
        ("0 s#0 begin 1\n1 s#0 unknown 1", keyed(), 2, attempt(2)),
        ("0 s#0 begin 1\n1 s#0 begin 2\n2 s#0 begin 3", keyed(), 99, Next::Park(UnknownResult, None)),
        // Opaque: never again by itself.
        ("0 s#0 begin 1", opaque(), 99, Next::Park(UnknownResult, None)),
        ("0 s#0 begin 1\n1 s#0 unknown 1", opaque(), 99, Next::Park(UnknownResult, None)),
        // With a lookup: not before the call and what it sent are over.
        ("0 s#0 begin 1", looked.clone(), 20, Next::Wait(S(21))),
        ("0 s#0 begin 1", looked.clone(), 21, Next::LookUp),
        ("0 s#0 begin 1\n21 s#0 unknown 0", looked.clone(), 21, Next::Park(UnknownResult, Some(S(22)))),
        ("0 s#0 begin 1\n21 s#0 unknown 0", looked.clone(), 22, Next::LookUp),
        // The lookup, or a person, found out. The bound of attempts goes on.
        ("0 s#0 begin 1\n21 s#0 decided 0", looked.clone(), 22, attempt(2)),
        ("0 s#0 begin 1\n20 s#0 decided 0 result", looked, 20, Next::Settled),
        // The participant's key protects for 60 s; an attempt needs a second to start, 10 s, and 5 s to spare.
        ("0 s#0 begin 1 safe", keyed(), 43, Next::Attempt { attempt: 2, safe: Safe::Until(S(60)) }),
        ("0 s#0 begin 1 safe", keyed(), 44, Next::Park(GuardExpired, None)),
        // A takeover does not make it live longer.
        ("0 s#0 begin 1 safe\n40 s#0 begin 2 safe", keyed(), 46, Next::Park(GuardExpired, None)),
        // An undo that is unknown is tried again where it may be, and otherwise stuck.
        ("0 s~0 begin 1", keyed(), 1, attempt(2)),
        ("0 s~0 begin 1", opaque(), 99, Next::Park(UndoStuck, None)),
        ("0 s~0 begin 1\n1 s~0 refused 1", keyed(), 9, Next::Park(UndoStuck, None)),
        ("0 s~0 begin 1\n1 s~0 begin 2\n2 s~0 begin 3", keyed(), 99, Next::Park(UndoStuck, None)),
        ("0 s~0 begin 1\n1 s~0 refused 1\n5 s~0 decided 0", keyed(), 6, attempt(2)),
    ];
    for (text, spec, now, expected) in cases {
        assert_eq!(next(text, &spec, now), expected, "{text} at {now} s, {}", spec.effect);
    }
}

#[test]
fn a_failure_without_effect() {
    let failed = "0 s#0 begin 1\n1 s#0 failed 1";
    assert_eq!(next(failed, &opaque(), 2), attempt(2), "also where nothing protects: it did not happen");
    let thrice =
        "0 s#0 begin 1\n1 s#0 failed 1\n2 s#0 begin 2\n3 s#0 failed 2\n4 s#0 begin 3\n5 s#0 failed 3";
    assert_eq!(next(thrice, &keyed(), 99), Next::GiveUp(Bytes::from_static(b"why")));
    // One of the attempts may have had an effect: giving up would forget it.
    let perhaps = "0 s#0 begin 1\n2 s#0 begin 2\n3 s#0 failed 2\n4 s#0 begin 3\n5 s#0 failed 3";
    assert_eq!(next(perhaps, &keyed(), 99), Next::Park(ParkReason::UnknownResult, None));
    // The key is old, and no attempt had an effect: there is nothing to protect, and its time begins anew.
    let old = "0 s#0 begin 1 safe\n1 s#0 failed 1";
    let anew = Next::Attempt { attempt: 2, safe: Safe::ForMs(60_000) };
    assert_eq!(next(old, &keyed().safe_for(Duration::from_secs(60)), 50), anew);
    // But not where one of them may have had one.
    let perhaps = "0 s#0 begin 1 safe\n1 s#0 begin 2 safe\n2 s#0 failed 2";
    assert_eq!(next(perhaps, &keyed(), 50), Next::Park(ParkReason::GuardExpired, None));
}

#[test]
fn undoing_goes_backwards_and_settles_first() {
    let undo = |text: &str| match history(text).undo_next(|name| name == "read") {
        UndoNext::Settle(step) => format!("settle {step}"),
        UndoNext::Undo { step, result, after, .. } => {
            let result = result.map(|result| String::from_utf8(result.to_vec()).unwrap());
            format!("undo {step} {result:?} {after:?}")
        }
        UndoNext::PastPivot => "past the pivot".to_owned(),
        UndoNext::Finished => "finished".to_owned(),
    };
    let two = "0 a#0 begin 1\n1 a#0 done 1 A\n2 b#0 begin 1\n3 b#0 done 1 B\n";
    let cases = [
        ("", "finished"),
        (two, "undo b#0 Some(\"B\") None"),
        (&format!("{two} 4 b~0 begin 1"), "undo b#0 Some(\"B\") None"),
        (&format!("{two} 4 b~0 begin 1\n5 b~0 done 1"), "undo a#0 Some(\"A\") None"),
        (&format!("{two} 4 b~0 begin 1\n5 b~0 done 1\n6 a~0 begin 1\n7 a~0 done 1"), "finished"),
        // What is open is settled first, whatever comes after it.
        (&format!("{two} 4 c#0 begin 1"), "settle c#0"),
        (&format!("{two} 4 c#0 begin 1\n5 c#0 unknown 1"), "settle c#0"),
        // Refused or failed: nothing to undo, unless an earlier attempt is unknown.
        (&format!("{two} 4 c#0 begin 1\n5 c#0 refused 1"), "undo b#0 Some(\"B\") None"),
        (
            &format!("{two} 4 c#0 begin 1\n5 c#0 begin 2\n6 c#0 refused 2"),
            "undo c#0 None Some(StoreTime(5000))",
        ),
        (
            &format!("{two} 4 c#0 begin 1\n5 c#0 begin 2\n6 c#0 failed 2"),
            "undo c#0 None Some(StoreTime(5000))",
        ),
        (&format!("{two} 4 c#0 begin 1\n5 c#0 unknown 1\n6 c#0 decided 0"), "undo b#0 Some(\"B\") None"),
        // A step that leaves nothing, and the same step twice.
        ("0 read#0 begin 1\n1 read#0 done 1 R", "finished"),
        ("0 a#0 begin 1\n1 a#0 done 1 A\n2 a#1 begin 1\n3 a#1 done 1 A1", "undo a#1 Some(\"A1\") None"),
        // Nothing is undone past the pivot; a pivot whose result is unknown is settled.
        (&format!("{two} 4 c!0 begin 1\n5 c!0 done 1"), "past the pivot"),
        (&format!("{two} 4 c!0 begin 1"), "settle c#0"),
        (&format!("{two} 4 c!0 begin 1\n5 c!0 refused 1"), "undo b#0 Some(\"B\") None"),
    ];
    for (text, expected) in cases {
        assert_eq!(undo(text), expected, "{text}");
    }
}

#[test]
fn what_is_written_gets_the_journals_time() {
    let mut history = history("0 s#0 begin 1 safe");
    let step = StepId { name: "s".into(), nth: 0 };
    let begin = NewEntry {
        kind: EntryKind::Begin,
        step: step.clone(),
        op: Op::Forward,
        attempt: 2,
        safe: Safe::ForMs(5),
        input: None,
        body: None,
    };
    history.push(begin.clone().stamp(1, 1, S(1)));
    history.restamp(1, vec![begin], 1, S(7));
    let progress = history.progress(&step, false).unwrap();
    assert_eq!((progress.began_at, progress.safe_until, history.next_seq()), (S(7), Some(S(60)), 2));
}
