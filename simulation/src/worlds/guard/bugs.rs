//! Planted bugs: mistakes a person could make in the store's decisions. Others are where they belong: search for
//! `stage.has`.

use semel::intent::guard_expiry::KeyWindow;
use semel::intent::policy::LEASE_MS_MAX;
use semel::intent::state::{Change, Decider, Head, Step, StepAnswer, StepEvent, step};
use semel::{Effect, Epoch, State, StoreTime};

/// All bugs that can be planted.
pub(super) const NAMES: &[&str] = &[
    "opaque effect runs again after its lease",
    "outcome forgotten when it is recorded",
    "claims are not exclusive",
    "fingerprints are not compared",
    "finish is not fenced",
    "sweep removes uncertain intents",
    "broken call taken for not applied",
    "downstream key differs by attempt",
    "leases are not renewed",
    "a finish is acknowledged before it is durable",
    "settle delay is ignored",
    "the lookup is known to the reconciler only",
    "a caller that leaves frees its claim",
    "an outage is taken for permission",
    "late outcomes are refused",
    "a lease far ahead is waited for",
    "a takeover makes the key live longer",
    "guard expiry is not checked",
];

/// The function the store decides with.
pub(super) fn decider(planted: impl Fn(&str) -> bool) -> Decider {
    let with: [(&str, Decider); 10] = [
        ("opaque effect runs again after its lease", rerun_after_lapse),
        ("outcome forgotten when it is recorded", forgets_outcomes),
        ("claims are not exclusive", claims_are_not_exclusive),
        ("fingerprints are not compared", any_request_will_do),
        ("finish is not fenced", finish_is_not_fenced),
        ("sweep removes uncertain intents", sweeps_uncertain),
        ("late outcomes are refused", late_outcomes_are_refused),
        ("a lease far ahead is waited for", far_leases_are_waited_for),
        ("a takeover makes the key live longer", takeovers_begin_the_window_anew),
        ("guard expiry is not checked", guard_expiry_is_not_checked),
    ];
    with.into_iter().find(|(name, _)| planted(name)).map_or(step, |(_, decider)| decider)
}

fn rerun_after_lapse(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), StepEvent::Claim { .. }) if head.is_lapsed(now) => {
            step(Some(&Head { effect: Effect::Keyed, ..*head }), &keyed(event), now)
        }
        _ => step(head, event, now),
    }
}

fn keyed(event: &StepEvent) -> StepEvent {
    match *event {
        StepEvent::Claim { fingerprint, owner, lease_ms, window, fresh, .. } => {
            StepEvent::Claim { fingerprint, owner, effect: Effect::Keyed, lease_ms, window, fresh }
        }
        other => other,
    }
}

/// Retention starts at the claim and not at the finish: what took longer is forgotten at once.
fn forgets_outcomes(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    let mut step = step(head, event, now);
    if let (StepEvent::Finish { .. }, Change::Put(head)) = (event, &mut step.change) {
        head.expires_at = Some(now);
    }
    step
}

/// A cache lookup instead of a claim: every caller that finds no outcome runs.
fn claims_are_not_exclusive(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    let fair = step(head, event, now);
    if fair.answer == StepAnswer::InFlight { step(None, event, now) } else { fair }
}

fn any_request_will_do(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), &StepEvent::Claim { owner, effect, lease_ms, window, fresh, .. }) => {
            let fingerprint = head.fingerprint;
            let event = StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh };
            step(Some(head), &event, now)
        }
        _ => step(head, event, now),
    }
}

/// An owner that was taken over or decided over still writes.
fn finish_is_not_fenced(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match (head, *event) {
        (Some(head), StepEvent::Finish { verdict, retention, .. }) => {
            let (owner, epoch) = (head.owner, head.epoch);
            step(Some(head), &StepEvent::Finish { owner, epoch, verdict, retention }, now)
        }
        _ => step(head, event, now),
    }
}

/// One time to live for everything.
fn sweeps_uncertain(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), StepEvent::Sweep) if head.state_at(now) == Some(State::Uncertain) => {
            Step { answer: StepAnswer::Removed, change: Change::Remove, other_recipe: false }
        }
        _ => step(head, event, now),
    }
}

/// The fence is the lease and not the epoch.
fn late_outcomes_are_refused(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match (head, event) {
        (Some(head), StepEvent::Finish { owner, verdict, retention, .. }) if head.is_lapsed(now) => {
            let (owner, epoch) = (*owner, Epoch(u64::MAX));
            step(
                Some(head),
                &StepEvent::Finish { owner, epoch, verdict: *verdict, retention: *retention },
                now,
            )
        }
        _ => step(head, event, now),
    }
}

/// A lease given while the clock was far ahead is believed.
fn far_leases_are_waited_for(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    let longest = now.plus_ms(LEASE_MS_MAX);
    let waited_for = head.map(|head| Head { lease_until: head.lease_until.min(longest), ..*head });
    step(waited_for.as_ref(), event, now)
}

/// The time until which the key protects is counted from each attempt and not from the first.
fn takeovers_begin_the_window_anew(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    let mut step = step(head, event, now);
    if let (StepEvent::Claim { window, .. }, Change::Put(next)) = (event, &mut step.change)
        && next.safe_until.is_some()
    {
        next.safe_until = window.begun(now);
    }
    step
}

/// How long the other side remembers a key is not checked.
fn guard_expiry_is_not_checked(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match *event {
        StepEvent::Claim { fingerprint, owner, effect, lease_ms, fresh, .. } => {
            let window = KeyWindow::ENDLESS;
            step(head, &StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh }, now)
        }
        _ => step(head, event, now),
    }
}
