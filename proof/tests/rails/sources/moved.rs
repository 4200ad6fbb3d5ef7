//! Consumers join, leave and are killed while messages come: partitions move.

use testkit::services::{Service, require};

use crate::sources::kafka::Kafka;
use crate::sources::rounds;
use crate::sources::scene::{Scene, stop};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: consumers come and go at random"]
async fn partitions_move_and_each_message_has_its_effect_once() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    let stays = scene.worker("right", "-", None);
    for round in 0..rounds(2) {
        let so_far = scene.effects().await;
        scene.publish(400).await;
        let guest = scene.worker("right", "-", None);
        scene.reach(so_far + 100).await;
        scene.publish(400).await;
        scene.reach(so_far + 300 + fastrand::usize(0..200)).await;
        if round % 2 == 0 {
            stop(guest);
        } else {
            // Dropped: killed where it is. The others get its partitions when it is missed.
            drop(guest);
        }
    }
    scene.reach_all().await;
    scene.behind_at_most(0).await;
    stop(stays);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}
