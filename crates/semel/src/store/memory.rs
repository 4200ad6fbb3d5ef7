//! The in-memory store, for tests and single processes: sharded, bounded, gone with the process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::cursor::{self, Cursor};
use super::record::{on_claim, on_decide, on_finish};
use super::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Existing, Fate, Filter, Finish, Finished, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::identity::{Epoch, FirstBytes, IntentId};
use crate::intent::outcome::{Body, Outcome};
use crate::intent::policy::StoreTime;
use crate::intent::state::{Change, Decider, StepAnswer, StepEvent, step};

const SHARDS: usize = 64;

/// Bodies up to this size are copied: they may be slices of much larger buffers, which would be kept alive with them.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Records a [`MemoryStore`] holds by default.
pub const RECORDS_MAX: usize = 1_000_000;

type Clock = Arc<dyn Fn() -> StoreTime + Send + Sync>;

/// A store in memory. Correct within one process, and only as long as it lives.
///
/// ```
/// use semel::store::memory::MemoryStore;
///
/// let store = MemoryStore::new().records_max(10_000);
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

/// `Arc`: records are not moved when a shard grows, and a replay only adds a reference.
type Shard = HashMap<IntentId, Arc<Record>, BuildHasherDefault<FirstBytes>>;

struct Inner {
    shards: Vec<Mutex<Shard>>,
    epoch: AtomicU64,
    records: AtomicUsize,
    records_max: usize,
    clock: Clock,
    step: Decider,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        // The machine's clock may be set back; that must not revive an expired lease.
        let latest = AtomicU64::new(0);
        Self::with_clock(move || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            StoreTime(latest.fetch_max(now, Ordering::Relaxed).max(now))
        })
    }

    /// An empty store on the caller's clock: virtual time for simulations and tests.
    pub fn with_clock(clock: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (epoch, records) = (AtomicU64::new(0), AtomicUsize::new(0));
        let inner = Inner { shards, epoch, records, records_max: RECORDS_MAX, clock: Arc::new(clock), step };
        Self { inner: Arc::new(inner) }
    }

    /// Holds at most this many records; a claim beyond that is refused as [`ErrorKind::Full`]. Set it before
    /// the store is cloned.
    pub fn records_max(mut self, records_max: usize) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.records_max = records_max;
        }
        self
    }

    /// Decides with another function than [`step`]: planted bugs, for tests. Set it before the store is cloned.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn deciding_with(mut self, step: Decider) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.step = step;
        }
        self
    }

    fn shard(&self, id: &IntentId) -> MutexGuard<'_, Shard> {
        // The hash uses the first bytes, the shard the last; otherwise each shard's table would use few buckets.
        let shard = usize::from(id.as_bytes()[31]) % SHARDS;
        // A panic under the lock can only come from an allocation; the map is consistent between two operations.
        self.inner.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> StoreTime {
        (self.inner.clock)()
    }

    fn fresh(&self) -> Epoch {
        Epoch(self.inner.epoch.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn is_full(&self) -> bool {
        self.inner.records.load(Ordering::Relaxed) >= self.inner.records_max
    }

    fn claim_now(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let id = claim.intent.id();
        let mut shard = self.shard(&id);
        let now = self.clock();
        if self.is_full() && !shard.contains_key(&id) {
            // Expired records count as absent, and are removed to make room.
            let before = shard.len();
            shard.retain(|_, record| record.state_at(now).is_some());
            self.inner.records.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
        let entry = shard.entry(id);
        let before = match &entry {
            Entry::Occupied(entry) => Some(&**entry.get()),
            Entry::Vacant(_) => None,
        };
        let absent = before.is_none();
        if absent && self.is_full() {
            let message = format!(
                "the memory store is full ({} records); sweep expired ones, or raise records_max",
                self.inner.records_max
            );
            return Err(StoreError::new(ErrorKind::Full, Fate::NotApplied, message));
        }
        let (step, after) = on_claim(self.inner.step, before, claim, self.fresh(), now);
        let record = match (after, entry) {
            (Some(record), entry) => {
                if absent {
                    self.inner.records.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Claimed::Run(
                    entry.insert_entry(Arc::new(record)).get().ticket(step.other_recipe),
                ));
            }
            (None, Entry::Occupied(entry)) => entry.into_mut(),
            (None, Entry::Vacant(_)) => return Ok(Claimed::Mismatch),
        };
        let existing = || Existing { record: Arc::clone(record), now, other_recipe: step.other_recipe };
        Ok(match step.answer {
            StepAnswer::Run => Claimed::Run(record.ticket(step.other_recipe)),
            StepAnswer::InFlight => Claimed::InFlight(existing()),
            StepAnswer::Replay => Claimed::Replay(existing()),
            StepAnswer::Unknown => Claimed::Uncertain(existing()),
            _ => Claimed::Mismatch,
        })
    }

    fn renew_now(&self, ticket: &Ticket, lease_ms: u64) -> Renewed {
        let mut shard = self.shard(&ticket.id);
        let Some(record) = shard.get_mut(&ticket.id) else { return Renewed::Stale };
        let event = StepEvent::Renew { owner: ticket.owner, epoch: ticket.epoch, lease_ms };
        match (self.inner.step)(Some(&record.head), &event, self.clock()).change {
            Change::Put(head) => {
                Arc::make_mut(record).head = head;
                Renewed::Until(head.lease_until)
            }
            _ => Renewed::Stale,
        }
    }

    fn finish_now(&self, ticket: &Ticket, mut finish: Finish) -> Result<Finished, StoreError> {
        check_size(finish.outcome.as_ref())?;
        if let Some(Outcome { body: Body::Kept(body), .. }) = &mut finish.outcome
            && body.len() <= COPIED_BYTES_MAX
        {
            *body = Bytes::copy_from_slice(body);
        }
        let mut shard = self.shard(&ticket.id);
        let Some(record) = shard.get_mut(&ticket.id) else { return Ok(Finished::Stale) };
        let (verdict, before) = (finish.verdict, record.head.state);
        let step = on_finish(self.inner.step, Arc::make_mut(record), ticket, finish, self.clock());
        Ok(Finished::new(step.answer, verdict, before))
    }

    fn decide_now(&self, id: &IntentId, decide: &Decide) -> Result<Decided, StoreError> {
        check_size(decide.outcome.as_ref())?;
        let mut shard = self.shard(id);
        let now = self.clock();
        let Some(record) = shard.get_mut(id) else { return Ok(Decided::Stale) };
        Ok(match on_decide(self.inner.step, Arc::make_mut(record), decide, self.fresh(), now).answer {
            StepAnswer::Done => Decided::Recorded,
            StepAnswer::Refused => Decided::Refused(record.state_at(now).unwrap_or(record.head.state)),
            _ => Decided::Stale,
        })
    }

    fn list_now(&self, filter: &Filter) -> Result<Page, StoreError> {
        let now = self.clock();
        let after = filter.after.as_deref().map(cursor::parse).transpose()?;
        let mut found: Vec<Cursor> = Vec::new();
        for shard in &self.inner.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = shard.iter().filter(|(_, record)| matches(filter, record, now));
            found.extend(wanted.map(|(id, record)| (record.created_at, *id)));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.retain(|cursor| after.is_none_or(|after| *cursor < after));
        let limit = filter.page_records();
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).copied().map(cursor::text);
        let records = found
            .iter()
            .filter_map(|(_, id)| self.shard(id).get(id).map(|record| Record::clone(record)))
            .collect();
        Ok(Page { records, next, now })
    }

    fn sweep_now(&self, limit: usize) -> usize {
        let mut swept = 0;
        for shard in &self.inner.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock();
            shard.retain(|_, record| {
                let step = |head| (self.inner.step)(Some(head), &StepEvent::Sweep, now);
                let expired = swept < limit && step(&record.head).change == Change::Remove;
                swept += usize::from(expired);
                !expired
            });
        }
        self.inner.records.fetch_sub(swept, Ordering::Relaxed);
        swept
    }
}

