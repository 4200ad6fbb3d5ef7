//! The broker is killed and comes back.

use testkit::services::{Service, alone};

use crate::rounds;
use crate::scene::{Scene, stop};

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_is_killed_and_each_message_has_its_effect_once() {
    let Some(mut kafka) = alone(Service::Kafka) else { return };
    let Some(mut scene) = Scene::new(kafka.url()).await else { return };
    let workers = [scene.worker("right", "-", None), scene.worker("right", "-", None)];
    for _ in 0..rounds(1) {
        let so_far = scene.effects().await;
        scene.publish(600).await;
        scene.reach(so_far + 50).await;
        kafka.restart().unwrap();
    }
    scene.publish(100).await;
    scene.reach_all().await;
    scene.behind_at_most(0).await;
    workers.into_iter().for_each(stop);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}
