//! Services at work: effects by two guards that share a store, events by plain SQL, and a relay.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::outbox::{Event, sqlite_path};
use semel::relay::poll::mysql::MysqlOutbox;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Relay, RelayOptions, RelayStats, RelayStopHandle};
use semel::sink::{DeliverySemantics, Guarantee, Published, Sink};
use semel::store::AnyStore;
use semel::tx::driver::Dialect;
use semel::{Guard, Key, Scope};
use tokio::task::JoinHandle;

use super::until;
use super::world::World;

/// Keys at work at a time.
const WORKERS: usize = 4;
/// Of the relays. A relay that publishes when it is over has renewed it meanwhile.
const LEASE: Duration = Duration::from_secs(1);
/// What is done before the next thing happens to the tables.
const GOES_ON: usize = 40;

pub(super) struct Load {
    /// How often the effect of each key ran.
    effects: Arc<Mutex<HashMap<String, usize>>>,
    done: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
    relay: JoinHandle<RelayStats>,
    stop: RelayStopHandle,
    published: Remembering,
}

/// The ids that got to the sink.
#[derive(Clone, Default)]
pub(super) struct Remembering(Arc<Mutex<HashSet<String>>>);

impl Remembering {
    pub(super) fn events(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Sink for Remembering {
    fn guarantee(&self) -> Guarantee {
        let sentence = "Remembered until the test ends.".into();
        Guarantee { delivery: DeliverySemantics::AtLeastOnce, sentence, violations: Vec::new() }
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let mut ids = self.0.lock().unwrap();
        ids.extend(events.iter().map(|event| event.id().to_string()));
        vec![Published::Confirmed; events.len()]
    }
}

/// Why a relay cannot read the outbox.
pub(super) async fn unreadable(world: &World) -> OutboxReaderError {
    match world.dialect() {
        Dialect::Postgres => PostgresOutbox::open(&world.url()).await.map(drop),
        Dialect::Mysql => MysqlOutbox::new(&world.url()).unwrap().source().next().await.map(drop),
        Dialect::Sqlite => SqliteOutbox::new(sqlite_path(&world.url())).source().next().await.map(drop),
    }
    .unwrap_err()
}

impl Load {
    pub(super) async fn start(world: &Arc<World>, published: &Remembering) -> Self {
        static LOADS: AtomicUsize = AtomicUsize::new(0);
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let (relay, stop) = match world.dialect() {
            Dialect::Postgres => relay(PostgresOutbox::open(&world.url()).await.unwrap().source(), published),
            Dialect::Mysql => relay(MysqlOutbox::new(&world.url()).unwrap().source(), published),
            Dialect::Sqlite => relay(SqliteOutbox::new(sqlite_path(&world.url())).source(), published),
        };
        let (effects, done, over) =
            <(Arc<Mutex<HashMap<_, _>>>, Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            // Two processes: what one has done, the other replays.
            let guards = [guard(world).await, guard(world).await];
            let world = Arc::clone(world);
            let (effects, done, over) = (Arc::clone(&effects), Arc::clone(&done), Arc::clone(&over));
            workers.push(tokio::spawn(async move {
                for n in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("{load}-{worker}-{n}");
                    for (guard, replayed) in guards.iter().zip([false, true]) {
                        assert_eq!(once(guard, &key, &effects).await, replayed, "{key}");
                    }
                    world.run(&insert(world.dialect(), &key)).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let published = published.clone();
        Self { effects, done, over, workers, relay, stop, published }
    }

    /// Waits until more was done and published; a worker that failed fails the test.
    pub(super) async fn goes_on(&self, what: &str) {
        tokio::time::sleep(LEASE).await;
        let enough = self.done.load(Ordering::Relaxed) + GOES_ON;
        let published = self.published.events() + GOES_ON;
        until(what, async || {
            assert!(self.workers.iter().all(|worker| !worker.is_finished()), "{what}: a worker has failed");
            assert!(!self.relay.is_finished(), "{what}: the relay has ended");
            self.done.load(Ordering::Relaxed) >= enough && self.published.events() >= published
        })
        .await;
    }

    /// Ends it, and judges: each effect once. How many effects there were.
    pub(super) async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
        let effects = self.effects.lock().unwrap().clone();
        assert_eq!(effects.len(), self.done.load(Ordering::Relaxed));
        assert!(effects.values().all(|times| *times == 1), "{effects:?}");
        self.stop.stop();
        self.relay.await.unwrap();
        effects.len()
    }
}

/// Runs the effect of a key unless it ran before; whether it did.
async fn once(guard: &Guard<AnyStore>, key: &str, effects: &Arc<Mutex<HashMap<String, usize>>>) -> bool {
    let payments = guard.operation("payment.create").unwrap();
    let (scope, key) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap());
    let (effects, name) = (Arc::clone(effects), key.as_str().to_owned());
    let effect = |_| async move {
        *effects.lock().unwrap().entry(name).or_default() += 1;
        Ok(())
    };
    payments.once::<(), _, _, _>(&scope, &key, &4200, effect).await.unwrap().replayed
}

async fn guard(world: &World) -> Guard<AnyStore> {
    Guard::new(semel::store::open(&world.store_url()).await.unwrap())
}

/// As a service in any language does it.
fn insert(dialect: Dialect, key: &str) -> String {
    let (quoted, payload) = match dialect {
        Dialect::Postgres => ("key", "'{}'"),
        Dialect::Mysql => ("`key`", "'{}'"),
        Dialect::Sqlite => ("key", "x'7b7d'"),
    };
    format!(
        "INSERT INTO semel_outbox (topic, type, {quoted}, payload) VALUES ('payments', 'made', '{key}', {payload})"
    )
}

fn relay(reader: impl OutboxReader, sink: &Remembering) -> (JoinHandle<RelayStats>, RelayStopHandle) {
    let relay = Relay::new(reader, sink.clone(), RelayOptions::default().keep_all());
    let stop = relay.stop_handle();
    (tokio::spawn(async { relay.run().await.unwrap() }), stop)
}
