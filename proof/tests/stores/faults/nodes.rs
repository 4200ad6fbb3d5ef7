//! Nodes of a Redis Cluster that die, are emptied in good order, or are lost with what they had.

use std::time::Duration;

use proof::load::{Doubt, Settings, What, judge};
use semel::store::redis::RedisStore;
use testkit::services::Service;

use crate::faults::cluster::Cluster;
use crate::faults::place::Place;
use crate::faults::scene::{PATIENCE, Scene, blocking};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while a node is lost"]
async fn a_cluster_node_is_killed_and_started_again() {
    let Some(mut cluster) = Cluster::start() else { return };
    let place = Place::on(Service::RedisCluster, &cluster.url()).await;
    let scene = Scene::new(place.store().await);
    let fault = async || {
        blocking(|| cluster.kill_node(2));
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        blocking(|| cluster.start_node(2));
        blocking(|| cluster.wait_until_whole(3));
    };
    let judgement = scene.under("a cluster node killed", Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while a node is lost"]
async fn a_cluster_node_hands_its_slots_over_and_goes() {
    let Some(mut cluster) = Cluster::start() else { return };
    let place = Place::on(Service::RedisCluster, &cluster.url()).await;
    let scene = Scene::new(place.store().await);
    let mut gone = false;
    let fault = async || {
        if !gone {
            blocking(|| cluster.empty_last_node());
            blocking(|| cluster.kill_node(2));
            gone = true;
        }
    };
    scene.under("a cluster node's slots moved", Doubt::None, fault).await.expect_clean();
}

/// What became of a part: some intents are where memory was lost, and refused; the others go on.
async fn a_part_is_lost(scene: &Scene, place: &Place, intents: usize, name: &str) {
    let judgement = judge(&scene.party, intents, Doubt::Lost).await.unwrap();
    println!("{name}: {judgement}");
    judgement.expect_clean();
    let (mut lost, mut whole) = (Vec::new(), 0);
    for number in 0..intents {
        match scene.party.call(number).await.unwrap() {
            What::Lost => lost.push(number),
            What::Done(_) | What::Unstored(_) | What::Replayed(_) => whole += 1,
            // Given back in the outage, or its finish is still on its way.
            What::InFlight | What::Settling | What::Held | What::Unavailable => {}
            wrong @ What::Wrong(_) => panic!("{wrong:?}"),
        }
    }
    assert!(
        lost.len() > intents / 8 && whole > intents / 4,
        "{} lost, {whole} whole of {intents}",
        lost.len()
    );
    judge(&scene.party, intents, Doubt::Lost).await.unwrap().expect_clean();
    let options = || RedisStore::options(&place.patient_url()).unwrap();
    let memory = options().memory().await.unwrap();
    assert!(memory.missing > 200 && memory.missing < 500, "{memory:?}");
    assert!(options().accept_loss().await.unwrap().is_whole());
    let patient = Settings { store_timeout: PATIENCE, ..Settings::default() };
    let later = Scene::with_dir(place.patient_store().await, patient, scene.dir());
    assert!(matches!(Scene::answer_of(&later, intents).await, What::Done(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while a node is lost"]
async fn a_cluster_node_is_lost_and_its_slots_given_to_others() {
    let Some(mut cluster) = Cluster::start() else { return };
    let place = Place::on(Service::RedisCluster, &cluster.url()).await;
    let scene = Scene::new(place.store().await);
    let mut gone = false;
    let fault = async || {
        if !gone {
            blocking(|| cluster.kill_node(2));
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            blocking(|| cluster.give_its_slots_away());
            gone = true;
        }
    };
    let intents = scene.traffic(fault).await;
    a_part_is_lost(&scene, &place, intents, "a cluster node lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic while a node is lost"]
async fn a_cluster_node_is_flushed_and_the_others_go_on() {
    let Some(cluster) = Cluster::start() else { return };
    let place = Place::on(Service::RedisCluster, &cluster.url()).await;
    let scene = Scene::new(place.store().await);
    let intents = scene.traffic(async || blocking(|| cluster.flush_node(1))).await;
    a_part_is_lost(&scene, &place, intents, "a cluster node flushed").await;
}
