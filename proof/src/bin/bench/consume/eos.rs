//! From Kafka to Kafka: a pipeline whose outputs and offsets are one transaction, beside the same without transactions.
//!
//! The floor does what the pipeline does, batch by batch: it polls, publishes with an idempotent producer, waits until all of
//! it is there, and commits the offsets. It publishes twice what it did before a crash; that is what the rest costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel::inbox::pipeline::{Input, Output, Pipeline, PipelineOptions};
use semel::sink::kafka::KafkaSink;
use semel::source::kafka::KafkaSource;

use crate::Failed;
use crate::table::Table;

type Bare = ThreadedProducer<DefaultProducerContext>;

const PARTITIONS: i32 = 4;
const PAYLOAD_BYTES: usize = 200;
const KEYS: u64 = 1_000;
const ROUNDS: usize = 3;
/// As in [`PipelineOptions`].
const BATCH: usize = 2_000;
const LINGER: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure(brokers: &str, size: usize, table: &mut Table) -> Result<(), Failed> {
    let messages = 100_000 * u64::try_from(size)?;
    let scene = Scene::make(brokers, messages).await?;
    let measured = scene.rounds(table).await;
    measured.and(scene.remove().await)
}

struct Scene {
    brokers: String,
    name: String,
    messages: u64,
    admin: AdminClient<DefaultClientContext>,
}

impl Scene {
    async fn make(brokers: &str, messages: u64) -> Result<Self, Failed> {
        let admin = client(brokers).create()?;
        let name = format!("semel-bench-eos-{}", uuid::Uuid::now_v7());
        let scene = Self { brokers: brokers.to_owned(), name, messages, admin };
        for topic in scene.topics() {
            let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
            let made = scene.admin.create_topics([&new], &AdminOptions::new()).await?;
            if let Some(Err((_, code))) = made.first() {
                return Err(format!("the topic {topic} is not made: {code}").into());
            }
        }
        let [input, _] = scene.topics();
        let producer: Bare = scene.producer().create()?;
        let payload = vec![b'x'; PAYLOAD_BYTES];
        for n in 0..messages {
            let key = format!("account-{}", n % KEYS);
            send(&producer, &input, key.as_bytes(), &payload)?;
        }
        producer.flush(PATIENCE)?;
        Ok(scene)
    }

    fn topics(&self) -> [String; 2] {
        ["input", "output"].map(|which| format!("{}-{which}", self.name))
    }

    async fn remove(&self) -> Result<(), Failed> {
        let topics = self.topics();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.admin.delete_topics(&topics, &AdminOptions::new()).await?;
        Ok(())
    }

    /// By turns, and the best of each: what disturbs one of them makes it slower, never faster.
    async fn rounds(&self, table: &mut Table) -> Result<(), Failed> {
        let (mut floor, mut pipeline, mut transaction) = (0.0f64, 0.0f64, f64::MAX);
        for round in 0..ROUNDS {
            floor = floor.max(self.floor(round)?);
            let (rate, millis) = self.pipeline(round).await?;
            (pipeline, transaction) = (pipeline.max(rate), transaction.min(millis));
        }
        let note = format!("{} messages of {PAYLOAD_BYTES} bytes, {PARTITIONS} partitions", self.messages);
        table.row("kafka to kafka, no transactions", floor, "msg/s", note);
        table.row("kafka to kafka, exactly once", pipeline, "msg/s", format!("batches of {BATCH}"));
        table.row("exactly once / no transactions", pipeline / floor, "ratio", "target 0.85");
        table.row("one batch, from poll to commit", transaction, "ms", "mean of the best round");
        Ok(())
    }

    /// As the pipeline's own, but for the transactions.
    fn producer(&self) -> ClientConfig {
        let mut config = client(&self.brokers);
        for (property, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("max.in.flight.requests.per.connection", "5"),
            ("partitioner", "murmur2_random"),
            ("linger.ms", "1"),
            ("batch.size", "1000000"),
            ("queue.buffering.max.kbytes", "16384"),
            ("compression.type", "none"),
        ] {
            config.set(property, value);
        }
        config
    }

