//! Messages that cannot be transformed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel::inbox::consumer::HandlerError;
use semel::inbox::pipeline::{
    DEAD_ERROR, DEAD_PLACE, Input, Output, Pipeline, PipelineError, PipelineOptions,
};
use semel::sink::kafka::KafkaSink;
use semel::source::kafka::KafkaSource;
use testkit::services::kafka::{asked_until, console_consumer_shown};
use testkit::services::{Service, require};

use crate::pipeline::SOON;
use crate::pipeline::scene::{Scene, made_of};

fn source(scene: &Scene) -> semel::source::kafka::KafkaSourceOptions {
    let source = KafkaSource::options(&scene.brokers, &scene.name).topics(&[&scene.input()]);
    let source = source.session(Duration::from_secs(6)).max_poll_interval(Duration::from_secs(6));
    source.set("heartbeat.interval.ms", "300").unwrap()
}

fn options() -> PipelineOptions {
    PipelineOptions::default()
        .batch_max(200)
        .attempts_max(2)
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
}

fn is_poison(input: &Input) -> bool {
    input.payload().is_some_and(|payload| payload.starts_with(b"poison"))
}

/// To both outputs, unless there is poison among them.
fn both(
    scene: &Scene,
) -> impl Fn(Vec<Input>) -> std::future::Ready<Result<Vec<Output>, HandlerError>> + use<> {
    let topics = scene.outputs();
    move |inputs| {
        if inputs.iter().any(is_poison) {
            return std::future::ready(Err(HandlerError::retry("it is poison")));
        }
        std::future::ready(Ok(inputs.iter().flat_map(|input| made_of(input, &topics)).collect()))
    }
}

/// Slow: hundreds of transactions, halved until each poisoned message is found.
#[tokio::test(flavor = "multi_thread")]
async fn poison_goes_to_the_dead_letters_and_nothing_else_does() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(300).await;
    scene.send("k3", "poison-1").await.unwrap().unwrap();
    scene.publish(300).await;
    scene.send("k9", "poison-2").await.unwrap().unwrap();
    scene.publish(100).await;
    let sink = KafkaSink::options(&scene.brokers);
    let pipeline =
        Pipeline::new(source(&scene), sink, both(&scene), options().dead_letters(&scene.dead())).unwrap();
    let stop = pipeline.stop_handle();
    let running = tokio::spawn(pipeline.run());
    scene.behind_at_most(0).await;
    stop.stop();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.messages, ended.outputs, ended.dead_letters), (702, 1_402, 2));
    assert_eq!(scene.judge().await, Vec::<String>::new());
    let ask = || console_consumer_shown(&scene.brokers, &scene.dead(), 3);
    let mut dead = asked_until(ask, |dead| dead.len() >= 2).unwrap();
    dead.sort_by(|a, b| a.value.cmp(&b.value));
    let letters: Vec<_> = dead.iter().map(|dead| (dead.key.as_str(), dead.value.as_str())).collect();
    assert_eq!(letters, [("k3", "poison-1"), ("k9", "poison-2")]);
    assert_eq!(dead[0].header(DEAD_ERROR), Some("it is poison"));
    assert!(dead[0].header(DEAD_PLACE).is_some_and(|place| place.starts_with(&scene.input())));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_place_for_poison_it_stops_at_it_and_has_committed_what_is_before() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(200).await;
    scene.send("k3", "poison-1").await.unwrap().unwrap();
    let sink = KafkaSink::options(&scene.brokers);
    let pipeline = Pipeline::new(source(&scene), sink, both(&scene), options()).unwrap();
    let error = tokio::time::timeout(SOON, pipeline.run()).await.unwrap().unwrap_err();
    assert!(matches!(error, PipelineError::Poison { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("it is poison") && text.contains(&scene.input()), "{text}");
    assert!(scene.behind() >= 1, "the poison is not committed");
}

/// The transform's world is down, though it does not say so: the messages are not to blame.
#[tokio::test(flavor = "multi_thread")]
async fn when_all_fail_it_stops_before_all_are_dead_letters() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(100).await;
    let none = async |_: Vec<Input>| Err::<Vec<Output>, _>(HandlerError::retry("the disk is full"));
    let options = options().dead_letters(&scene.dead()).dead_letters_in_a_row_max(3);
    let pipeline = Pipeline::new(source(&scene), KafkaSink::options(&scene.brokers), none, options).unwrap();
    let error = tokio::time::timeout(SOON, pipeline.run()).await.unwrap().unwrap_err();
    assert!(matches!(error, PipelineError::AllFail { in_a_row: 3, .. }), "{error:?}");
    assert_eq!(scene.behind(), 97);
}

