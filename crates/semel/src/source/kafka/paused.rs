//! Hearing from the group while there is no room for messages.

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use super::held::Part;
use crate::source::SourceError;

/// How many events are served while everything is paused.
const SERVED_MAX: usize = 100;

/// Polls until there is nothing more, with everything paused: fetched messages stand before what the group has to say.
/// Paused they are dropped, and fetched again. What is ours is asked afterwards, because that may have changed.
pub(crate) fn serve<C: ConsumerContext + 'static>(
    consumer: &BaseConsumer<C>,
    mut poll: impl FnMut() -> Result<bool, SourceError>,
    ours: impl FnOnce() -> Vec<Part>,
) -> Result<(), SourceError> {
    let paused = consumer.assignment().map_err(SourceError::later)?;
    let mut served = consumer.pause(&paused).map_err(SourceError::later);
    for _ in 0..SERVED_MAX {
        match served.and_then(|()| poll()) {
            Ok(true) => served = Ok(()),
            Ok(false) => {
                served = Ok(());
                break;
            }
            Err(error) => {
                served = Err(error);
                break;
            }
        }
    }
    let ours = ours();
    let mut still = TopicPartitionList::new();
    for element in paused.elements() {
        let is_it = |(topic, partition): &Part| {
            (topic.as_str(), *partition) == (element.topic(), element.partition())
        };
        if ours.iter().any(is_it) {
            still.add_partition(element.topic(), element.partition());
        }
    }
    consumer.resume(&still).map_err(SourceError::later)?;
    served
}
