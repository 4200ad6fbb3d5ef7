//! The receiver and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tokio::sync::Semaphore;

use super::received::{Received, source};
use super::verifier::Verifier;
use crate::inbox::identity::{self, IdentityError};
use crate::observe::{Metrics, WebhookCounters};

/// Default of the largest body, in bytes.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Default timeout for a body to arrive.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Default timeout of the handler. Providers give up after 10 to 30 seconds.
pub const HANDLER_TIME_MAX: Duration = Duration::from_secs(20);
/// Default of the most requests handled at once.
pub const IN_FLIGHT_MAX: usize = 256;

/// A tenant: its name, and the verifier with its secrets.
#[derive(Clone)]
pub struct Tenant {
    pub(super) name: String,
    pub(super) verifier: Arc<dyn Verifier>,
}

impl Tenant {
    /// The tenant with that name.
    ///
    /// # Errors
    /// If the name is empty, too long, or has control characters.
    pub fn new(name: &str, verifier: impl Verifier) -> Result<Self, IdentityError> {
        let name = identity::name("a tenant's name", name)?;
        Ok(Self { name, verifier: Arc::new(verifier) })
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("name", &self.name).finish_non_exhaustive()
    }
}

type Find = dyn Fn(&Parts) -> Option<Tenant> + Send + Sync;

/// How to find the verifier of a request.
#[derive(Clone)]
pub(super) enum Tenants {
    One(Arc<dyn Verifier>),
    Many(Arc<Find>),
}

/// Receives the webhooks of one provider: a [`Service`](tower_service::Service) to mount where they are posted. Cheap
/// to clone.
///
/// Verifies each request first, over the raw body. The handler gets only events with a valid signature, and the
/// provider gets a 200 only after the handler has returned [`Done`](super::Done). See the [module](super) for an
/// example.
#[must_use]
pub struct WebhookReceiver<H> {
    pub(super) handler: Arc<H>,
    pub(super) settings: Settings,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) provider: Arc<str>,
    pub(super) tenants: Tenants,
    pub(super) counters: WebhookCounters,
    /// For requests being read and verified.
    pub(super) in_check: Arc<Semaphore>,
    /// For requests being handled.
    pub(super) in_flight: Arc<Semaphore>,
    pub(super) body_bytes_max: usize,
    pub(super) body_time_max: Duration,
    pub(super) handler_time_max: Duration,
    pub(super) retry_after: Duration,
}

impl<H, F> WebhookReceiver<H>
where
    H: Fn(Received) -> F,
{
    /// Events that this verifier accepts go to the handler. `provider` is part of an event's identity: choose it once.
    ///
    /// # Errors
    /// If the provider's name is empty, too long, or has a slash or control characters.
    pub fn new(provider: &str, verifier: impl Verifier, handler: H) -> Result<Self, IdentityError> {
        Self::with(provider, Tenants::One(Arc::new(verifier)), handler)
    }

    /// The same for several tenants, each with its own secrets: `find` returns the tenant of a request by its head,
    /// such as its path. A request without a tenant is refused like a forged one. The tenant is part of an event's
    /// identity.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use semel::inbox::webhook::{Done, Received, Stripe, Tenant, WebhookReceiver};
    ///
    /// // Created once, and looked up with every request.
    /// let tenants = HashMap::from([
    ///     ("acme".to_owned(), Tenant::new("acme", Stripe::new(["whsec_of_acme"])?)?),
    ///     ("globex".to_owned(), Tenant::new("globex", Stripe::new(["whsec_of_globex"])?)?),
    /// ]);
    /// let receiver = WebhookReceiver::with_tenants(
    ///     "stripe",
    ///     move |parts| tenants.get(parts.uri.path().strip_prefix("/hooks/stripe/")?).cloned(),
    ///     |event: Received| async move {
    ///         // … in a transaction, as in the example of the module …
    ///         Ok::<_, std::convert::Infallible>(Done::Ignored)
    ///     },
    /// )?;
    /// let app: axum::Router = axum::Router::new().route_service("/hooks/stripe/{tenant}", receiver);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the provider's name is empty, too long, or has a slash or control characters.
    pub fn with_tenants(
        provider: &str,
        find: impl Fn(&Parts) -> Option<Tenant> + Send + Sync + 'static,
        handler: H,
    ) -> Result<Self, IdentityError> {
        Self::with(provider, Tenants::Many(Arc::new(find)), handler)
    }

    fn with(provider: &str, tenants: Tenants, handler: H) -> Result<Self, IdentityError> {
        let what = "a provider's name (without a slash)";
        let plain = if provider.contains('/') { "" } else { provider };
        let provider = identity::name(what, plain)?;
        identity::name("a provider's source", &source(&provider, None))?;
        let settings = Settings {
            counters: Metrics::new().webhook(&provider),
            provider: provider.into(),
            tenants,
            in_check: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            body_bytes_max: BODY_BYTES_MAX,
            body_time_max: BODY_TIME_MAX,
            handler_time_max: HANDLER_TIME_MAX,
            retry_after: Duration::from_secs(10),
        };
        Ok(Self { handler: Arc::new(handler), settings })
    }

    /// Counts webhooks by result here, as `semel_webhook_total`.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.settings.counters = metrics.webhook(&self.settings.provider);
        self
    }

    /// Largest body. Default: [`BODY_BYTES_MAX`]. A larger one gets a 413.
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.body_bytes_max = bytes;
        self
    }

    /// Timeout for a body to arrive. Default: [`BODY_TIME_MAX`].
    pub fn body_time_max(mut self, time: Duration) -> Self {
        self.settings.body_time_max = time;
        self
    }

    /// Timeout of the handler. Default: [`HANDLER_TIME_MAX`]. Then it is dropped, and its transaction with it, and the
    /// provider is asked to retry.
    pub fn handler_time_max(mut self, time: Duration) -> Self {
        self.settings.handler_time_max = time;
        self
    }

    /// Most requests handled at once. Default: [`IN_FLIGHT_MAX`]. Others get a 503. As many again may be read and
    /// verified, so that forged requests take no permit of a handler.
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        let permits = || Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        (self.settings.in_check, self.settings.in_flight) = (permits(), permits());
        self
    }

    /// The `Retry-After` when an event could not be handled. Default: 10 s.
    pub fn retry_after(mut self, time: Duration) -> Self {
        self.settings.retry_after = time;
        self
    }
}

impl<H> Clone for WebhookReceiver<H> {
    fn clone(&self) -> Self {
        Self { handler: Arc::clone(&self.handler), settings: self.settings.clone() }
    }
}

impl<H> fmt::Debug for WebhookReceiver<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookReceiver").field("provider", &self.settings.provider).finish_non_exhaustive()
    }
}