/// An output that Kafka does not take is the fault of the message it was made of; an outage is no message's.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_output_is_poison_and_an_outage_is_not() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(100).await;
    scene.send("k3", "poison-1").await.unwrap().unwrap();
    let topics = scene.outputs();
    let (down, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let transform = {
        let (down, calls) = (Arc::clone(&down), Arc::clone(&calls));
        move |inputs: Vec<Input>| {
            calls.fetch_add(1, Ordering::Relaxed);
            let made = |input: &Input| {
                let [first, second] = made_of(input, &topics);
                // More than the topic takes.
                let second = if is_poison(input) { second.payload(vec![b'x'; 2 << 20]) } else { second };
                [first, second]
            };
            let outputs = match down.load(Ordering::Relaxed) {
                true => Err(HandlerError::transient("the database is not there")),
                false => Ok(inputs.iter().flat_map(made).collect()),
            };
            std::future::ready(outputs)
        }
    };
    let options = options().dead_letters(&scene.dead());
    let pipeline =
        Pipeline::new(source(&scene), KafkaSink::options(&scene.brokers), transform, options).unwrap();
    let stop = pipeline.stop_handle();
    let running = tokio::spawn(pipeline.run());
    while calls.load(Ordering::Relaxed) < 10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(scene.behind(), 101);
    down.store(false, Ordering::Relaxed);
    scene.behind_at_most(0).await;
    stop.stop();
    assert_eq!(running.await.unwrap().unwrap().dead_letters, 1);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

/// librdkafka has something to put right after an output that the broker refused. It is not at the cost of other messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_output_spoils_no_transaction_after_its_own() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    let small = scene.small_topic(10_000).await;
    scene.publish(3).await;
    scene.send("k3", "poison-1").await.unwrap().unwrap();
    scene.publish(40).await;
    let topics = scene.outputs();
    let transform = move |inputs: Vec<Input>| {
        let outputs = inputs.iter().flat_map(|input| {
            let copy = Output::like(input, small.as_str());
            match is_poison(input) {
                // Less than what we would not even send, and more than the broker takes.
                true => vec![copy.payload(vec![b'x'; 100_000])],
                false => made_of(input, &topics).into_iter().chain([copy]).collect(),
            }
        });
        std::future::ready(Ok::<Vec<Output>, HandlerError>(outputs.collect()))
    };
    let options = options().batch_max(1).dead_letters(&scene.dead());
    let pipeline =
        Pipeline::new(source(&scene), KafkaSink::options(&scene.brokers), transform, options).unwrap();
    let stop = pipeline.stop_handle();
    let running = tokio::spawn(pipeline.run());
    scene.behind_at_most(0).await;
    stop.stop();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.messages, ended.dead_letters, ended.aborted), (44, 1, 1), "{ended:?}");
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

/// The broker refuses one while others still wait for room. Those cannot be queued any more, and are not to blame.
#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_refused_while_others_are_queued_is_found() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    let (small, bulk) = (scene.small_topic(10_000).await, scene.small_topic(1_000_000).await);
    scene.publish(3).await;
    scene.send("k3", "poison-1").await.unwrap().unwrap();
    scene.publish(120).await;
    let topics = scene.outputs();
    let transform = move |mut inputs: Vec<Input>| {
        // It comes first, whatever partition it is from.
        inputs.sort_by_key(|input| !is_poison(input));
        let outputs = inputs.iter().flat_map(|input| match is_poison(input) {
            true => vec![Output::like(input, small.as_str()).payload(vec![b'x'; 50_000])],
            false => {
                let bulk = Output::like(input, bulk.as_str()).payload(vec![b'x'; 200_000]);
                made_of(input, &topics).into_iter().chain([bulk]).collect()
            }
        });
        std::future::ready(Ok::<Vec<Output>, HandlerError>(outputs.collect()))
    };
    // Much less than what is to be queued.
    let sink = KafkaSink::options(&scene.brokers).queue_bytes(2 << 20);
    let pipeline =
        Pipeline::new(source(&scene), sink, transform, options().dead_letters(&scene.dead())).unwrap();
    let stop = pipeline.stop_handle();
    let running = tokio::spawn(pipeline.run());
    scene.behind_at_most(0).await;
    stop.stop();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.messages, ended.dead_letters), (124, 1), "{ended:?}");
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

/// Longer than a consumer may be silent: it is not, and keeps its partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_transform_may_take_longer_than_a_consumer_may_be_silent() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    scene.publish(100).await;
    let topics = scene.outputs();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let transform = move |inputs: Vec<Input>| {
        let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        let outputs = inputs.iter().flat_map(|input| made_of(input, &topics)).collect();
        async move {
            if first {
                tokio::time::sleep(Duration::from_secs(8)).await;
            }
            Ok::<Vec<Output>, HandlerError>(outputs)
        }
    };
    let pipeline =
        Pipeline::new(source(&scene), KafkaSink::options(&scene.brokers), transform, options()).unwrap();
    let stop = pipeline.stop_handle();
    let running = tokio::spawn(pipeline.run());
    scene.behind_at_most(0).await;
    stop.stop();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.messages, ended.aborted), (100, 0), "{ended:?}");
    assert_eq!(scene.judge().await, Vec::<String>::new());
}
