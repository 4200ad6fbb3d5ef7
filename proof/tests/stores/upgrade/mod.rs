//! An upgrade without a stop: this build on the tables of the release before and of the one after, under load.

mod load;
mod statements;
mod world;

use std::sync::Arc;
use std::time::Duration;

use semel::inbox::dead_letter::{DeadLetterFilter, DeadLetterStore};
use semel::store::ErrorKind;
use semel::{inbox, outbox, store};
use testkit::services::Service;

use self::load::{Load, Remembering};
use self::world::{BEFORE, World};
use crate::store::postgres::place::Place;

/// Nothing here takes this long.
const SOON: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_upgraded_without_a_stop() {
    let Some(world) = World::postgres().await else { return };
    without_a_stop(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_is_upgraded_without_a_stop() {
    let Some(world) = World::mysql(Service::Mariadb).await else { return };
    without_a_stop(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_is_upgraded_without_a_stop() {
    let Some(world) = World::mysql(Service::Mysql).await else { return };
    without_a_stop(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_is_upgraded_without_a_stop() {
    without_a_stop(World::sqlite()).await;
}

async fn without_a_stop(world: World) {
    let (world, published) = (Arc::new(world), Remembering::default());
    world.create(&BEFORE).await;
    // Nothing that is there is removed on the way to this build's version.
    for plan in [
        store::plan_migration(&world.store_url(), false).await.unwrap(),
        outbox::plan_migration(&world.url(), false).await.unwrap(),
        inbox::plan_migration(&world.url(), false).await.unwrap(),
    ] {
        assert!(plan.before > 0, "{plan:?}");
    }
    let load = Load::start(&world, &published).await;
    load.goes_on("on the tables of the release before").await;

    // By two at once, and twice.
    let migrate = || async {
        store::migrate(&world.store_url()).await.unwrap();
        outbox::migrate(&world.url()).await.unwrap();
        inbox::migrate(&world.url()).await.unwrap();
    };
    tokio::join!(migrate(), migrate());
    load.goes_on("on this build's tables").await;

    world.expand().await;
    load.goes_on("on the tables of the release after").await;
    // A process of this build that starts now finds them, too, and leaves them alone.
    migrate().await;
    let late = Load::start(&world, &published).await;
    late.goes_on("as one that started late").await;
    let letters = DeadLetterStore::open(&world.url()).await.unwrap();
    assert!(letters.list(&DeadLetterFilter::default(), 10).await.unwrap().is_empty());

    let all = usize::try_from(world.number("SELECT count(*) FROM semel_outbox").await).unwrap();
    until("all events are published", async || published.events() >= all).await;
    // One event for each effect, also those since the count.
    let ran = late.end().await + load.end().await;
    let events = world.number("SELECT count(*) FROM semel_outbox").await;
    assert_eq!(ran, usize::try_from(events).unwrap(), "effects and events");

    // The one after that is not for this build.
    world.raise().await;
    let refused = [
        store::open(&world.store_url()).await.map(drop),
        outbox::migrate(&world.url()).await.map(drop),
        inbox::migrate(&world.url()).await.map(drop),
        DeadLetterStore::open(&world.url()).await.map(drop),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("newer semel"), "{error}");
    }
    let error = load::unreadable(&world).await;
    assert!(!error.may_retry() && error.to_string().contains("newer semel"), "{error}");
}

/// MySQL commits each statement by itself: an upgrade that died half way has left what it had added, and the old version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_died_half_way_is_completed() {
    const FIRST: &str = include_str!("../../../../crates/semel/src/inbox/sql/mysql.sql");
    const SECOND: &str = include_str!("../../../../crates/semel/src/inbox/sql/mysql_dead.sql");
    for service in [Service::Mariadb, Service::Mysql] {
        let Some(world) = World::mysql(service).await else { continue };
        world.run(FIRST).await;
        let (added, _) = SECOND.split_once("UPDATE semel_inbox_meta").unwrap();
        world.run(added).await;
        let plan = inbox::plan_migration(&world.url(), false).await.unwrap();
        assert_eq!((plan.before, plan.after), (1, inbox::VERSION));
        assert_eq!(inbox::migrate(&world.url()).await.unwrap().now, inbox::VERSION);
        let letters = DeadLetterStore::open(&world.url()).await.unwrap();
        assert!(letters.list(&DeadLetterFilter::default(), 10).await.unwrap().is_empty());
    }
}

/// The tables of the inbox in version 2.
const INBOX_2: &str = concat!(
    include_str!("../../../../crates/semel/src/inbox/sql/postgres.sql"),
    include_str!("../../../../crates/semel/src/inbox/sql/postgres_dead.sql"),
);

/// A transaction that is open for long holds up the upgrade, and not those who come after the upgrade has asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_has_to_wait_lets_others_pass() {
    let Some(place) = Place::take() else { return };
    let (long, other) = (place.client().await, place.client().await);
    long.batch_execute(INBOX_2).await.unwrap();
    long.batch_execute("BEGIN; SELECT count(*) FROM semel_inbox_batch").await.unwrap();
    let migrating = tokio::spawn({
        let url = place.url();
        async move { inbox::migrate(&url).await }
    });
    // The upgrade waits for the long transaction.
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'semel_inbox_batch'::regclass";
    until("the upgrade waits", async || other.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1)
        .await;
    // Behind it, this one would wait for as long as the transaction is open: here, for ever.
    other.batch_execute("SELECT count(*) FROM semel_inbox_batch").await.unwrap();
    long.batch_execute("COMMIT").await.unwrap();
    assert_eq!(migrating.await.unwrap().unwrap().now, inbox::VERSION);
}

/// Looks until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let patient = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, patient).await.is_ok(), "{what}: not within {SOON:?}");
}
