//! The record of one intent, and how it changes.

use std::sync::Arc;

use crate::intent::identity::Intent;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::state::{Change, Decider, Head, Ruling, State, Step, StepEvent};

use super::{Claim, Decide, Existing, Finish, Ticket};
use crate::intent::identity::Epoch;

/// Most bytes of a decision's `by`.
const DECISION_BY_BYTES_MAX: usize = 200;
/// Most bytes of a decision's `why`.
const DECISION_WHY_BYTES_MAX: usize = 2_000;

/// The record of one intent.
#[derive(Clone, Debug)]
pub struct Record {
    /// The intent.
    pub intent: Intent,
    /// What the state machine decides by.
    pub head: Head,
    /// How many times it was claimed.
    pub attempts: u32,
    /// When it was first claimed.
    pub created_at: StoreTime,
    /// When its stored state last changed.
    pub changed_at: StoreTime,
    /// The outcome that later callers get as a replay.
    pub outcome: Option<Outcome>,
    /// The last decision made about it.
    pub decision: Option<Decision>,
}

/// Who decided what, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// `applied`, `not_applied` or `released`.
    pub ruling: String,
    /// Who decided.
    pub by: String,
    /// The reason given.
    pub why: String,
    /// When, by the store's clock.
    pub at: StoreTime,
}

impl Decision {
    /// Cuts `by` and `why` to their limits.
    pub fn new(decide: &Decide, at: StoreTime) -> Self {
        let ruling = match decide.ruling {
            Ruling::Applied(_) => "applied",
            Ruling::NotApplied => "not_applied",
            Ruling::Release => "released",
        };
        Self {
            ruling: ruling.to_owned(),
            by: shortened(&decide.by, DECISION_BY_BYTES_MAX),
            why: shortened(&decide.why, DECISION_WHY_BYTES_MAX),
            at,
        }
    }
}

fn shortened(text: &str, bytes_max: usize) -> String {
    let end = text.floor_char_boundary(bytes_max);
    text[..end].to_owned()
}

impl Record {
    /// The state that holds at `now`; `None` when it has expired.
    pub fn state_at(&self, now: StoreTime) -> Option<State> {
        self.head.state_at(now)
    }

    /// When the state that holds at `now` began. An opaque claim became uncertain when its lease ended.
    pub fn since(&self, now: StoreTime) -> StoreTime {
        if self.head.is_lapsed(now) { self.head.lease_until } else { self.changed_at }
    }

    /// Whether it is unfinished and its key may be forgotten downstream within that time, or is already.
    pub fn expires_within(&self, now: StoreTime, ms: u64) -> bool {
        self.head.safe_until.is_some_and(|until| until <= now.plus_ms(ms))
    }

    /// The answer to a claim that found this record.
    pub fn existing(self, now: StoreTime, other_recipe: bool) -> Existing {
        Existing { record: Arc::new(self), now, other_recipe }
    }

    /// The ticket of the claim this record holds.
    pub fn ticket(&self, other_recipe: bool) -> Ticket {
        Ticket {
            id: self.intent.id(),
            owner: self.head.owner,
            epoch: self.head.epoch,
            attempt: self.attempts,
            lease_until: self.head.lease_until,
            safe_until: self.head.safe_until,
            other_recipe,
        }
    }
}

/// Decides a claim. All stores that decide in Rust change their records here, so that they behave alike. `step` is
/// [`step`](crate::intent::state::step), except where a test plants a bug.
pub(super) fn on_claim(
    step: Decider,
    before: Option<&Record>,
    claim: &Claim,
    fresh: Epoch,
    now: StoreTime,
) -> (Step, Option<Record>) {
    let event = StepEvent::Claim {
        fingerprint: claim.fingerprint,
        owner: claim.owner,
        effect: claim.effect,
        lease_ms: claim.lease_ms,
        window: claim.window,
        fresh,
    };
    let step = step(before.map(|record| &record.head), &event, now);
    let Change::Put(head) = step.change else { return (step, None) };
    // An expired record counts as absent: only its epoch carries over.
    let before = before.filter(|record| record.state_at(now).is_some());
    let record = Record {
        intent: claim.intent.clone(),
        head,
        attempts: before.map_or(1, |record| record.attempts.saturating_add(1)),
        created_at: before.map_or(now, |record| record.created_at),
        changed_at: now,
        outcome: None,
        decision: before.and_then(|record| record.decision.clone()),
    };
    (step, Some(record))
}

/// As [`on_claim`], for an owner's outcome. The record is changed in place.
pub(super) fn on_finish(
    step: Decider,
    record: &mut Record,
    ticket: &Ticket,
    finish: Finish,
    now: StoreTime,
) -> Step {
    let event = StepEvent::Finish {
        owner: ticket.owner,
        epoch: ticket.epoch,
        verdict: finish.verdict,
        retention: finish.retention,
    };
    let step = step(Some(&record.head), &event, now);
    if let Change::Put(head) = step.change {
        record.head = head;
        record.changed_at = now;
        record.outcome = finish.outcome;
    }
    step
}

/// As [`on_claim`], for a decision. The record is changed in place.
pub(super) fn on_decide(
    step: Decider,
    record: &mut Record,
    decide: &Decide,
    fresh: Epoch,
    now: StoreTime,
) -> Step {
    let event =
        StepEvent::Decide { seen: decide.seen, ruling: decide.ruling, retention: decide.retention, fresh };
    let step = step(Some(&record.head), &event, now);
    if let Change::Put(head) = step.change {
        record.head = head;
        record.changed_at = now;
        record.outcome = decide.outcome.clone();
        record.decision = Some(Decision::new(decide, now));
    }
    step
}
