//! Partitions move to another process and back; a process stands still and wakes up.

use semel::crash::{AFTER_OFFSETS, AFTER_TRANSFORM, BEFORE_OFFSETS};
use testkit::services::{Service, require};

use crate::pipeline::SOON;
use crate::pipeline::scene::{Scene, stop};

/// How often a rebalance is tried to meet an open transaction.
const ATTEMPTS: usize = 10;

async fn partitions_move(how: &str) {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    let stays = scene.worker(how, "-", None);
    scene.publish(2_000).await;
    scene.behind_at_most(1_500).await;
    let guest = scene.worker(how, "-", None);
    scene.publish(2_000).await;
    scene.behind_at_most(1_000).await;
    stop(guest);
    scene.publish(1_000).await;
    scene.behind_at_most(0).await;
    stop(stays);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

/// Slow: the group rebalances at its broker's pace, several times.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_move_one_by_one_and_each_message_is_transformed_once() {
    partitions_move("right").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: consumers come and go at random"]
async fn partitions_move_all_at_once_and_each_message_is_transformed_once() {
    partitions_move("eager").await;
}

/// A transaction is held up at that point while another one joins the group and leaves it again: partitions are given away
/// under it.
async fn given_away(how: &str, at: &str) {
    let Some(kafka) = require(Service::Kafka) else { return };
    for _ in 0..ATTEMPTS {
        let mut scene = Scene::new(kafka.url()).await;
        scene.publish(40).await;
        let mut worker = scene.worker(how, "-", Some(&format!("{at}:1")));
        worker.wait_for_point(SOON).unwrap();
        let guest = scene.guest(how);
        let given = scene.has_partitions(&guest);
        worker.go().unwrap();
        drop(guest);
        scene.publish(100).await;
        scene.behind_at_most(0).await;
        stop(worker);
        assert_eq!(scene.judge().await, Vec::<String>::new());
        // Where it had more messages than for one transaction, it does not poll for others.
        if given {
            return;
        }
    }
    panic!("the consumer was not polled while the transaction was open");
}

/// The broker has not taken the offsets: they are a former member's, and what it keeps is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_given_away_before_the_offsets_are_taken_cost_the_transaction() {
    given_away("right", BEFORE_OFFSETS).await;
}

/// It has: what is committed is not tried again, neither of partitions that it keeps nor of those that come back to it.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_given_away_after_the_offsets_were_taken_begin_behind_the_transaction() {
    given_away("right", AFTER_OFFSETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_partitions_that_are_given_away_at_once_begin_behind_the_transaction() {
    given_away("eager", AFTER_OFFSETS).await;
}

/// One stands still at that point until another has its partitions, and then goes on. What the judge says, and what it
/// said itself.
pub async fn zombie(how: &str, point: &str) -> Option<Vec<String>> {
    let kafka = require(Service::Kafka)?;
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(500).await;
    let mut asleep = scene.worker(how, "-", Some(&format!("{point}:2")));
    asleep.wait_for_point(SOON).unwrap();
    // All of it: while only its transaction takes long, it stays in the group.
    asleep.pause().unwrap();
    let awake = scene.worker("right", "-", None);
    scene.behind_at_most(0).await;
    asleep.resume().unwrap();
    asleep.go().unwrap();
    scene.publish(500).await;
    scene.behind_at_most(0).await;
    stop(awake);
    scene.behind_at_most(0).await;
    if how == "right" {
        scene.publish(100).await;
        scene.behind_at_most(0).await;
        stop(asleep);
    } else {
        // One before it fell asleep, and the one with which it woke up.
        for _ in 0..2 {
            while asleep.next_line(SOON).unwrap() != "committed" {}
        }
        asleep.kill().unwrap();
    }
    Some(scene.judge().await)
}

/// Slow: the group has to notice that its member stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_with_outputs_under_way_is_fenced_and_comes_back() {
    let Some(wrong) = zombie("right", BEFORE_OFFSETS).await else { return };
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: half a minute of sessions"]
async fn a_zombie_before_its_transaction_is_fenced_and_comes_back() {
    let Some(wrong) = zombie("right", AFTER_TRANSFORM).await else { return };
    assert_eq!(wrong, Vec::<String>::new());
}

/// Its offsets are pending: the consumer that gets its partitions waits until the broker has ended its transaction.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_zombie_with_its_offsets_pending_is_waited_for() {
    let Some(wrong) = zombie("right", AFTER_OFFSETS).await else { return };
    assert_eq!(wrong, Vec::<String>::new());
}
