//! What a store that works in batches is asked, and how it answers.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Claim, Claimed, Decide, Decided, Finished, Renewed, StoreError, Ticket};
use crate::intent::identity::IntentId;
use crate::intent::outcome::Verdict;
use crate::intent::policy::Retention;

pub(super) type Reply<A> = oneshot::Sender<Result<A, StoreError>>;

/// A request, the answer once it is known, and the one who waits for it.
pub(super) struct Ask<Q, A> {
    pub(super) request: Q,
    /// What is said when the commit is durable. Nobody hears it before. An error here is this one's alone.
    pub(super) answer: Option<Result<A, StoreError>>,
    /// How often it was carried out without an answer. SQLite answers everything the first time.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) tries: u32,
    reply: Reply<A>,
}

impl<Q, A> Ask<Q, A> {
    pub(super) fn new(request: Q, reply: Reply<A>) -> Self {
        Self {
            request,
            answer: None,
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            tries: 0,
            reply,
        }
    }

    /// Says what was decided. Whoever asked may be gone; that changes nothing.
    pub(super) fn tell(self) {
        if let Some(answer) = self.answer {
            let _ = self.reply.send(answer);
        }
    }

    pub(super) fn refuse(self, error: StoreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// An owner's outcome, encoded by the one who asks: the writer's time is everybody's.
pub(super) struct Finishing {
    pub(super) ticket: Ticket,
    pub(super) verdict: Verdict,
    pub(super) retention: Retention,
    pub(super) outcome: Option<Bytes>,
}

/// What one transaction may hold many of.
pub(super) enum Command {
    Claim(Ask<Claim, Claimed>),
    Renew(Ask<(Ticket, u64), Renewed>),
    Finish(Ask<Finishing, Finished>),
    Decide(Ask<(IntentId, Decide), Decided>),
}
