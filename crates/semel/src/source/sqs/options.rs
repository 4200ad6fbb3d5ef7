//! What to read, and as whom.

use std::time::Duration;

use aws_sdk_sqs::Client;

use super::SqsSource;
use crate::sink::sqs::client::Access;
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

    /// A client with credentials, region and endpoint of its own, such as `aws-config` makes it. Its retries and timeouts
    /// are not used: those are the source's.
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

    /// After this long without a word from us others get a message: 30 s, whatever the queue says; whole seconds, at least
    /// two. Long work does not get there, because it is [kept](crate::source::Source::keep), up to SQS's twelve hours.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Duration::from_secs(visibility.as_secs().clamp(2, 43_200));
        self
    }

    /// The longest that SQS is waited for beyond the wait for messages: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout(timeout);
        self
    }

    /// A source. SQS need not be there yet.
    ///
    /// # Errors
    /// When the URL is none of a queue, or nobody says who asks.
    pub fn open(self) -> Result<SqsSource, SourceError> {
        SqsSource::open(self)
    }
}
