//! Options of the source, and a check that the server's consumer is safe to use.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, pull};

use super::NatsSource;
use crate::source::SourceError;

/// What to read, and how. See [`NatsSource::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct NatsSourceOptions {
    pub(super) url: String,
    pub(super) stream: String,
    pub(super) consumer: String,
    filter: String,
    create: bool,
    ack_wait: Duration,
    ack_pending_max: usize,
    pub(super) timeout: Duration,
}

impl NatsSourceOptions {
    pub(super) fn new(url: &str, stream: &str, consumer: &str) -> Self {
        Self {
            url: url.to_owned(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            filter: String::new(),
            create: true,
            ack_wait: Duration::from_secs(30),
            ack_pending_max: 10_000,
            timeout: Duration::from_secs(10),
        }
    }

    /// Only messages of these subjects, when the consumer is created. Default: all of the stream.
    pub fn filter(mut self, subjects: &str) -> Self {
        subjects.clone_into(&mut self.filter);
        self
    }

    /// Whether to create a missing consumer. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// When the consumer is created: the lease on a message, 30 s. [`keep`](crate::source::Source::keep) extends it for
    /// long work.
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait.clamp(Duration::from_secs(1), Duration::from_secs(3_600));
        self
    }

    /// When the consumer is created: most messages in flight at all its readers together, 10,000. With one, several
    /// readers keep the order of the stream too.
    pub fn ack_pending_max(mut self, messages: usize) -> Self {
        self.ack_pending_max = messages.clamp(1, 1_000_000);
        self
    }

    /// Timeout of requests to the server: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(Duration::from_millis(100), Duration::from_secs(300));
        self
    }

    /// Opens the source. It connects at the first call.
    ///
    /// # Errors
    /// The name of the stream or the consumer is not valid in NATS.
    pub fn open(self) -> Result<NatsSource, SourceError> {
        for (what, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            let fits = !name.is_empty()
                && !name.contains(|c: char| c.is_whitespace() || ['.', '*', '>', '/', '\\'].contains(&c));
            if !fits {
                return Err(SourceError::for_good(format!("{name:?} is not a valid {what} name")));
            }
        }
        Ok(NatsSource::new(self))
    }

    /// The consumer to create, if that is allowed.
    pub(super) fn wanted(&self) -> Option<pull::Config> {
        let wanted = pull::Config {
            durable_name: Some(self.consumer.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            max_deliver: -1,
            max_ack_pending: i64::try_from(self.ack_pending_max).unwrap_or(i64::MAX),
            filter_subject: self.filter.clone(),
            ..pull::Config::default()
        };
        self.create.then_some(wanted)
    }
}

/// Why an existing consumer could lose or reorder messages.
pub(super) fn refused(config: &Config) -> Option<&'static str> {
    if config.deliver_subject.is_some() {
        Some("it is a push consumer: the server sends without flow control; create a pull consumer")
    } else if config.ack_policy != AckPolicy::Explicit {
        Some(
            "its ack policy is not explicit: messages that are not done would count as acked; set it to explicit",
        )
    } else if config.max_deliver > 0 {
        Some("it drops a message after max_deliver deliveries; set max_deliver to -1")
    } else if config.durable_name.is_none() || !config.inactive_threshold.is_zero() {
        Some(
            "it and its acks are deleted while it has no readers; make it durable, without inactive_threshold",
        )
    } else if !config.backoff.is_empty() {
        Some("its backoff redelivers messages in flight sooner than ack_wait; remove the backoff")
    } else if config.headers_only {
        Some("it delivers no payloads; unset headers_only")
    } else if config.ack_wait < Duration::from_secs(1) {
        Some("its ack_wait is too short to extend leases in time; set one second or more")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_would_lose_messages_is_refused() {
        let good = Config {
            durable_name: Some("c".into()),
            ack_wait: Duration::from_secs(30),
            max_deliver: -1,
            ..Config::default()
        };
        assert_eq!(refused(&good), None);
        let second = Duration::from_secs(1);
        for (bad, why) in [
            (Config { deliver_subject: Some("d".into()), ..good.clone() }, "push"),
            (Config { ack_policy: AckPolicy::None, ..good.clone() }, "explicit"),
            (Config { ack_policy: AckPolicy::All, ..good.clone() }, "explicit"),
            (Config { max_deliver: 5, ..good.clone() }, "max_deliver"),
            (Config { durable_name: None, ..good.clone() }, "durable"),
            (Config { inactive_threshold: second, ..good.clone() }, "durable"),
            (Config { backoff: vec![second], ..good.clone() }, "backoff"),
            (Config { headers_only: true, ..good.clone() }, "headers_only"),
            (Config { ack_wait: second / 2, ..good.clone() }, "ack_wait"),
        ] {
            assert!(refused(&bad).is_some_and(|message| message.contains(why)), "{why}");
        }
    }

    #[test]
    fn what_is_no_name_is_an_error_when_opened() {
        for (stream, consumer) in [("", "c"), ("s", ""), ("s.t", "c"), ("s", "c *")] {
            assert!(NatsSourceOptions::new("nats://localhost:1", stream, consumer).open().is_err());
        }
        assert!(NatsSourceOptions::new("nats://localhost:1", "s", "c").open().is_ok());
    }
}
