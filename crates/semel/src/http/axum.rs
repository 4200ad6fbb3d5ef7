//! What axum knows about a request: the route it matched and the original path. And the claim as an extractor.

use axum::extract::{FromRequestParts, MatchedPath, OptionalFromRequestParts, OriginalUri};
use http::request::Parts;
use http::{Extensions, StatusCode, Uri};

use super::claim::ClaimHandle;

/// The route's template, where there is one.
pub(super) fn template(extensions: &Extensions) -> Option<&str> {
    extensions.get::<MatchedPath>().map(MatchedPath::as_str)
}

/// The URI as the client sent it: a nested router sees only its part of the path.
pub(super) fn original_uri<'a>(extensions: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    extensions.get::<OriginalUri>().map_or(uri, |original| &original.0)
}

impl<S: Send + Sync> FromRequestParts<S> for ClaimHandle {
    /// Only if the request was not guarded: no key, or no layer. Extract an `Option` where that may happen.
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let claim = parts.extensions.get::<Self>().cloned();
        claim.ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "this request is not guarded: it has no idempotency key, or no layer",
        ))
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for ClaimHandle {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
