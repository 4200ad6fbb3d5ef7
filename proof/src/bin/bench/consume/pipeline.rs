//! The pipeline that is measured, and this program as one, whose memory and work another one measures.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel::inbox::pipeline::{Input, Output, Pipeline, PipelineOptions, Transform};
use semel::sink::kafka::KafkaSink;
use semel::source::kafka::KafkaSource;
use tokio::io::AsyncReadExt;

use crate::Failed;

/// What the program is called with to be one.
pub(crate) const WORD: &str = "pipeline-process";

const USAGE: &str = "usage: pipeline-process BROKERS GROUP INPUT OUTPUT BATCH LINGER_MS";

/// When a batch is full.
#[derive(Clone, Copy)]
pub(super) struct Full {
    pub(super) messages: usize,
    pub(super) linger: Duration,
}

/// As in [`PipelineOptions`], once it has grown.
pub(super) const USUAL: Full = Full { messages: 10_000, linger: Duration::from_millis(10) };
/// Small ones, which show what a transaction costs.
pub(super) const SMALL: Full = Full { messages: 2_000, linger: Duration::from_millis(10) };

/// Each message as it is to another topic. `seen` hears how many come.
pub(super) fn pipeline(
    [brokers, group, input, output]: [&str; 4],
    full: Full,
    seen: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Pipeline<impl Transform>, Failed> {
    let source = KafkaSource::options(brokers, group).topics(&[input]);
    let output: Arc<str> = Arc::from(output);
    let transform = move |inputs: Vec<Input>| {
        seen(inputs.len());
        let outputs = inputs.iter().map(|input| Output::like(input, Arc::clone(&output))).collect();
        std::future::ready(Ok(outputs))
    };
    let options = PipelineOptions::default().batch_max(full.messages).linger(full.linger);
    Ok(Pipeline::new(source, KafkaSink::options(brokers), transform, options)?)
}

/// Says `begun` with the first message, runs until its input ends, and then says `transactions N`.
pub(crate) async fn run(words: impl Iterator<Item = String>) -> Result<(), Failed> {
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let &[brokers, group, input, output, messages, linger] = &words[..] else { return Err(USAGE.into()) };
    let full = Full { messages: messages.parse()?, linger: Duration::from_millis(linger.parse()?) };
    let begun = OnceLock::new();
    let seen = move |_| begun.get_or_init(|| println!("begun")).to_owned();
    let pipeline = pipeline([brokers, group, input, output], full, seen)?;
    let stop = pipeline.stop_handle();
    tokio::spawn(async move {
        let (mut input, mut byte) = (tokio::io::stdin(), [0]);
        while matches!(input.read(&mut byte).await, Ok(1)) {}
        stop.stop();
    });
    println!("transactions {}", pipeline.run().await?.transactions);
    Ok(())
}
