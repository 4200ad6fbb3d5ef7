//! Every interleaving of a small world, played through [`step`]: one intent, three workers that crash, stall
//! and come back, lost answers, claims that are given back, leases and outcomes that end, a deploy, and an operator
//! or a lookup.
//!
//! Property tests sample histories; this visits all of them up to the bounds below, each state once. What it
//! assumes of people and workers is written down as [`Rules`], and shown to be needed: with a careless
//! operator the promise does not hold, whatever the store does.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::*;

#[path = "model_world.rs"]
mod world;

use world::{Act, Broken, Budget, Doing, World};

/// What the world is assumed to do.
#[derive(Clone, Copy)]
struct Rules {
    step: Decider,
    effect: Effect,
    budget: Budget,
    /// What the next version of the code calls the effect, if there is a deploy.
    deploy: Option<Effect>,
    /// A worker says "nothing happened" only if no attempt did or can still do anything; else it speaks for its own
    /// attempt alone.
    fails_for_all: bool,
    /// The operator says "not applied" only when no attempt is left that could still apply it.
    patient: bool,
    /// A lookup decides, and not the operator.
    lookup: Option<LookupRules>,
    /// A worker that leaves its claim to be given back goes on under the same owner.
    shares_owner: bool,
    /// The downstream forgets a key after a while.
    forgets: bool,
}

/// What is assumed where a lookup decides. It knows nothing of workers, only of what has arrived.
#[derive(Clone, Copy)]
struct LookupRules {
    /// "Not found" is believed only when no call that was sent can be on the wire any more.
    settles: bool,
    /// A worker that lost its claim while it slept drops its work.
    drops_work: bool,
}

impl Rules {
    fn of(effect: Effect) -> Self {
        // An opaque claim has one owner at a time, so there are few states and a long history is affordable.
        let budget = match effect {
            Effect::Opaque => Budget { claims: 7, losses: 2, expiries: 1, decisions: 2 },
            _ => Budget { claims: 4, losses: 1, expiries: 1, decisions: 1 },
        };
        let (deploy, lookup) = (None, None);
        Self {
            step,
            effect,
            budget,
            deploy,
            fails_for_all: false,
            patient: true,
            lookup,
            shares_owner: false,
            forgets: false,
        }
    }

    /// A keyed effect whose downstream forgets the key.
    fn forgetful() -> Self {
        let budget = Budget { claims: 3, losses: 1, expiries: 1, decisions: 1 };
        Self { forgets: true, budget, ..Self::of(Effect::Keyed) }
    }

    fn looked_up(lookup: LookupRules) -> Self {
        let budget = Budget { claims: 5, losses: 2, expiries: 1, decisions: 2 };
        Self { lookup: Some(lookup), budget, ..Self::of(Effect::Opaque) }
    }
}

/// A broken law, and the shortest way there.
#[derive(Debug)]
struct Violation {
    law: Broken,
    trace: Vec<String>,
}

/// Visits every state that can be reached; returns how many there are.
fn explore(rules: &Rules) -> Result<usize, Violation> {
    // 64 bits stand for a state: among a million of them two are mixed up with a chance below one in 10^7.
    let digest = |world: &World| BuildHasherDefault::<DefaultHasher>::default().hash_one(world);
    let first = World::new(rules);
    let mut seen = HashSet::from([digest(&first)]);
    let mut steps: Vec<Taken> = vec![(0, None, Act::Sweep)];
    let mut frontier = VecDeque::from([(0, first)]);
    while let Some((number, world)) = frontier.pop_front() {
        for (at, act) in world.acts(rules) {
            let mut next = world.clone();
            let judged = next.act(rules, at, act).and_then(|()| next.check());
            steps.push((number, at.map(|at| world.workers[at]), act));
            if let Err(law) = judged {
                return Err(Violation { law, trace: trace(&steps) });
            }
            // Workers are alike: which one is which makes no other state.
            next.workers.sort_unstable();
            if seen.insert(digest(&next)) {
                frontier.push_back((steps.len() - 1, next));
            } else {
                steps.pop();
            }
        }
    }
    Ok(seen.len())
}

/// The step before, who took this one (as it was then), and what it was.
type Taken = (usize, Option<Doing>, Act);

