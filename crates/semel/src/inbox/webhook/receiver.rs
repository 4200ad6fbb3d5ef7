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

/// Largest body that is read, unless told otherwise, in bytes.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest that a body may take to arrive, unless told otherwise.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest that the handler may take, unless told otherwise. Providers give up after 10 to 30 seconds.
pub const HANDLER_TIME_MAX: Duration = Duration::from_secs(20);
/// Most requests handled at once, unless told otherwise.
pub const IN_FLIGHT_MAX: usize = 256;

/// Whose events these are, and how they are signed for them.
#[derive(Clone)]
pub struct Tenant {
    pub(super) name: String,
    pub(super) verifier: Arc<dyn Verifier>,
}

impl Tenant {
    /// The tenant of that name.
    ///
    /// # Errors
    /// When the name is empty, too long, or has control characters.
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

/// Whose verifier a request is checked with.
#[derive(Clone)]
pub(super) enum Tenants {
    One(Arc<dyn Verifier>),
    Many(Arc<Find>),
}

/// Receives the webhooks of one provider: a [`Service`](tower_service::Service) to be mounted where they are posted. Cheap to
/// clone.
///
/// Requests are checked first, over the body as it came. The handler gets only what is rightly signed, and the provider is
/// answered with success only when the handler has said [`Done`](super::Done). See the [module](super) for an example.
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
    /// For those who are read and checked.
    pub(super) in_check: Arc<Semaphore>,
    /// For those who are handled.
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
    /// Events that this verifier believes go to the handler. `provider` is part of what names an event: choose it once.
    ///
    /// # Errors
    /// When the provider's name is empty, too long, or has a slash or control characters.
    pub fn new(provider: &str, verifier: impl Verifier, handler: H) -> Result<Self, IdentityError> {
        Self::with(provider, Tenants::One(Arc::new(verifier)), handler)
    }

    /// The same for several tenants, each with secrets of its own: `find` says whose a request is by its head, such as its
    /// path. A request of nobody's is refused like one that is signed wrongly. The tenant is part of what names an event.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use semel::inbox::webhook::{Done, Received, Stripe, Tenant, WebhookReceiver};
    ///
    /// // Made once: asked for with every request.
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
    /// When the provider's name is empty, too long, or has a slash or control characters.
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

    /// Counts here what becomes of webhooks, under `semel_webhook_total`.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.settings.counters = metrics.webhook(&self.settings.provider);
        self
    }

    /// The largest body that is read: [`BODY_BYTES_MAX`] unless told otherwise. Larger ones are answered 413.
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.body_bytes_max = bytes;
        self
    }

    /// The longest that a body may take to arrive: [`BODY_TIME_MAX`] unless told otherwise.
    pub fn body_time_max(mut self, time: Duration) -> Self {
        self.settings.body_time_max = time;
        self
    }

    /// The longest that the handler may take: [`HANDLER_TIME_MAX`] unless told otherwise. After that it is dropped, and its
    /// transaction with it, and the provider is asked to send again.
    pub fn handler_time_max(mut self, time: Duration) -> Self {
        self.settings.handler_time_max = time;
        self
    }

    /// The most requests handled at once: [`IN_FLIGHT_MAX`] unless told otherwise. Others are answered 503. As many again are
    /// read and checked meanwhile, so that what is signed wrongly takes no handler's place.
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        let places = || Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        (self.settings.in_check, self.settings.in_flight) = (places(), places());
        self
    }

    /// What `Retry-After` says when an event could not be handled: 10 s unless told otherwise.
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
