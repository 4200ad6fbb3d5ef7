//! Queues and streams whose messages are settled one by one: consumers are killed, join and leave.

use std::time::Duration;

use semel::crash;
use testkit::services::{Lease, Service, require};

use crate::sources::rabbitmq::{Classic, Queue, Quorum, Single};
use crate::sources::redis_stream::RedisStream;
use crate::sources::scene::{Broker, Scene, stop};
use crate::sources::{SOON, messages, rounds};

/// A consumer is killed at each named point, and goes on under its name.
async fn killed_at_every_point<B: Broker>(mut scene: Scene<B>) {
    let points = crash::IN_INBOX.into_iter().chain([crash::BEFORE_ACK, crash::AFTER_ACK]);
    for point in points {
        for round in 0..rounds(1) {
            scene.publish(150).await;
            let mut worker = scene.worker("right", "one", Some(&format!("{point}:{}", round + 2)));
            assert_eq!(worker.wait_for_point(SOON).unwrap(), point);
            worker.kill().unwrap();
        }
    }
    scene.finish(scene.worker("right", "one", None), "one").await;
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}

/// A consumer is killed wherever it happens to be, and others join and leave. Not all brokers have an order then.
async fn killed_at_random_while_others_come_and_go<B: Broker>(mut scene: Scene<B>, ordered: bool) {
    let count = messages(1_200);
    scene.publish(count).await;
    let stays = scene.worker("right", "stays", None);
    for round in 0..rounds(3) {
        let guest = scene.worker("right", &format!("guest-{round}"), None);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(300..900))).await;
        if round % 2 == 0 {
            // Dropped: killed where it is.
            drop(guest);
        } else {
            stop(guest);
        }
        scene.publish(200).await;
    }
    scene.finish(stays, "stays").await;
    let wrong = if ordered { scene.judge().await } else { scene.judge_without_order().await };
    assert_eq!(wrong, Vec::<String>::new());
    scene.end().await;
}

/// What is done for the broker before it has its effect is lost with the process.
async fn acked_before_the_effect<B: Broker>(mut scene: Scene<B>) {
    scene.publish(400).await;
    // Not in the first round, which may have but a few.
    let mut worker = scene.worker("early", "one", Some(&format!("{}:4", crash::AFTER_MARK)));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    caught(scene).await;
}

/// An ack of one message that means all before it loses those that were not done.
async fn acked_all_before<B: Broker>(mut scene: Scene<B>) {
    // Until it is: it may have had all that it was given, and what it acked may not have left the process.
    for nth in (2..7).cycle().take(30) {
        scene.publish(200).await;
        let mut worker = scene.worker("past", "one", Some(&format!("{}:{nth}", crash::AFTER_ACK)));
        worker.wait_for_point(SOON).unwrap();
        worker.kill().unwrap();
        scene.empty(scene.worker("right", "one", None), "one").await;
        if !scene.judge_without_order().await.is_empty() {
            return scene.end().await;
        }
    }
    panic!("what was acked past a message that was not done was never caught");
}

async fn caught<B: Broker>(scene: Scene<B>) {
    scene.empty(scene.worker("right", "one", None), "one").await;
    assert!(!scene.judge_without_order().await.is_empty(), "what was acked and had no effect is lost");
    scene.end().await;
}

macro_rules! queue {
    ($name:ident, $service:expr, $crash:ty, $shared:ty) => {
        mod $name {
            use super::*;

            /// With the broker for as long as it is used.
            async fn scene<B: Broker>() -> Option<(Lease, Scene<B>)> {
                let broker = require($service)?;
                let scene = Scene::new(broker.url()).await?;
                Some((broker, scene))
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn killed_at_every_point_each_message_has_its_effect_once_and_in_order() {
                let Some((_broker, scene)) = scene::<$crash>().await else { return };
                killed_at_every_point(scene).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "prove: kills at random"]
            async fn consumers_come_go_and_are_killed_and_each_message_has_its_effect_once() {
                let Some((_broker, scene)) = scene::<$shared>().await else { return };
                killed_at_random_while_others_come_and_go(scene, false).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn what_is_acked_before_its_effect_is_caught() {
                let Some((_broker, scene)) = scene::<$shared>().await else { return };
                acked_before_the_effect(scene).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn what_is_acked_past_a_message_that_is_not_done_is_caught() {
                let Some((_broker, scene)) = scene::<$shared>().await else { return };
                acked_all_before(scene).await;
            }
        }
    };
}

queue!(rabbitmq, Service::Rabbitmq, Queue<Quorum>, Queue<Classic>);
queue!(redis_stream, Service::Redis, RedisStream, RedisStream);

/// One active consumer keeps the order of keys, although consumers come, go and are killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at random"]
async fn a_queue_with_a_single_active_consumer_keeps_its_order() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let Some(scene) = Scene::<Queue<Single>>::new(rabbitmq.url()).await else { return };
    killed_at_random_while_others_come_and_go(scene, true).await;
}
