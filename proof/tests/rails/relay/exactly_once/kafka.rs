//! PostgreSQL to Kafka with relays that are killed, stopped and replaced while writers append. Kafka's own consumer is
//! the judge, against the outbox table.
//!
//! `SEMEL_EXACTLY_ONCE_KILLS` says how often relays are killed by chance (2).

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use semel::crash::{BEFORE_BEGIN, BEFORE_SINK_COMMIT, IN_EXACTLY_ONCE};
use testkit::child::{Child, Finished};
use testkit::services::kafka::{abort_open_transactions, console_consumer_of};
use testkit::services::{Cluster, Service, alone, require};
use tokio::task::JoinHandle;

use crate::relay::world::{Postgres, corner};

const SOON: Duration = Duration::from_secs(180);
/// Long enough for one that is not stopped.
const LEASE_MS: u64 = 2_000;
/// Larger than its topic takes.
const LARGE: usize = 6_000;

struct Scene {
    world: Postgres,
    bootstrap: String,
    name: String,
    mode: &'static str,
    over: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Scene {
    async fn new(bootstrap: &str) -> Option<Self> {
        Some(Self::of(Postgres::new().await?, bootstrap).await)
    }

    async fn of(world: Postgres, bootstrap: &str) -> Self {
        let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let scene = Self {
            world,
            bootstrap: bootstrap.to_owned(),
            name: format!("{}_{nanos}", corner()),
            mode: "poll",
            over: Arc::default(),
            writers: Vec::new(),
        };
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
        for topic in scene.topics() {
            let new = NewTopic::new(&topic, 3, TopicReplication::Fixed(1)).set("max.message.bytes", "5000");
            admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        }
        scene
    }

    /// Where the relays of this scene keep their position.
    fn positions(&self) -> String {
        format!("{}_positions", self.name)
    }

    fn topics(&self) -> [String; 2] {
        ["even", "odd"].map(|kind| format!("{}_{kind}", self.name))
    }

    /// Two who append: a few events a transaction, over two topics, and now and then one that Kafka does not take.
    async fn write(&mut self) {
        let tables = "CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL);
                      INSERT INTO counter SELECT 'k' || n, 0 FROM generate_series(0, 11) n";
        self.world.connect().await.batch_execute(tables).await.unwrap();
        for _ in 0..2 {
            let (client, over, topics) = (self.world.connect().await, self.over.clone(), self.topics());
            self.writers.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut tx = "BEGIN;".to_owned();
                    let mut keys: Vec<u32> = (0..fastrand::u32(1..4)).map(|_| fastrand::u32(0..12)).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    for key in keys {
                        let topic = &topics[usize::from(fastrand::bool())];
                        // Keys of their own: the others are to be judged by all that comes after.
                        let large = if key >= 10 && fastrand::u32(0..30) == 0 { LARGE } else { 0 };
                        tx.push_str(&format!(
                            "UPDATE counter SET n = n + 1 WHERE key = 'k{key}';
                             INSERT INTO semel_outbox (topic, type, key, payload)
                             SELECT '{topic}', 'number', key, (key || ':' || n || ':' || repeat('x', {large}))::bytea
                             FROM counter WHERE key = 'k{key}';"
                        ));
                    }
                    tx.push_str(if fastrand::u32(0..10) == 0 { "ROLLBACK" } else { "COMMIT" });
                    client.batch_execute(&tx).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..40))).await;
                }
            }));
        }
    }

    fn relay(&self, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("exactly-once");
        command.args([&self.world.url(), &self.bootstrap, &self.name, &self.positions()]);
        command.args([&LEASE_MS.to_string(), self.mode]);
        let mut child = Child::spawn(command, crash_at).unwrap();
        assert_eq!(child.next_line(SOON).unwrap(), "working");
        child
    }

    /// The writers end, and all that they wrote goes out.
    async fn finish(&mut self) -> Finished {
        self.over.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            writer.await.unwrap();
        }
        let client = self.world.connect().await;
        let last = format!(
            "INSERT INTO semel_outbox (topic, type, key, payload)
             VALUES ('{}', 'last', 'last', 'last:1:')",
            self.topics()[0]
        );
        client.batch_execute(&last).await.unwrap();
        let mut relay = self.relay(None);
        // One that a person had tried again is refused again.
        let outbox = self.world.outbox().await;
        outbox.retry(None).await.unwrap();
        let left = "SELECT count(*) FROM semel_outbox_cursor c JOIN semel_outbox o
                        ON abs(hashtext(o.key) % 16) = c.lane
                    WHERE c.until_seq IS NOT NULL
                       OR (NOT pg_visible_in_snapshot(o.xid, c.low) AND (
                           c.high IS NULL OR o.seq > c.after_seq OR NOT pg_visible_in_snapshot(o.xid, c.high)))";
        for _ in 0..1_800 {
            if client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0, "events are left");
        relay.terminate().unwrap();
        relay.wait(SOON).unwrap()
    }

    /// What Kafka's own consumer sees of the committed, against the tables: every event once, in the order of its key.
    async fn judge(self) {
        let client = self.world.connect().await;
        let query = "SELECT topic, convert_from(payload, 'UTF8'), key, EXISTS (
                         SELECT FROM semel_outbox_parked p WHERE p.id = o.id)
                     FROM semel_outbox o ORDER BY seq";
        let (mut lost, mut twice, mut overtaken, mut events, mut aside) = (0, 0, 0, 0, 0);
        let rows = client.query(query, &[]).await.unwrap();
        let topics = self.topics().map(|topic| {
            let of_topic: Vec<_> = rows.iter().filter(|row| row.get::<_, String>(0) == topic).collect();
            let wanted = of_topic.iter().filter(|row| !row.get::<_, bool>(3)).count();
            let bootstrap = self.bootstrap.clone();
            (of_topic, tokio::task::spawn_blocking(move || consumed(&bootstrap, &topic, wanted)))
        });
        for (of_topic, lines) in topics {
            let lines = lines.await.unwrap();
            let mut counts: HashMap<&str, usize> = HashMap::new();
            let mut last: HashMap<&str, u64> = HashMap::new();
            for line in &lines {
                *counts.entry(line).or_default() += 1;
                let mut parts = line.split(':');
                let (key, n) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
                overtaken += usize::from(last.insert(key, n).is_some_and(|before| before > n));
            }
            for row in &of_topic {
                let (text, parked): (String, bool) = (row.get(1), row.get(3));
                let seen = counts.remove(text.as_str()).unwrap_or(0);
                lost += usize::from(seen + usize::from(parked) == 0);
                twice += usize::from(seen + usize::from(parked) > 1);
                aside += usize::from(parked);
            }
            assert!(counts.is_empty(), "never committed by a writer: {counts:?}");
            events += of_topic.len();
        }
        println!("{events} events, {aside} parked: {lost} lost, {twice} twice, {overtaken} overtaken");
        assert_eq!((lost, twice, overtaken), (0, 0, 0));
        assert!(events > 200, "{events}");
        self.world.end().await;
    }
}

