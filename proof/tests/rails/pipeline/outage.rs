//! The broker is killed and comes back, or is not there at all.

use std::net::TcpListener;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use semel::inbox::consumer::HandlerError;
use semel::inbox::pipeline::{Input, Output, Pipeline, PipelineOptions, PipelineStats};
use semel::sink::kafka::KafkaSink;
use semel::source::kafka::KafkaSource;
use testkit::services::{Service, alone};

use crate::pipeline::scene::{Scene, stop};
use crate::pipeline::wanted;

/// Much more than a stop takes, and much less than a broker is waited for.
const STOPPED_WITHIN: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn the_broker_is_killed_and_each_message_is_transformed_once() {
    let Some(mut kafka) = alone(Service::Kafka) else { return };
    let mut scene = Scene::new(kafka.url()).await;
    // Without names: a killed broker may have forgotten the last joining of a static member, and turns it away for good.
    let workers = [scene.worker("right", "-", None), scene.worker("right", "-", None)];
    for _ in 0..wanted("SEMEL_ROUNDS", 1) {
        scene.publish(3_000).await;
        scene.behind_at_most(2_500).await;
        kafka.restart().unwrap();
    }
    scene.publish(500).await;
    scene.behind_at_most(0).await;
    workers.into_iter().for_each(stop);
    assert_eq!(scene.judge().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "prove: a broker killed under load"]
async fn a_stop_works_while_a_broker_is_waited_for_that_is_away() {
    // Nothing listens there.
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (tells, ended) = tokio::sync::oneshot::channel();
    // A runtime of its own: its end, too, must not wait for the broker.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let none = async |_: Vec<Input>| Ok::<Vec<Output>, HandlerError>(Vec::new());
            let source = KafkaSource::options(&away, "away").topics(&["input"]);
            let options = PipelineOptions::default();
            let pipeline = Pipeline::new(source, KafkaSink::options(&away), none, options).unwrap();
            let stop = pipeline.stop_handle();
            let mut running = pin!(pipeline.run());
            assert_eq!(running.as_mut().now_or_never(), None, "it waits for the broker");
            stop.stop();
            running.await
        });
        drop(runtime);
        tells.send(ended).unwrap();
    });
    let ended = tokio::time::timeout(STOPPED_WITHIN, ended).await.expect("the stop had no effect").unwrap();
    assert_eq!(ended.unwrap(), PipelineStats::default());
}
