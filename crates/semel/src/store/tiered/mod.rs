//! Redis as a cache in front of an authority: any SQL store.
//!
//! ```text
//!  claim ──▶ cache: a finished outcome, certainly still valid? ──yes──▶ replay
//!              │ no, or no answer, or `verify`
//!              ▼
//!           authority decides ──▶ answer ──▶ what was committed goes into the cache, in the background
//! ```
//!
//! - **The authority decides** everything but the replay of a finished outcome; renewals, finishes, decisions, `get`
//!   and `list` never rely on the cache. Redis may be down, flushed, stale, slow or wrong: the answers are the same,
//!   later, and counted (`semel_cache_total`, `semel_cache_fill_total`).
//! - **Filled with what is committed**, read from the authority, under its epoch and the authority's
//!   [lineage](crate::store::Lineage), and never over something newer.
//! - **Withdrawn outcomes**: [`Ruling::Release`] writes a tombstone into the cache *before* it goes to the authority,
//!   so that a withdrawn outcome is not replayed, and a late fill cannot bring it back. If the cache does not take
//!   the tombstone, the release is refused. Nothing else ever changes what may be in the cache.
//! - **Never beyond its expiry**: by the authority's clock, which is estimated without asking (see `clock`).
//! - **Trusted for a limited time**: an entry counts for `max_age` (five minutes) after it was read from the authority.
//!   This bounds the effect of two events the cache cannot see: a decision made past the cache (`semel release` without
//!   `--cache`), and a database restored from an older backup. After a restore, make a new lineage
//!   (`semel migrate --new-lineage`): then no older entry counts at all. Running processes notice within
//!   [`LINEAGE_WITHIN`], whatever their traffic is (see `lineage_cache`).
//! - **`verify`** operations ask the authority before each replay.
//!
//! | module | what it decides |
//! |---|---|
//! | `entry` | a cache entry and its checksum |
//! | `fill` | fills the cache in the background, never over a newer entry |
//! | `breaker` | stops asking a cache that fails (circuit breaker) |
//! | `lineage_cache` | which lineage the authority has |
//! | `clock` | the authority's clock, estimated |

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use self::breaker::Breaker;
use self::clock::Clock;
use self::entry::Entry;
use self::fill::{Fill, What};
use self::lineage_cache::LineageCache;
use super::redis::RedisOptions;
use super::redis::cache::Cache;
use super::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Lineage, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::fingerprint::Comparison;
use crate::intent::identity::{Epoch, IntentId};
use crate::intent::outcome::Verdict;
use crate::intent::policy::{StoreTime, millis};
use crate::intent::state::Ruling;
use crate::observe::{CacheCounters, CacheFill, CacheLook, Metrics};
use crate::store::protect::Protection;
use crate::timeout::bounded;

mod breaker;
mod clock;
mod entry;
mod fill;
mod lineage_cache;

pub use lineage_cache::LINEAGE_WITHIN;

/// How long the cache may take to answer. An authority is not much slower.
const LOOK_MAX: Duration = Duration::from_millis(50);
/// How long an entry is trusted after it was read from the authority, unless the URL says otherwise.
pub const MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// How long a tombstone stays: longer than any fill takes, however long its process was suspended.
const TOMBSTONE_MS: u64 = 24 * 60 * 60 * 1000;

/// A store with Redis in front of it. Cheap to clone.
///
/// ```no_run
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel::observe::Metrics;
/// use semel::store::{sqlite::SqliteStore, tiered::TieredStore};
///
/// let authority = SqliteStore::open("semel.db").await?;
/// let store = TieredStore::open(authority, "redis://127.0.0.1", &Metrics::new()).await?;
/// # drop(store); Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub struct TieredStore<S> {
    shared: Arc<Shared<S>>,
    fills: mpsc::Sender<Fill>,
}

struct Shared<S> {
    authority: S,
    cache: Cache,
    breaker: Breaker,
    clock: Clock,
    lineage: LineageCache,
    max_age_ms: u64,
    /// Timeouts of one lookup and of one fill.
    look_max: Duration,
    fill_max: Duration,
    metrics: CacheCounters,
}

impl<S> Clone for TieredStore<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), fills: self.fills.clone() }
    }
}

