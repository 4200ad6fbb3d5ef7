//! The settings of a durable client.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderMap, Uri};

use super::headers::HeaderRules;
use super::journal::{Clocks, Journal, JournalLimits};
use super::{Credentials, DurableClient};
use crate::http::client::IdempotentClient;
use crate::store::StoreError;

/// Settings of a [`DurableClient`]. The inner client's policy limits the size of bodies.
pub struct DurableBuilder<S> {
    client: IdempotentClient<S>,
    rules: HeaderRules,
    credentials: Option<Credentials>,
    limits: JournalLimits,
    clocks: Clocks,
}

impl<S> DurableBuilder<S> {
    pub(super) fn new(client: IdempotentClient<S>) -> Self {
        let key = client.policy().key_header.clone();
        Self {
            client,
            rules: HeaderRules { key, stored: Vec::new(), given_again: Vec::new() },
            credentials: None,
            limits: JournalLimits {
                unfinished_max: 10_000,
                answered_max: 10_000,
                lease: Duration::from_secs(30),
            },
            clocks: Clocks::of_the_machine(),
        }
    }

    /// Headers to store beside those about the request (`Content-Type`, `Accept`, `Host`, `User-Agent` and the like).
    /// They are part of the intent: the same key with another value is refused.
    pub fn store_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.rules.stored.extend(names);
        self
    }

    /// Secret headers that are not stored but supplied again by [`with_credentials`](Self::with_credentials),
    /// beside `Authorization`, `Cookie` and `Proxy-Authorization`.
    pub fn give_again(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.rules.given_again.extend(names);
        self
    }

    /// Supplies the secrets of a request when it is resumed.
    pub fn with_credentials(
        mut self,
        credentials: impl Fn(&Uri, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(Arc::new(credentials));
        self
    }

    /// How many intents may be without an answer: 10,000 by default. One more is refused.
    pub fn intents_max(mut self, intents: u32) -> Self {
        self.limits.unfinished_max = intents;
        self
    }

    /// How many answers are kept: 10,000 by default. The oldest are deleted first; a caller that asks for one of those
    /// gets the server's replay.
    pub fn answers_max(mut self, answers: u32) -> Self {
        self.limits.answered_max = answers;
        self
    }

    /// How long a claim outlives the process that had it: 30 seconds by default. It is renewed while the intent is
    /// being sent.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.limits.lease = lease.max(Duration::from_millis(10));
        self
    }

    /// Replaces the wall clock, in milliseconds since 1970: for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.clocks.wall = Arc::new(clock);
        self
    }

    /// Replaces the monotonic clock: for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn steady_clock(mut self, steady: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clocks.steady = Arc::new(steady);
        self
    }

    /// Opens the journal, and creates it if it does not exist.
    ///
    /// A file that is not a journal, or is damaged, is refused and left unchanged.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<DurableClient<S>, StoreError> {
        let journal = Journal::open(path.as_ref(), self.clocks.clone(), self.tolerance()).await?;
        Ok(self.on(journal))
    }

    /// Opens a journal in memory: for simulations.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn open_in_memory(self, file: &super::MemoryFile) -> Result<DurableClient<S>, StoreError> {
        let journal = Journal::open_in_memory(file, self.clocks.clone(), self.tolerance())?;
        Ok(self.on(journal))
    }

    /// Half of the margin before the end of retention is for clock errors, the other half for slow attempts.
    fn tolerance(&self) -> Duration {
        self.client.policy().margin() / 2
    }

    fn on(self, journal: Journal) -> DurableClient<S> {
        let (client, limits, credentials) = (self.client, self.limits, self.credentials);
        DurableClient { client, journal, rules: Arc::new(self.rules), credentials, limits }
    }
}

impl<S> fmt::Debug for DurableBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
