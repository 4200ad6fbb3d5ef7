//! A store whose outcomes are protected.

use std::sync::Arc;

use std::fmt;

use super::envelope::Protection;
use crate::intent::identity::IntentId;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::store::{
    Capabilities, Claim, Claimed, Decide, Decided, Existing, Filter, Finish, Finished, Lineage, Page, Record,
    Renewed, Store, StoreError, Ticket,
};

/// Wraps any store and protects its outcomes on their way in and out.
///
/// All laws of the store hold: what a claim decides does not depend on the outcome, and the outcome comes back byte for
/// byte. If it cannot be opened, `claim` and [`get`](Store::get) of a finished intent fail; lists and unfinished
/// intents show it as [`Body::Sealed`](crate::Body::Sealed), so that an operator without keys can still inspect them.
///
/// ```
/// # #[cfg(feature = "seal")]
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use semel::store::{memory::MemoryStore, protect::{Keys, Protected, Protection}};
/// use semel::{Guard, Key, Scope};
///
/// let keys = Keys::parse("2026-11 8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e")?;
/// let store = Protected::new(MemoryStore::new(), Protection::none().seal(keys));
/// let pay = Guard::new(store).operation("payment.create")?;
/// let (acme, key) = (Scope::tenant("acme")?, Key::new("order-1")?);
/// for _ in 0..2 {
///     let reply = pay.once(&acme, &key, &(), |_| async { Ok("secret".to_string()) }).await?;
///     assert_eq!(reply.value, "secret");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Protected<S> {
    store: S,
    protection: Protection,
}

impl<S> Protected<S> {
    /// Protects what goes into `store`.
    pub fn new(store: S, protection: Protection) -> Self {
        Self { store, protection }
    }

    /// The wrapped store.
    pub fn inner(&self) -> &S {
        &self.store
    }

    fn protect(&self, id: &IntentId, outcome: Option<Outcome>) -> Result<Option<Outcome>, StoreError> {
        outcome.map(|outcome| self.protection.protect(id, outcome)).transpose()
    }

    /// For a replay: an outcome that cannot be opened is an error.
    fn reveal(&self, mut record: Record) -> Result<Record, StoreError> {
        if let Some(stored) = record.outcome.take() {
            record.outcome = Some(self.protection.reveal(&record.intent.id(), stored)?);
        }
        Ok(record)
    }

    /// For display.
    fn show(&self, mut record: Record) -> Record {
        if let Some(stored) = record.outcome.take() {
            record.outcome = Some(self.protection.reveal_or_leave(&record.intent.id(), stored));
        }
        record
    }

    fn claimed(&self, claimed: Claimed) -> Result<Claimed, StoreError> {
        Ok(match claimed {
            // Fail closed: an outcome that cannot be opened is an error, not an absent record.
            Claimed::Replay(existing) => {
                let record = self.reveal(Arc::unwrap_or_clone(existing.record))?;
                Claimed::Replay(Existing { record: record.into(), ..existing })
            }
            Claimed::InFlight(existing) => Claimed::InFlight(self.existing(existing)),
            Claimed::Uncertain(existing) => Claimed::Uncertain(self.existing(existing)),
            claimed @ (Claimed::Run(_) | Claimed::Mismatch) => claimed,
        })
    }

    fn existing(&self, existing: Existing) -> Existing {
        let record = self.show(Arc::unwrap_or_clone(existing.record));
        Existing { record: record.into(), ..existing }
    }

    fn found(&self, record: Option<Record>) -> Result<Option<Record>, StoreError> {
        match record {
            Some(record) if record.head.state.replayed_as().is_some() => self.reveal(record).map(Some),
            record => Ok(record.map(|record| self.show(record))),
        }
    }
}

impl<S: Store> Store for Protected<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.store.now().await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.claimed(self.store.claim(claim).await?)
    }

    async fn claim_verified(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.claimed(self.store.claim_verified(claim).await?)
    }

    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        self.store.lineage().await
    }

    fn protection(&self) -> Protection {
        self.protection.clone()
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.store.renew(ticket, lease_ms).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        let outcome = self.protect(&ticket.id, finish.outcome)?;
        self.store.finish(ticket, Finish { outcome, ..finish }).await
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.found(self.store.get(id).await?)
    }

    async fn get_cached(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.found(self.store.get_cached(id).await?)
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        let page = self.store.list(filter).await?;
        let records = page.records.into_iter().map(|record| self.show(record)).collect();
        Ok(Page { records, ..page })
    }

    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        let outcome = self.protect(&id, decide.outcome)?;
        self.store.decide(id, Decide { outcome, ..decide }).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.store.sweep(limit).await
    }
}

impl<S: fmt::Debug> fmt::Debug for Protected<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected").field("store", &self.store).field("protection", &self.protection).finish()
    }
}
