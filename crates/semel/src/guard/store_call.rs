//! One request to the store: bounded, and counted when it fails.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::operation::Guarded;
use crate::observe::Phase;
use crate::store::{ErrorKind, Fate, Store, StoreError};
use crate::timeout::within;

impl<S: Store> Guarded<S> {
    /// Sends one request to the store with a timeout, and counts a failure. A timeout leaves the request in doubt.
    pub(crate) fn ask<T>(
        &self,
        phase: Phase,
        request: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let limits = &self.of.guard.inner.limits;
        let limit = if phase == Phase::Finish { limits.finish_wait } else { limits.store_timeout };
        self.ask_within(limit, phase, request)
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(super) fn ask_within<T>(
        &self,
        limit: Duration,
        phase: Phase,
        request: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        async move {
            let result = within(limit, request).await.unwrap_or_else(|| {
                let message = format!("the store did not answer a {} within {limit:?}", phase.as_str());
                Err(StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message))
            });
            if result.is_err() {
                self.of.metrics.store_error(phase);
            }
            result
        }
    }
}
