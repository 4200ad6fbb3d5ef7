//! A known mistake, which the table catches.

use semel::crash::AFTER_PUBLISH;

use crate::chain::SOON;
use crate::chain::scene::Scene;

/// Slow: the whole chain of processes, killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_events_id_what_the_relay_sends_again_has_its_effect_again() {
    let Some(mut scene) = Scene::new().await else { return };
    scene.consumes = "by-place";
    let load = scene.load();
    let consumer = scene.consumer(None);
    let mut relay = scene.relay(Some(AFTER_PUBLISH));
    relay.wait_for_point(SOON).unwrap();
    relay.kill().unwrap();
    let relay = scene.relay(None);
    scene.more(50).await;
    let verdict = scene.end(load, relay, consumer).await;
    assert!(verdict.repeats > 0, "{verdict}");
    assert!(verdict.lost.is_empty(), "{verdict}");
}
