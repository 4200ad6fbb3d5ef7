//! Several relays at once: one is killed, one stands still for longer than its lease.

use testkit::child::Child;
use testkit::services::{Service, require};

use crate::relay_chaos::SOON;
use crate::relay_chaos::load::Database;
use crate::relay_chaos::scene::{LEASE, Scene};

/// Waits until so many relays own partitions, and none of the others does.
async fn owners(scene: &Scene, wanted: i64) {
    let Database::Postgres(pool) = &scene.database else { panic!("partitions are looked at in PostgreSQL") };
    let look = "SELECT count(DISTINCT owner) FROM semel_outbox_cursor
                HAVING count(owner) = 16";
    let waited = async {
        loop {
            let found: Option<i64> = sqlx::query_scalar(look).fetch_optional(pool).await.unwrap();
            if found == Some(wanted) {
                return;
            }
            tokio::time::sleep(LEASE / 20).await;
        }
    };
    tokio::time::timeout(SOON, waited).await.expect("the partitions are shared");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn one_of_three_is_killed_and_one_sleeps_through_its_lease() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let load = scene.load();
    let mut relays: Vec<Child> = (0..3).map(|_| scene.relay()).collect();
    owners(&scene, 3).await;
    scene.follower.more(200);
    relays.remove(0).kill().unwrap();
    // The other two share what it had.
    owners(&scene, 2).await;
    let asleep = relays.remove(0);
    asleep.pause().unwrap();
    owners(&scene, 1).await;
    scene.follower.more(200);
    asleep.resume().unwrap();
    // It comes back as one that owns nothing, and gets its share again.
    owners(&scene, 2).await;
    scene.follower.more(200);
    relays.push(asleep);
    let verdict = scene.end(load, relays).await;
    assert!(verdict.holds(), "{verdict}");
}

/// Stopped between its note and its sending, and again between the broker's word and its own: another has done all that
/// when it goes on.
/// Slow: at each point a lease has to pass before the other relay takes over.
#[tokio::test(flavor = "multi_thread")]
async fn one_wakes_up_in_the_middle_of_a_batch_that_another_has_sent() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let load = scene.load();
    for point in semel::crash::IN_RELAY {
        let mut asleep = scene.relay_at(Some(&format!("{point}:3")));
        asleep.wait_for_point(SOON).unwrap();
        let awake = scene.relay();
        owners(&scene, 1).await;
        scene.follower.more(200);
        asleep.go().unwrap();
        owners(&scene, 2).await;
        scene.follower.more(100);
        for mut relay in [asleep, awake] {
            relay.terminate().unwrap();
            let ended = relay.wait(SOON).unwrap();
            assert!(ended.status.success(), "{ended:?}");
        }
    }
    let relay = scene.relay();
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}
