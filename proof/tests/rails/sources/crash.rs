//! A consumer is killed at each named point, and goes on.

use semel::crash;
use testkit::services::{Service, require};

use crate::sources::kafka::Kafka;
use crate::sources::scene::{Broker, Scene, stop};
use crate::sources::{SOON, rounds};

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_point_each_message_has_its_effect_once() {
    let Some(kafka) = require(Service::Kafka) else { return };
    killed_at_every_point::<Kafka>(kafka.url()).await;
}

pub async fn killed_at_every_point<B: Broker>(url: &str) {
    let Some(mut scene) = Scene::<B>::new(url).await else { return };
    let points = crash::IN_INBOX.into_iter().chain([crash::BEFORE_ACK, crash::AFTER_ACK]);
    for point in points {
        for round in 0..rounds(1) {
            scene.publish(150).await;
            // A static member of Kafka's: one that comes back under its name need not wait until the dead is missed.
            let mut worker = scene.worker("right", "one", Some(&format!("{point}:{}", round + 2)));
            assert_eq!(worker.wait_for_point(SOON).unwrap(), point);
            worker.kill().unwrap();
        }
    }
    let worker = scene.worker("right", "one", None);
    scene.reach_all().await;
    scene.behind_at_most(0).await;
    stop(worker);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}