    /// Messages a second, from the first message to the last commit.
    fn floor(&self, round: usize) -> Result<f64, Failed> {
        let [input, output] = self.topics();
        let mut config = client(&self.brokers);
        for (property, value) in [
            ("group.id", format!("{}-floor-{round}", self.name).as_str()),
            ("isolation.level", "read_committed"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "earliest"),
            ("queued.min.messages", "10000"),
            ("queued.max.messages.kbytes", "16384"),
        ] {
            config.set(property, value);
        }
        let (consumer, producer): (BaseConsumer, Bare) = (config.create()?, self.producer().create()?);
        consumer.subscribe(&[&input])?;
        let (mut done, mut begun) = (0, None);
        while done < self.messages {
            let mut batch = Vec::with_capacity(BATCH);
            let mut until = Instant::now() + PATIENCE;
            while batch.len() < BATCH && Instant::now() < until {
                // It also comes back without a message, when the group had something to say.
                let Some(message) = consumer.poll(until.saturating_duration_since(Instant::now())) else {
                    continue;
                };
                if batch.is_empty() {
                    until = Instant::now() + LINGER;
                }
                batch.push(message?.detach());
            }
            if batch.is_empty() {
                return Err(format!("{done} of {} messages came", self.messages).into());
            }
            begun.get_or_insert_with(Instant::now);
            let mut offsets = TopicPartitionList::new();
            for message in &batch {
                let (key, payload) =
                    (message.key().unwrap_or_default(), message.payload().unwrap_or_default());
                send(&producer, &output, key, payload)?;
                let next = Offset::Offset(message.offset() + 1);
                match offsets.find_partition(&input, message.partition()) {
                    Some(mut known) => known.set_offset(next)?,
                    None => offsets.add_partition_offset(&input, message.partition(), next)?,
                }
            }
            producer.flush(PATIENCE)?;
            consumer.commit(&offsets, CommitMode::Sync)?;
            done += u64::try_from(batch.len())?;
        }
        Ok(done as f64 / begun.unwrap_or_else(Instant::now).elapsed().as_secs_f64())
    }

    /// The same of the pipeline, and how long a batch takes.
    async fn pipeline(&self, round: usize) -> Result<(f64, f64), Failed> {
        let [input, output] = self.topics();
        let source = KafkaSource::options(&self.brokers, &format!("{}-{round}", self.name)).topics(&[&input]);
        let (seen, begun) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::OnceLock::new()));
        let transform = {
            let (seen, begun) = (Arc::clone(&seen), Arc::clone(&begun));
            move |inputs: Vec<Input>| {
                begun.get_or_init(Instant::now);
                seen.fetch_add(inputs.len() as u64, Ordering::Relaxed);
                let outputs = inputs.iter().map(|input| Output::like(input, output.as_str())).collect();
                std::future::ready(Ok(outputs))
            }
        };
        let options = PipelineOptions::default().batch_max(BATCH).linger(LINGER);
        let pipeline = Pipeline::new(source, KafkaSink::options(&self.brokers), transform, options)?;
        let stop = pipeline.stop_handle();
        let running = tokio::spawn(pipeline.run());
        // What has come to the transform is committed before the pipeline stops for it.
        while seen.load(Ordering::Relaxed) < self.messages {
            if running.is_finished() {
                return Err(format!("the pipeline stopped: {:?}", running.await?).into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.stop();
        let begun = *begun.get_or_init(Instant::now);
        let ended = running.await??;
        // Leaving the group is in it, and small beside the rest.
        let took = begun.elapsed().as_secs_f64();
        if ended.messages != self.messages {
            return Err(format!("{ended:?} instead of {} messages", self.messages).into());
        }
        Ok((ended.messages as f64 / took, took * 1_000.0 / ended.transactions as f64))
    }
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn send(producer: &Bare, topic: &str, key: &[u8], payload: &[u8]) -> Result<(), Failed> {
    let mut record = BaseRecord::to(topic).key(key).payload(payload);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                record = back;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}
