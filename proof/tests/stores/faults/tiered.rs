//! Redis in front of a SQL store: it fails in every way, or the database behind it is an older one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use proof::load::{Doubt, Settings, What, intent_of, judge};
use semel::intent::fingerprint::Recipe;
use semel::observe::Metrics;
use semel::store::tiered::TieredStore;
use semel::store::{AnyStore, Claim, Claimed, Store};
use semel::{Effect, Owner, State};
use testkit::services::{Service, alone, require};

use crate::faults::place::{Place, patient};
use crate::faults::scene::{Scene, blocking};

async fn tiered(authority: &Place, cache: &str) -> AnyStore {
    let store = TieredStore::open(authority.patient_store().await, cache, &Metrics::new()).await;
    AnyStore::new(store.expect("the store opens"))
}

/// The cache dies, comes back, forgets, stands still and comes back: no caller notices.
async fn the_cache_fails(service: Service) {
    let Some(mut redis) = alone(Service::Redis) else { return };
    let Some(server) = require(service) else { return };
    let place = Place::on(service, server.url()).await;
    let cache = format!("{}?prefix={}", redis.url(), place.name());
    // The authority answers in time, however busy the machine is: only the cache is away.
    let settings = Settings { store_timeout: Duration::from_secs(20), ..Settings::default() };
    let scene = Scene::with(tiered(&place, &cache).await, settings);
    let fault = async || {
        blocking(|| redis.kill()).unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
        blocking(|| redis.start()).unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
        let mut connection = patient(redis.url()).await;
        ::redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
        blocking(|| redis.pause()).unwrap();
        tokio::time::sleep(Duration::from_millis(800)).await;
        blocking(|| redis.resume()).unwrap();
    };
    let judgement = scene.under(&format!("tiered on {service}: the cache fails"), Doubt::None, fault).await;
    assert_eq!(judgement.expect_clean().unavailable, 0, "a cache is not missed: {judgement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while the cache fails"]
async fn the_cache_in_front_of_postgres_fails() {
    the_cache_fails(Service::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while the cache fails"]
async fn the_cache_in_front_of_mariadb_fails() {
    the_cache_fails(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while the cache fails"]
async fn the_cache_in_front_of_mysql_fails() {
    the_cache_fails(Service::Mysql).await;
}

/// The newest of PostgreSQL's tools.
fn tool(name: &str) -> Command {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let paths = versions.map(|version| version.path().join("bin").join(name));
    let newest = paths.filter(|path| path.exists()).max();
    Command::new(newest.unwrap_or_else(|| name.into()))
}

fn run(mut command: Command) {
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn back_up(server: &str, schema: &str, to: &Path) {
    let mut dump = tool("pg_dump");
    dump.args(["--schema", schema, "--file"]).arg(to).arg(server);
    run(dump);
}

async fn restore(place: &Place, server: &str, from: &Path) {
    place.say(format!("DROP SCHEMA {} CASCADE", place.name())).await;
    let mut psql = tool("psql");
    psql.args(["--quiet", "--set", "ON_ERROR_STOP=1", "--file"]).arg(from).arg(server);
    run(psql);
}

fn claim(number: usize) -> Claim {
    let intent = intent_of(number).unwrap();
    let fingerprint = Recipe::default().bytes(intent.key().as_str().as_bytes());
    Claim {
        intent,
        fingerprint,
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while the cache fails"]
async fn the_database_is_restored_from_an_older_backup_behind_a_warm_cache() {
    let (Some(redis), Some(server)) = (require(Service::Redis), require(Service::Postgres)) else { return };
    let place = Place::on(Service::Postgres, server.url()).await;
    let cache = format!("{}?prefix={}&timeout=30000", redis.url(), place.name());
    let scene = Scene::new(tiered(&place, &cache).await);
    let backup = scene.dir().join("backup.sql");
    let fault = async || blocking(|| back_up(server.url(), place.name(), &backup));
    let intents = scene.traffic(fault).await;
    scene.settled("before the restore", intents, Doubt::None).await.expect_clean();

    restore(&place, server.url(), &backup).await;
    // The service starts again, on another database under the same name.
    let old = tiered(&place, &cache).await;
    let authority = place.patient_store().await;
    let known = async |number: usize| {
        let record = authority.get(intent_of(number).unwrap().id()).await.unwrap();
        record.is_some_and(|record| record.head.state == State::Completed)
    };
    let mut forgotten = Vec::new();
    for number in 0..intents {
        if !known(number).await {
            forgotten.push(number);
        }
    }
    assert!(!forgotten.is_empty() && forgotten.len() < intents, "{} of {intents}", forgotten.len());
    // Before anybody said that it is another one, the cache may answer what it remembers: the truth.
    let mut remembered = 0;
    for number in &forgotten {
        if let Claimed::Replay(_) = old.claim(claim(*number)).await.unwrap() {
            remembered += 1;
        }
    }
    assert!(remembered > 0, "the cache has none of {} that it should not be believed", forgotten.len());
    drop((old, authority));
    restore(&place, server.url(), &backup).await;
    semel::store::new_lineage(&place.patient_url()).await.unwrap();
    let store = tiered(&place, &cache).await;
    for number in &forgotten {
        // Whatever the cache has is of another database now: the authority has no record of it, and decides.
        let claimed = store.claim(claim(*number)).await.unwrap();
        assert!(!matches!(claimed, Claimed::Replay(_)), "the old cache was believed: {claimed:?}");
    }
    // What the backup has is answered as ever, with the same bytes.
    let after = Scene::with_dir(store, Settings::default(), scene.dir());
    for number in (0..intents).filter(|number| !forgotten.contains(number)) {
        assert!(matches!(Scene::answer_of(&after, number).await, What::Replayed(_)));
    }
    judge(&after, intents, Doubt::Lost).await.unwrap().expect_clean();
    println!(
        "restored: {} of {intents} intents are younger than the backup; {remembered} of them answered by the cache \
         until the lineage was made anew, none after",
        forgotten.len()
    );
}

#[tokio::test]
#[ignore = "prove: random traffic while the cache fails"]
async fn a_new_lineage_is_seen_by_stores_that_are_open() {
    for service in [Service::Postgres, Service::Mariadb, Service::Mysql] {
        let Some(server) = require(service) else { return };
        let place = Place::on(service, server.url()).await;
        let store = place.patient_store().await;
        let before = store.lineage().await.unwrap();
        assert!(before.is_some() && before == place.patient_store().await.lineage().await.unwrap());
        let made = semel::store::new_lineage(&place.patient_url()).await.unwrap();
        assert_eq!(store.lineage().await.unwrap(), Some(made));
        assert_ne!(before, Some(made));
    }
}
