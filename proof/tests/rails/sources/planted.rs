//! Known mistakes, which the table catches.

use semel::crash;
use testkit::services::{Service, require};

use crate::sources::SOON;
use crate::sources::kafka::Kafka;
use crate::sources::scene::{Broker, Scene, stop};

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_is_committed_before_the_effect_loses_messages() {
    let Some(kafka) = require(Service::Kafka) else { return };
    acknowledged_before_the_effect::<Kafka>(kafka.url()).await;
}

pub async fn acknowledged_before_the_effect<B: Broker>(url: &str) {
    let Some(mut scene) = Scene::<B>::new(url).await else { return };
    scene.publish(60).await;
    let all = scene.behind().await;
    let mut worker = scene.worker("early", "one", Some(crash::AFTER_MARK));
    worker.wait_for_point(SOON).unwrap();
    scene.behind_at_most(all - 1).await;
    worker.kill().unwrap();
    scene.publish(20).await;
    let worker = scene.worker("right", "one", None);
    scene.behind_at_most(0).await;
    stop(worker);
    assert!(!scene.judge().await.is_empty(), "what was committed and had no effect is lost");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_as_identity_doubles_what_was_published_twice() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    scene.publish(60).await;
    let worker = scene.worker("by-place", "one", None);
    scene.behind_at_most(0).await;
    stop(worker);
    assert_eq!(scene.effects().await, 80, "each third of 60 was published twice");
    assert!(!scene.judge().await.is_empty());
    scene.end().await;
}
