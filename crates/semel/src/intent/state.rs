//! The states of an intent, and the one function that decides every change of them.
//!
//! ```text
//!                 claim                    finish
//!      absent ───────────▶ in_progress ───────────▶ completed │ failed_final ──▶ (retention ends) ──▶ absent
//!        ▲                  │   ▲    │
//!        │        lease ran │   │    └────────────▶ failed_retryable ── claim ─▶ in_progress (next epoch)
//!        │        out and   │   │ claim, when
//!        │        opaque, or│   │ running again
//!        │        fate      ▼   │ is safe
//!        │        unknown  uncertain ── late finish by the last owner, lookup or a person's decision ─▶ finished
//!        └── never from in_progress or uncertain: those do not expire
//! ```
//!
//! That an opaque claim whose lease ran out is *uncertain* is not written anywhere: it follows from the
//! record and the store's clock ([`Head::state_at`]), so no process has to be alive to write it down. The same holds
//! for a keyed one whose key may have been forgotten downstream ([guard expiry](super::guard_expiry)): it may run again
//! until then, and is uncertain afterwards.

use super::fingerprint::{Comparison, Fingerprint};
use super::guard_expiry::{KeyWindow, may_begin};
use super::identity::{Epoch, Owner};
use super::outcome::Verdict;
use super::policy::{Effect, LEASE_MS_MAX, Retention, StoreTime};

/// The state of an intent. Absent has no record, therefore no variant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Claimed, and its owner's lease runs (or it ran out and running again is safe).
    InProgress,
    /// Done; replayed.
    Completed,
    /// Refused for good; replayed.
    FailedFinal,
    /// The same key may run again: it did not happen, or running it again is safe.
    FailedRetryable,
    /// In doubt. Waits for the last owner, a lookup or a person; never expires.
    Uncertain,
}

impl State {
    /// All of them, for tables.
    pub const ALL: [Self; 5] =
        [Self::InProgress, Self::Completed, Self::FailedFinal, Self::FailedRetryable, Self::Uncertain];

    /// Its name in metrics, on the command line and in the docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedFinal => "failed_final",
            Self::FailedRetryable => "failed_retryable",
            Self::Uncertain => "uncertain",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether it expires: in_progress and uncertain never do.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::FailedFinal | Self::FailedRetryable)
    }

    /// The verdict on an intent whose outcome every caller gets as a replay; `None` in any other state.
    pub(crate) fn replayed_as(self) -> Option<Verdict> {
        match self {
            Self::Completed => Some(Verdict::Completed),
            Self::FailedFinal => Some(Verdict::FailedFinal),
            Self::InProgress | Self::FailedRetryable | Self::Uncertain => None,
        }
    }
}

impl From<Verdict> for State {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Completed => Self::Completed,
            Verdict::FailedFinal => Self::FailedFinal,
            Verdict::FailedRetryable => Self::FailedRetryable,
            Verdict::Uncertain => Self::Uncertain,
        }
    }
}

/// The part of a record that [`step`] decides by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Head {
    /// As stored; [`state_at`](Head::state_at) is what holds.
    pub state: State,
    /// What protected the effect when it was claimed.
    pub effect: Effect,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// The last owner that claimed it.
    pub owner: Owner,
    /// The fence.
    pub epoch: Epoch,
    /// When the owner's lease ends.
    pub lease_until: StoreTime,
    /// When a finished outcome is forgotten; `None` is never.
    pub expires_at: Option<StoreTime>,
    /// Until when the downstream remembers the key of a keyed effect: set by the first attempt and never moved. `None`:
    /// its operation does not say, or there is nothing left to protect because the outcome is known. "Not applied" keeps
    /// a time that is still ahead.
    pub safe_until: Option<StoreTime>,
}

