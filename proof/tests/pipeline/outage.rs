//! The broker is killed and comes back.

use testkit::services::{Service, alone};

use crate::scene::{Scene, stop};
use crate::wanted;

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_is_killed_and_each_message_is_transformed_once() {
    let Some(mut kafka) = alone(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    // Without names: a killed broker may have forgotten the last joining of a static member, and turns it away for good.
    let workers = [scene.worker("right", "-", None), scene.worker("right", "-", None)];
    for _ in 0..wanted("SEMEL_ROUNDS", 1) {
        scene.publish(3_000).await;
        scene.behind_at_most(2_500).await;
        kafka.restart().unwrap();
    }
    scene.publish(500).await;
    scene.behind_at_most(0).await;
    workers.into_iter().for_each(stop);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}
