//! The authority decides: what the cache may say, and what it never may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use semel::guard::{CurrentRuntime, Limits};
use semel::intent::fingerprint::Fingerprint;
use semel::intent::state::Ruling;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::sqlite::SqliteStore;
use semel::store::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Lineage, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use semel::{Epoch, Guard, IntentId, Key, Outcome, Preset, Retention, Scope, StoreTime, Verdict};
use tokio::sync::Semaphore;

use super::support::Place;
use crate::store::redis::support::{claim, completed, done, intent, replayed, run};

pub(super) fn release(seen: Epoch) -> Decide {
    Decide {
        seen,
        ruling: Ruling::Release,
        outcome: None,
        retention: Retention::DAY,
        by: "ana".to_owned(),
        why: "refunded".to_owned(),
    }
}

#[tokio::test]
async fn a_replay_comes_from_the_cache_and_everything_else_from_the_authority() {
    let Some(place) = Place::new() else { return };
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let script = move |call: StoreCall| match is_down.load(Ordering::SeqCst) && call != StoreCall::Now {
        true => Fault::Refused,
        false => Fault::None,
    };
    let store = place.over(Faulty::new(place.sqlite().await, script)).await;
    done(&store, "k").await;
    place.filled("stored", 1).await;
    down.store(true, Ordering::SeqCst);
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
    // Not a word about anything else without the authority.
    assert_eq!(store.claim(claim("new")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let other = Claim { fingerprint: Fingerprint::from_parts([8; 32], 1), ..claim("k") };
    assert_eq!(store.claim(other.clone()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.claim_verified(claim("k")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    down.store(false, Ordering::SeqCst);
    assert!(matches!(store.claim(other).await.unwrap(), Claimed::Mismatch));
    assert_eq!(place.looks("other_request"), 2);
    assert!(matches!(store.claim_verified(claim("k")).await.unwrap(), Claimed::Replay(_)));
    assert_eq!(place.looks("verified"), 2);
}

#[tokio::test]
async fn what_the_cache_says_is_what_the_authority_says() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    let outcome = Outcome::new(402, vec![0, 255, 7]).header("x", vec![0xff]).header("x", "");
    let finish =
        Finish { verdict: Verdict::FailedFinal, outcome: Some(outcome), retention: Retention::Forever };
    let ticket = run(&store, claim("k")).await;
    store.finish(ticket, finish).await.unwrap();
    place.filled("stored", 1).await;
    let Ok(Claimed::Replay(cached)) = store.claim(claim("k")).await else { panic!("no replay") };
    let Ok(Claimed::Replay(asked)) = store.claim_verified(claim("k")).await else { panic!("no replay") };
    assert_eq!(place.looks("hit"), 1);
    assert_eq!(format!("{:?}", cached.record), format!("{:?}", asked.record));
    assert!(cached.now <= asked.now && cached.now >= cached.record.changed_at);
    // Fingerprints of another recipe cannot be compared: replayed and flagged, from the cache as well.
    let other = Claim { fingerprint: Fingerprint::from_parts([8; 32], 2), ..claim("k") };
    let Ok(Claimed::Replay(flagged)) = store.claim(other).await else { panic!("no replay") };
    assert!(flagged.other_recipe);
    assert_eq!(place.looks("hit"), 2);
}

#[tokio::test]
async fn only_what_is_replayed_is_kept() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    for (key, verdict) in [("retry", Verdict::FailedRetryable), ("unsure", Verdict::Uncertain)] {
        let ticket = run(&store, claim(key)).await;
        store.finish(ticket, Finish { verdict, ..completed("x") }).await.unwrap();
    }
    run(&store, claim("running")).await;
    done(&store, "done").await;
    place.filled("stored", 1).await;
    assert_eq!(place.entries().await.len(), 1);
    assert!(matches!(store.claim(claim("unsure")).await.unwrap(), Claimed::Uncertain(_)));
    assert!(matches!(store.claim(claim("running")).await.unwrap(), Claimed::InFlight(_)));
    run(&store, claim("retry")).await;
}

#[tokio::test]
async fn an_expired_outcome_is_not_replayed_from_the_cache() {
    let Some(place) = Place::new() else { return };
    // The authority's clock is years ahead of Redis' and this machine's, and stands until it is moved.
    let ms = Arc::new(AtomicU64::new(4_000_000_000_000));
    let clock = ms.clone();
    let sqlite = SqliteStore::options().clock(move || StoreTime(clock.load(Ordering::SeqCst)));
    let store = place.over(sqlite.open(place.path()).await.unwrap()).await;
    let ticket = run(&store, claim("k")).await;
    store.finish(ticket, Finish { retention: Retention::Ms(60_000), ..completed("k") }).await.unwrap();
    place.filled("stored", 1).await;
    assert_eq!(replayed(&store, "k").await, "k");
    ms.fetch_add(59_000, Ordering::SeqCst);
    // Any answer of the authority tells its time.
    done(&store, "other").await;
    replayed(&store, "other").await;
    store.claim_verified(claim("other")).await.unwrap();
    let old = place.looks("old");
    ms.fetch_add(1_000, Ordering::SeqCst);
    store.claim_verified(claim("other")).await.unwrap();
    let again = run(&store, claim("k")).await;
    assert!(again.epoch > ticket.epoch);
    assert!(place.looks("old") > old, "it was in the cache, and not believed");
}

#[tokio::test]
async fn an_entry_is_believed_for_a_while_only() {
    let Some(place) = Place::new() else { return };
    let ms = Arc::new(AtomicU64::new(4_000_000_000_000));
    let clock = ms.clone();
    let sqlite = SqliteStore::options().clock(move || StoreTime(clock.load(Ordering::SeqCst)));
    let store = place.over(sqlite.open(place.path()).await.unwrap()).await;
    let ticket = done(&store, "k").await;
    place.filled("stored", 1).await;
    // Somebody decides past the cache.
    assert!(matches!(
        store.authority().decide(ticket.id, release(ticket.epoch)).await,
        Ok(Decided::Recorded)
    ));
    assert_eq!(replayed(&store, "k").await, "k", "the cache cannot know");
    // This authority's clock stands while ours runs: a minute more than five.
    ms.fetch_add(6 * 60 * 1000, Ordering::SeqCst);
    done(&store, "other").await;
    store.claim_verified(claim("other")).await.unwrap();
    run(&store, claim("k")).await;
}

#[tokio::test]
async fn a_withdrawn_outcome_is_gone_from_the_cache_too() {
    let Some(place) = Place::new() else { return };
    let (here, there) = (place.open().await, place.open().await);
    let ticket = done(&here, "k").await;
    place.filled("stored", 1).await;
    assert_eq!(replayed(&there, "k").await, "k");
    assert!(matches!(here.decide(ticket.id, release(ticket.epoch)).await, Ok(Decided::Recorded)));
    // Also for another process, at once; and what comes after it is cached like anything else.
    let again = run(&there, claim("k")).await;
    assert_eq!(there.finish(again, completed("again")).await.unwrap(), Finished::Recorded);
    place.filled("stored", 2).await;
    let hits = place.looks("hit");
    assert_eq!(replayed(&here, "k").await, "again");
    assert_eq!(place.looks("hit"), hits + 1);
}

/// An authority whose records are on their way for as long as a test wants.
pub(super) struct Slow {
    store: SqliteStore,
    gates: Arc<Gates>,
}

pub(super) struct Gates {
    /// One for each record that was read and is on its way.
    read: Semaphore,
    /// One for each that may arrive.
    pub(super) arrive: Semaphore,
}

impl Gates {
    pub(super) fn before(store: SqliteStore) -> (Slow, Arc<Self>) {
        let gates = Arc::new(Self { read: Semaphore::new(0), arrive: Semaphore::new(0) });
        (Slow { store, gates: gates.clone() }, gates)
    }

    pub(super) async fn one_is_read(&self) {
        let read = tokio::time::timeout(Duration::from_secs(60), self.read.acquire()).await;
        read.expect("a record is read").unwrap().forget();
    }
}

impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.store.now().await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }
    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.store.renew(ticket, lease_ms).await
    }
    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        self.store.finish(ticket, finish).await
    }
    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let read = self.store.get(id).await;
        self.gates.read.add_permits(1);
        self.gates.arrive.acquire().await.unwrap().forget();
        read
    }
    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.store.list(filter).await
    }
    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        self.store.decide(id, decide).await
    }
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.store.sweep(limit).await
    }
    async fn lineage(&self) -> Result<Option<Lineage>, StoreError> {
        self.store.lineage().await
    }
}