impl Head {
    /// The state that holds at `now`; `None` when it has expired, which is the same as absent.
    pub fn state_at(&self, now: StoreTime) -> Option<State> {
        match self.state {
            State::InProgress
                if self.is_lapsed(now) && !(self.effect.may_rerun() && self.is_safe(now, 0)) =>
            {
                Some(State::Uncertain)
            }
            // It does not expire: what was forgotten would run again, under a key that is forgotten downstream.
            State::FailedRetryable if self.safe_until.is_some() => {
                Some(if self.is_safe(now, 0) { State::FailedRetryable } else { State::Uncertain })
            }
            state if state.is_finished() && self.expires_at.is_some_and(|at| at <= now) => None,
            state => Some(state),
        }
    }

    /// In progress, and the lease ran out. A lease that ends later than any may was given while the store's clock was
    /// far ahead; when it would have ended is unknown, and it is not waited for.
    pub fn is_lapsed(&self, now: StoreTime) -> bool {
        let runs = now < self.lease_until && self.lease_until <= now.plus_ms(LEASE_MS_MAX);
        self.state == State::InProgress && !runs
    }

    /// Whether the key still protects an attempt that begins now and may take `call_ms`.
    pub fn is_safe(&self, now: StoreTime, call_ms: u64) -> bool {
        may_begin(now, call_ms, self.safe_until)
    }

    /// Whether another attempt is refused only because the key may be forgotten downstream before it ends.
    pub fn is_guard_expired(&self, now: StoreTime, call_ms: u64) -> bool {
        (self.state == State::FailedRetryable || self.is_lapsed(now)) && !self.is_safe(now, call_ms)
    }

    /// It may run again, and no attempt so far had an effect: an opaque one failed and nothing happened, or it was
    /// decided. There is nothing to protect, and the next attempt is a first one: unless it sends a key that was sent
    /// before and is not forgotten yet.
    fn is_untouched(&self, next: Effect) -> bool {
        let undone = !self.effect.may_rerun() || self.owner == Owner::NONE;
        let is_key_new = self.safe_until.is_none() || !next.may_rerun();
        self.state == State::FailedRetryable && undone && is_key_new
    }
}

/// What a person or a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ruling {
    /// It happened, with this result.
    Applied(Verdict),
    /// It did not happen, and will not any more: the same key may run again. Ruling this on an effect that is still
    /// on its way makes it happen twice.
    NotApplied,
    /// A remembered outcome is withdrawn: the same key may run again.
    Release,
}

/// Something that happens to an intent. Epochs marked `fresh` come from the store and were never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepEvent {
    /// A caller wants to run it.
    Claim {
        /// What it asks for.
        fingerprint: Fingerprint,
        /// The caller's token.
        owner: Owner,
        /// What protects the effect if it runs.
        effect: Effect,
        /// How long the lease lasts without renewal.
        lease_ms: u64,
        /// How long the key protects a keyed effect.
        window: KeyWindow,
        /// The epoch it gets if it may run.
        fresh: Epoch,
    },
    /// The owner renews its lease.
    Renew {
        /// The owner.
        owner: Owner,
        /// The epoch of its claim.
        epoch: Epoch,
        /// The new lease, from now.
        lease_ms: u64,
    },
    /// The owner records the outcome.
    Finish {
        /// The owner.
        owner: Owner,
        /// The epoch of its claim.
        epoch: Epoch,
        /// How it ended.
        verdict: Verdict,
        /// How long that is remembered.
        retention: Retention,
    },
    /// A person or a lookup decides what happened.
    Decide {
        /// The epoch of the record they saw: a decision is only about that.
        seen: Epoch,
        /// What they found.
        ruling: Ruling,
        /// How long that is remembered.
        retention: Retention,
        /// The epoch of the decided record, which fences the last owner.
        fresh: Epoch,
    },
    /// Housekeeping removes what has expired.
    Sweep,
}

