use proptest::prelude::*;

use super::*;

const HALF: u64 = 1 << 63;

fn policy() -> RetryPolicy {
    RetryPolicy::default()
        .attempts_max(4)
        .time_max(Duration::from_secs(60))
        .backoff(Duration::from_millis(100), Duration::from_secs(1))
}

fn first() -> Moment {
    Moment {
        attempts: 1,
        elapsed: Duration::from_secs(1),
        sendable: Duration::from_secs(3_600),
        random: HALF,
    }
}

fn answer(status: u16) -> Signals {
    Signals::status(StatusCode::from_u16(status).unwrap())
}

fn coded(status: u16, code: Code) -> Signals {
    Signals { code: Some(code), ..answer(status) }
}

#[test]
fn what_is_tried_again_and_what_is_not() {
    let says = |signals: Signals, said| Signals { should_retry: Some(said), ..signals };
    let replayed = |signals: Signals| Signals { replayed: true, ..signals };
    let table: &[(ResponseClass, Option<Why>)] = &[
        (ResponseClass::NotSent, None),
        (ResponseClass::Lost, None),
        (ResponseClass::TimedOut, None),
        (ResponseClass::Answer(answer(200)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(202)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(303)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(400)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(402)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(409)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(422)), Some(Why::Answered)),
        (ResponseClass::Answer(answer(408)), None),
        (ResponseClass::Answer(answer(425)), None),
        (ResponseClass::Answer(answer(429)), None),
        (ResponseClass::Answer(answer(500)), None),
        (ResponseClass::Answer(answer(502)), None),
        (ResponseClass::Answer(answer(503)), None),
        (ResponseClass::Answer(answer(599)), None),
        (ResponseClass::Answer(coded(409, Code::InProgress)), None),
        (ResponseClass::Answer(coded(202, Code::InProgress)), None),
        (ResponseClass::Answer(coded(409, Code::AttemptFailed)), None),
        (ResponseClass::Answer(coded(503, Code::StoreUnavailable)), None),
        (ResponseClass::Answer(coded(503, Code::Busy)), None),
        (ResponseClass::Answer(coded(503, Code::Draining)), None),
        (ResponseClass::Answer(coded(409, Code::Reused)), Some(Why::Mismatch)),
        (ResponseClass::Answer(coded(422, Code::Reused)), Some(Why::Mismatch)),
        (ResponseClass::Answer(coded(409, Code::Uncertain)), Some(Why::Uncertain)),
        (ResponseClass::Answer(coded(500, Code::Uncertain)), Some(Why::Uncertain)),
        (ResponseClass::Answer(coded(412, Code::KeyExpired)), Some(Why::Problem(Code::KeyExpired))),
        (ResponseClass::Answer(coded(500, Code::AnswerLost)), Some(Why::AnswerLost)),
        (ResponseClass::Answer(coded(502, Code::AnswerLost)), Some(Why::AnswerLost)),
        (ResponseClass::Answer(coded(400, Code::KeyInvalid)), Some(Why::Problem(Code::KeyInvalid))),
        // Headers win over the status, but not over a mismatch or a doubt,
        // and they do not make a success be retried.
        (ResponseClass::Answer(says(answer(409), true)), None),
        (ResponseClass::Answer(says(answer(404), true)), None),
        (ResponseClass::Answer(says(answer(503), false)), Some(Why::ServerSaysNo)),
        (ResponseClass::Answer(says(coded(503, Code::Busy), false)), Some(Why::Problem(Code::Busy))),
        (ResponseClass::Answer(says(answer(200), true)), Some(Why::Answered)),
        (ResponseClass::Answer(says(coded(409, Code::Reused), true)), Some(Why::Mismatch)),
        (ResponseClass::Answer(says(coded(409, Code::Uncertain), true)), Some(Why::Uncertain)),
        (ResponseClass::Answer(says(coded(500, Code::AnswerLost), true)), Some(Why::AnswerLost)),
        (ResponseClass::Answer(replayed(coded(500, Code::AnswerLost))), Some(Why::AnswerLost)),
        // What is replayed would be replayed again.
        (ResponseClass::Answer(replayed(answer(500))), Some(Why::Answered)),
    ];
    for (seen, why) in table {
        match (decide(&policy(), &first(), seen), why) {
            (RetryDecision::Retry { .. }, None) => {}
            (RetryDecision::Stop { why }, Some(expected)) => assert_eq!(why, *expected, "{seen:?}"),
            (decision, _) => panic!("{seen:?}: {decision:?}"),
        }
    }
}

