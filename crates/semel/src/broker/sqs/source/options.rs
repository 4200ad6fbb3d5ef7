//! Which queue to read, and with which credentials.

use std::time::Duration;

use aws_sdk_sqs::Client;

use super::SqsSource;
use crate::broker::sqs::client::Access;
use crate::source::SourceError;

/// What to read, and how. See [`SqsSource::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqsSourceOptions {
    pub(super) access: Access,
    pub(super) visibility: Duration,
}

impl SqsSourceOptions {
    pub(super) fn new(url: &str) -> Self {
        Self { access: Access::new(url, Duration::from_secs(10)), visibility: Duration::from_secs(30) }
    }

    /// A client with its own credentials, region and endpoint, for example from `aws-config`. Its retries and timeouts
    /// are replaced by the source's.
    pub fn client(mut self, client: Client) -> Self {
        self.access.client = Some(client);
        self
    }

    /// Credentials. Default: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    pub fn credentials(mut self, id: &str, secret: &str, token: Option<&str>) -> Self {
        self.access.credentials(id, secret, token);
        self
    }

    /// The region that requests are signed for. Default: that of the URL, then `AWS_REGION`.
    pub fn region(mut self, region: &str) -> Self {
        self.access.region = Some(region.to_owned());
        self
    }

    /// The visibility timeout, the lease on a message: 30 s, whatever the queue's own setting; whole seconds, at least
    /// two. [`keep`](crate::source::Source::keep) extends it for long work, up to SQS's twelve hours.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Duration::from_secs(visibility.as_secs().clamp(2, 43_200));
        self
    }

    /// Timeout of a request, on top of the wait for messages: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout(timeout);
        self
    }

    /// Opens the source. SQS need not be reachable yet.
    ///
    /// # Errors
    /// The URL is not a queue URL, or credentials are missing.
    pub fn open(self) -> Result<SqsSource, SourceError> {
        SqsSource::open(self)
    }
}
