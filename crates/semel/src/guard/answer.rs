//! What goes into the guard and what comes out.

use std::time::Duration;

use crate::intent::identity::{Epoch, Intent, IntentId};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::Effect;
use crate::intent::windows::unknown_fate;
use crate::store::StoreError;

/// What the work is told about its run.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Which intent.
    pub intent: Intent,
    /// The how manieth run of it this is, from 1.
    pub number: u32,
    /// The fence: pass it on where the downstream can compare it. `None` when running unguarded.
    pub epoch: Option<Epoch>,
}

impl Attempt {
    /// The key for one remote call of this work: the same on every retry, so that the other side can
    /// recognise it.
    pub fn child(&self, step: &str) -> Key {
        self.intent.child(step)
    }
}

/// How the work ended, as far as it knows itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkResult {
    /// Done.
    Completed,
    /// Refused for good; the answer will not change.
    FailedFinal,
    /// Failed, and nothing happened.
    NotApplied,
    /// Failed, and it may have happened: uncertain when opaque, may run again when protected.
    Unknown,
    /// A person shall look, whatever protects the effect.
    Hold,
}

impl WorkResult {
    /// What is recorded.
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
    pub ended: WorkResult,
    /// What this caller gets, and later ones where it is remembered.
    pub outcome: Outcome,
}

impl Execution {
    /// Done, with this outcome.
    pub fn completed(outcome: Outcome) -> Self {
        Self { ended: WorkResult::Completed, outcome }
    }
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// What the record says.
    pub verdict: Verdict,
    /// What is known: a protected effect of unknown fate may run again, but did not "not happen".
    pub ended: WorkResult,
    /// It was stored before; nothing ran for this call.
    pub replayed: bool,
    /// The store has it. When false, the answer is true all the same: recording goes on being tried (for an
    /// hour), unless somebody else has claimed or decided the intent meanwhile.
    pub stored: bool,
    /// It ran under a claim. Only false where the store was down and the policy is open.
    pub guarded: bool,
}

impl Answer {
    /// A stored outcome, given again.
    pub(super) fn replay(verdict: Verdict, outcome: Outcome) -> Self {
        let ended = match verdict {
            Verdict::Completed => WorkResult::Completed,
            Verdict::FailedFinal => WorkResult::FailedFinal,
            Verdict::FailedRetryable | Verdict::Uncertain => WorkResult::Unknown,
        };
        Self { outcome, verdict, ended, replayed: true, stored: true, guarded: true }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The key was used for another request. A client's bug: retrying cannot help.
    #[error("this key was used before for a different request; use a new key for a new intent")]
    Mismatch,
    /// Somebody is at it.
    #[error("this intent is being worked on; ask again in {retry_after:?}")]
    InFlight {
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// Nobody knows whether it happened. It is not run again by itself.
    #[error("whether intent {id} happened is not known; look it up, or decide with `semel resolve`")]
    Uncertain {
        /// Which.
        id: IntentId,
        /// When a configured lookup will be allowed to ask; `None` where there is none, or it did not know.
        settles_in: Option<Duration>,
    },
    /// The key is older than outcomes are remembered.
    #[error("this key was made longer ago than outcomes are kept; it may have been used")]
    KeyExpired,
    /// The key says it was made in the future.
    #[error("this key claims to have been made in the future")]
    KeyFromFuture,
    /// The operation wants time-ordered keys.
    #[error("this operation needs a time-ordered key: a UUIDv7 or a ULID")]
    KeyNotTimeOrdered,
    /// The store cannot be asked, and the policy is closed. Nothing ran.
    #[error("the store cannot be asked, so nothing was run: {0}")]
    StoreUnavailable(#[source] StoreError),
    /// It is done, but the operation could not make its answer again from what is kept. Nothing ran; asking again
    /// may help.
    #[error("it is done, but its answer could not be made again: {why}")]
    NotRebuilt {
        /// What [`Rebuild`](super::Rebuild) said.
        why: String,
    },
    /// As many calls as allowed are under way. Nothing ran.
    #[error("{calls_max} calls are under way; nothing was run")]
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
    #[error("the work took longer than {limit:?}; the intent is left {}", left(*verdict))]
    TimedOut {
        /// The bound.
        limit: Duration,
        /// What was recorded.
        verdict: Verdict,
    },
    /// The lease could not be renewed, and the work was dropped: a lookup will find out whether it happened.
    #[error("the claim was lost while the work went on, so it was dropped; the intent is left {}", left(*verdict))]
    ClaimLost {
        /// What was recorded.
        verdict: Verdict,
    },
}

fn left(verdict: Verdict) -> &'static str {
    crate::intent::state::State::from(verdict).as_str()
}
