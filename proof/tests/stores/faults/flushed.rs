//! Redis is emptied in the middle of the load. It has lost its memory, says so, and nothing runs any more.

use std::collections::BTreeMap;

use proof::load::{Doubt, Downstream, Settings, What, judge};
use semel::store::ErrorKind;
use semel::store::redis::RedisStore;
use testkit::services::{Service, alone};

use crate::faults::place::{Place, open, patient};
use crate::faults::scene::{PATIENCE, Scene};

fn charges(scene: &Scene) -> BTreeMap<String, Vec<String>> {
    Downstream::open(scene.dir()).unwrap().charges().unwrap()
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
    assert!(judgement.expect_clean().lost > 0, "no caller learned that data is lost: {judgement}");
    // Closed: old intents and new ones, in this process and in one that starts now.
    let before = charges(&scene);
    for number in 0..intents + 30 {
        assert_eq!(Scene::answer_of(&scene.party, number).await, What::Lost);
    }
    assert_eq!(charges(&scene), before, "something ran after the loss");
    let as_a_service = place.patient_url().replace("&create=yes", "");
    assert_eq!(open(&as_a_service).await.unwrap_err().kind(), ErrorKind::Lost);

    // A person looks, and goes on without what was forgotten.
    let options = RedisStore::options(&place.patient_url()).unwrap();
    assert!(options.accept_loss().await.unwrap().is_whole());
    // With time to answer: a call that is given up and asked again may meet itself.
    let patient = Settings { store_timeout: PATIENCE, ..Settings::default() };
    let later = Scene::with_dir(place.patient_store().await, patient, scene.dir());
    for number in intents..intents + 30 {
        assert!(matches!(Scene::answer_of(&later, number).await, What::Done(_)));
    }
    let after = charges(&scene);
    assert_eq!(
        after.values().map(Vec::len).sum::<usize>(),
        before.values().map(Vec::len).sum::<usize>() + 30
    );
}
