//! A memory store whose decisions are right, and whose handling of them is not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel::store::memory::MemoryStore;
use semel::store::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished,
    PAGE_RECORDS_MAX, Page, Record, Renewed, Store, StoreError, Ticket,
};
use semel::{Body, IntentId, Outcome, Retention, State, StoreTime};
use tokio::sync::watch;

use super::Bug;

pub(super) struct Planted {
    inner: MemoryStore,
    bug: Option<Bug>,
    busy: AtomicBool,
    asked: AtomicU64,
    last: Mutex<Option<Outcome>>,
    looked: Mutex<HashMap<IntentId, Record>>,
    /// How many callers found each intent free.
    found_free: watch::Sender<HashMap<IntentId, u32>>,
}

/// How long the first caller that finds an intent free waits for the second one. A lone caller goes on then.
const SECOND_LOOK_MAX: Duration = Duration::from_secs(10);

impl Planted {
    pub(super) fn new(inner: MemoryStore, bug: Option<Bug>) -> Self {
        Self {
            inner,
            bug,
            busy: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            last: Mutex::new(None),
            looked: Mutex::new(HashMap::new()),
            found_free: watch::Sender::default(),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Looks first and writes later: another that looked in between writes as well.
    async fn look_then_write(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.intent.id();
        let before = self.inner.get(id).await?;
        let now = self.inner.now().await?;
        let free = match &before {
            None => self.has(Bug::ClaimLooksThenWrites),
            Some(record) => self.has(Bug::TakeoverLooksThenWrites) && record.head.is_lapsed(now),
        };
        if free {
            self.found_free.send_modify(|found| *found.entry(id).or_default() += 1);
            let mut found = self.found_free.subscribe();
            let second = found.wait_for(|found| found.get(&id).is_some_and(|callers| *callers >= 2));
            let _ = tokio::time::timeout(SECOND_LOOK_MAX, second).await;
        }
        let owner = claim.owner;
        match self.inner.claim(claim).await? {
            Claimed::InFlight(met) if free => Ok(Claimed::Run(Ticket { owner, ..met.record.ticket(false) })),
            answer => Ok(answer),
        }
    }

    /// Gives somebody else's claim back.
    async fn release(&self, id: IntentId) -> Result<(), StoreError> {
        if let Some(record) = self.inner.get(id).await? {
            self.inner.finish(record.ticket(false), Finish::release(Retention::DAY)).await?;
        }
        Ok(())
    }

    fn mangled(&self, outcome: Outcome) -> Option<Outcome> {
        let text = |bytes: &Bytes| Bytes::from(String::from_utf8_lossy(bytes).into_owned());
        let Outcome { code, mut headers, mut body } = outcome;
        match (self.bug, &mut body) {
            (Some(Bug::OutcomeTruncated), Body::Kept(bytes)) => bytes.truncate(65_535),
            (Some(Bug::BodyMangledToText), Body::Kept(bytes)) => *bytes = text(bytes),
            (Some(Bug::EmptyBodyIsNone), Body::Kept(bytes)) if bytes.is_empty() => body = Body::NotKept,
            (Some(Bug::HeadersMangledToText), _) => {
                headers = headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
            }
            (Some(Bug::HeadersDeduplicated), _) => {
                let mut left = headers.to_vec();
                left.dedup_by(|a, b| a.0.eq_ignore_ascii_case(&b.0));
                headers = left.into();
            }
            _ => {}
        }
        let outcome = Outcome { code, headers, body };
        (outcome.fits() || !self.has(Bug::TooLargeIsDropped)).then_some(outcome)
    }

    /// The note a buggy store does not keep.
    fn noted(&self, mut record: Record) -> Record {
        let claimed_since = record.head.state == State::InProgress;
        if self.has(Bug::NoteNotKept) || (self.has(Bug::NoteLostByTheNextClaim) && claimed_since) {
            record.decision = None;
        }
        record
    }

    /// All records of a tenant, the way a store without an index would find them.
    async fn all(&self, filter: &Filter, tenant: Option<String>) -> Result<Page, StoreError> {
        let limit = PAGE_RECORDS_MAX;
        let all = Filter { states: Vec::new(), after: None, limit, tenant, ..filter.clone() };
        self.inner.list(all).await
    }
}

impl Store for Planted {
    fn capabilities(&self) -> Capabilities {
        // The struct may grow, so only the stores themselves can make one; this is the one that says durable.
        let mut capabilities = self.inner.capabilities();
        capabilities.durable = true;
        capabilities
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        let now = self.inner.now().await?;
        let back = if self.has(Bug::ClockGoesBack) { self.asked.fetch_add(1, Ordering::SeqCst) } else { 0 };
        Ok(StoreTime(now.0 - back))
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.intent.id();
        if self.has(Bug::DroppedClaimBlocks) {
            if self.busy.swap(true, Ordering::SeqCst) {
                return Err(StoreError::new(ErrorKind::Busy, Fate::NotApplied, "somebody is in here"));
            }
            tokio::task::yield_now().await;
            self.busy.store(false, Ordering::SeqCst);
        }
        let answer = self.look_then_write(claim).await?;
        match answer {
            Claimed::Mismatch if self.has(Bug::MismatchReleasesTheClaim) => self.release(id).await?,
            Claimed::Replay(ref met) if self.has(Bug::ReplayForgets) => {
                let record = &met.record;
                let forget = Decide {
                    seen: record.head.epoch,
                    ruling: semel::intent::state::Ruling::Release,
                    outcome: None,
                    retention: Retention::DAY,
                    by: String::new(),
                    why: String::new(),
                };
                self.inner.decide(id, forget).await?;
            }
            Claimed::Replay(mut met) if self.has(Bug::ForeignOutcomeReplayed) => {
                Arc::make_mut(&mut met.record).outcome =
                    self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return Ok(Claimed::Replay(met));
            }
            Claimed::Replay(mut met) => {
                met.record = Arc::new(self.noted(Arc::unwrap_or_clone(met.record)));
                return Ok(Claimed::Replay(met));
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.inner.renew(ticket, lease_ms).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        let outcome = finish.outcome.and_then(|outcome| self.mangled(outcome));
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&outcome);
        let finished = self.inner.finish(ticket, Finish { outcome, ..finish }).await?;
        if finished == Finished::Stale && self.has(Bug::StaleFinishReleasesTheClaim) {
            self.release(ticket.id).await?;
        }
        Ok(finished)
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        Ok(self.inner.get(id).await?.map(|record| self.noted(record)))
    }

    async fn get_cached(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let found = self.get(id).await?;
        if !self.has(Bug::LookRemembers) {
            return Ok(found);
        }
        // A cache that does not learn what was withdrawn.
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        match found.filter(|record| record.head.state == State::Completed) {
            Some(record) => Ok(Some(looked.entry(id).or_insert(record).clone())),
            None => Ok(looked.get(&id).cloned()),
        }
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        match self.bug {
            Some(Bug::TenantIgnored) => self.inner.list(Filter { tenant: None, ..filter }).await,
            Some(Bug::TenantByPrefix) => {
                let mut page = self.all(&filter, None).await?;
                let tenant = filter.tenant.unwrap_or_default();
                page.records.retain(|record| record.intent.scope().as_str().starts_with(&tenant));
                Ok(page)
            }
            Some(Bug::StoredStateListed) => {
                let mut page = self.all(&filter, filter.tenant.clone()).await?;
                let wanted = |state: &State| filter.states.is_empty() || filter.states.contains(state);
                page.records.retain(|record| wanted(&record.head.state));
                Ok(page)
            }
            Some(Bug::PagedByOffset) => {
                let mut page = self.all(&filter, filter.tenant.clone()).await?;
                let skip = filter.after.map_or(0, |after| after.parse().expect("an offset"));
                let end = skip + filter.limit;
                page.next = (end < page.records.len()).then(|| end.to_string());
                page.records = page.records.into_iter().skip(skip).take(filter.limit).collect();
                Ok(page)
            }
            Some(Bug::LimitIgnored) => self.inner.list(Filter { limit: PAGE_RECORDS_MAX, ..filter }).await,
            Some(Bug::BadCursorIsTheFirstPage) => match self.inner.list(filter.clone()).await {
                Err(_) => self.inner.list(Filter { after: None, ..filter }).await,
                page => page,
            },
            _ => self.inner.list(filter).await,
        }
    }

    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        self.inner.decide(id, decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        match self.bug {
            Some(Bug::SweepDoesNothing) => Ok(0),
            Some(Bug::SweepIgnoresItsLimit) => self.inner.sweep(usize::MAX).await.map(|it| it.min(limit)),
            _ => self.inner.sweep(limit).await,
        }
    }
}
