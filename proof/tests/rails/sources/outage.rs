//! The broker is killed and comes back.

use testkit::services::{Service, alone};

use crate::sources::rounds;
use crate::sources::scene::{Broker, Scene, stop};

/// Kafka, RabbitMQ and Redis are killed in `large`, too; here what comes afterwards is also in order.
pub async fn the_broker_is_killed<B: Broker>(service: Service, workers: usize) {
    let Some(mut broker) = alone(service) else { return };
    let Some(mut scene) = Scene::<B>::new(broker.url()).await else { return };
    let workers: Vec<_> = (0..workers).map(|_| scene.worker("right", "-", None)).collect();
    for _ in 0..rounds(1) {
        let so_far = scene.effects().await;
        scene.publish(600).await;
        scene.reach(so_far + 50).await;
        broker.restart().unwrap();
    }
    scene.publish(100).await;
    scene.reach_all().await;
    scene.behind_at_most(0).await;
    workers.into_iter().for_each(stop);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}
