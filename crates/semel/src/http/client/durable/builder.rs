//! The settings of a durable client.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderMap, Uri};

use super::headers::HeaderRules;
use super::journal::{Clocks, Journal, MemoryFile, Place};
use super::{Credentials, DurableClient};
use crate::http::client::IdempotentClient;
use crate::store::StoreError;

/// Settings of a [`DurableClient`]. How large a body may be is the policy's of the client inside.
pub struct DurableBuilder<S> {
    client: IdempotentClient<S>,
    rules: HeaderRules,
    credentials: Option<Credentials>,
    place: Place,
    clocks: Clocks,
}

impl<S> DurableBuilder<S> {
    pub(super) fn new(client: IdempotentClient<S>) -> Self {
        let key = client.policy().key_header.clone();
        Self {
            client,
            rules: HeaderRules { key, stored: Vec::new(), given_again: Vec::new() },
            credentials: None,
            place: Place { unfinished_max: 10_000, answered_max: 10_000, lease: Duration::from_secs(30) },
            clocks: Clocks::of_the_machine(),
        }
    }

    /// Headers to be written down beside those that describe the request (`Content-Type`, `Accept`, `Host`,
    /// `User-Agent` and the like). They are part of the intent: the same key with another value is refused.
    pub fn store_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.rules.stored.extend(names);
        self
    }

    /// Headers that are not written down but given again by [`with_credentials`](Self::with_credentials),
    /// beside `Authorization`, `Cookie` and `Proxy-Authorization`.
    pub fn give_again(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.rules.given_again.extend(names);
        self
    }

    /// Puts the secrets of a request back when it is resumed.
    pub fn with_credentials(
        mut self,
        credentials: impl Fn(&Uri, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(Arc::new(credentials));
        self
    }

    /// How many intents may be without an answer: 10,000 unless told otherwise. One more is refused.
    pub fn intents_max(mut self, intents: u32) -> Self {
        self.place.unfinished_max = intents;
        self
    }

    /// How many answers are kept: 10,000 unless told otherwise. The oldest make room; whoever asks for one of
    /// those again gets the server's replay.
    pub fn answers_max(mut self, answers: u32) -> Self {
        self.place.answered_max = answers;
        self
    }

    /// How long a claim outlives the process that had it: 30 seconds unless told otherwise. It is renewed while
    /// the intent is being sent.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.place.lease = lease.max(Duration::from_millis(10));
        self
    }

    /// Judges ages by a clock of the caller's, in milliseconds since 1970: for tests.
    #[doc(hidden)]
    pub fn clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.clocks.wall = Arc::new(clock);
        self
    }

    /// Measures spans by a clock of the caller's: for tests.
    #[doc(hidden)]
    pub fn steady_clock(mut self, steady: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clocks.steady = Arc::new(steady);
        self
    }

    /// Opens the journal, and makes it if it is not there.
    ///
    /// A file that is not a journal, or is damaged, is refused and left as it is.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<DurableClient<S>, StoreError> {
        let journal = Journal::open(path.as_ref(), self.clocks.clone(), self.tolerance()).await?;
        Ok(self.on(journal))
    }

    /// Opens a journal in memory: for simulations.
    #[doc(hidden)]
    pub fn open_in_memory(self, file: &MemoryFile) -> Result<DurableClient<S>, StoreError> {
        let journal = Journal::open_in_memory(file, self.clocks.clone(), self.tolerance())?;
        Ok(self.on(journal))
    }

    /// Half of the margin before the end of retention is for clocks, the other half for slow attempts.
    fn tolerance(&self) -> Duration {
        self.client.policy().margin() / 2
    }

    fn on(self, journal: Journal) -> DurableClient<S> {
        let (client, place, credentials) = (self.client, self.place, self.credentials);
        DurableClient { client, journal, rules: Arc::new(self.rules), credentials, place }
    }
}

impl<S> fmt::Debug for DurableBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
