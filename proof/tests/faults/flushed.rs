//! Redis is emptied in the middle of the load. It has lost its memory, says so, and nothing runs any more.

use std::collections::BTreeMap;

use proof::load::{Doubt, Downstream, What, judge};
use semel::store::ErrorKind;
use semel::store::redis::RedisStore;
use testkit::services::{Service, alone};

use crate::place::{Place, open, patient};
use crate::scene::Scene;

fn charges(scene: &Scene) -> BTreeMap<String, Vec<String>> {
    Downstream::open(scene.dir()).unwrap().charges().unwrap()
}

/// What a caller is told, who asks again while the store does not answer in time.
async fn told(scene: &Scene, number: usize) -> What {
    for _ in 0..20 {
        let what = scene.party.call(number).await.unwrap();
        if what != What::Unavailable {
            return what;
        }
    }
    What::Unavailable
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_is_closed_until_a_person_accepts_the_loss() {
    let Some(server) = alone(Service::Redis) else { return };
    let place = Place::on(Service::Redis, server.url()).await;
    let scene = Scene::new(place.store().await);
    let mut connection = patient(server.url()).await;
    let intents =
        scene.traffic(async || ::redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap()).await;

    let judgement = judge(&scene.party, intents, Doubt::Lost).await.unwrap();
    println!("redis flushed: {judgement}");
    assert!(judgement.expect_clean().lost > 0, "nobody was told: {judgement}");
    // Closed: old intents and new ones, in this process and in one that starts now.
    let before = charges(&scene);
    for number in 0..intents + 30 {
        assert_eq!(told(&scene, number).await, What::Lost);
    }
    assert_eq!(charges(&scene), before, "something ran after the loss");
    let as_a_service = place.url().replace("&create=yes", "");
    assert_eq!(open(&as_a_service).await.unwrap_err().kind(), ErrorKind::Lost);

    // A person looks, and goes on without what was forgotten.
    let options = RedisStore::options(&place.url()).unwrap();
    assert!(options.accept_loss().await.unwrap().is_whole());
    for number in intents..intents + 30 {
        assert!(matches!(told(&scene, number).await, What::Done(_)));
    }
    let after = charges(&scene);
    assert_eq!(
        after.values().map(Vec::len).sum::<usize>(),
        before.values().map(Vec::len).sum::<usize>() + 30
    );
}
