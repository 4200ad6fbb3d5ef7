//! A store chosen at run time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{
    Capabilities, Claim, Claimed, Decide, Decided, Filter, Finish, Finished, Lineage, Page, Record, Renewed,
    Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::protect::Protection;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The object-safe twin of [`Store`].
trait Boxed: Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn now(&self) -> Answer<'_, StoreTime>;
    fn claim(&self, claim: Claim) -> Answer<'_, Claimed>;
    fn renew(&self, ticket: Ticket, lease_ms: u64) -> Answer<'_, Renewed>;
    fn finish(&self, ticket: Ticket, finish: Finish) -> Answer<'_, Finished>;
    fn get(&self, id: IntentId) -> Answer<'_, Option<Record>>;
    fn list(&self, filter: Filter) -> Answer<'_, Page>;
    fn decide(&self, id: IntentId, decide: Decide) -> Answer<'_, Decided>;
    fn sweep(&self, limit: usize) -> Answer<'_, usize>;
    fn claim_verified(&self, claim: Claim) -> Answer<'_, Claimed>;
    fn get_cached(&self, id: IntentId) -> Answer<'_, Option<Record>>;
    fn lineage(&self) -> Answer<'_, Option<Lineage>>;
    fn protection(&self) -> Protection;
}

impl<S: Store> Boxed for S {
    fn capabilities(&self) -> Capabilities {
        Store::capabilities(self)
    }
    fn now(&self) -> Answer<'_, StoreTime> {
        Box::pin(Store::now(self))
    }
    fn claim(&self, claim: Claim) -> Answer<'_, Claimed> {
        Box::pin(Store::claim(self, claim))
    }
    fn renew(&self, ticket: Ticket, lease_ms: u64) -> Answer<'_, Renewed> {
        Box::pin(Store::renew(self, ticket, lease_ms))
    }
    fn finish(&self, ticket: Ticket, finish: Finish) -> Answer<'_, Finished> {
        Box::pin(Store::finish(self, ticket, finish))
    }
    fn get(&self, id: IntentId) -> Answer<'_, Option<Record>> {
        Box::pin(Store::get(self, id))
    }
    fn list(&self, filter: Filter) -> Answer<'_, Page> {
        Box::pin(Store::list(self, filter))
    }
    fn decide(&self, id: IntentId, decide: Decide) -> Answer<'_, Decided> {
        Box::pin(Store::decide(self, id, decide))
    }
    fn sweep(&self, limit: usize) -> Answer<'_, usize> {
        Box::pin(Store::sweep(self, limit))
    }
    fn claim_verified(&self, claim: Claim) -> Answer<'_, Claimed> {
        Box::pin(Store::claim_verified(self, claim))
    }
    fn get_cached(&self, id: IntentId) -> Answer<'_, Option<Record>> {
        Box::pin(Store::get_cached(self, id))
    }
    fn lineage(&self) -> Answer<'_, Option<Lineage>> {
        Box::pin(Store::lineage(self))
    }
    fn protection(&self) -> Protection {
        Store::protection(self)
    }
}

/// Any [`Store`] behind one type: what [`open`](super::open) gives for a URL. Cheap to clone.
///
/// ```
/// use semel::store::{AnyStore, Store, memory::MemoryStore};
///
/// let store = AnyStore::new(MemoryStore::new());
/// assert!(!store.capabilities().durable);
/// ```
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Boxed>);

impl AnyStore {
    /// Wraps a store.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnyStore").field(&self.0.capabilities()).finish()
    }
}

impl Store for AnyStore {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn now(&self) -> impl Future<Output = Result<StoreTime, StoreError>> + Send {
        self.0.now()
    }
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        self.0.claim(claim)
    }
    fn renew(
        &self,
        ticket: Ticket,
        lease_ms: u64,
    ) -> impl Future<Output = Result<Renewed, StoreError>> + Send {
        self.0.renew(ticket, lease_ms)
    }
    fn finish(
        &self,
        ticket: Ticket,
        finish: Finish,
    ) -> impl Future<Output = Result<Finished, StoreError>> + Send {
        self.0.finish(ticket, finish)
    }
    fn get(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        self.0.get(id)
    }
    fn list(&self, filter: Filter) -> impl Future<Output = Result<Page, StoreError>> + Send {
        self.0.list(filter)
    }
    fn decide(
        &self,
        id: IntentId,
        decide: Decide,
    ) -> impl Future<Output = Result<Decided, StoreError>> + Send {
        self.0.decide(id, decide)
    }
    fn sweep(&self, limit: usize) -> impl Future<Output = Result<usize, StoreError>> + Send {
        self.0.sweep(limit)
    }
    fn claim_verified(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        self.0.claim_verified(claim)
    }
    fn get_cached(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        self.0.get_cached(id)
    }
    fn lineage(&self) -> impl Future<Output = Result<Option<Lineage>, StoreError>> + Send {
        self.0.lineage()
    }
    fn protection(&self) -> Protection {
        self.0.protection()
    }
}