fn trace(steps: &[Taken]) -> Vec<String> {
    let mut trace = Vec::new();
    let mut at = steps.len() - 1;
    while at > 0 {
        let (before, who, act) = steps[at];
        trace.push(match who {
            None => format!("{act:?}"),
            Some(Doing::Idle) => format!("idle: {act:?}"),
            Some(
                Doing::Asked { token, .. } | Doing::GivingBack { token, .. } | Doing::Running { token, .. },
            ) => {
                format!("owner {token}: {act:?}")
            }
        });
        at = before;
    }
    trace.reverse();
    trace
}

fn holds(name: &str, rules: &Rules) {
    match explore(rules) {
        Ok(states) => println!("{name}: {states} states"),
        Err(violation) => panic!("{name}: {violation:#?}"),
    }
}

fn breaks(name: &str, rules: &Rules) -> Violation {
    let violation = explore(rules).expect_err(name);
    println!("{name}: {violation:#?}");
    violation
}

#[test]
fn an_opaque_effect_happens_at_most_once() {
    holds("opaque", &Rules::of(Effect::Opaque));
}

#[test]
fn a_keyed_effect_counts_once() {
    holds("keyed", &Rules::of(Effect::Keyed));
}

#[test]
fn a_keyed_effect_counts_once_where_the_key_is_forgotten() {
    holds("forgotten keys", &Rules::forgetful());
}

#[test]
fn a_lookup_settles_what_a_forgotten_key_leaves_open() {
    let budget = Budget { claims: 3, losses: 1, expiries: 0, decisions: 2 };
    holds("forgotten keys, looked up", &Rules { lookup: Some(LOOKUP), budget, ..Rules::forgetful() });
}

#[test]
fn a_deploy_from_keyed_to_opaque_keeps_the_time_of_the_key() {
    let budget = Budget { claims: 3, losses: 1, expiries: 0, decisions: 1 };
    let deploy = Some(Effect::Opaque);
    holds(
        "forgotten keys, then opaque",
        &Rules { deploy, fails_for_all: true, budget, ..Rules::forgetful() },
    );
}

#[test]
fn the_model_sees_an_attempt_after_the_key_is_forgotten() {
    let careless: Decider = |head, event, now| match *event {
        StepEvent::Claim { .. } => {
            let trusted =
                head.map(|head| Head { safe_until: head.safe_until.map(|_| StoreTime(u64::MAX)), ..*head });
            let mut step = step(trusted.as_ref(), event, now);
            if let (Change::Put(next), Some(head)) = (&mut step.change, head)
                && next.safe_until == Some(StoreTime(u64::MAX))
            {
                next.safe_until = head.safe_until;
            }
            step
        }
        _ => step(head, event, now),
    };
    let violation = breaks("guard expiry is not checked", &Rules { step: careless, ..Rules::forgetful() });
    assert_eq!(violation.law, "an attempt began that may end after its key is forgotten");
}

#[test]
fn the_model_sees_a_takeover_that_begins_the_window_anew() {
    let anew: Decider = |head, event, now| {
        let mut step = step(head, event, now);
        // The model's clock stands still: one moment later stands for any.
        if let (StepEvent::Claim { window, .. }, Change::Put(next)) = (event, &mut step.change)
            && head.is_some()
        {
            next.safe_until = window.begun(StoreTime(now.0 + 1));
        }
        step
    };
    let violation = breaks("a takeover begins the window anew", &Rules { step: anew, ..Rules::forgetful() });
    assert_eq!(violation.law, "the time until which the key protects has moved");
}

#[test]
fn the_model_sees_a_failure_that_is_forgotten_with_its_key() {
    let swept: Decider = |head, event, now| {
        let mut step = step(head, event, now);
        if let (StepEvent::Finish { retention, .. }, Change::Put(next)) = (event, &mut step.change)
            && next.state == State::FailedRetryable
        {
            (next.expires_at, next.safe_until) = (retention.expiry(now), None);
        }
        step
    };
    let violation = breaks("a failure expires", &Rules { step: swept, ..Rules::forgetful() });
    assert_eq!(violation.law, "the time until which the key protects has moved");
}

#[test]
fn a_deploy_that_changes_the_effect_does_not_repeat_it() {
    // Where the key is dropped, within retention: a claim that is given back speaks for itself alone, and what is
    // forgotten is a new intent.
    for (from, to, expiries) in [(Effect::Opaque, Effect::Keyed, 1), (Effect::Keyed, Effect::Opaque, 0)] {
        let budget = Budget { claims: 3, losses: 1, expiries, decisions: 1 };
        let rules = Rules { deploy: Some(to), fails_for_all: true, budget, ..Rules::of(from) };
        holds(&format!("{from}, then {to}"), &rules);
    }
}