pub(super) fn matches(filter: &Filter, record: &Record, now: StoreTime) -> bool {
    let Some(state) = record.state_at(now) else { return false };
    let tenant = |tenant: &String| record.intent.scope().tenant_text() == tenant;
    (filter.states.is_empty() || filter.states.contains(&state))
        && filter.operation.as_ref().is_none_or(|name| record.intent.operation().as_str() == name)
        && filter.tenant.as_ref().is_none_or(tenant)
        && filter.older_than_ms.is_none_or(|ms| now.since_ms(record.since(now)) >= ms)
        && filter.expiring_within_ms.is_none_or(|ms| record.expires_within(now, ms))
}

/// Refuses an outcome that is too large for any store, before anything is written.
pub(super) fn check_size(outcome: Option<&Outcome>) -> Result<(), StoreError> {
    match outcome {
        Some(outcome) if !outcome.fits() => {
            let max = crate::intent::outcome::OUTCOME_BYTES_MAX;
            let message = format!("the outcome has {} bytes; the limit is {max}", outcome.encoded_len());
            Err(StoreError::new(ErrorKind::TooLarge, Fate::NotApplied, message))
        }
        _ => Ok(()),
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.inner.records.load(Ordering::Relaxed);
        f.debug_struct("MemoryStore").field("records", &records).finish_non_exhaustive()
    }
}

