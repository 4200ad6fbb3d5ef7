//! A topic, two topics that are made of it, and who judges them.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel::inbox::pipeline::{Input, Output};
use testkit::child::Child;
use testkit::services::kafka::console_consumer_of;

use crate::pipeline::SOON;

const PARTITIONS: i32 = 4;
const KEYS: usize = 40;
/// Marks the end of a partition.
const END: &str = "end";
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Scene {
    pub brokers: String,
    pub name: String,
    producer: FutureProducer,
    /// Asks for what the group has committed.
    group: BaseConsumer,
    /// Of each key, how many messages were published.
    published: HashMap<String, usize>,
}

impl Scene {
    pub async fn new(brokers: &str) -> Self {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let name = format!("pipeline_{}_{nanos}", std::process::id());
        let config = || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", brokers);
            config
        };
        // What is committed and not what is pending, which it would wait for.
        let mut group = config();
        group.set("group.id", &name).set("isolation.level", "read_uncommitted");
        let scene = Self {
            brokers: brokers.to_owned(),
            producer: config().set("enable.idempotence", "true").set("linger.ms", "5").create().unwrap(),
            group: group.create().unwrap(),
            published: HashMap::new(),
            name,
        };
        let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
        for topic in [scene.input(), scene.dead()].iter().chain(&scene.outputs()) {
            let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
            admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        }
        scene
    }

    pub fn input(&self) -> String {
        format!("{}_input", self.name)
    }

    pub fn outputs(&self) -> [String; 2] {
        ["first", "second"].map(|which| format!("{}_{which}", self.name))
    }

    pub fn dead(&self) -> String {
        format!("{}_dead", self.name)
    }

    /// A topic of which the broker takes no larger messages than that.
    pub async fn small_topic(&self, bytes: usize) -> String {
        let topic = format!("{}_small_{bytes}", self.name);
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().unwrap();
        let bytes = bytes.to_string();
        let new =
            NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1)).set("max.message.bytes", &bytes);
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        topic
    }

    /// Publishes so many messages over all keys.
    pub async fn publish(&mut self, messages: usize) {
        let mut reports = Vec::with_capacity(messages);
        for at in 0..messages {
            let key = format!("k{}", at % KEYS);
            let n = self.published.entry(key.clone()).or_default();
            *n += 1;
            let payload = format!("{key}:{n}");
            reports.push(self.send(&key, &payload));
        }
        for report in reports {
            report.await.unwrap().unwrap();
        }
    }

    pub fn send(&self, key: &str, payload: &str) -> rdkafka::producer::DeliveryFuture {
        let topic = self.input();
        let record = FutureRecord::to(&topic).key(key).payload(payload);
        self.producer.send_result(record).map_err(|(error, _)| error).unwrap()
    }

    pub fn worker(&self, how: &str, name: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("pipeline");
        let [first, second] = self.outputs();
        command.args([&self.brokers, &self.name, &self.input(), &first, &second, how, name]);
        Child::spawn(command, crash_at).unwrap()
    }

    /// A member of the group that gets partitions and does nothing with them.
    pub fn guest(&self, how: &str) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", &self.name);
        config.set("enable.auto.commit", "false").set("heartbeat.interval.ms", "300");
        let strategy = if how == "eager" { "range" } else { "cooperative-sticky" };
        let guest: BaseConsumer = config.set("partition.assignment.strategy", strategy).create().unwrap();
        guest.subscribe(&[&self.input()]).unwrap();
        guest
    }

    /// Whether a guest gets partitions, before the broker ends a transaction that takes too long.
    pub fn has_partitions(&self, guest: &BaseConsumer) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            // Whatever it is: it is not committed, and comes again.
            drop(guest.poll(Duration::from_millis(50)));
            if guest.assignment().unwrap().count() > 0 {
                return true;
            }
        }
        false
    }

    /// Messages that the group has not committed.
    pub fn behind(&self) -> i64 {
        let until = Instant::now() + SOON;
        loop {
            match self.try_behind() {
                Ok(behind) => return behind,
                // A broker that is back, or a topic that is new: not everybody knows it yet.
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }

    fn try_behind(&self) -> KafkaResult<i64> {
        let mut parts = TopicPartitionList::new();
        parts.add_partition_range(&self.input(), 0, PARTITIONS - 1);
        let committed = self.group.committed_offsets(parts, PATIENCE)?;
        let mut behind = 0;
        for part in committed.elements() {
            let (low, high) = self.group.fetch_watermarks(&self.input(), part.partition(), PATIENCE)?;
            behind += match part.offset() {
                Offset::Offset(offset) => high - offset,
                _ => high - low,
            };
        }
        Ok(behind)
    }

    /// Waits until the group is so far.
    pub async fn behind_at_most(&self, messages: i64) {
        let (mut until, mut best) = (Instant::now() + SOON, i64::MAX);
        loop {
            let behind = self.behind();
            if behind <= messages {
                break;
            }
            // As long as it gets anywhere.
            if behind < best {
                (until, best) = (Instant::now() + SOON, behind);
            }
            assert!(Instant::now() < until, "{behind} messages are not committed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What Kafka's own consumer sees in both topics, up to what is right and one more. Nothing is published after this.
    fn seen(&self, committed: bool) -> Vec<String> {
        let topics = self.outputs();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let ends = topics.len() * usize::try_from(PARTITIONS).unwrap();
        let max = self.published.values().sum::<usize>() * topics.len() + ends;
        let mut lines = Vec::new();
        // On a busy machine it may give up before its first fetch, or between two.
        for _ in 0..5 {
            lines = console_consumer_of(&self.brokers, &topics, committed, max, PATIENCE).unwrap();
            if lines.len() >= max || lines.iter().filter(|line| *line == END).count() >= ends {
                break;
            }
        }
        lines
    }

    /// What is wrong with what readers of committed data see: each input once in both topics, those of a key in order. The
    /// end of each partition is marked, so whatever is there too often stands in the way of a mark.
    pub async fn judge(&self) -> Vec<String> {
        for topic in self.outputs() {
            for partition in 0..PARTITIONS {
                let end = FutureRecord::<str, str>::to(&topic).partition(partition).payload(END);
                self.producer.send_result(end).map_err(|(error, _)| error).unwrap().await.unwrap().unwrap();
            }
        }
        self.wrong(true)
    }

    /// The same for any reader, after it was judged.
    pub fn wrong(&self, committed: bool) -> Vec<String> {
        let lines = self.seen(committed);
        let mut seen: HashMap<&str, Vec<usize>> = HashMap::new();
        for line in lines.iter().filter(|line| *line != END) {
            let (key, n) = line.rsplit_once(':').unwrap();
            seen.entry(key).or_default().push(n.parse().unwrap());
        }
        let keys =
            self.published.iter().flat_map(|(key, count)| [1, 2].map(|n| (format!("{n}/{key}"), *count)));
        let mut wrong: Vec<String> = keys
            .filter_map(|(key, count)| {
                let seen = seen.remove(key.as_str()).unwrap_or_default();
                let at = (0..seen.len().max(count)).find(|at| seen.get(*at) != Some(&(at + 1)))?;
                let around = &seen[at.saturating_sub(1).min(seen.len())..seen.len().min(at + 4)];
                Some(format!("{key} has {} of {count}, and from its {at}. on {around:?}", seen.len()))
            })
            .collect();
        let more = wrong.len().saturating_sub(5);
        wrong.truncate(5);
        wrong.extend((more > 0).then(|| format!("and {more} more keys, of {} messages", lines.len())));
        wrong
    }
}

/// What a message becomes in both topics.
pub fn made_of(input: &Input, topics: &[String; 2]) -> [Output; 2] {
    let text = String::from_utf8_lossy(input.payload().unwrap()).into_owned();
    [1, 2].map(|n| Output::like(input, topics[n - 1].as_str()).payload(format!("{n}/{text}")))
}

/// Stops a worker in order.
pub fn stop(mut worker: Child) {
    worker.terminate().unwrap();
    let ended = worker.wait(SOON).unwrap();
    println!("{:?} {:?}", ended.stdout.last(), ended.stderr.last());
    assert!(ended.status.success(), "{ended:?}");
}
