//! From Kafka to Kafka: a pipeline whose outputs and offsets are one transaction, beside the same without transactions.
//!
//! The floor does what the pipeline does, batch by batch: it polls, publishes with an idempotent producer, waits until all of
//! it is there, and commits the offsets. It publishes twice what it did before a crash; that is what the rest costs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::Producer;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::pipeline::{Full, SMALL, USUAL, pipeline};
use super::scene::{Bare, PARTITIONS, PATIENCE, PAYLOAD_BYTES, Scene, client, send};
use crate::Failed;
use crate::table::Table;

const ROUNDS: usize = 3;

pub(super) async fn measure(scene: &Scene, table: &mut Table) -> Result<(), Failed> {
    let output = scene.topic("output").await?;
    let mut measured = Ok(());
    for full in [USUAL, SMALL] {
        if measured.is_ok() {
            measured = Both { scene, output: &output, full }.rounds(table).await;
        }
    }
    measured.and(scene.remove(&output).await)
}

/// With transactions and without.
struct Both<'a> {
    scene: &'a Scene,
    output: &'a str,
    full: Full,
}

impl Both<'_> {
    /// By turns, and the best of each: what disturbs one of them makes it slower, never faster.
    async fn rounds(&self, table: &mut Table) -> Result<(), Failed> {
        let (mut floor, mut pipeline, mut transaction) = (0.0f64, 0.0f64, f64::MAX);
        for round in 0..ROUNDS {
            floor = floor.max(self.floor(round)?);
            let (rate, millis) = self.pipeline(round).await?;
            (pipeline, transaction) = (pipeline.max(rate), transaction.min(millis));
        }
        let (messages, batches) = (self.scene.messages, format!("batches of {}", self.full.messages));
        let note = format!("{messages} messages of {PAYLOAD_BYTES} bytes, {PARTITIONS} partitions");
        table.row(&format!("kafka to kafka, {batches}, no transactions"), floor, "msg/s", note);
        let note = format!("{:.2} × no transactions (wanted: 0.85)", pipeline / floor);
        table.row(&format!("kafka to kafka, {batches}, exactly once"), pipeline, "msg/s", note);
        let name = format!("kafka to kafka, {batches}: one, from poll to commit");
        table.row(&name, transaction, "ms", "mean of the best round");
        Ok(())
    }

    /// Messages a second, from the first message to the last commit.
    fn floor(&self, round: usize) -> Result<f64, Failed> {
        let (input, messages) = (self.scene.input(), self.scene.messages);
        let mut config = client(&self.scene.brokers);
        for (property, value) in [
            ("group.id", format!("{}-floor-{}-{round}", self.scene.name, self.full.messages).as_str()),
            ("isolation.level", "read_committed"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "earliest"),
            ("queued.min.messages", "10000"),
            ("queued.max.messages.kbytes", "16384"),
            ("fetch.queue.backoff.ms", "10"),
        ] {
            config.set(property, value);
        }
        let (consumer, producer): (BaseConsumer, Bare) = (config.create()?, self.scene.producer().create()?);
        consumer.subscribe(&[&input])?;
        let (mut done, mut begun) = (0, None);
        while done < messages {
            let mut batch = Vec::with_capacity(self.full.messages);
            let mut until = Instant::now() + PATIENCE;
            while batch.len() < self.full.messages && Instant::now() < until {
                // It also comes back without a message, when the group had something to say.
                let Some(message) = consumer.poll(until.saturating_duration_since(Instant::now())) else {
                    continue;
                };
                if batch.is_empty() {
                    until = Instant::now() + self.full.linger;
                }
                batch.push(message?.detach());
            }
            if batch.is_empty() {
                return Err(format!("{done} of {messages} messages came").into());
            }
            begun.get_or_insert_with(Instant::now);
            let mut offsets = TopicPartitionList::new();
            for message in &batch {
                let (key, payload) =
                    (message.key().unwrap_or_default(), message.payload().unwrap_or_default());
                send(&producer, self.output, key, payload)?;
                let next = Offset::Offset(message.offset() + 1);
                match offsets.find_partition(&input, message.partition()) {
                    Some(mut known) => known.set_offset(next)?,
                    None => offsets.add_partition_offset(&input, message.partition(), next)?,
                }
            }
            // `flush` may notice a tenth of a second late that all of it is there.
            let until = Instant::now() + PATIENCE;
            while producer.in_flight_count() > 0 {
                if Instant::now() > until {
                    return Err(format!("a batch is not published after {PATIENCE:?}").into());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            consumer.commit(&offsets, CommitMode::Sync)?;
            done += u64::try_from(batch.len())?;
        }
        Ok(done as f64 / begun.unwrap_or_else(Instant::now).elapsed().as_secs_f64())
    }

    /// The same of the pipeline, and how long a batch takes.
    async fn pipeline(&self, round: usize) -> Result<(f64, f64), Failed> {
        let Scene { brokers, name, messages, .. } = self.scene;
        // When the first came, and when the last: what came before the last is committed by then.
        let seen = Arc::new(Mutex::new(Seen::default()));
        let comes = {
            let seen = Arc::clone(&seen);
            move |inputs: usize| {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let (begun, now) = (seen.begun.unwrap_or_else(Instant::now), Instant::now());
                *seen = Seen {
                    begun: Some(begun),
                    took: now - begun,
                    before: seen.all,
                    all: seen.all + inputs as u64,
                };
            }
        };
        let look = || *seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (group, input) = (format!("{name}-{}-{round}", self.full.messages), self.scene.input());
        let pipeline = pipeline([brokers, &group, &input, self.output], self.full, comes)?;
        let stop = pipeline.stop_handle();
        let running = tokio::spawn(pipeline.run());
        // What has come to the transform is committed before the pipeline stops for it.
        while look().all < *messages {
            if running.is_finished() {
                return Err(format!("the pipeline stopped: {:?}", running.await?).into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.stop();
        let ended = running.await??;
        if ended.messages != *messages {
            return Err(format!("{ended:?} instead of {messages} messages").into());
        }
        let Seen { took, before, .. } = look();
        let took = took.as_secs_f64();
        Ok((before as f64 / took, took * 1_000.0 / ended.transactions.saturating_sub(1).max(1) as f64))
    }
}

#[derive(Clone, Copy, Default)]
struct Seen {
    begun: Option<Instant>,
    took: Duration,
    before: u64,
    all: u64,
}