// Nothing here waits, so the futures are ready at once; a shard is locked for one record at a time.
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: false, shared: false, same_tx: false }
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        Ok(self.clock())
    }
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        async move { self.claim_now(&claim) }
    }
    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        Ok(self.renew_now(&ticket, lease_ms))
    }
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn finish(
        &self,
        ticket: Ticket,
        finish: Finish,
    ) -> impl Future<Output = Result<Finished, StoreError>> + Send {
        async move { self.finish_now(&ticket, finish) }
    }
    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let record = self.shard(&id).get(&id).map(|record| Record::clone(record));
        Ok(record.filter(|record| record.state_at(self.clock()).is_some()))
    }
    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.list_now(&filter)
    }
    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        self.decide_now(&id, &decide)
    }
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        Ok(self.sweep_now(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::fingerprint::Recipe;
    use crate::intent::identity::{Intent, Operation, Owner};
    use crate::intent::outcome::Verdict;
    use crate::intent::policy::{Effect, Retention};
    use crate::{Key, Scope};

    fn claim(key: &str) -> Claim {
        let (scope, operation) = (Scope::single_tenant(), Operation::new("pay").unwrap());
        let intent = Intent::new(scope, operation, Key::new(key).unwrap());
        let (fingerprint, owner) = (Recipe::default().bytes(b""), Owner::random());
        let window = crate::intent::guard_expiry::KeyWindow::ENDLESS;
        Claim { intent, fingerprint, owner, effect: Effect::Opaque, lease_ms: 1_000, window }
    }

    #[tokio::test]
    async fn a_full_store_refuses_new_intents_and_still_answers_for_old_ones() {
        let store = MemoryStore::new().records_max(2);
        for key in ["a", "b"] {
            let Claimed::Run(ticket) = store.claim(claim(key)).await.unwrap() else { panic!("fresh") };
            let finish = Finish { verdict: Verdict::Completed, outcome: None, retention: Retention::DAY };
            store.finish(ticket, finish).await.unwrap();
        }
        let full = store.claim(claim("c")).await.unwrap_err();
        assert_eq!((full.kind(), full.fate()), (ErrorKind::Full, Fate::NotApplied));
        assert!(matches!(store.claim(claim("a")).await.unwrap(), Claimed::Replay(_)));
    }

    #[tokio::test]
    async fn a_small_body_does_not_hold_the_large_buffer_it_came_in() {
        let store = MemoryStore::new();
        let Claimed::Run(ticket) = store.claim(claim("a")).await.unwrap() else { panic!("fresh") };
        let buffer = Bytes::from(vec![b'x'; 64 << 10]);
        let outcome = Some(Outcome::new(201, buffer.slice(..100)));
        let finish = Finish { verdict: Verdict::Completed, outcome, retention: Retention::DAY };
        store.finish(ticket, finish).await.unwrap();
        assert!(buffer.is_unique());
    }

    #[tokio::test]
    async fn what_has_expired_makes_room() {
        let time = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&time);
        let store = MemoryStore::with_clock(move || StoreTime(clock.load(Ordering::Relaxed))).records_max(1);
        let Claimed::Run(ticket) = store.claim(claim("a")).await.unwrap() else { panic!("fresh") };
        let finish = Finish { verdict: Verdict::Completed, outcome: None, retention: Retention::Ms(10) };
        store.finish(ticket, finish).await.unwrap();
        time.store(100, Ordering::Relaxed);
        // A claim makes room in its own shard only, so find a key of that shard.
        let shard = |claim: &Claim| usize::from(claim.intent.id().as_bytes()[31]) % SHARDS;
        let next =
            (0..).map(|n| claim(&n.to_string())).find(|next| shard(next) == shard(&claim("a"))).unwrap();
        assert!(matches!(store.claim(next).await.unwrap(), Claimed::Run(_)));
    }
}
