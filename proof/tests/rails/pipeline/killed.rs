//! A pipeline is killed at each named point, and by chance, and goes on.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use semel::crash::{AFTER_OFFSETS, BEFORE_SINK_COMMIT, IN_PIPELINE};
use testkit::services::{Service, require};

use crate::pipeline::scene::{Scene, stop};
use crate::pipeline::{SOON, wanted};

/// Slow: a process started and killed at each point; the group has to notice each time.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_point_each_message_is_transformed_once() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    for (at, point) in IN_PIPELINE.into_iter().enumerate() {
        scene.publish(500).await;
        let mut worker = scene.worker("right", "one", Some(&format!("{point}:{}", 2 + at % 2)));
        assert_eq!(worker.wait_for_point(SOON).unwrap(), point);
        worker.kill().unwrap();
    }
    let worker = scene.worker("right", "one", None);
    scene.behind_at_most(0).await;
    stop(worker);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    // What was cut off is in the log: it is the isolation that hides it.
    assert!(!scene.wrong(false).is_empty(), "there is nothing of an aborted transaction");
}

/// With a name that was made up, what was left open is ended by the broker only, and waited for.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn what_an_unnamed_process_left_open_is_waited_for() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(500).await;
    let mut worker = scene.worker("right", "-", Some(&format!("{AFTER_OFFSETS}:2")));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    let worker = scene.worker("right", "-", None);
    scene.behind_at_most(0).await;
    stop(worker);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: kills at random"]
async fn killed_by_chance_while_others_come_and_go_each_message_is_transformed_once() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    let kills = wanted("SEMEL_PIPELINE_KILLS", 8);
    let each = wanted("SEMEL_PIPELINE_MESSAGES", 20_000) / kills.max(1);
    let (mut second, mut joined) = (None, 0);
    for kill in 0..kills {
        let mut worker = scene.worker("right", "one", None);
        scene.publish(each).await;
        let behind = scene.behind();
        scene.behind_at_most((behind - fastrand::i64(1..behind.max(2))).max(0)).await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..60))).await;
        // It has not ended by itself.
        assert_eq!(worker.kill().unwrap().signal(), Some(9), "{:?}", worker.wait(SOON));
        // The other one joins and leaves in order.
        match (kill % 4, second.take()) {
            (1, None) => {
                joined += 1;
                second = Some(scene.worker("right", "-", None));
            }
            (3, Some(other)) => stop(other),
            (_, other) => second = other,
        }
    }
    let worker = scene.worker("right", "one", None);
    scene.behind_at_most(0).await;
    stop(worker);
    second.into_iter().for_each(stop);
    println!("figures: {} messages, {joined} rebalances", each * kills);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

/// Two under one name: the one that came later works, and the other one stops and says why.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: half a minute of sessions"]
async fn who_finds_another_under_its_name_stops() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(500).await;
    let mut first = scene.worker("right", "one", Some(&format!("{BEFORE_SINK_COMMIT}:2")));
    first.wait_for_point(SOON).unwrap();
    let second = scene.worker("right", "one", None);
    scene.behind_at_most(0).await;
    first.go().unwrap();
    let ended = first.wait(SOON).unwrap();
    assert!(!ended.status.success(), "{ended:?}");
    let said = ended.stderr.join("\n");
    assert!(said.contains("its own instance name") || said.contains("fenced"), "{said}");
    stop(second);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}
