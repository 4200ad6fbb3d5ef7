//! Fault injection: a store that fails on demand, for testing code that uses a store.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Lineage, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::store::protect::Protection;

/// Which method of the store is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreCall {
    /// [`Store::now`].
    Now,
    /// [`Store::claim`].
    Claim,
    /// [`Store::renew`].
    Renew,
    /// [`Store::finish`].
    Finish,
    /// [`Store::get`].
    Get,
    /// [`Store::list`].
    List,
    /// [`Store::decide`].
    Decide,
    /// [`Store::sweep`].
    Sweep,
}

/// What happens to the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// It fails, and is known not to have been carried out.
    Refused,
    /// It is carried out, but the answer is lost.
    AnswerLost,
    /// It is lost on the way and not carried out; its fate is in doubt.
    RequestLost,
    /// It is carried out after this long.
    Slow(Duration),
    /// It is carried out, and answered after this long.
    AnswerSlow(Duration),
    /// It never returns, and is not carried out.
    Hangs,
    /// It is carried out, and never returns.
    AnswerHangs,
}

type Script = Arc<dyn Fn(StoreCall) -> Fault + Send + Sync>;

/// Wraps a store; a script chooses the fault of each call.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use semel::store::{Fate, Store, faulty::{StoreCall, Fault, Faulty}, memory::MemoryStore};
///
/// let down = Faulty::new(MemoryStore::new(), |_: StoreCall| Fault::Refused);
/// assert_eq!(down.now().await.unwrap_err().fate(), Fate::NotApplied);
/// # });
/// ```
#[derive(Clone)]
pub struct Faulty<S> {
    store: S,
    script: Script,
    outcome_bytes_max: usize,
}

impl<S> Faulty<S> {
    /// Wraps `store`.
    pub fn new(store: S, script: impl Fn(StoreCall) -> Fault + Send + Sync + 'static) -> Self {
        Self { store, script: Arc::new(script), outcome_bytes_max: usize::MAX }
    }

    /// Refuses larger outcomes: a store's limit may be below the library's.
    pub fn outcome_bytes_max(mut self, outcome_bytes_max: usize) -> Self {
        self.outcome_bytes_max = outcome_bytes_max;
        self
    }

    fn check_size(&self, outcome: Option<&Outcome>) -> Result<(), StoreError> {
        if outcome.is_none_or(|outcome| outcome.encoded_len() <= self.outcome_bytes_max) {
            return Ok(());
        }
        Err(StoreError::new(ErrorKind::TooLarge, Fate::NotApplied, "too large on purpose"))
    }

    async fn play<T>(
        &self,
        call: StoreCall,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let error =
            |fate| Err(StoreError::new(ErrorKind::Unavailable, fate, format!("{call:?} failed on purpose")));
        match (self.script)(call) {
            Fault::None => request.await,
            Fault::Refused => error(Fate::NotApplied),
            Fault::RequestLost => error(Fate::InDoubt),
            Fault::AnswerLost => {
                request.await?;
                error(Fate::InDoubt)
            }
            Fault::Slow(pause) => {
                tokio::time::sleep(pause).await;
                request.await
            }
            Fault::AnswerSlow(pause) => {
                let answer = request.await;
                tokio::time::sleep(pause).await;
                answer
            }
            Fault::Hangs => std::future::pending().await,
            Fault::AnswerHangs => {
                request.await?;
                std::future::pending().await
            }
        }
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Faulty").field(&self.store).finish()
    }
}

impl<S: Store> Store for Faulty<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.play(StoreCall::Now, self.store.now()).await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.play(StoreCall::Claim, self.store.claim(claim)).await
    }
    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.play(StoreCall::Renew, self.store.renew(ticket, lease_ms)).await
    }
    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        self.check_size(finish.outcome.as_ref())?;
        self.play(StoreCall::Finish, self.store.finish(ticket, finish)).await
    }
    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.play(StoreCall::Get, self.store.get(id)).await
    }
    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.play(StoreCall::List, self.store.list(filter)).await
    }
    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        self.check_size(decide.outcome.as_ref())?;
        self.play(StoreCall::Decide, self.store.decide(id, decide)).await
    }
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.play(StoreCall::Sweep, self.store.sweep(limit)).await
    }
    async fn claim_verified(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.play(StoreCall::Claim, self.store.claim_verified(claim)).await
    }
    async fn get_cached(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.play(StoreCall::Get, self.store.get_cached(id)).await
    }
    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        self.play(StoreCall::Get, self.store.lineage()).await
    }
    fn protection(&self) -> Protection {
        self.store.protection()
    }
}
