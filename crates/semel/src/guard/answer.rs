//! Input and result types of the guard.

use std::time::Duration;

use crate::intent::identity::{Epoch, Intent, IntentId};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::Effect;
use crate::intent::windows::unknown_fate;
use crate::store::StoreError;

/// What the work gets to know about its run.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Which intent.
    pub intent: Intent,
    /// Attempt number, starting at 1.
    pub number: u32,
    /// The fencing token: pass it on where the downstream can compare it. `None` when running unguarded.
    pub epoch: Option<Epoch>,
}

impl Attempt {
    /// The idempotency key for one remote call of this work: the same on every retry, so that the other side can
    /// recognise it.
    pub fn child(&self, step: &str) -> Key {
        self.intent.child(step)
    }
}

/// How the work ended, as far as the work itself knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkResult {
    /// Done.
    Completed,
    /// Refused for good; the answer will not change.
    FailedFinal,
    /// Failed, and nothing happened.
    NotApplied,
    /// Failed, but it may have happened: uncertain when opaque, may run again when protected.
    Unknown,
    /// Left uncertain for a person to decide, whatever protects the effect.
    Hold,
}

impl WorkResult {
    /// The verdict the store records.
    pub fn verdict(self, effect: Effect) -> Verdict {
        match self {
            Self::Completed => Verdict::Completed,
            Self::FailedFinal => Verdict::FailedFinal,
            Self::NotApplied => Verdict::FailedRetryable,
            Self::Unknown => unknown_fate(effect),
            Self::Hold => Verdict::Uncertain,
        }
    }
}

/// What the work returns.
#[derive(Clone, Debug)]
pub struct Execution {
    /// How it ended.
    pub result: WorkResult,
    /// What this caller gets, and later callers too when it is stored.
    pub outcome: Outcome,
}

impl Execution {
    /// Done, with this outcome.
    pub fn completed(outcome: Outcome) -> Self {
        Self { result: WorkResult::Completed, outcome }
    }
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// The recorded verdict.
    pub verdict: Verdict,
    /// What is known about the work. A protected effect in doubt may run again, but may also have happened.
    pub result: WorkResult,
    /// It was stored before; nothing ran for this call.
    pub replayed: bool,
    /// The store has it. When false, the answer is still correct: recording is retried for an hour, unless another
    /// caller has claimed or decided the intent meanwhile.
    pub stored: bool,
    /// It ran under a claim. False only when the store was down and the policy is open.
    pub guarded: bool,
}

impl Answer {
    /// The answer of work that ran under a claim.
    pub(super) fn ran(execution: Execution, verdict: Verdict, stored: bool) -> Self {
        let Execution { result, outcome } = execution;
        Self { outcome, verdict, result, replayed: false, stored, guarded: true }
    }

    pub(super) fn replay(verdict: Verdict, outcome: Outcome) -> Self {
        let result = match verdict {
            Verdict::Completed => WorkResult::Completed,
            Verdict::FailedFinal => WorkResult::FailedFinal,
            Verdict::FailedRetryable | Verdict::Uncertain => WorkResult::Unknown,
        };
        Self { outcome, verdict, result, replayed: true, stored: true, guarded: true }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The key was used for another request. This is a bug of the client; a retry cannot help.
    #[error("this key was used before for a different request; use a new key for a new intent")]
    Mismatch,
    /// Another call is running it.
    #[error("this intent is in progress; retry in {retry_after:?}")]
    InFlight {
        /// When a retry makes sense.
        retry_after: Duration,
    },
    /// It is not known whether it happened. It does not run again by itself.
    #[error("it is not known whether intent {id} took effect; check, then decide it with `semel resolve`")]
    Uncertain {
        /// The intent.
        id: IntentId,
        /// When the configured lookup may run; `None` if there is no lookup, or it did not know.
        settles_in: Option<Duration>,
    },
    /// The key is older than the retention.
    #[error("this key is older than the retention of outcomes, so it may have been used before")]
    KeyExpired,
    /// The key's timestamp is in the future.
    #[error("the timestamp in this key is in the future; check the clock that made it")]
    KeyFromFuture,
    /// The operation requires time-ordered keys.
    #[error("this operation needs a time-ordered key: a UUIDv7 or a ULID")]
    KeyNotTimeOrdered,
    /// The store is unavailable, and the policy is closed. Nothing ran.
    #[error("the store is unavailable, so nothing was run: {0}")]
    StoreUnavailable(#[source] StoreError),
    /// It completed before, but its answer could not be rebuilt from the stored reference. Nothing ran; a retry may
    /// help.
    #[error("the work completed before, but its answer could not be rebuilt: {why}")]
    NotRebuilt {
        /// The error of [`Rebuild`](super::Rebuild).
        why: String,
    },
    /// The limit of calls in flight is reached. Nothing ran.
    #[error("{calls_max} calls are in flight, which is the limit; nothing was run")]
    Busy {
        /// The bound.
        calls_max: usize,
    },
    /// The process is stopping. Nothing ran.
    #[error("the process is stopping; nothing was run")]
    Draining,
    /// The work panicked. With an opaque effect the intent is now uncertain.
    #[error("the work panicked; the intent is left {}", left(*verdict))]
    Panicked {
        /// What was recorded.
        verdict: Verdict,
    },
    /// The work took longer than its policy allows and was dropped.
    #[error("the work took longer than {limit:?} and was dropped; the intent is left {}", left(*verdict))]
    TimedOut {
        /// The bound.
        limit: Duration,
        /// What was recorded.
        verdict: Verdict,
    },
    /// The lease could not be renewed, so the work was dropped. A lookup will find out whether it happened.
    #[error("the claim was lost while the work ran, so the work was dropped; the intent is left {}", left(*verdict))]
    ClaimLost {
        /// What was recorded.
        verdict: Verdict,
    },
}

fn left(verdict: Verdict) -> &'static str {
    crate::intent::state::State::from(verdict).as_str()
}
