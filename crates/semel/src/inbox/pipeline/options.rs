//! Bounds of a pipeline.

use std::time::Duration;

use crate::backoff::Backoff;

/// Bounds of a pipeline. The defaults suit a service.
#[derive(Clone, Debug)]
#[must_use]
pub struct PipelineOptions {
    pub(super) instance: Option<String>,
    pub(super) batch_max: usize,
    pub(super) batch_bytes: usize,
    pub(super) linger: Duration,
    pub(super) attempts_max: u32,
    pub(super) backoff: Backoff,
    pub(super) transform_timeout: Duration,
    pub(super) dead_letters: Option<String>,
    pub(super) dead_letters_in_a_row_max: u32,
    pub(super) drain_timeout: Duration,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            instance: None,
            batch_max: 10_000,
            batch_bytes: 4 << 20,
            linger: Duration::from_millis(10),
            attempts_max: 3,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)),
            transform_timeout: Duration::from_secs(60),
            dead_letters: None,
            dead_letters_in_a_row_max: 8,
            drain_timeout: Duration::from_secs(20),
        }
    }
}

impl PipelineOptions {
    /// A name for this process, unique among the running processes of the group and stable across restarts, such as a
    /// pod name of a stateful set. The transactional ids are made of it, so a transaction that a killed process left
    /// open is ended as soon as it is back. Another process with the same name fences this one.
    ///
    /// Without a name, a random one is used: any number of processes may run, and the broker ends a transaction that a
    /// killed one left open after the [transaction timeout](crate::sink::kafka::KafkaOptions::transaction_timeout).
    /// Until then readers of committed data wait in its output partitions, and its input partitions make no progress.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// Most messages in one transaction, and in one call of the transform. Default: 10,000. It starts with 2,000 and
    /// grows while the transform needs less than a quarter of [its timeout](Self::transform_timeout), and the
    /// transaction less than a quarter of [the sink's](crate::sink::kafka::KafkaOptions::timeout).
    pub fn batch_max(mut self, messages: usize) -> Self {
        self.batch_max = messages.clamp(1, 100_000);
        self
    }

    /// Most bytes of messages in one transaction. Default: 4 MiB. A single larger message is allowed. As much again may
    /// be buffered for the next transaction.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(1, 1 << 28);
        self
    }

    /// How long a batch that is not full waits for more messages. Default: 10 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger.min(Duration::from_secs(10));
        self
    }

    /// Max attempts of a batch before it is bisected to find the poison message, and max attempts of that message.
    /// Default: 3, fewer than a consumer's, because all its messages wait meanwhile. [`transient`](crate::inbox::consumer::HandlerError::transient) errors do not count.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// Exponential backoff after a failure: the first pause and the longest. Default: 50 ms to 30 s.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.backoff = Backoff::new(first, max.max(first));
        self
    }

    /// Timeout of one call of the transform. Default: one minute. No transaction is open meanwhile.
    pub fn transform_timeout(mut self, timeout: Duration) -> Self {
        self.transform_timeout = timeout.max(Duration::from_millis(10));
        self
    }

    /// The dead-letter topic for messages that cannot be transformed. They keep key, headers and payload, and get
    /// position and error in [two more headers](super::DEAD_ERROR), in the transaction that commits their offset.
    /// Without such a topic the pipeline stops at them.
    pub fn dead_letters(mut self, topic: &str) -> Self {
        self.dead_letters = Some(topic.to_owned());
        self
    }

    /// After so many dead letters in a row the transform is to blame, not the messages, and the pipeline stops before
    /// the next one. Default: 8.
    pub fn dead_letters_in_a_row_max(mut self, messages: u32) -> Self {
        self.dead_letters_in_a_row_max = messages.max(1);
        self
    }
    /// How long a transform in flight may take to finish after a stop. Default: twenty seconds. Then it is dropped, and
    /// its messages are redelivered.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }
}