fn consumed(bootstrap: &str, topic: &str, at_least: usize) -> Vec<String> {
    let ask = || testkit::services::kafka::console_consumer(bootstrap, topic, true, at_least * 2 + 10);
    testkit::services::kafka::asked_until(ask, |lines| lines.len() >= at_least).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: a minute"]
async fn a_relay_killed_at_every_point_publishes_once() {
    let Some(broker) = require(Service::Kafka) else { return };
    let Some(scene) = Scene::new(broker.url()).await else { return };
    killed_at_every_point(scene).await;
}

/// On a server of its own: a slot that is dropped by somebody else meanwhile has events come twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: a minute"]
async fn a_relay_of_the_log_killed_at_every_point_publishes_once() {
    let (Some(_), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else { return };
    let server = Cluster::new().unwrap();
    let mut scene = Scene::of(Postgres::on(&server.url()).await, broker.url()).await;
    scene.mode = "cdc";
    killed_at_every_point(scene).await;
}

/// Killed at every point, the next one already standing by; then anywhere.
async fn killed_at_every_point(mut scene: Scene) {
    scene.write().await;
    for (n, point) in IN_EXACTLY_ONCE.iter().enumerate() {
        // Only at its start does it begin.
        let nth = if n < 2 { 1 } else { 2 + n % 3 };
        let mut relay = scene.relay(Some(&format!("{point}:{nth}")));
        assert_eq!(relay.wait_for_point(SOON).unwrap(), *point);
        relay.kill().unwrap();
    }
    let kills = std::env::var("SEMEL_EXACTLY_ONCE_KILLS").map_or(2, |text| text.parse().unwrap());
    for _ in 0..kills {
        let mut relay = scene.relay(None);
        assert_eq!(relay.next_line(SOON).unwrap(), "done");
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..100)));
        relay.kill().unwrap();
    }
    let ended = scene.finish().await;
    assert!(ended.stdout.last().unwrap().starts_with("stopped"), "{ended:?}");
    scene.judge().await;
}

/// Waits until one of these has done a batch. Which one is not for the test to say: on a busy machine the one that works
/// may itself be too late for its lease, and is then replaced as it should be.
fn one_goes_on(relays: &mut [&mut Child]) {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        for relay in relays.iter_mut() {
            if relay.next_line(Duration::from_millis(20)).is_ok_and(|line| line == "done") {
                return;
            }
        }
    }
    panic!("none goes on");
}

