//! Thousands of histories in virtual time, and proof that the judge can say no.

use proof::simulation::{self, Decider};
use semel::intent::state::{Answer, Change, Event, Head, Step, step};
use semel::{Effect, Epoch, StoreTime};

fn seeds() -> std::ops::Range<u64> {
    let start = testkit::seed::seed() % (1 << 40);
    let count = std::env::var("SEMEL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    start..start + count
}

#[test]
fn no_history_doubles_or_loses_an_effect() {
    let mut total = simulation::Report::default();
    for seed in seeds() {
        match simulation::run(seed) {
            Ok(report) => total.add(&report),
            Err(violation) => panic!("{violation}; replay: cargo xtask chaos --seed {}", violation.seed),
        }
    }
    println!("{total}");
    // A simulation in which nothing happens proves nothing.
    assert!(total.effects > 1_000 && total.replays > 1_000, "{total:?}");
    assert!(total.uncertain > 100 && total.decided > 100 && total.crashes > 100, "{total:?}");
}

#[test]
fn one_seed_is_one_history() {
    for seed in [1, 2, 3, 77, 12_345] {
        assert_eq!(simulation::run(seed), simulation::run(seed), "seed {seed}");
    }
}

/// Runs histories until one is refused for that reason.
fn caught(step: Decider, why: &str) {
    let mut refused = (1..3_000).filter_map(|seed| simulation::run_deciding_with(seed, step).err());
    assert!(refused.any(|violation| violation.what.contains(why)), "no history shows the bug");
}

/// An opaque effect runs again because time passed.
fn rerun_after_lapse(head: Option<&Head>, event: &Event, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), Event::Claim { .. }) if head.is_lapsed(now) => {
            step(Some(&Head { effect: Effect::Keyed, ..*head }), &keyed(event), now)
        }
        _ => step(head, event, now),
    }
}

fn keyed(event: &Event) -> Event {
    match *event {
        Event::Claim { fingerprint, owner, lease_ms, fresh, .. } => {
            Event::Claim { fingerprint, owner, effect: Effect::Keyed, lease_ms, fresh }
        }
        other => other,
    }
}

/// A completed intent may be claimed again at once: the outcome is forgotten when it is recorded.
fn forgets_outcomes(head: Option<&Head>, event: &Event, now: StoreTime) -> Step {
    let mut step = step(head, event, now);
    if let (Event::Finish { .. }, Change::Put(head)) = (event, &mut step.change) {
        head.expires_at = Some(now);
    }
    step
}

/// Whoever asks gets the claim, also while somebody is at it.
fn claims_are_not_exclusive(head: Option<&Head>, event: &Event, now: StoreTime) -> Step {
    let fair = step(head, event, now);
    if fair.answer == Answer::InFlight { step(None, event, now) } else { fair }
}

/// A fingerprint is never compared.
fn any_request_will_do(head: Option<&Head>, event: &Event, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), Event::Claim { owner, effect, lease_ms, fresh, .. }) => {
            let (fingerprint, owner, effect) = (head.fingerprint, *owner, *effect);
            let event = Event::Claim { fingerprint, owner, effect, lease_ms: *lease_ms, fresh: *fresh };
            step(Some(head), &event, now)
        }
        _ => step(head, event, now),
    }
}

/// A late outcome is refused although nobody else decided.
fn late_outcomes_are_refused(head: Option<&Head>, event: &Event, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), Event::Finish { owner, verdict, retention, .. }) if head.is_lapsed(now) => {
            let (owner, epoch) = (*owner, Epoch(u64::MAX));
            step(Some(head), &Event::Finish { owner, epoch, verdict: *verdict, retention: *retention }, now)
        }
        _ => step(head, event, now),
    }
}

#[test]
fn the_judge_catches_an_opaque_effect_that_runs_again() {
    caught(rerun_after_lapse, "effects");
}

#[test]
fn the_judge_catches_a_store_that_forgets() {
    caught(forgets_outcomes, "");
}

#[test]
fn the_judge_catches_claims_that_are_not_exclusive() {
    caught(claims_are_not_exclusive, "effects");
}

#[test]
fn the_judge_catches_a_fingerprint_that_is_not_compared() {
    caught(any_request_will_do, "two different requests");
}

#[test]
fn refusing_late_outcomes_is_safe_but_leaves_more_doubt() {
    let uncertain = |step: Decider| -> usize {
        (1..400).map(|seed| simulation::run_deciding_with(seed, step).expect("safe").uncertain).sum()
    };
    assert!(uncertain(late_outcomes_are_refused) > uncertain(step));
}
