//! Backpressure: serves group events while all partitions are paused.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use super::in_flight::Part;
use super::reader::parts_of;
use crate::source::SourceError;

/// Most events served in one call.
const SERVED_MAX: usize = 100;

/// The partitions that are paused at the moment.
#[derive(Default)]
pub(crate) struct Paused(Mutex<HashSet<Part>>);

impl Paused {
    /// Polls while all partitions are paused, until no group event is left. Without the pause, polling would first
    /// return prefetched messages; librdkafka drops those of a paused partition and fetches them again later.
    pub(crate) fn serve<C: ConsumerContext + 'static>(
        &self,
        consumer: &BaseConsumer<C>,
        mut poll: impl FnMut() -> Result<bool, SourceError>,
    ) -> Result<(), SourceError> {
        let all = consumer.assignment().map_err(SourceError::later)?;
        *self.lock() = parts_of(&all).into_iter().collect();
        let served = consumer.pause(&all).map_err(SourceError::later).and_then(|()| {
            for _ in 0..SERVED_MAX {
                if !poll()? {
                    break;
                }
            }
            Ok(())
        });
        // Only what is paused: resuming anything else makes librdkafka deliver messages twice.
        let still = std::mem::take(&mut *self.lock());
        consumer.resume(&list(&still)).map_err(SourceError::later)?;
        served
    }

    /// Resumes partitions that are about to be given up. librdkafka would remember the pause and, if they are assigned
    /// to us again, deliver nothing.
    pub(crate) fn give_up<C: ConsumerContext + 'static>(&self, consumer: &BaseConsumer<C>, parts: &[Part]) {
        let mut paused = self.lock();
        let gone: HashSet<Part> = parts.iter().filter_map(|part| paused.take(part)).collect();
        drop(paused);
        if gone.is_empty() {
            return;
        }
        if let Err(error) = consumer.resume(&list(&gone)) {
            tracing::warn!(
                target: "semel::kafka", %error,
                "failed to resume revoked partitions; if assigned here again they may stay idle: then restart"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn list(parts: &HashSet<Part>) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(parts.len());
    for (topic, partition) in parts {
        list.add_partition(topic, *partition);
    }
    list
}