#[test]
fn the_model_sees_an_opaque_effect_run_again_after_its_lease() {
    let careless: Decider = |head, event, now| match (head, *event) {
        (Some(it), StepEvent::Claim { owner, fresh, lease_ms, .. }) if it.is_lapsed(now) => {
            let lease_until = now.plus_ms(lease_ms);
            Step::put(StepAnswer::Run, Head { owner, epoch: fresh, lease_until, ..*it })
        }
        _ => step(head, event, now),
    };
    let violation =
        breaks("run again after the lease", &Rules { step: careless, ..Rules::of(Effect::Opaque) });
    assert_eq!(violation.law, "the effect happened twice");
    assert!(violation.trace.iter().any(|it| it.contains("Lapse")), "{violation:#?}");
}

#[test]
fn the_model_sees_a_finish_without_the_fence() {
    let unfenced: Decider = |head, event, now| match (head, *event) {
        (Some(it), StepEvent::Finish { verdict, retention, .. }) => {
            step(head, &StepEvent::Finish { owner: it.owner, epoch: it.epoch, verdict, retention }, now)
        }
        _ => step(head, event, now),
    };
    let violation = breaks("finish without the fence", &Rules { step: unfenced, ..Rules::of(Effect::Keyed) });
    assert_eq!(violation.law, "an outcome was recorded under somebody else's claim");
}

/// What semel does not promise: "not applied" has to mean "and will not be". A worker that sleeps before its
/// effect is not stopped by a decision; nothing but its own downstream could stop it.
#[test]
fn an_operator_has_to_be_sure_that_no_worker_is_left_to_apply_it() {
    let violation = breaks("a hasty operator", &Rules { patient: false, ..Rules::of(Effect::Opaque) });
    assert_eq!(violation.law, "the effect happened twice");
    assert!(violation.trace.iter().any(|it| it.contains("NotApplied")), "{violation:#?}");
}

const LOOKUP: LookupRules = LookupRules { settles: true, drops_work: true };

#[test]
fn a_lookup_that_knows_nothing_of_workers_does_not_double_an_opaque_effect() {
    holds("a lookup", &Rules::looked_up(LOOKUP));
}

#[test]
fn a_lookup_has_to_wait_for_what_is_on_the_wire() {
    let hasty = LookupRules { settles: false, ..LOOKUP };
    let violation = breaks("a hasty lookup", &Rules::looked_up(hasty));
    assert_eq!(violation.law, "the effect happened twice");
    assert!(violation.trace.iter().any(|it| it.contains("Arrive")), "{violation:#?}");
}

#[test]
fn work_that_lost_its_claim_has_to_be_dropped_where_a_lookup_decides() {
    let goes_on = LookupRules { drops_work: false, ..LOOKUP };
    let violation = breaks("work goes on", &Rules::looked_up(goes_on));
    assert_eq!(violation.law, "the effect happened twice");
    assert!(violation.trace.iter().any(|it| it.contains("Wake")), "{violation:#?}");
}

#[test]
fn who_gives_a_claim_back_must_not_share_its_owner_with_who_runs() {
    let budget = Budget { claims: 4, losses: 1, expiries: 0, decisions: 0 };
    let rules = Rules { shares_owner: true, budget, ..Rules::of(Effect::Opaque) };
    let violation = breaks("a shared owner", &rules);
    assert!(violation.trace.iter().any(|it| it.contains("GiveBack")), "{violation:#?}");
}

/// After a takeover a worker that failed knows what it did itself, not what the attempt before it did. While
/// all attempts carry the key that is no matter; after a deploy that drops the key the next one is held.
#[test]
fn dropping_the_key_holds_what_an_earlier_attempt_may_have_done() {
    // Within retention: what is forgotten is a new intent, and an attempt from before may still be asleep.
    let budget = Budget { expiries: 0, ..Rules::of(Effect::Keyed).budget };
    let rules = Rules { deploy: Some(Effect::Opaque), budget, ..Rules::of(Effect::Keyed) };
    holds("the key is dropped", &rules);
    let trusting: Decider = |head, event, now| match (head, *event) {
        (Some(it), StepEvent::Claim { .. }) if it.state == State::FailedRetryable => {
            step(Some(&Head { owner: Owner::NONE, ..*it }), event, now)
        }
        _ => step(head, event, now),
    };
    let violation = breaks("the key is dropped and a failure believed", &Rules { step: trusting, ..rules });
    assert_eq!(violation.law, "the effect happened twice");
}