#[test]
fn waits_double_up_to_their_bound_and_chance_takes_a_share() {
    let wait_ms = |attempts, random| {
        let policy = policy().attempts_max(100);
        match decide(&policy, &Moment { attempts, random, ..first() }, &ResponseClass::Lost) {
            RetryDecision::Retry { after } => after.as_millis(),
            stop => panic!("{stop:?}"),
        }
    };
    assert_eq!([1, 2, 3, 4, 5, 99].map(|n| wait_ms(n, HALF)), [50, 100, 200, 400, 500, 500]);
    assert_eq!((wait_ms(3, 0), wait_ms(3, u64::MAX)), (0, 399));
}

#[test]
fn retry_after_is_waited_for_and_never_in_vain() {
    let busy = |seconds| {
        ResponseClass::Answer(Signals { retry_after: Some(Duration::from_secs(seconds)), ..answer(503) })
    };
    let decided = |seconds, moment| decide(&policy(), &moment, &busy(seconds));
    let after = Duration::from_millis(3_050);
    assert_eq!(decided(3, first()), RetryDecision::Retry { after });
    // 59 seconds are left: a retry that would begin later is not waited for.
    assert!(matches!(decided(58, first()), RetryDecision::Retry { .. }));
    assert_eq!(decided(59, first()), RetryDecision::Stop { why: Why::Time });
    assert_eq!(decided(u64::MAX, first()), RetryDecision::Stop { why: Why::Time });
    let old = Moment { sendable: Duration::from_secs(3), ..first() };
    assert_eq!(decided(3, old), RetryDecision::Stop { why: Why::Retention });
}

#[test]
fn the_budget_has_an_end() {
    let stop = |moment| decide(&policy(), &moment, &ResponseClass::Lost);
    assert_eq!(stop(Moment { attempts: 4, ..first() }), RetryDecision::Stop { why: Why::Attempts });
    let late = Moment { elapsed: Duration::from_secs(60), ..first() };
    assert_eq!(stop(late), RetryDecision::Stop { why: Why::Time });
    let old = Moment { sendable: Duration::ZERO, ..first() };
    assert_eq!(stop(old), RetryDecision::Stop { why: Why::Retention });
}

