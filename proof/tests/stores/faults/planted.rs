//! The judge can fail: bugs planted between guard and store, and a policy that asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proof::load::{Doubt, Judgement, Kind, Party, Settings, ask_again, intent_of};
use semel::store::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page,
    Record, Renewed, Store, StoreError, Ticket,
};
use semel::{IntentId, StoreDown, StoreTime};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, alone, require};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::faults::place::{Place, open_at_last};
use crate::faults::scene::{INTENTS_MAX, PATIENCE, Scene, blocking, soon};

/// What the judge says of an effect that happened more than once.
const DOUBLED: &[&str] = &["happened", "times"];
/// Intents whose claims are lost at once (a third of them: those that nothing else protects), and callers who then
/// ask for each.
const AT_ONCE: usize = 36;
const CALLERS: usize = 4;

/// What is wrong with the store.
enum Bug {
    /// A claim whose answer was lost is reported as not carried out, and given to the next caller.
    DoubtIsNo(Arc<Doubted>),
    /// Outcomes of these intents are acknowledged and thrown away.
    OutcomesDropped(BTreeSet<IntentId>),
}

/// Claims whose answer was lost, and to how many they were given since.
#[derive(Default)]
struct Doubted(Mutex<BTreeMap<IntentId, usize>>);

impl Doubted {
    fn lost(&self, id: IntentId) {
        self.0.lock().unwrap().entry(id).or_default();
    }

    fn give(&self, id: IntentId) -> bool {
        self.0.lock().unwrap().get_mut(&id).map(|given| *given += 1).is_some()
    }

    /// Whether the bug has struck: two are at work under one claim.
    fn given_twice(&self) -> bool {
        self.0.lock().unwrap().values().any(|given| *given > 1)
    }
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
                doubted.lost(id);
                Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "it cannot have happened"))
            }
            Ok(Claimed::InFlight(existing)) if doubted.give(id) => {
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
            Bug::OutcomesDropped(ids) if ids.contains(&ticket.id) => Ok(Finished::Recorded),
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

fn expect_objection(judgement: &Judgement, wanted: &[&str]) {
    let is_wanted = |objection: &String| wanted.iter().all(|wanted| objection.contains(wanted));
    let objects = judgement.objections.iter().any(is_wanted);
    assert!(objects, "the judge saw nothing wrong: {judgement} {:?}", judgement.objections);
}

/// Each of `intents` that nothing else protects is asked for by so many callers at once, until they have an answer or
/// no more patience.
async fn all_ask(party: &Party, intents: Range<usize>, callers: usize, patience: Duration) {
    let mut calls = JoinSet::new();
    let (opaque, until) =
        (intents.filter(|number| Kind::of(*number) == Kind::Opaque), Instant::now() + patience);
    for number in opaque.flat_map(|number| std::iter::repeat_n(number, callers)) {
        let party = party.clone();
        calls.spawn(async move { ask_again(&party, number, until).await });
    }
    calls.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_doubt_for_no_is_caught() {
    let Some(server) = require(Service::Postgres) else { return };
    let place = Place::on(Service::Postgres, server.url()).await;
    let proxy = Proxy::start(place.address()).unwrap();
    let store = open_at_last(&place.url_through(&proxy)).await;
    let doubted = Arc::new(Doubted::default());
    let scene = Scene::new(Planted::on(store, Bug::DoubtIsNo(doubted.clone())));
    let mut intents = 0;
    let struck = async {
        while !doubted.given_twice() {
            // Everybody has asked before, so there are connections: on those the next claims are carried out, and their
            // answers lost.
            let (before, asked_for) = (intents..intents + AT_ONCE, intents + AT_ONCE..intents + 2 * AT_ONCE);
            all_ask(&scene.party, before, CALLERS, PATIENCE).await;
            proxy.set(Fault::DropResponse);
            all_ask(&scene.party, asked_for.clone(), 1, Duration::ZERO).await;
            proxy.set(Fault::Pass);
            all_ask(&scene.party, asked_for.clone(), CALLERS, PATIENCE).await;
            intents = asked_for.end;
        }
    };
    soon(struck).await;
    expect_objection(&scene.settled("doubt taken for no", intents, Doubt::Some).await, DOUBLED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_drops_outcomes_is_caught() {
    let Some(server) = require(Service::Mariadb) else { return };
    let place = Place::on(Service::Mariadb, server.url()).await;
    // Every second of those that nothing else protects.
    let dropped = (0..INTENTS_MAX).step_by(6).map(|number| intent_of(number).unwrap().id()).collect();
    let store = Planted::on(place.store().await, Bug::OutcomesDropped(dropped));
    let scene = Scene::with(store, Settings { lease: Duration::from_secs(1), ..Settings::default() });
    let judgement = scene.under("outcomes dropped", Doubt::Some, async || {}).await;
    expect_objection(&judgement, &["answered done, and the store does not know it"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_policy_doubles_in_an_outage_and_is_caught() {
    let Some(mut server) = alone(Service::Redis) else { return };
    let place = Place::on(Service::Redis, server.url()).await;
    let settings = Settings { store_down: StoreDown::Open, ..Settings::default() };
    let scene = Scene::with(place.store().await, settings);
    let fault = async || {
        blocking(|| server.kill()).unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        blocking(|| server.start()).unwrap();
    };
    let judgement = scene.under("an open policy", Doubt::Some, fault).await;
    expect_objection(&judgement, DOUBLED);
}