/// The answer to an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StepAnswer {
    /// Run it; the claim is yours.
    Run,
    /// Another request has this key.
    Mismatch,
    /// Another attempt is running.
    InFlight,
    /// It is done: replay the stored outcome.
    Replay,
    /// It is unknown whether it happened.
    Unknown,
    /// Renewed or recorded.
    Done,
    /// It was recorded before by this very owner; nothing changed.
    Already,
    /// The claim is no longer yours, or the decision is about something that has changed.
    Stale,
    /// There is nothing to decide (it runs, or it is finished) or nothing to release.
    Refused,
    /// Still needed.
    Kept,
    /// Forgotten.
    Removed,
}

/// What happens to the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing is written.
    None,
    /// This is what is stored now.
    Put(Head),
    /// The record goes away.
    Remove,
}

/// What one event does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// For the caller.
    pub answer: StepAnswer,
    /// For the record.
    pub change: Change,
    /// The stored fingerprint was made with another recipe, so it could not be compared. Counted.
    pub other_recipe: bool,
}

impl Step {
    fn keep(answer: StepAnswer) -> Self {
        Self { answer, change: Change::None, other_recipe: false }
    }

    fn put(answer: StepAnswer, head: Head) -> Self {
        Self { answer, change: Change::Put(head), other_recipe: false }
    }
}

/// The type of [`step`]. Tests put a function with a planted bug in its place.
pub type Decider = fn(Option<&Head>, &StepEvent, StoreTime) -> Step;

/// Decides. All stores do what this function says; those that decide in SQL or Lua are tested against it.
pub fn step(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    match *event {
        StepEvent::Claim { .. } => claim(head, event, now),
        StepEvent::Renew { owner, epoch, lease_ms } => match head {
            // A lapsed lease is not revived: another caller may have got the answer "uncertain" already.
            Some(head)
                if head.owner == owner
                    && head.epoch == epoch
                    && head.state == State::InProgress
                    && !head.is_lapsed(now) =>
            {
                Step::put(StepAnswer::Done, Head { lease_until: now.plus_ms(lease_ms), ..*head })
            }
            _ => Step::keep(StepAnswer::Stale),
        },
        StepEvent::Finish { owner, epoch, verdict, retention } => match head {
            Some(head) if head.owner == owner && head.epoch == epoch => finish(head, verdict, retention, now),
            _ => Step::keep(StepAnswer::Stale),
        },
        StepEvent::Decide { seen, ruling, retention, fresh } => match head {
            Some(head) if head.epoch == seen && head.state_at(now).is_some() => {
                decide(head, ruling, retention, fresh, now)
            }
            _ => Step::keep(StepAnswer::Stale),
        },
        StepEvent::Sweep => match head {
            Some(head) if head.state_at(now).is_none() => {
                Step { answer: StepAnswer::Removed, change: Change::Remove, other_recipe: false }
            }
            _ => Step::keep(StepAnswer::Kept),
        },
    }
}