impl<S: Store> TieredStore<S> {
    /// Puts the Redis of that URL in front of a store that has a lineage. Redis need not be up; lookups and fills are
    /// counted in `metrics`. The URL's `timeout`, if given, also bounds a lookup.
    pub async fn open(authority: S, cache_url: &str, metrics: &Metrics) -> Result<Self, StoreError> {
        let options = RedisOptions::new(cache_url)?;
        let asked = Instant::now();
        let (now, answered) = (authority.now().await?, Instant::now());
        let lineage_asked = Instant::now();
        let lineage = authority.lineage().await?;
        let Some(lineage) = lineage else {
            let message = "this store has no lineage, so a cache in front of it could not notice a restored database; \
                           leave the cache out";
            return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message));
        };
        let look_max = if cache_url.contains("timeout=") { options.timeout } else { LOOK_MAX };
        let shared = Shared {
            authority,
            cache: Cache::new(&options)?,
            breaker: Breaker::default(),
            clock: Clock::default(),
            lineage: LineageCache::new(lineage, lineage_asked),
            max_age_ms: millis(options.max_age.unwrap_or(MAX_AGE)),
            look_max,
            fill_max: options.timeout,
            metrics: metrics.cache(),
        };
        shared.clock.update(now, asked, answered);
        let shared = Arc::new(shared);
        let (fills, waiting) = mpsc::channel(fill::WAITING_MAX);
        tokio::spawn(fill::run(Arc::clone(&shared), waiting));
        tokio::spawn(lineage_cache::poll(Arc::downgrade(&shared)));
        Ok(Self { shared, fills })
    }

    /// The store that decides.
    pub fn authority(&self) -> &S {
        &self.shared.authority
    }

    /// Caches a finished outcome in the background, if the queue has room.
    fn fill(&self, fill: Fill) {
        if self.fills.try_send(fill).is_err() {
            self.shared.metrics.fill(CacheFill::Dropped);
        }
    }

    async fn ask(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let (asked, lineage) = (Instant::now(), self.shared.lineage.last());
        let claimed = self.shared.authority.claim(claim).await?;
        if let Claimed::Replay(existing) | Claimed::InFlight(existing) | Claimed::Uncertain(existing) =
            &claimed
        {
            self.shared.clock.update(existing.now, asked, Instant::now());
        }
        if let Claimed::Replay(existing) = &claimed {
            let (record, read_at) = (Arc::clone(&existing.record), existing.now);
            self.fill(Fill { what: What::Replayed(record, read_at), lineage, since: asked });
        }
        Ok(claimed)
    }

    /// Asks the authority for its clock in the background, when that is due.
    fn refresh_clock(&self) {
        if !self.shared.clock.ask_again(Instant::now()) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let asked = Instant::now();
            match shared.authority.now().await {
                Ok(now) => shared.clock.update(now, asked, Instant::now()),
                Err(_) => shared.clock.ask_failed(),
            }
        });
    }
}

impl<S> Shared<S> {
    /// One request to the cache: bounded in time, and skipped while the circuit breaker is open.
    async fn bounded<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Option<StoreError>> {
        let Some(permit) = self.breaker.ask(Instant::now()) else { return Err(None) };
        let late = || {
            let message = format!("the cache did not answer within {limit:?}");
            StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
        };
        let answer = bounded(limit, request, late).await?;
        permit.answered();
        Ok(answer)
    }

    async fn put(&self, name: &[u8], entry: &[u8], ms: u64) -> Result<bool, Option<StoreError>> {
        self.bounded(self.fill_max, self.cache.fill(name, entry, ms)).await
    }

    /// The cached record of an intent, if it may be trusted, with the authority's time.
    async fn cached(&self, id: &IntentId) -> (CacheLook, Option<(Box<Record>, StoreTime)>) {
        let Some(lineage) = self.lineage.at(Instant::now()) else { return (CacheLook::Old, None) };
        let name = entry::name(lineage, id);
        let found = match self.bounded(self.look_max, self.cache.get(&name)).await {
            Ok(Some(found)) => found,
            Ok(None) => return (CacheLook::Miss, None),
            Err(Some(_)) => return (CacheLook::Error, None),
            Err(None) => return (CacheLook::Skipped, None),
        };
        let (record, read_at) = match entry::read(&name, found) {
            Some(Entry::Finished(record, read_at)) if entry::is_kept(&record) => (record, read_at),
            Some(Entry::Withdrawn) => return (CacheLook::Miss, None),
            _ => return (CacheLook::Wrong, None),
        };
        let Some(now) = self.clock.at(Instant::now()) else { return (CacheLook::Old, None) };
        let trusted_until = read_at.plus_ms(self.max_age_ms);
        let expired = record.head.expires_at.is_some_and(|at| at <= now.latest);
        if expired || trusted_until <= now.latest {
            return (CacheLook::Old, None);
        }
        let now = now.earliest.max(record.changed_at);
        (CacheLook::Hit, Some((record, now)))
    }

