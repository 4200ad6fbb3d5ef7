//! Everything between a commit and its effect is killed in turn, under load.

use semel::crash::{AFTER_COMMIT, AFTER_PUBLISH, BEFORE_ACK};

use crate::chain::SOON;
use crate::chain::rounds;
use crate::chain::scene::Scene;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: everything killed under load"]
async fn each_event_has_its_effect_once_whatever_is_killed_on_the_way() {
    let Some(mut scene) = Scene::new().await else { return };
    let load = scene.load();
    let (mut relay, mut consumer) = (scene.relay(None), scene.consumer(None));
    for _ in 0..rounds(1) {
        scene.more(50).await;
        consumer.kill().unwrap();
        for point in [BEFORE_ACK, AFTER_COMMIT] {
            // The effects are there, and the broker does not know it.
            let mut aimed = scene.consumer(Some(point));
            aimed.wait_for_point(SOON).unwrap();
            aimed.kill().unwrap();
        }
        consumer = scene.consumer(None);
        scene.more(50).await;

        relay.kill().unwrap();
        // The broker has the events, and the outbox does not know it.
        let mut aimed = scene.relay(Some(AFTER_PUBLISH));
        aimed.wait_for_point(SOON).unwrap();
        aimed.kill().unwrap();
        relay = scene.relay(None);
        scene.more(50).await;

        scene.cluster.kill().unwrap();
        scene.cluster.start().unwrap();
        scene.more(50).await;

        scene.kafka.restart().unwrap();
        scene.more(50).await;
    }
    let verdict = scene.end(load, relay, consumer).await;
    assert!(verdict.holds_exactly_once(), "{verdict}");
}
