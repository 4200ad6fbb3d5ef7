//! Rate limits and quotas per tenant and per key.

use std::time::{Duration, Instant};

use semel::Intent;
use semel::store::{AnyStore, Store};

use super::forward::FirstRun;
use super::metrics::Counted;
use super::problem::{GatewayError, Problem};
use super::quota::Quotas;
use super::token_bucket::{Buckets, Rate};

/// How long the store may take to say whether an intent is known.
const KNOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// The limits of a gateway.
pub(super) struct Limits {
    intents: Option<Buckets>,
    attempts: Option<Buckets>,
    quotas: Quotas,
    store: AnyStore,
    counted: Counted,
}

/// A token of a tenant's rate for new intents, returned if the intent was not new.
#[must_use]
pub(super) struct NewIntentPermit<'a> {
    intents: &'a Buckets,
    tenant: String,
    first: FirstRun,
}

impl Drop for NewIntentPermit<'_> {
    fn drop(&mut self) {
        if !self.first.happened() {
            self.intents.give_back(&self.tenant, Instant::now());
        }
    }
}

impl Limits {
    pub(super) fn new(
        intents: Option<Rate>,
        attempts: Option<Rate>,
        quotas: Quotas,
        store: AnyStore,
        counted: Counted,
    ) -> Self {
        Self {
            intents: intents.map(Buckets::new),
            attempts: attempts.map(Buckets::new),
            quotas,
            store,
            counted,
        }
    }

    /// Admits an attempt at an intent, or says when to retry. The limits on new intents and on stored bytes never
    /// refuse a retry of a known intent: otherwise a client could not get an answer that is already stored.
    pub(super) async fn admit(
        &self,
        intent: &Intent,
        first: FirstRun,
    ) -> Result<Option<NewIntentPermit<'_>>, Problem> {
        let now = Instant::now();
        if let Some(attempts) = &self.attempts
            && let Err(after) = attempts.take(intent.id().as_bytes(), now)
        {
            self.counted.limited("attempts");
            return Err(Problem::from(GatewayError::TooManyAttempts).retry_after(after));
        }
        let tenant = intent.scope().tenant_text();
        let refused = match (self.quotas.check(tenant), &self.intents) {
            (Err(after), _) => Some((GatewayError::QuotaExceeded, "quota", after)),
            (Ok(()), Some(intents)) => match intents.take(tenant, now) {
                Ok(()) => return Ok(Some(NewIntentPermit { intents, tenant: tenant.to_owned(), first })),
                Err(after) => Some((GatewayError::TooManyIntents, "intents", after)),
            },
            (Ok(()), None) => None,
        };
        let Some((error, kind, after)) = refused else { return Ok(None) };
        // The store is asked only here: a request within the limits costs no store call.
        match tokio::time::timeout(KNOWN_TIME_MAX, self.store.get(intent.id())).await {
            Ok(Ok(None)) => {
                self.counted.limited(kind);
                Err(Problem::from(error).retry_after(after))
            }
            // The intent is known, or the store did not answer: then the guard decides.
            _ => Ok(None),
        }
    }
}