    async fn look(&self, claim: &Claim) -> (CacheLook, Option<Claimed>) {
        let (look, found) = self.cached(&claim.intent.id()).await;
        let Some((record, now)) = found else { return (look, None) };
        let other_recipe = match claim.fingerprint.compare(&record.head.fingerprint) {
            Comparison::Same => false,
            Comparison::OtherRecipe => true,
            Comparison::Different => return (CacheLook::OtherRequest, None),
        };
        (look, Some(Claimed::Replay(record.existing(now, other_recipe))))
    }
}

impl<S: Store> Shared<S> {
    /// Writes the tombstone of this intent up to that epoch.
    async fn withdraw(&self, id: &IntentId, epoch: Epoch) -> Result<(), StoreError> {
        // Asked anew: others may fill the cache under a lineage that this process does not know yet.
        let asked = Instant::now();
        let before = self.lineage.last();
        if let Some(now) = self.authority.lineage().await.map_err(|source| not_withdrawn(Some(source)))? {
            self.lineage.update(now, asked);
        }
        let now = self.lineage.last();
        for lineage in [Some(now), Some(before).filter(|before| *before != now)].into_iter().flatten() {
            let name = entry::name(lineage, id);
            self.put(&name, &entry::tombstone(&name, epoch), TOMBSTONE_MS).await.map_err(not_withdrawn)?;
        }
        Ok(())
    }
}

fn not_withdrawn(source: Option<StoreError>) -> StoreError {
    let message = "the cache could not be updated and would go on replaying the withdrawn outcome, so nothing was \
                   changed; retry when Redis and the database answer";
    let error = StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message);
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

impl<S> fmt::Debug for TieredStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TieredStore").field("lineage", &self.shared.lineage.last()).finish_non_exhaustive()
    }
}

impl<S: Store> Store for TieredStore<S> {
    fn capabilities(&self) -> Capabilities {
        self.shared.authority.capabilities()
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.shared.authority.now().await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.refresh_clock();
        let (look, claimed) = self.shared.look(&claim).await;
        self.shared.metrics.look(look);
        match claimed {
            Some(claimed) => Ok(claimed),
            None => self.ask(claim).await,
        }
    }

    async fn claim_verified(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.shared.metrics.look(CacheLook::Verified);
        self.ask(claim).await
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.shared.authority.renew(ticket, lease_ms).await
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        let (verdict, lineage) = (finish.verdict, self.shared.lineage.last());
        let finished = self.shared.authority.finish(ticket, finish).await?;
        if finished == Finished::Recorded && matches!(verdict, Verdict::Completed | Verdict::FailedFinal) {
            self.fill(Fill { what: What::Finished(ticket.id), lineage, since: Instant::now() });
        }
        Ok(finished)
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.shared.authority.get(id).await
    }

    async fn get_cached(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.refresh_clock();
        let (look, found) = self.shared.cached(&id).await;
        self.shared.metrics.look(look);
        if let Some((record, _)) = found {
            return Ok(Some(*record));
        }
        let (asked, lineage) = (Instant::now(), self.shared.lineage.last());
        let now = self.shared.clock.at(asked);
        let record = self.shared.authority.get(id).await?;
        if let (Some(record), Some(now)) = (record.as_ref().filter(|record| entry::is_kept(record)), now) {
            let what = What::Replayed(Arc::new(record.clone()), now.earliest);
            self.fill(Fill { what, lineage, since: asked });
        }
        Ok(record)
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.shared.authority.list(filter).await
    }

    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        // Only a release withdraws an outcome that may be cached; other decisions are about intents that never were.
        if decide.ruling == Ruling::Release {
            self.shared.withdraw(&id, decide.seen).await?;
        }
        self.shared.authority.decide(id, decide).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.shared.authority.sweep(limit).await
    }

    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        self.shared.authority.lineage().await
    }

    fn protection(&self) -> Protection {
        self.shared.authority.protection()
    }
}
