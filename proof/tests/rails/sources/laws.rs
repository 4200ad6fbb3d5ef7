//! What a source promises, without a consumer around it.

use std::time::{Duration, Instant};

use semel::source::kafka::{Begin, KafkaSource};
use semel::source::{Receipt, Settle, Source};
use testkit::services::{Service, require};

use crate::sources::SOON;
use crate::sources::kafka::Kafka;
use crate::sources::scene::Scene;
use crate::sources::taken::{all, places, receive};

const WAIT: Duration = Duration::from_millis(200);

fn open(scene: &Scene<Kafka>) -> KafkaSource {
    open_with(scene, Duration::from_secs(6))
}

fn open_with(scene: &Scene<Kafka>, poll_max: Duration) -> KafkaSource {
    let options = KafkaSource::options(&scene.broker.brokers, &scene.name).topics(&[&scene.name]);
    let options = options.session(Duration::from_secs(6)).max_poll_interval(poll_max);
    options.set("heartbeat.interval.ms", "300").unwrap().open().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_comes_again_and_what_is_done_does_not() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    // Forty records: each third is there twice.
    scene.publish(30).await;
    let mut source = open(&scene);
    assert_eq!(source.retention().await, Some(Duration::from_secs(3_600)));
    let came = receive(&mut source, 40).await;
    let first = &came[0];
    assert_eq!(first.from, scene.name);
    assert!(first.lineage.is_some() && first.header("semel-id").is_some(), "{first:?}");
    assert!(first.key.as_ref().is_some_and(|key| key.starts_with("key-")));
    // Given back, all of it comes again as it came, and the next one behind it.
    source.settle(&all(&came[20..], Settle::Nack)).await.unwrap();
    let again = receive(&mut source, 20).await;
    assert_eq!(places(&again), places(&came[20..]));
    // Done but for the first: nothing of its partition is committed.
    source.settle(&all(&came[1..20], Settle::Ack)).await.unwrap();
    source.settle(&all(&again, Settle::Ack)).await.unwrap();
    source.leave().await.unwrap();
    let mut next = open(&scene);
    assert_eq!(receive(&mut next, 1).await[0].place, first.place);
    next.leave().await.unwrap();
    scene.end().await;
}

/// A group that begins with the latest has an offset from its first message on: given and not done, it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_to_one_that_begins_with_the_latest_is_not_lost_with_it() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    let latest = |scene: &Scene<Kafka>| {
        let options = KafkaSource::options(&scene.broker.brokers, &scene.name).topics(&[&scene.name]);
        options.begin(Begin::Latest).open().unwrap()
    };
    let mut source = latest(&scene);
    let (mut came, until) = (Vec::new(), Instant::now() + SOON);
    while came.is_empty() {
        assert!(Instant::now() < until, "nothing came");
        // What is published before it has its partitions is not for it.
        scene.publish(1).await;
        came = source.receive(100, WAIT).await.unwrap();
    }
    source.leave().await.unwrap();
    scene.publish(30).await;
    let mut next = latest(&scene);
    let (mut again, until) = (Vec::new(), Instant::now() + SOON);
    while !again.contains(&came[0].place) {
        assert!(Instant::now() < until, "{} is lost, {again:?} came", came[0].place);
        again.extend(next.receive(100, WAIT).await.unwrap().into_iter().map(|delivery| delivery.place));
    }
    next.leave().await.unwrap();
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for sessions to pass"]
async fn who_is_kept_stays_and_who_is_silent_loses_its_messages() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    scene.publish(30).await;
    let mut source = open(&scene);
    let came = receive(&mut source, 10).await;
    let held: Vec<Receipt> = came.iter().map(|delivery| delivery.receipt).collect();
    // Longer than the longest interval between two polls.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        assert!(source.renew_after() <= Duration::from_millis(1_500), "{:?}", source.renew_after());
        tokio::time::sleep(source.renew_after()).await;
        source.keep(&held).await.unwrap();
        assert!(source.lost().is_empty(), "it was kept");
    }
    let rest = receive(&mut source, 30).await;
    assert!(rest.iter().all(|delivery| came.iter().all(|given| given.place != delivery.place)));
    // Silent for too long: the group goes on without it.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let until = Instant::now() + SOON;
    let (mut lost, mut again) = (Vec::new(), Vec::new());
    while lost.len() < 40 || again.len() < 40 {
        assert!(Instant::now() < until, "{} lost, {} again", lost.len(), again.len());
        again.extend(source.receive(100, WAIT).await.unwrap());
        lost.extend(source.lost());
    }
    assert_eq!((lost.len(), again.len()), (40, 40), "all of it is somebody's again: here, its own");
    // What was lost is settled for nothing.
    source.settle(&all(&came, Settle::Ack)).await.unwrap();
    source.settle(&all(&rest, Settle::Ack)).await.unwrap();
    source.leave().await.unwrap();
    assert_eq!(scene.behind().await, 40);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_a_partition_has_committed_what_is_done() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::<Kafka>::new(kafka.url()).await else { return };
    scene.publish(60).await;
    let patient = Duration::from_secs(60);
    let mut first = open_with(&scene, patient);
    let came = receive(&mut first, 80).await;
    // The second one asks for partitions, and the first one does not hear of it yet.
    let mut second = open_with(&scene, patient);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert!(second.receive(100, WAIT).await.unwrap().is_empty());
    }
    // One commit is under way, so the rest waits: for the moment in which partitions are given up.
    let done = all(&came, Settle::Ack);
    first.settle(&done[..1]).await.unwrap();
    first.settle(&done[1..]).await.unwrap();
    scene.publish(60).await;
    let until = Instant::now() + SOON;
    let (mut to_first, mut to_second) = (Vec::new(), Vec::new());
    while to_second.is_empty() {
        assert!(Instant::now() < until, "the second one got nothing");
        to_first.extend(first.receive(100, WAIT).await.unwrap());
        to_second.extend(second.receive(100, WAIT).await.unwrap());
        // All that is new is the first one's until it has to give something up.
        if !first.lost().is_empty() {
            continue;
        }
        scene.publish(3).await;
    }
    for delivery in &to_second {
        assert!(!places(&came).contains(&delivery.place.as_str()), "{} was done", delivery.place);
    }
    first.leave().await.unwrap();
    second.leave().await.unwrap();
    scene.end().await;
}