fn claim(head: Option<&Head>, event: &StepEvent, now: StoreTime) -> Step {
    let StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh } = *event else {
        return Step::keep(StepAnswer::Refused);
    };
    let taken = |epoch: Epoch, safe_until: Option<StoreTime>| Head {
        state: State::InProgress,
        // What an earlier attempt did under the key is protected by the key alone.
        effect: if safe_until.is_some() { Effect::Keyed } else { effect },
        fingerprint,
        owner,
        epoch,
        lease_until: now.plus_ms(lease_ms),
        expires_at: None,
        safe_until,
    };
    let begun = if effect == Effect::Keyed { window.begun(now) } else { None };
    let Some(head) = head else { return Step::put(StepAnswer::Run, taken(fresh, begun)) };
    // A store that makes epochs from its clock may have seen it step back; the fence must not.
    let epoch = fresh.max(head.epoch.next());
    let Some(state) = head.state_at(now) else { return Step::put(StepAnswer::Run, taken(epoch, begun)) };

    // Mismatch comes before in-flight, and in-flight before replay: a client's bug must not look transient.
    let comparison = fingerprint.compare(&head.fingerprint);
    if comparison == Comparison::Different {
        return Step::keep(StepAnswer::Mismatch);
    }
    let safe = head.is_safe(now, window.call_ms);
    let decided = match state {
        // The same attempt asks again because it never saw our answer: the claim is already its own.
        State::InProgress if head.owner == owner && !head.is_lapsed(now) && safe => {
            Step::keep(StepAnswer::Run)
        }
        State::InProgress if head.owner != owner && !head.is_lapsed(now) => Step::keep(StepAnswer::InFlight),
        // The earlier attempt was protected (else it were uncertain); the next one has to be as well, to its end.
        State::InProgress if effect.may_rerun() && safe && head.is_lapsed(now) => {
            Step::put(StepAnswer::Run, taken(epoch, head.safe_until))
        }
        State::InProgress | State::Uncertain => Step::keep(StepAnswer::Unknown),
        State::Completed | State::FailedFinal => Step::keep(StepAnswer::Replay),
        // A protected attempt that failed speaks for itself, not for the one it took over from. While all attempts
        // carry the key that does not matter; for one that does not, a lookup or a person has to find out first.
        State::FailedRetryable
            if head.effect.may_rerun() && !effect.may_rerun() && head.owner != Owner::NONE =>
        {
            Step::keep(StepAnswer::Unknown)
        }
        State::FailedRetryable if head.is_untouched(effect) => {
            Step::put(StepAnswer::Run, taken(epoch, begun))
        }
        State::FailedRetryable if safe => Step::put(StepAnswer::Run, taken(epoch, head.safe_until)),
        State::FailedRetryable => Step::keep(StepAnswer::Unknown),
    };
    Step { other_recipe: comparison == Comparison::OtherRecipe, ..decided }
}

/// The caller has checked owner and epoch. The fence is the epoch, not the lease: until another attempt claims or a
/// decision is made, the last owner knows best, however late.
fn finish(head: &Head, verdict: Verdict, retention: Retention, now: StoreTime) -> Step {
    if head.state.is_finished() || head.state == State::from(verdict) {
        return Step::keep(StepAnswer::Already);
    }
    Step::put(StepAnswer::Done, finished(head, verdict, retention, now))
}

fn decide(head: &Head, ruling: Ruling, retention: Retention, fresh: Epoch, now: StoreTime) -> Step {
    // What failed retryably may be corrected too: it did happen after all, or it surely did not.
    let open = matches!(head.state, State::Uncertain | State::FailedRetryable) || head.is_lapsed(now);
    let verdict = match ruling {
        Ruling::Applied(Verdict::Uncertain) => return Step::keep(StepAnswer::Refused),
        Ruling::Applied(verdict) if open => verdict,
        Ruling::NotApplied if open => Verdict::FailedRetryable,
        // A failure whose key protects for a while is not an outcome to withdraw: it says nothing about the attempts
        // before it. It may run again while the key protects, and has to be ruled on afterwards.
        Ruling::Release if head.state.is_finished() && head.safe_until.is_none() => Verdict::FailedRetryable,
        _ => return Step::keep(StepAnswer::Refused),
    };
    // From here on it is known what the attempts so far did: an attempt that follows is a first one. But the downstream
    // may know the key since the very first one, without having done anything, and forgets it on time.
    let (owner, epoch) = (Owner::NONE, fresh.max(head.epoch.next()));
    let safe_until = head.safe_until.filter(|until| ruling == Ruling::NotApplied && now < *until);
    let head = Head { owner, epoch, safe_until, ..*head };
    Step::put(StepAnswer::Done, finished(&head, verdict, retention, now))
}

fn finished(head: &Head, verdict: Verdict, retention: Retention, now: StoreTime) -> Head {
    let state = State::from(verdict);
    // An owner that failed, or does not know, says nothing about the attempts before it: the key still counts.
    let safe_until = head.safe_until.filter(|_| state.replayed_as().is_none());
    // Retention starts here, at the finish; what is not finished has none.
    let expires_at = if state.is_finished() && safe_until.is_none() { retention.expiry(now) } else { None };
    Head { state, expires_at, safe_until, ..*head }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model;