#[tokio::test]
async fn a_late_fill_does_not_bring_back_what_was_withdrawn() {
    let Some(place) = Place::new() else { return };
    let (slow, gates) = Gates::before(place.sqlite().await);
    let store = place.over(slow).await;
    let ticket = done(&store, "k").await;
    // The outcome is read and on its way; meanwhile it is withdrawn, and claimed by somebody else.
    gates.one_is_read().await;
    assert!(matches!(store.decide(ticket.id, release(ticket.epoch)).await, Ok(Decided::Recorded)));
    gates.arrive.add_permits(1);
    place.filled("overtaken", 1).await;
    run(&store, claim("k")).await;
    assert_eq!(place.looks("hit"), 0);
}

#[tokio::test]
async fn without_the_cache_nothing_is_withdrawn() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    let ticket = done(&store, "k").await;
    place.filled("stored", 1).await;
    let nowhere = "redis://127.0.0.1:1?timeout=500";
    let cut_off = semel::store::tiered::TieredStore::open(place.sqlite().await, nowhere, &place.metrics);
    let cut_off = cut_off.await.expect("a cache that is down does not keep a process from starting");
    let error = cut_off.decide(ticket.id, release(ticket.epoch)).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    assert!(matches!(store.claim_verified(claim("k")).await.unwrap(), Claimed::Replay(_)));
    // What was never replayed is decided without it.
    let unsure = run(&cut_off, claim("unsure")).await;
    let finish = Finish { verdict: Verdict::Uncertain, ..completed("x") };
    cut_off.finish(unsure, finish).await.unwrap();
    let not_applied = Decide { ruling: Ruling::NotApplied, ..release(unsure.epoch) };
    assert!(matches!(cut_off.decide(intent("unsure").id(), not_applied).await, Ok(Decided::Recorded)));
}

