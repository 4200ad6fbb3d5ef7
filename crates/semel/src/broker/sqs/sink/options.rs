//! Options of the SQS sink: queue, credentials, limits.

use std::time::Duration;

use aws_sdk_sqs::Client;

use super::SqsSink;
use crate::broker::sqs::client::Access;
use crate::broker::sqs::message::MESSAGE_BYTES_MAX;
use crate::sink::SinkError;

/// SQS's deduplication window.
const WINDOW: Duration = Duration::from_secs(300);

/// What to do with an event that is in doubt for longer than SQS drops duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum InDoubt {
    /// Refuse it, so that it is parked for a person, who checks the queue and then retries or skips it.
    #[default]
    Park,
    /// Send it again. The queue may then have it twice, with the same `semel-id`: right if all readers have an inbox.
    Resend,
}

/// Where and how to publish. See [`SqsSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqsOptions {
    pub(super) access: Access,
    pub(super) message_bytes: usize,
    pub(super) in_doubt: InDoubt,
    pub(super) window: Duration,
}

impl SqsOptions {
    pub(super) fn new(url: &str) -> Self {
        Self {
            access: Access::new(url, Duration::from_secs(30)),
            message_bytes: MESSAGE_BYTES_MAX,
            in_doubt: InDoubt::Park,
            window: WINDOW,
        }
    }

    /// A client with its own credentials, region and endpoint, such as one built with `aws-config`. The sink's timeouts
    /// are used instead of the client's, and its retries are disabled.
    pub fn client(mut self, client: Client) -> Self {
        self.access.client = Some(client);
        self
    }

    /// Credentials: by default `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    pub fn credentials(mut self, id: &str, secret: &str, token: Option<&str>) -> Self {
        self.access.credentials(id, secret, token);
        self
    }

    /// The region that requests are signed for: by default that of the URL, then `AWS_REGION`.
    pub fn region(mut self, region: &str) -> Self {
        self.access.region = Some(region.to_owned());
        self
    }

    /// Largest message and largest request, attributes included: by default 1 MiB, SQS's own limit. A queue may have a
    /// lower limit (`MaximumMessageSize`); queues created before August 2025 have 256 KiB.
    pub fn message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes.clamp(1_024, MESSAGE_BYTES_MAX);
        self
    }

    /// What to do with events that are in doubt for too long: by default [`InDoubt::Park`].
    pub fn in_doubt(mut self, in_doubt: InDoubt) -> Self {
        self.in_doubt = in_doubt;
        self
    }

    /// The broker's deduplication window: by default five minutes, and never more.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window.min(WINDOW);
        self
    }

    /// Timeout of one call: by default 30 s, at most two minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout(timeout);
        self
    }

    /// Creates the sink. It connects when it first publishes.
    ///
    /// # Errors
    /// If the URL is not a queue URL, or credentials are missing.
    pub fn open(self) -> Result<SqsSink, SinkError> {
        SqsSink::open(self)
    }
}
