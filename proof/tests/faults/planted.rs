//! The judge can fail: bugs planted between guard and store, and a policy that asks for it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proof::load::{Doubt, Judgement, Settings};
use semel::store::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use semel::{IntentId, StoreDown, StoreTime};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, alone, require};

use crate::place::{Place, open_at_last};
use crate::scene::{Scene, blocking};

/// What is wrong with the store.
enum Bug {
    /// A claim whose answer was lost is reported as not carried out, and given to whoever asks next.
    DoubtIsNo(Mutex<BTreeSet<IntentId>>),
    /// Every eighth outcome is acknowledged and thrown away.
    OutcomesDropped(AtomicUsize),
}

struct Planted {
    store: AnyStore,
    bug: Bug,
}

impl Planted {
    fn on(store: AnyStore, bug: Bug) -> AnyStore {
        AnyStore::new(Self { store, bug })
    }
}

impl Store for Planted {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.store.now().await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let (id, asked) = (claim.intent.id(), self.store.claim(claim).await);
        let Bug::DoubtIsNo(doubted) = &self.bug else { return asked };
        match asked {
            Err(error) if error.fate() == Fate::InDoubt => {
                doubted.lock().unwrap().insert(id);
                Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "it cannot have happened"))
            }
            Ok(Claimed::InFlight(existing)) if doubted.lock().unwrap().contains(&id) => {
                Ok(Claimed::Run(existing.record.ticket(false)))
            }
            asked => asked,
        }
    }
    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.store.renew(ticket, lease_ms).await
    }
    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        match &self.bug {
            Bug::OutcomesDropped(count) if count.fetch_add(1, Ordering::SeqCst).is_multiple_of(8) => {
                Ok(Finished::Recorded)
            }
            _ => self.store.finish(ticket, finish).await,
        }
    }
    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.store.get(id).await
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
}

fn expect_objection(judgement: &Judgement, wanted: &str) {
    let objects = judgement.objections.iter().any(|objection| objection.contains(wanted));
    assert!(objects, "the judge saw nothing wrong: {judgement} {:?}", judgement.objections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_doubt_for_no_is_caught() {
    let Some(server) = require(Service::Postgres) else { return };
    let place = Place::on(Service::Postgres, server.url()).await;
    let proxy = Proxy::start(place.address()).unwrap();
    let store = open_at_last(&place.url_through(&proxy)).await;
    let scene = Scene::new(Planted::on(store, Bug::DoubtIsNo(Mutex::default())));
    let fault = async || {
        for _ in 0..20 {
            let before = proxy.dropped();
            proxy.set(Fault::DropResponse);
            // On a busy machine nobody may be under way for a while.
            let lost = async {
                while proxy.dropped() == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(5), lost).await;
            tokio::time::sleep(Duration::from_millis(15)).await;
            proxy.set(Fault::Pass);
            tokio::time::sleep(Duration::from_millis(80)).await;
        }
    };
    expect_objection(&scene.under("doubt taken for no", Doubt::Some, fault).await, "happened 2 times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_drops_outcomes_is_caught() {
    let Some(server) = require(Service::Mariadb) else { return };
    let place = Place::on(Service::Mariadb, server.url()).await;
    let store = Planted::on(place.store().await, Bug::OutcomesDropped(AtomicUsize::new(0)));
    let scene = Scene::with(store, Settings { lease: Duration::from_secs(1), ..Settings::default() });
    let judgement = scene.under("outcomes dropped", Doubt::Some, async || {}).await;
    expect_objection(&judgement, "told done, and the store does not know it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_policy_doubles_in_an_outage_and_is_caught() {
    let Some(mut server) = alone(Service::Redis) else { return };
    let place = Place::on(Service::Redis, server.url()).await;
    let settings = Settings { store_down: StoreDown::Open, ..Settings::default() };
    let scene = Scene::with(place.store().await, settings);
    let fault = async || {
        blocking(|| server.kill()).unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        blocking(|| server.start()).unwrap();
    };
    let judgement = scene.under("an open policy", Doubt::Some, fault).await;
    assert!(
        judgement
            .objections
            .iter()
            .any(|objection| objection.contains("happened") && objection.contains("times")),
        "the judge saw nothing wrong: {judgement}"
    );
}
