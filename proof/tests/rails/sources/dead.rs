//! Messages that cannot be handled, and consumers that are killed while letters are made of them and while these are handled
//! again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use semel::crash;
use semel::inbox::dead_letter::DeadLetterFilter;
use testkit::services::{Service, require};

use crate::sources::SOON;
use crate::sources::kafka::Kafka;
use crate::sources::scene::{self, stop};

type Scene = scene::Scene<Kafka>;

/// Each message has an effect or a letter, and nothing has two of them.
async fn accounted(scene: &Scene) -> bool {
    let (effects, letters) = (scene.ids().await, scene.letters().await);
    let all: Vec<String> = effects.into_iter().chain(letters).collect();
    let different: HashSet<&String> = all.iter().collect();
    (different.len(), all.len()) == (scene.expected(), scene.expected())
}

/// A scene in which everything is done, with letters of each third message of a key.
async fn with_letters(kafka: &str, how: &str, crash_at: &str) -> Option<Scene> {
    let mut scene = Scene::new(kafka).await?;
    scene.publish(60).await;
    let mut worker = scene.worker(how, "one", Some(crash_at));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    let worker = scene.worker("dead", "one", None);
    scene.behind_at_most(0).await;
    stop(worker);
    Some(scene)
}

async fn until_no_letters(scene: &Scene) {
    let until = Instant::now() + SOON;
    while !scene.letters().await.is_empty() {
        assert!(Instant::now() < until, "letters are left: {:?}", scene.letters().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_letter_and_offset_there_is_one_letter_and_retried_it_has_one_effect() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let at = format!("{}:2", crash::AFTER_DEAD_LETTER);
    let Some(scene) = with_letters(kafka.url(), "dead", &at).await else { return };
    assert_eq!(scene.letters().await.len(), 20);
    assert!(accounted(&scene).await, "{:?} {:?}", scene.ids().await, scene.letters().await);
    // Killed after the message of a letter was handled, before the letter was gone.
    assert_eq!(scene.tables().await.retry_all(&DeadLetterFilter::new()).await.unwrap(), 20);
    let mut worker = scene.worker("mended", "one", Some(&format!("{}:2", crash::BEFORE_LETTER_GOES)));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    let worker = scene.worker("mended", "one", None);
    until_no_letters(&scene).await;
    stop(worker);
    assert_eq!(scene.judge().await, Vec::<String>::new());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_is_written_after_the_offset_is_lost() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::new(kafka.url()).await else { return };
    scene.publish(60).await;
    let mut worker = scene.worker("late-letter", "one", None);
    scene.behind_at_most(0).await;
    worker.kill().unwrap();
    let mut worker = scene.worker("dead", "one", None);
    // There is nothing left that would show that it has begun; before it has, a signal to stop kills it.
    assert_eq!(worker.next_line(SOON).unwrap(), "working");
    scene.behind_at_most(0).await;
    stop(worker);
    assert!(!accounted(&scene).await, "what had no letter when its offset was committed is lost");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_is_handled_without_its_mark_has_two_effects() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(scene) = with_letters(kafka.url(), "dead", crash::AFTER_DEAD_LETTER).await else { return };
    assert_eq!(scene.tables().await.retry_all(&DeadLetterFilter::new()).await.unwrap(), 20);
    let mut worker = scene.worker("unmarked", "one", Some(crash::BEFORE_LETTER_GOES));
    worker.wait_for_point(SOON).unwrap();
    worker.kill().unwrap();
    let worker = scene.worker("mended", "one", None);
    until_no_letters(&scene).await;
    stop(worker);
    assert!(!scene.judge().await.is_empty(), "an effect without its mark comes again");
    scene.end().await;
}
