//! The layer.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::builder::{Builder, Shared};
use super::service::IdempotencyService;
use super::status::StatusService;
use crate::guard::Guard;
use crate::recover::Reconciler;
use crate::store::Store;

/// Puts [`IdempotencyService`] around services. Cheap to clone.
///
/// ```
/// use axum::{Router, http::StatusCode, routing::post};
/// use semel::http::{IdempotencyLayer, Rule};
/// use semel::{Guard, store::memory::MemoryStore};
///
/// let layer = IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
///     .scope_header("x-tenant-id".parse()?)
///     .rule(Rule::on("POST /payments").name("payment.create"))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/payments", post(|| async { (StatusCode::CREATED, "charged") }))
///     .layer(layer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IdempotencyLayer<S> {
    shared: Arc<Shared<S>>,
}

impl<S: Store> IdempotencyLayer<S> {
    /// Starts from a guard, which brings the store.
    pub fn builder(guard: Guard<S>) -> Builder<S> {
        Builder::new(guard)
    }

    pub(super) fn new(shared: Shared<S>) -> Self {
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn shared(&self) -> &Shared<S> {
        &self.shared
    }

    /// The reconcile loop for this layer's rules: looks up uncertain intents, and counts those without a lookup. Spawn
    /// it with [`run`](Reconciler::run). Routes that are only known by their template are not watched: give them a
    /// rule.
    pub fn reconciler(&self) -> Reconciler<S> {
        self.shared.operations.known().fold(Reconciler::new(), Reconciler::watch)
    }

    /// The status resource that a 202 points to. Mount it at [`status_path`](Builder::status_path).
    pub fn status_service(&self) -> StatusService<S> {
        StatusService::new(Arc::clone(&self.shared))
    }
}

impl<S, Inner> Layer<Inner> for IdempotencyLayer<S> {
    type Service = IdempotencyService<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.shared))
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("header", &self.shared.header)
            .field("profile", &self.shared.profile)
            .finish_non_exhaustive()
    }
}
