//! RabbitMQ is killed while messages are published to a quorum queue and handled.

use semel::crash;
use testkit::services::{Alone, Service, alone};

use crate::sources::rabbitmq::{Queue, Quorum};
use crate::sources::scene::{self, Broker};
use crate::sources::{SOON, messages, rounds};

type Scene = scene::Scene<Queue<Quorum>>;

/// From now on RabbitMQ finds its new queues again. It writes down late, or when it ends in order, what queues there are.
/// Killed before, it may know nothing of a classic queue, and begins with an empty quorum queue that never has a leader
/// (rabbitmq-server#15725).
pub fn kept<B: Broker>(broker: &mut Alone) {
    if B::NAME == "rabbitmq" {
        broker.stop().unwrap();
        broker.start().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn the_broker_of_a_quorum_queue_is_killed_and_each_message_has_its_effect_once() {
    let Some(mut broker) = alone(Service::Rabbitmq) else { return };
    let Some(mut scene) = Scene::new(broker.url()).await else { return };
    kept::<Queue<Quorum>>(&mut broker);
    let stays = scene.worker("right", "-", None);
    for _ in 0..rounds(2) {
        let guest = scene.worker("right", "-", None);
        let so_far = scene.effects().await;
        scene.publish(messages(1_000)).await;
        scene.reach(so_far + 50).await;
        let back = tokio::task::spawn_blocking(move || {
            broker.restart().unwrap();
            broker
        });
        // Goes on while the broker goes, is away and comes: what was not confirmed is published again.
        while !back.is_finished() {
            scene.publish(100).await;
        }
        broker = back.await.unwrap();
        // Killed where it is, while it comes back.
        drop(guest);
    }
    scene.finish(stays, "-").await;
    println!(
        "{} messages, {} of them twice, {} tries without a confirm",
        scene.expected(),
        scene.twice,
        scene.broker.again()
    );
    assert!(scene.broker.again() > 0, "nothing was under way when the broker was killed");
    assert_eq!(scene.judge_without_order().await, Vec::<String>::new());
    scene.end().await;
}

/// What is acknowledged before its effect is committed: the queue keeps its word, and the messages are gone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn what_a_quorum_queue_hears_before_its_effect_is_caught() {
    let Some(mut broker) = alone(Service::Rabbitmq) else { return };
    let Some(mut scene) = Scene::new(broker.url()).await else { return };
    kept::<Queue<Quorum>>(&mut broker);
    scene.publish(400).await;
    // Not in the first round, which may have but a few.
    let mut worker = scene.worker("early", "-", Some(&format!("{}:4", crash::AFTER_MARK)));
    worker.wait_for_point(SOON).unwrap();
    // An acknowledgement has no answer. Only when it is in the queue's log does the queue keep its word over the kill.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    // A message that is confirmed is in the log behind it.
    scene.publish(1).await;
    broker.restart().unwrap();
    worker.kill().unwrap();
    scene.publish(100).await;
    scene.empty(scene.worker("right", "-", None), "-").await;
    assert!(!scene.judge_without_order().await.is_empty(), "what was acked and had no effect is lost");
    scene.end().await;
}
