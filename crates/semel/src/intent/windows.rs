//! The failure windows, derived from [`step`] itself: where the docs say what happens after a crash, they print this
//! table, and a test keeps the two in step.

use std::fmt::Write;

use super::fingerprint::Fingerprint;
use super::guard_expiry::KeyWindow;
use super::identity::{Epoch, Owner};
use super::outcome::Verdict;
use super::policy::{Effect, Retention, StoreTime};
use super::state::{Change, Head, State, StepAnswer, StepEvent, step};

/// A place where things break, between two steps of the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// The process dies before it claims.
    BeforeClaim,
    /// It dies after the claim, before the effect.
    BeforeEffect,
    /// It dies after the effect, before the outcome is recorded.
    AfterEffect,
    /// It lives, but the call broke after it was sent (or panicked, or timed out).
    BrokenCall,
    /// It stalls beyond its lease and comes back with the outcome.
    StalledOwner,
    /// The store fails when the outcome is to be recorded, and comes back later.
    StoreLost,
    /// It dies after the outcome is recorded, before the caller has the answer.
    BeforeAnswer,
}

impl Window {
    /// All of them, in the order of the flow.
    pub const ALL: [Self; 7] = [
        Self::BeforeClaim,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::BrokenCall,
        Self::StalledOwner,
        Self::StoreLost,
        Self::BeforeAnswer,
    ];

    fn description(self) -> &'static str {
        match self {
            Self::BeforeClaim => "killed before the claim",
            Self::BeforeEffect => "killed between claim and effect",
            Self::AfterEffect => "killed between effect and finish",
            Self::BrokenCall => "call broke after it was sent, panicked or timed out",
            Self::StalledOwner => "owner stalls beyond its lease, then finishes",
            Self::StoreLost => "store fails at the finish, returns later",
            Self::BeforeAnswer => "killed between finish and answer",
        }
    }
}

const LEASE_MS: u64 = 30_000;
const START: StoreTime = StoreTime(0);
const EARLY: StoreTime = StoreTime(1_000);
const LATE: StoreTime = StoreTime(LEASE_MS);

fn claim(effect: Effect, owner: u8, fresh: u64) -> StepEvent {
    StepEvent::Claim {
        fingerprint: Fingerprint::from_parts([0; 32], 0),
        owner: Owner::from_bytes([owner; 16]),
        effect,
        lease_ms: LEASE_MS,
        window: KeyWindow::ENDLESS,
        fresh: Epoch(fresh),
    }
}

fn finish(verdict: Verdict) -> StepEvent {
    let (owner, epoch, retention) = (Owner::from_bytes([1; 16]), Epoch(1), Retention::DAY);
    StepEvent::Finish { owner, epoch, verdict, retention }
}

fn after(head: Option<Head>, event: &StepEvent, now: StoreTime) -> Option<Head> {
    match step(head.as_ref(), event, now).change {
        Change::None => head,
        Change::Put(head) => Some(head),
        Change::Remove => None,
    }
}

/// The verdict of an owner who lives but does not know what its call did.
pub fn unknown_fate(effect: Effect) -> Verdict {
    if effect.may_rerun() { Verdict::FailedRetryable } else { Verdict::Uncertain }
}

/// What is stored after the failure, before another attempt comes.
fn left_behind(window: Window, effect: Effect) -> Option<Head> {
    // In one commit with the rows there is nothing to see before the commit, and all of it after.
    if effect == Effect::Atomic && window != Window::BeforeAnswer {
        return None;
    }
    let claimed = after(None, &claim(effect, 1, 1), START);
    match window {
        Window::BeforeClaim => None,
        Window::BeforeEffect | Window::AfterEffect | Window::StalledOwner | Window::StoreLost => claimed,
        Window::BrokenCall => after(claimed, &finish(unknown_fate(effect)), EARLY),
        Window::BeforeAnswer => after(claimed, &finish(Verdict::Completed), EARLY),
    }
}

fn retry(head: Option<Head>, effect: Effect, now: StoreTime) -> &'static str {
    match step(head.as_ref(), &claim(effect, 2, 2), now).answer {
        StepAnswer::Run => "runs",
        StepAnswer::InFlight => "in progress",
        StepAnswer::Replay => "replay",
        StepAnswer::Unknown => "uncertain: held",
        _ => "refused",
    }
}

fn late_finish(window: Window, head: Option<Head>, effect: Effect) -> &'static str {
    if !matches!(window, Window::StalledOwner | Window::StoreLost) || effect == Effect::Atomic {
        return "–";
    }
    let alone = step(head.as_ref(), &finish(Verdict::Completed), LATE).answer;
    let retried = after(head, &claim(effect, 2, 2), LATE);
    let beaten = step(retried.as_ref(), &finish(Verdict::Completed), LATE).answer;
    match (alone, beaten) {
        (StepAnswer::Done, StepAnswer::Done) => "accepted → completed",
        (StepAnswer::Done, StepAnswer::Stale) => "accepted, unless a retry took over",
        _ => "refused",
    }
}

/// The table of the docs, in Markdown.
pub fn table() -> String {
    let mut out = String::from(
        "| failure | `effect` | left behind | retry within the lease | retry after the lease | the last owner's late outcome |\n\
         |---|---|---|---|---|---|\n",
    );
    for window in Window::ALL {
        for effect in Effect::ALL {
            let head = left_behind(window, effect);
            let left = match head.and_then(|head| head.state_at(EARLY)) {
                None => "nothing",
                Some(State::InProgress) => "in_progress, uncertain once the lease ends",
                Some(state) => state.as_str(),
            };
            let left = if effect.may_rerun() { left.split(',').next().unwrap_or(left) } else { left };
            let (within, later) = (retry(head, effect, EARLY), retry(head, effect, LATE));
            let late = late_finish(window, head, effect);
            let _ = writeln!(
                out,
                "| {} | `{effect}` | {left} | {within} | {later} | {late} |",
                window.description()
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_docs_print_this_table() {
        let docs = include_str!("../../../../docs/guarantees.md");
        let shown = docs.split("<!-- windows -->\n").nth(1).unwrap();
        assert_eq!(
            shown,
            super::table(),
            "docs/guarantees.md is out of step; put this between the marks:\n{}",
            super::table()
        );
    }
}