/// Stopped for longer than its lease where it is worst, replaced, and woken up. What it has published is for the judge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_relay_that_wakes_up_after_its_replacement_publishes_nothing() {
    let Some(broker) = require(Service::Kafka) else { return };
    let Some(mut scene) = Scene::new(broker.url()).await else { return };
    scene.write().await;
    // Everything is written, the commit is next: the other's begin must end it.
    let mut zombie = scene.relay(Some(&format!("{BEFORE_SINK_COMMIT}:3")));
    zombie.wait_for_point(SOON).unwrap();
    zombie.pause().unwrap();
    let mut other = scene.relay(None);
    one_goes_on(&mut [&mut other]);
    zombie.resume().unwrap();
    zombie.go().unwrap();
    // It is fenced by the broker and ends, or notices by its own clock and stands by.
    one_goes_on(&mut [&mut other, &mut zombie]);
    zombie.terminate().unwrap();
    let ended = zombie.wait(SOON).unwrap();
    let last = ended.stdout.last().unwrap();
    assert!(ended.status.success() && (last == "fenced" || last.starts_with("stopped")), "{ended:?}");
    other.kill().unwrap();
    // Stopped anywhere: it finds out by itself, or is fenced.
    let mut second = scene.relay(None);
    one_goes_on(&mut [&mut second]);
    second.pause().unwrap();
    let mut third = scene.relay(None);
    one_goes_on(&mut [&mut third]);
    second.resume().unwrap();
    for _ in 0..5 {
        one_goes_on(&mut [&mut third, &mut second]);
    }
    third.kill().unwrap();
    second.kill().unwrap();
    // Stopped before it takes the sink, while another has it: what it begins then ends no other's work for good.
    let mut early = scene.relay(Some(BEFORE_BEGIN));
    early.wait_for_point(SOON).unwrap();
    let mut fourth = scene.relay(None);
    one_goes_on(&mut [&mut fourth]);
    early.go().unwrap();
    // It notices that its time is over before its begin has an effect, or ends the other's work. Either way one of the
    // two goes on, and when the other has left it is this one.
    fourth.terminate().unwrap();
    let ended = fourth.wait(SOON).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    one_goes_on(&mut [&mut early]);
    early.kill().unwrap();
    scene.finish().await;
    scene.judge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn what_is_left_open_is_ended_with_kafkas_own_tool() {
    let Some(kafka) = require(Service::Kafka) else { return };
    let Some(scene) = Scene::new(kafka.url()).await else { return };
    let [topic, _] = scene.topics();
    let config = |id: &str| {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", kafka.url());
        if !id.is_empty() {
            // Ended by the tool, not before that by its timeout.
            config.set("transactional.id", id).set("transaction.timeout.ms", "600000");
        }
        config.create::<BaseProducer>().unwrap()
    };
    let (open, plain) = (config(&scene.name), config(""));
    open.init_transactions(SOON).unwrap();
    open.begin_transaction().unwrap();
    for (producer, text) in [(&open, "open"), (&plain, "plain")] {
        producer.send(BaseRecord::<(), str>::to(&topic).partition(0).payload(text)).unwrap();
        producer.flush(SOON).unwrap();
    }
    let seen = || console_consumer_of(kafka.url(), &[&topic], true, 2, Duration::from_secs(5)).unwrap();
    assert_eq!(seen(), Vec::<String>::new(), "who reads what is committed waits for it");
    assert_eq!(abort_open_transactions(kafka.url(), &topic, 0).unwrap(), 1);
    let mut lines = seen();
    // On a busy machine it may give up before its first fetch.
    for _ in 0..4 {
        if !lines.is_empty() {
            break;
        }
        lines = seen();
    }
    assert_eq!(lines, ["plain"]);
    assert_eq!(abort_open_transactions(kafka.url(), &topic, 0).unwrap(), 0);
    scene.world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: a broker killed under load"]
async fn a_broker_that_is_killed_and_comes_back_has_everything_once() {
    let Some(mut broker) = alone(Service::Kafka) else { return };
    let Some(mut scene) = Scene::new(broker.url()).await else { return };
    scene.write().await;
    let mut relay = scene.relay(None);
    for _ in 0..3 {
        assert_eq!(relay.next_line(SOON).unwrap(), "done");
    }
    broker.kill().unwrap();
    // Everybody waits: the lease is kept, and no relay stops.
    tokio::time::sleep(Duration::from_millis(LEASE_MS * 2)).await;
    broker.start().unwrap();
    while relay.next_line(Duration::from_millis(1)).is_ok() {}
    for _ in 0..3 {
        assert_eq!(relay.next_line(SOON).unwrap(), "done");
    }
    // Down under one that is killed meanwhile.
    broker.kill().unwrap();
    relay.kill().unwrap();
    let mut relay = scene.relay(None);
    broker.start().unwrap();
    assert_eq!(relay.next_line(SOON).unwrap(), "done");
    relay.kill().unwrap();
    scene.finish().await;
    scene.judge().await;
}
