//! Whether each message of the input is in an output once, for a reader of committed data.

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::scene::{PARTITIONS, PATIENCE, Scene, client};
use crate::Failed;

/// Reads all of it.
///
/// # Errors
/// When a message is missing, or there twice.
pub(super) fn judge(scene: &Scene, output: &str) -> Result<(), Failed> {
    let mut config = client(&scene.brokers);
    for (property, value) in [
        ("group.id", format!("{}-judge", scene.name).as_str()),
        ("isolation.level", "read_committed"),
        ("enable.auto.commit", "false"),
        ("enable.partition.eof", "true"),
    ] {
        config.set(property, value);
    }
    let consumer: BaseConsumer = config.create()?;
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(output, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    let mut times = vec![0u32; usize::try_from(scene.messages)?];
    let mut ends = 0;
    let until = Instant::now() + PATIENCE;
    while ends < PARTITIONS {
        match consumer.poll(until.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) => {
                let which = number(message.payload()).and_then(|n| times.get_mut(n));
                *which.ok_or_else(|| format!("{output} has something that was never sent"))? += 1;
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ends += 1,
            Some(Err(error)) => return Err(error.into()),
            None if Instant::now() >= until => {
                return Err(format!("{output} is not read after {PATIENCE:?}").into());
            }
            None => {}
        }
    }
    let missing = times.iter().filter(|times| **times == 0).count();
    let twice = times.iter().filter(|times| **times > 1).count();
    if (missing, twice) != (0, 0) {
        let messages = scene.messages;
        return Err(
            format!("of {messages} messages {missing} are missing, and {twice} are there twice").into()
        );
    }
    Ok(())
}

fn number(payload: Option<&[u8]>) -> Option<usize> {
    usize::try_from(u64::from_be_bytes(*payload?.first_chunk()?)).ok()
}