#[test]
fn what_is_known_in_the_end() {
    use Known::{Answered, InDoubt, NotSent, Refused};
    let lost = coded(500, Code::AnswerLost);
    let later = |signals: Signals| Signals { retry_after: Some(Duration::ZERO), ..signals };
    let replayed = |signals: Signals| Signals { replayed: true, ..signals };
    // (earlier attempt in doubt, why, seen) → known
    let table: &[(bool, Why, ResponseClass, Known)] = &[
        (false, Why::Attempts, ResponseClass::NotSent, NotSent),
        (true, Why::Attempts, ResponseClass::NotSent, InDoubt),
        (false, Why::Attempts, ResponseClass::Lost, InDoubt),
        (false, Why::Time, ResponseClass::TimedOut, InDoubt),
        (true, Why::Answered, ResponseClass::Answer(answer(201)), Answered),
        (true, Why::Answered, ResponseClass::Answer(answer(402)), Answered),
        (true, Why::Answered, ResponseClass::Answer(replayed(answer(500))), Answered),
        // A token that expired says nothing about the attempt before.
        (false, Why::Answered, ResponseClass::Answer(answer(401)), Answered),
        (true, Why::Answered, ResponseClass::Answer(answer(401)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(answer(429)), Refused),
        (true, Why::Attempts, ResponseClass::Answer(answer(429)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(later(answer(503))), Refused),
        (false, Why::Attempts, ResponseClass::Answer(answer(503)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(answer(500)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(answer(501)), Refused),
        (false, Why::Attempts, ResponseClass::Answer(coded(409, Code::InProgress)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(coded(202, Code::InProgress)), InDoubt),
        (false, Why::Attempts, ResponseClass::Answer(coded(502, Code::AttemptFailed)), InDoubt),
        (false, Why::Uncertain, ResponseClass::Answer(coded(409, Code::Uncertain)), InDoubt),
        (true, Why::Mismatch, ResponseClass::Answer(coded(409, Code::Reused)), Refused),
        (false, Why::Problem(Code::KeyInvalid), ResponseClass::Answer(coded(400, Code::KeyInvalid)), Refused),
        (true, Why::Problem(Code::KeyInvalid), ResponseClass::Answer(coded(400, Code::KeyInvalid)), InDoubt),
        (false, Why::Problem(Code::KeyExpired), ResponseClass::Answer(coded(412, Code::KeyExpired)), InDoubt),
        (false, Why::AnswerLost, ResponseClass::Answer(lost), Known::AnswerLost),
        (true, Why::AnswerLost, ResponseClass::Answer(lost), Known::AnswerLost),
        (true, Why::AnswerLost, ResponseClass::Answer(replayed(lost)), Known::AnswerLost),
    ];
    for (doubt, why, seen, known) in table {
        assert_eq!(conclude(*doubt, *why, seen), *known, "{doubt} {why:?} {seen:?}");
    }
}

#[test]
fn every_code_of_the_contract_is_decided_as_the_contract_says() {
    let contract = include_str!("../../../../../docs/http-contract.md");
    let (_, contract) = contract.split_once("## What to retry").unwrap();
    let (contract, _) = contract.split_once("\n## ").unwrap();
    for code in Code::ALL {
        let spelled = format!("`{}`", code.as_str());
        let row = contract.lines().find(|line| line.starts_with('|') && line.contains(&spelled));
        let verdict = row.unwrap().split('|').nth(3).unwrap().trim();
        let decision = decide(&policy(), &first(), &ResponseClass::Answer(coded(409, code)));
        let retried = matches!(decision, RetryDecision::Retry { .. });
        assert_eq!(retried, verdict.starts_with("yes"), "{spelled}: {verdict}");
    }
}

fn any_seen() -> impl Strategy<Value = ResponseClass> {
    let code = prop::option::of(prop::sample::select(Code::ALL.to_vec()));
    let retry_after = prop::option::of((0u64..200_000).prop_map(Duration::from_millis));
    let answer = (100u16..600, code, any::<Option<bool>>(), retry_after, any::<bool>()).prop_map(
        |(status, code, should_retry, retry_after, replayed)| {
            let status = StatusCode::from_u16(status).unwrap();
            ResponseClass::Answer(Signals { status, code, should_retry, retry_after, replayed })
        },
    );
    prop_oneof![
        Just(ResponseClass::NotSent),
        Just(ResponseClass::Lost),
        Just(ResponseClass::TimedOut),
        answer
    ]
}

proptest! {
    #[test]
    fn a_retry_is_always_within_the_budget(
        seen in any_seen(),
        attempts in 1u32..20,
        elapsed_ms in 0u64..200_000,
        sendable_ms in 0u64..200_000,
        random: u64,
    ) {
        let (elapsed, sendable) = (Duration::from_millis(elapsed_ms), Duration::from_millis(sendable_ms));
        let policy = policy();
        let moment = Moment { attempts, elapsed, sendable, random };
        if let RetryDecision::Retry { after } = decide(&policy, &moment, &seen) {
            prop_assert!(attempts < policy.attempts_max);
            prop_assert!(elapsed + after < policy.time_max);
            prop_assert!(after < sendable);
            if let ResponseClass::Answer(Signals { retry_after: Some(asked), .. }) = seen {
                prop_assert!(after >= asked);
            }
        }
    }

    #[test]
    fn a_mismatch_a_doubt_and_a_success_are_never_sent_again(seen in any_seen(), random: u64) {
        let ResponseClass::Answer(signals) = seen else { return Ok(()) };
        let last = (signals.status.as_u16() < 400 && !signals.is_under_way())
            || matches!(signals.code, Some(Code::Reused | Code::Uncertain | Code::AnswerLost))
            || signals.should_retry == Some(false);
        if last {
            let decision = decide(&policy(), &Moment { random, ..first() }, &seen);
            prop_assert!(matches!(decision, RetryDecision::Stop { .. }), "{:?}", decision);
        }
    }

    /// A caller that gets "nothing happened" or "refused" can rely on it.
    #[test]
    fn doubt_only_ends_with_an_answer_to_the_intent(seen in any_seen()) {
        if conclude(true, Why::Attempts, &seen) != Known::InDoubt {
            prop_assert!(matches!(seen, ResponseClass::Answer(signals) if settles(&signals)));
        }
        if leaves_doubt(&seen) {
            prop_assert_ne!(conclude(false, Why::Attempts, &seen), Known::NotSent);
        }
    }
}
