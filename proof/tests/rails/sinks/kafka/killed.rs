//! A relay that is killed around its commit, and one that sleeps through its own replacement.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use semel::crash::{AFTER_SINK_COMMIT, BEFORE_SINK_COMMIT};
use testkit::child::Child;
use testkit::services::{Lease, Service, require};

use super::{judge, reader};
use crate::sinks::{SOON, unique};

const COUNT: usize = 200;
const BATCH: usize = 20;

struct Scene {
    broker: Lease,
    id: String,
    positions: String,
    topics: [String; 2],
}

impl Scene {
    async fn new() -> Option<Self> {
        let broker = require(Service::Kafka)?;
        let topics = [unique("even"), unique("odd")];
        for topic in &topics {
            reader::topic(broker.url(), topic, 3, &[]).await;
        }
        Some(Self { broker, id: unique("relay"), positions: unique("positions"), topics })
    }

    fn relay(&self, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("sink");
        command.args([self.broker.url(), &self.id, &self.positions, &self.topics.join(",")]);
        command.args([COUNT.to_string(), BATCH.to_string()]);
        Child::spawn(command, crash_at).unwrap()
    }

    /// Runs a relay to its end and returns where it went on, and what it said at last.
    fn finish(&self) -> (usize, String) {
        let ended = self.relay(None).wait(SOON).unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let from = ended.stdout[0].strip_prefix("from ").unwrap().parse().unwrap();
        (from, ended.stdout[1].clone())
    }

    /// Kafka's own consumer sees every number once, and a bare client those of each key in their order.
    fn judge(&self) {
        for (n, topic) in self.topics.iter().enumerate() {
            let wanted: Vec<usize> = (0..COUNT).filter(|number| number % 2 == n).collect();
            let lines = judge(self.broker.url(), topic, wanted.len());
            let mut numbers: Vec<usize> = lines.iter().map(|line| line.parse().unwrap()).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, wanted, "{topic}");
            let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
            for found in reader::read(self.broker.url(), topic, "read_committed") {
                by_key.entry(found.key.clone().unwrap()).or_default().push(found.text().parse().unwrap());
            }
            for (key, numbers) in by_key {
                assert!(numbers.is_sorted(), "{topic}, {key}: {numbers:?}");
            }
        }
    }

    /// Everything that was ever written, committed or not.
    fn written(&self) -> usize {
        self.topics.iter().map(|topic| reader::read(self.broker.url(), topic, "read_uncommitted").len()).sum()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_relay_killed_before_its_commit_publishes_once() {
    let Some(scene) = Scene::new().await else { return };
    let mut relay = scene.relay(Some(&format!("{BEFORE_SINK_COMMIT}:4")));
    relay.wait_for_point(SOON).unwrap();
    relay.kill().unwrap();
    // Three batches are committed; the fourth was written, and is written again.
    assert_eq!(scene.finish(), (3 * BATCH, "done".to_owned()));
    assert_eq!(scene.written(), COUNT + BATCH, "the batch of the killed one was not there to be hidden");
    scene.judge();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_relay_killed_after_its_commit_publishes_once() {
    let Some(scene) = Scene::new().await else { return };
    let mut relay = scene.relay(Some(&format!("{AFTER_SINK_COMMIT}:4")));
    relay.wait_for_point(SOON).unwrap();
    relay.kill().unwrap();
    assert_eq!(scene.finish(), (4 * BATCH, "done".to_owned()));
    assert_eq!(scene.written(), COUNT);
    scene.judge();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_relay_that_wakes_up_after_its_replacement_is_fenced() {
    let Some(scene) = Scene::new().await else { return };
    let mut zombie = scene.relay(Some(&format!("{BEFORE_SINK_COMMIT}:2")));
    zombie.wait_for_point(SOON).unwrap();
    assert_eq!(scene.finish(), (BATCH, "done".to_owned()));
    zombie.go().unwrap();
    let ended = zombie.wait(SOON).unwrap();
    assert_eq!(ended.stdout.last().map(String::as_str), Some("fenced"), "{ended:?}");
    scene.judge();
}

/// Killed again and again, wherever it happens to be.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: waits for the broker's transaction timeout"]
async fn a_relay_killed_at_any_time_publishes_once() {
    let Some(scene) = Scene::new().await else { return };
    for _ in 0..5 {
        let mut relay = scene.relay(None);
        // It has begun; how far it then gets is chance.
        let _ = relay.next_line(SOON).unwrap();
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..60)));
        relay.kill().unwrap();
    }
    assert_eq!(scene.finish().1, "done");
    scene.judge();
}
