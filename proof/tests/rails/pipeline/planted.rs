//! Known mistakes, which Kafka's own consumer catches.

use semel::crash::{BEFORE_OFFSETS, BEFORE_SINK_COMMIT};
use testkit::services::{Service, require};

use crate::pipeline::SOON;
use crate::pipeline::moved::zombie;
use crate::pipeline::scene::{Scene, stop};

/// Slow: the planted bug has to lose messages, and the group has to notice that its member is gone.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_are_committed_outside_of_the_transaction_lose_messages() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(500).await;
    let mut worker = scene.worker("outside", "one", Some(&format!("{BEFORE_SINK_COMMIT}:2")));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    // Ends what the other one left open, which was under another id.
    let mut same = scene.worker("outside", "one", None);
    scene.behind_at_most(0).await;
    same.kill().unwrap();
    let mut worker = scene.worker("right", "one", None);
    // There is nothing left to do, so only its word says that it is there.
    assert_eq!(worker.next_line(SOON).unwrap(), "working");
    scene.behind_at_most(0).await;
    stop(worker);
    let wrong = scene.judge().await;
    assert!(!wrong.is_empty(), "what was committed and never seen is lost");
}

/// Slow: the group has to notice that its member stands still.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_are_committed_without_a_member_let_a_zombie_publish_twice() {
    let Some(wrong) = zombie("anonymous", BEFORE_OFFSETS).await else { return };
    assert!(!wrong.is_empty(), "the zombie was not fenced, and yet all is well");
}
