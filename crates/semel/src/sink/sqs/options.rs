//! Where events go, and as whom.

use std::time::Duration;

use aws_sdk_sqs::Client;

use super::SqsSink;
use super::client::Access;
use super::message::MESSAGE_BYTES_MAX;
use crate::sink::SinkError;

/// For how long SQS drops repeats.
const WINDOW: Duration = Duration::from_secs(300);

/// What is done about an event that may be there, when SQS would not know a repeat of it any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum InDoubt {
    /// It is refused, which sets it aside for people: they look into the queue, then have it sent or skipped.
    #[default]
    Park,
    /// It is sent again and may be there twice, with the same `semel-id`: right where all readers have an inbox.
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

    /// A client with credentials, region and endpoint of its own, such as `aws-config` makes it. Its retries and timeouts
    /// are not used: those are the sink's.
    pub fn client(mut self, client: Client) -> Self {
        self.access.client = Some(client);
        self
    }

    /// Who asks. Unless given: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    pub fn credentials(mut self, id: &str, secret: &str, token: Option<&str>) -> Self {
        self.access.credentials(id, secret, token);
        self
    }

    /// The region that requests are signed for. Unless given: that of the URL, then `AWS_REGION`.
    pub fn region(mut self, region: &str) -> Self {
        self.access.region = Some(region.to_owned());
        self
    }

    /// The largest message and the largest request, attributes included: 1 MiB, which is SQS's own limit. A queue may be set
    /// lower (`MaximumMessageSize`), and those made before August 2025 are, at 256 KiB.
    pub fn message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes.clamp(1_024, MESSAGE_BYTES_MAX);
        self
    }

    /// What is done about what is in doubt for too long: it is parked.
    pub fn in_doubt(mut self, in_doubt: InDoubt) -> Self {
        self.in_doubt = in_doubt;
        self
    }

    /// For how long the broker drops repeats: five minutes, and never more.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window.min(WINDOW);
        self
    }

    /// The longest that one call takes before it gives up on the broker: 30 s, at most two minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout(timeout);
        self
    }

    /// A sink. It connects when it first publishes.
    ///
    /// # Errors
    /// When the URL is none of a queue, or nobody says who asks.
    pub fn open(self) -> Result<SqsSink, SinkError> {
        SqsSink::open(self)
    }
}
