//! Bounds of a pipeline.

use std::time::Duration;

/// Bounds of a pipeline. The defaults suit a service.
#[derive(Clone, Debug)]
#[must_use]
pub struct PipelineOptions {
    pub(super) instance: Option<String>,
    pub(super) batch_max: usize,
    pub(super) batch_bytes: usize,
    pub(super) linger: Duration,
    pub(super) tries_max: u32,
    pub(super) pause: (Duration, Duration),
    pub(super) transform_timeout: Duration,
    pub(super) dead_letters: Option<String>,
    pub(super) dead_in_a_row_max: u32,
    pub(super) drain_timeout: Duration,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            instance: None,
            batch_max: 10_000,
            batch_bytes: 4 << 20,
            linger: Duration::from_millis(10),
            tries_max: 3,
            pause: (Duration::from_millis(50), Duration::from_secs(30)),
            transform_timeout: Duration::from_secs(60),
            dead_letters: None,
            dead_in_a_row_max: 8,
            drain_timeout: Duration::from_secs(20),
        }
    }
}

impl PipelineOptions {
    /// A name for this process that no other running process of the group has and that it has again after a restart, such
    /// as a pod's of a stateful set. The transactional ids are made of it, so what a killed process left open is ended
    /// as soon as it is back. Another process under the same name stops this one.
    ///
    /// Without a name, one is made up: any number of processes may run, and what a killed one left open is ended by the
    /// broker after the [transaction timeout](crate::sink::kafka::KafkaOptions::transaction_timeout). Until then readers
    /// of committed data wait in the output partitions it wrote to, and nobody gets the input partitions it had.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// Most messages in one transaction, and in one call of the transform: 10,000 unless told otherwise. It begins with 2,000 and
    /// takes more while the transform needs less than a quarter of [its time](Self::transform_timeout), and the transaction
    /// less than a quarter of [the sink's](crate::sink::kafka::KafkaOptions::timeout).
    pub fn batch_max(mut self, messages: usize) -> Self {
        self.batch_max = messages.clamp(1, 100_000);
        self
    }

    /// Most bytes of messages in one transaction: 4 MiB unless told otherwise. One message, however large, is taken. As much
    /// again may be held for the next one.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(1, 1 << 28);
        self
    }

    /// How long a batch that is not full waits for more messages: 10 ms unless told otherwise.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger.min(Duration::from_secs(10));
        self
    }

    /// How often a batch may fail before the message that is to blame is looked for, and how often that one may fail: 3
    /// unless told otherwise. What is [`transient`](crate::inbox::consumer::HandlerError::transient) does not count.
    pub fn tries_max(mut self, tries: u32) -> Self {
        self.tries_max = tries.max(1);
        self
    }

    /// The pause after a failure, from the first to the longest: 50 ms to 30 s unless told otherwise.
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.pause = (first, longest.max(first));
        self
    }

    /// How long one call of the transform may take: a minute unless told otherwise. No transaction is open meanwhile.
    pub fn transform_timeout(mut self, timeout: Duration) -> Self {
        self.transform_timeout = timeout.max(Duration::from_millis(10));
        self
    }

    /// Messages that cannot be transformed go to this topic, with key, headers and payload, and with the place and the
    /// error in [two more headers](super::DEAD_ERROR), in the transaction that commits their offset. Without such a topic
    /// the pipeline stops at them.
    pub fn dead_letters(mut self, topic: &str) -> Self {
        self.dead_letters = Some(topic.to_owned());
        self
    }

    /// When so many messages in a row were not transformed, no message is to blame, and the pipeline stops before the next one
    /// goes to the dead letters: 8 unless told otherwise.
    pub fn dead_in_a_row_max(mut self, messages: u32) -> Self {
        self.dead_in_a_row_max = messages.max(1);
        self
    }
    /// How long a transform under way may take to end after a stop: twenty seconds unless told otherwise. Then it is dropped,
    /// and its messages come again.
    pub fn drain_timeout(mut self, patience: Duration) -> Self {
        self.drain_timeout = patience;
        self
    }
}