#[tokio::test]
async fn a_store_without_a_lineage_gets_no_cache() {
    let Some(place) = Place::new() else { return };
    let memory = semel::store::memory::MemoryStore::new();
    let opened = semel::store::tiered::TieredStore::open(memory, &place.cache_url(), &place.metrics).await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Misconfigured);
}

#[tokio::test]
async fn an_operation_that_verifies_asks_the_authority() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    let guard = Guard::with(store, Limits::default(), place.metrics.clone(), CurrentRuntime);
    let (scope, key) = (Scope::tenant("acme").unwrap(), Key::new("k").unwrap());
    let plain = guard.operation("mail").unwrap();
    let verified = guard.operation("pay").unwrap().preset(Preset::Payment);
    for (operation, looks) in [(&plain, "hit"), (&verified, "verified")] {
        let stored = place.fills("stored");
        operation.once(&scope, &key, &1, |_| async { Ok(1) }).await.unwrap();
        place.filled("stored", stored + 1).await;
        let (before, hits) = (place.looks(looks), place.looks("hit"));
        assert!(operation.once(&scope, &key, &1, |_| async { Ok(2) }).await.unwrap().replayed);
        assert_eq!(place.looks(looks), before + 1);
        assert_eq!(place.looks("hit"), hits + u64::from(looks == "hit"));
    }
}
