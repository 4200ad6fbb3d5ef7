//! Handlers: their rule for the layer, and the extractor that proves the request was claimed.

use std::fmt;
use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use super::AttributeOperation;
use crate::http::{ClaimHandle, Rule};

impl AttributeOperation {
    /// The rule of a handler's operation, for the requests of one route.
    pub fn rule(self, route: &str) -> Rule {
        Rule::on(route).name(self.name).policy(self.policy)
    }
}

/// A handler whose operation an attribute declared.
pub trait Declared {
    /// The operation's name.
    const OPERATION: &'static str;
}

/// Extracted only from requests that were claimed as the operation of `D`. [`Default`] is for tests that call a
/// handler by hand.
pub struct HandlerClaim<D>(PhantomData<fn() -> D>);

impl<D> Default for HandlerClaim<D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<D> fmt::Debug for HandlerClaim<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlerClaim")
    }
}

impl<D: Declared, S: Send + Sync> FromRequestParts<S> for HandlerClaim<D> {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let claim = parts.extensions.get::<ClaimHandle>();
        let claimed_as = claim.map(|claim| claim.intent().operation().as_str());
        if claimed_as == Some(D::OPERATION) {
            return Ok(Self::default());
        }
        tracing::error!(
            operation = D::OPERATION,
            claimed_as,
            path = parts.uri.path(),
            "an idempotent handler was not run: no layer has a rule for its operation on this route; add the rule"
        );
        if let Some(claim) = claim {
            // Claimed as another operation: a routing mistake must not leave that intent uncertain.
            claim.mark_not_applied();
        }
        Err((
            StatusCode::INTERNAL_SERVER_ERROR,
            "this handler is idempotent, but the request was not claimed for its operation",
        ))
    }
}
