//! A pipeline for killing: each message of a topic to two others, until SIGTERM.
//!
//! `proof-worker pipeline BROKERS GROUP INPUT FIRST SECOND HOW NAME`, where NAME is a static member's and an instance's name or `-`,
//! and HOW is `right`, `eager` (all partitions move at once), or one of two mistakes: `outside` (offsets beside the
//! transaction) and `anonymous` (offsets in it, but not as a member of the group). It stops at the points of
//! [`semel::crash`].

use std::process::ExitCode;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel::crash::{BEFORE_OFFSETS, BEFORE_SINK_COMMIT, point};
use semel::inbox::consumer::HandlerError;
use semel::inbox::pipeline::{Input, Output, Pipeline, PipelineOptions};
use semel::sink::kafka::KafkaSink;
use semel::source::kafka::{Assignment, KafkaSource};
use tokio::signal::unix::{SignalKind, signal};

type Wrong = Box<dyn std::error::Error + Send + Sync>;

const BATCH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match work(&args).await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn work(args: &[&str]) -> Result<String, Wrong> {
    let &[brokers, group, input, first, second, how, name] = args else {
        return Err("usage: proof-worker pipeline BROKERS GROUP INPUT FIRST SECOND HOW NAME".into());
    };
    let mut terminate = signal(SignalKind::terminate())?;
    println!("working");
    if ["outside", "anonymous"].contains(&how) {
        return wrong(args);
    }
    let mut source = KafkaSource::options(brokers, group)
        .topics(&[input])
        .session(Duration::from_secs(6))
        .set("heartbeat.interval.ms", "300")?;
    let pause = Duration::from_millis(20);
    let mut options =
        PipelineOptions::default().batch_max(BATCH).linger(pause).backoff(pause, Duration::from_secs(1));
    if how == "eager" {
        source = source.assignment(Assignment::Range);
    }
    if name != "-" {
        source = source.set("group.instance.id", name)?;
        options = options.instance(name);
    }
    let sink = KafkaSink::options(brokers).transaction_timeout(Duration::from_secs(20));
    let topics = [first.to_owned(), second.to_owned()];
    let transform = move |inputs: Vec<Input>| {
        let made = |input: &Input| {
            let text = String::from_utf8_lossy(input.payload().unwrap_or_default()).into_owned();
            [1, 2].map(|n| Output::like(input, topics[n - 1].as_str()).payload(format!("{n}/{text}")))
        };
        let outputs = inputs.iter().flat_map(made).collect();
        async move { Ok::<_, HandlerError>(outputs) }
    };
    let pipeline = Pipeline::new(source, sink, transform, options)?;
    let stop = pipeline.stop_handle();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.stop();
    });
    let begun = Instant::now();
    let ended = pipeline.run().await?;
    Ok(format!("stopped after {ended:?} in {:?}", begun.elapsed()))
}

/// How it is often written, and what the judge has to catch.
fn wrong(args: &[&str]) -> Result<String, Wrong> {
    let &[brokers, group, input, first, second, how, name] = args else { return Err("usage".into()) };
    let config = || {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        config
    };
    let mut consumer = config();
    consumer.set("group.id", group).set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
    consumer.set("session.timeout.ms", "6000").set("partition.assignment.strategy", "cooperative-sticky");
    // It never joins, so it has neither a name nor a generation.
    let outsider: BaseConsumer = consumer.create()?;
    if name != "-" {
        consumer.set("group.instance.id", name);
    }
    let consumer: BaseConsumer = consumer.create()?;
    consumer.subscribe(&[input])?;
    let mut producer = config();
    producer.set("transactional.id", format!("{group}-{name}-wrong"));
    if how == "anonymous" {
        // Who sleeps with its transaction open is not to be relieved of it.
        producer.set("transaction.timeout.ms", "600000");
    }
    let producer: BaseProducer = producer.create()?;
    producer.init_transactions(PATIENCE)?;
    loop {
        let mut taken = Vec::new();
        let until = Instant::now() + Duration::from_millis(100);
        while taken.len() < BATCH && Instant::now() < until {
            if let Some(message) = consumer.poll(Duration::from_millis(20)) {
                taken.push(message?.detach());
            }
        }
        if taken.is_empty() {
            continue;
        }
        producer.begin_transaction()?;
        let mut offsets = TopicPartitionList::new();
        for message in &taken {
            let text = String::from_utf8_lossy(message.payload().unwrap_or_default());
            for (topic, payload) in [(first, format!("1/{text}")), (second, format!("2/{text}"))] {
                let record =
                    BaseRecord::to(topic).key(message.key().unwrap_or_default()).payload(payload.as_bytes());
                producer.send(record).map_err(|(error, _)| error)?;
            }
            let next = Offset::Offset(message.offset() + 1);
            match offsets.find_partition(input, message.partition()) {
                Some(mut known) => known.set_offset(next)?,
                None => offsets.add_partition_offset(input, message.partition(), next)?,
            }
        }
        producer.flush(PATIENCE)?;
        point(BEFORE_OFFSETS);
        if how == "outside" {
            consumer.commit(&offsets, CommitMode::Sync)?;
        } else {
            let outsider = outsider.group_metadata().ok_or("no metadata")?;
            producer.send_offsets_to_transaction(&offsets, &outsider, PATIENCE)?;
        }
        point(BEFORE_SINK_COMMIT);
        producer.commit_transaction(PATIENCE)?;
        println!("committed");
    }
}
