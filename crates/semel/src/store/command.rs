//! Requests to a store that works in batches, and their answers.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Claim, Claimed, Decide, Decided, Finished, Renewed, StoreError, Ticket};
use crate::intent::identity::IntentId;
use crate::intent::outcome::Verdict;
use crate::intent::policy::Retention;

pub(super) type Reply<A> = oneshot::Sender<Result<A, StoreError>>;

/// A request, its answer once it is known, and the channel to the waiting caller.
pub(super) struct Ask<Q, A> {
    pub(super) request: Q,
    /// Sent when the commit is durable, not before. An error here concerns this request alone.
    pub(super) answer: Option<Result<A, StoreError>>,
    /// How often it was executed without an answer. SQLite answers every request the first time.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) attempts: u32,
    reply: Reply<A>,
}

impl<Q, A> Ask<Q, A> {
    pub(super) fn new(request: Q, reply: Reply<A>) -> Self {
        Self {
            request,
            answer: None,
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            attempts: 0,
            reply,
        }
    }

    /// Sends the answer. It does not matter whether the caller still waits.
    pub(super) fn send_answer(self) {
        if let Some(answer) = self.answer {
            let _ = self.reply.send(answer);
        }
    }

    pub(super) fn refuse(self, error: StoreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// An owner's outcome, encoded on the caller's side: all callers share the writer's time.
pub(super) struct Finishing {
    pub(super) ticket: Ticket,
    pub(super) verdict: Verdict,
    pub(super) retention: Retention,
    pub(super) outcome: Option<Bytes>,
}

/// A request; one transaction may carry many of them.
pub(super) enum Command {
    Claim(Ask<Claim, Claimed>),
    Renew(Ask<(Ticket, u64), Renewed>),
    Finish(Ask<Finishing, Finished>),
    Decide(Ask<(IntentId, Decide), Decided>),
}
