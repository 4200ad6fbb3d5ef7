//! Many messages, and everything that may happen to those who handle them, in turn: killed at each point and by chance,
//! joined and left by others, the database killed, the broker killed.
//!
//! `SEMEL_MESSAGES=100000 SEMEL_ROUNDS=50` is the long run.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use semel::crash;
use testkit::services::{Alone, Cluster, Service, alone, require};

use crate::sources::kafka::Kafka;
use crate::sources::nats::JetStream;
use crate::sources::quorum::kept;
use crate::sources::rabbitmq::{Queue, Quorum};
use crate::sources::redis_stream::RedisStream;
use crate::sources::scene::{Broker, Scene};
use crate::sources::sqs::Fifo;
use crate::sources::{SOON, messages, rounds};

/// Servers are killed every so many rounds.
const OUTAGE_EVERY: u32 = 5;

/// What has happened.
#[derive(Debug, Default)]
struct Happened {
    killed_at_points: u32,
    killed_by_chance: u32,
    joined: u32,
    left_in_order: u32,
    brokers_killed: u32,
    databases_killed: u32,
}

struct Play<B> {
    scene: Scene<B>,
    database: Cluster,
    /// The broker, where what it has outlives it.
    broker: Option<Alone>,
    happened: Happened,
}

impl<B: Broker> Play<B> {
    async fn new(url: &str, mut broker: Option<Alone>) -> Option<Self> {
        // Only to go without where the run does.
        drop(require(Service::Postgres)?);
        let database = Cluster::new().unwrap();
        let scene = Scene::over(url, &database.url()).await;
        if let Some(broker) = &mut broker {
            kept::<B>(broker);
        }
        Some(Self { scene, database, broker, happened: Happened::default() })
    }

    /// A static member of Kafka's, which has its partitions back at once. Another one after a broker was killed: it may
    /// have forgotten the last joining, and turns the same one away.
    fn member(&self) -> String {
        format!("one-{}", self.happened.brokers_killed)
    }

    async fn killed_at(&mut self, point: &str) {
        let at = format!("{point}:{}", fastrand::u32(1..6));
        let mut worker = self.scene.worker("right", &self.member(), Some(&at));
        assert_eq!(worker.wait_for_point(SOON).unwrap(), point);
        worker.kill().unwrap();
        self.happened.killed_at_points += 1;
    }

    /// While messages are published, and sometimes with a guest that joins, and leaves or is killed.
    async fn killed_by_chance(&mut self, round: u32, count: usize) {
        let mut worker = self.scene.worker("right", &self.member(), None);
        let guest = (round % 4 == 1).then(|| self.scene.worker("right", &format!("guest-{round}"), None));
        let so_far = self.scene.effects().await;
        let sent = self.scene.next(count);
        let more = fastrand::usize(1..=self.scene.expected() - so_far);
        let (scene, happened) = (&self.scene, &mut self.happened);
        tokio::join!(scene.broker.publish(&sent), async {
            scene.reach(so_far + more).await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..60))).await;
            // It has not ended by itself.
            assert_eq!(worker.kill().unwrap().signal(), Some(9), "{:?}", worker.wait(SOON));
            happened.killed_by_chance += 1;
        });
        if let Some(mut guest) = guest {
            self.happened.joined += 1;
            if round % 8 == 1 {
                guest.terminate().unwrap();
                // Who cannot give back all that it has in time says so: that comes again.
                let ended = guest.wait(SOON).unwrap();
                assert!(matches!(ended.status.code(), Some(0 | 1)), "{ended:?}");
                self.happened.left_in_order += 1;
            } else {
                assert_eq!(guest.kill().unwrap().signal(), Some(9), "{:?}", guest.wait(SOON));
                self.happened.killed_by_chance += 1;
            }
        }
    }

    /// Both servers, one after the other, under two consumers that live on.
    async fn outages(&mut self) {
        let workers = [self.scene.worker("right", "-", None), self.scene.worker("right", "-", None)];
        let so_far = self.scene.effects().await;
        self.scene.publish(600).await;
        self.scene.reach(so_far + 50).await;
        self.database.kill().unwrap();
        self.database.start().unwrap();
        self.happened.databases_killed += 1;
        self.scene.reach(so_far + 200).await;
        if let Some(broker) = &mut self.broker {
            broker.restart().unwrap();
            self.happened.brokers_killed += 1;
        }
        self.scene.reach(so_far + 300).await;
        for mut worker in workers {
            worker.terminate().unwrap();
            // Who cannot give back what it has, because it has not found the broker again, says so: that comes again.
            worker.wait(SOON).unwrap();
        }
    }
}

async fn whatever_happens<B: Broker>(url: &str, broker: Option<Alone>, ordered: bool) {
    let Some(mut play) = Play::<B>::new(url, broker).await else { return };
    let points: Vec<&str> =
        crash::IN_INBOX.into_iter().chain([crash::BEFORE_ACK, crash::AFTER_ACK]).collect();
    let rounds = rounds(2).max(1);
    let half = messages(2_000).div_ceil(2 * usize::try_from(rounds).unwrap());
    for (round, point) in (0..rounds).zip(points.iter().cycle()) {
        play.scene.publish(half).await;
        play.killed_at(point).await;
        play.killed_by_chance(round, half).await;
        if round % OUTAGE_EVERY == 0 {
            play.outages().await;
        }
        println!("{} {round} of {rounds}: {} effects", B::NAME, play.scene.effects().await);
    }
    let Play { scene, happened, database: _database, broker: _broker } = play;
    scene.finish(scene.worker("right", "last", None), "last").await;
    let wrong = if ordered { scene.judge().await } else { scene.judge_without_order().await };
    let (all, effects) = (scene.expected(), scene.effects().await);
    println!("{}: {all} messages, {} of them twice, {effects} effects; {happened:?}", B::NAME, scene.twice);
    println!("figures: {all} messages, {effects} effects");
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(effects, all);
}

macro_rules! large {
    ($($name:ident $service:ident $broker:ty, $ordered:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "prove: many messages, everything killed in turn"]
        async fn $name() {
            let Some(broker) = alone(Service::$service) else { return };
            let url = broker.url().to_owned();
            whatever_happens::<$broker>(&url, Some(broker), $ordered).await;
        }
    )*};
}

// Several consumers of one queue, stream or durable consumer have no order.
large! {
    kafka_whatever_happens_each_message_has_its_effect_once Kafka Kafka, true;
    nats_whatever_happens_each_message_has_its_effect_once Nats JetStream, false;
    rabbitmq_whatever_happens_each_message_has_its_effect_once Rabbitmq Queue<Quorum>, false;
    redis_streams_whatever_happens_each_message_has_its_effect_once Redis RedisStream, false;
}

/// ElasticMQ has its messages in memory and is not killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: many messages, everything killed in turn"]
async fn sqs_whatever_happens_each_message_has_its_effect_once() {
    let Some(sqs) = require(Service::Elasticmq) else { return };
    whatever_happens::<Fifo>(sqs.url(), None, true).await;
}
