//! Before the claim: the scope, the key and the fingerprint of a request.

use std::sync::Arc;

use http::header;
use http::request::Parts;

use super::body::Extent;
use super::builder::Shared;
use super::framework;
use super::key::{self, KeyRefusal};
use super::operations::{Found, Prepared};
use super::problem::{Code, Problem};
use super::rule::KeyRule;
use crate::intent::fingerprint::{Fingerprint, Recipe};
use crate::intent::key::Key;
use crate::intent::scope::Scope;
use crate::store::Store;

/// What the head of a request shows.
pub(super) enum Screened<S> {
    /// Not guarded.
    Pass,
    /// Its key is missing or invalid.
    BadKey(KeyRefusal),
    /// Its scope cannot be determined.
    NoScope,
    Guard(Named<S>),
}

/// A request whose operation, scope and key are known.
pub(super) struct Named<S> {
    pub(super) prepared: Arc<Prepared<S>>,
    pub(super) scope: Scope,
    pub(super) key: Key,
}

/// Reads what identifies a request. Claims nothing and makes no request to the store.
pub(super) fn screen<S: Store>(shared: &Shared<S>, parts: &Parts) -> Screened<S> {
    let uri = framework::original_uri(&parts.extensions, &parts.uri);
    let template = framework::template(&parts.extensions);
    let found = shared.operations.find(&parts.method, template, uri.path());
    let Some(Found { prepared, key_required }) = found else { return Screened::Pass };
    if prepared.rule.key == KeyRule::Ignored {
        return Screened::Pass;
    }
    let key = match key::read(&parts.headers, &shared.header, prepared.rule.key_bytes_min) {
        Ok(Some(key)) => key,
        Ok(None) if key_required => return Screened::BadKey(KeyRefusal::Missing(shared.header.clone())),
        Ok(None) => return Screened::Pass,
        Err(refusal) => return Screened::BadKey(refusal),
    };
    match (shared.scope)(parts) {
        Ok(scope) => Screened::Guard(Named { prepared, scope, key }),
        Err(error) => {
            tracing::debug!(%error, "a request was refused: its scope could not be determined");
            Screened::NoScope
        }
    }
}

/// What is wrong with a body that was not read to its end.
pub(super) fn unread(extent: &Extent, bytes_max: usize) -> Option<Problem> {
    match extent {
        Extent::Whole | Extent::Trailers => None,
        Extent::Bound => {
            let detail = format!("At most {bytes_max} bytes are allowed.");
            Some(Problem::new(Code::BodyTooLarge, detail))
        }
        Extent::Full => {
            let detail = "Too many bytes of request bodies are buffered, so nothing was done. Retry with the same key.";
            Some(Problem::new(Code::Busy, detail))
        }
        Extent::Error => {
            let detail = "The body did not arrive completely, so nothing was done.";
            Some(Problem::new(Code::BodyUnreadable, detail))
        }
    }
}

/// The fingerprint of a request. The operation's name stands for the route: a template whose variables are renamed by a
/// deploy is still the same operation. The path itself is covered, too.
pub(super) fn fingerprint(recipe: &Recipe, parts: &Parts, body: &[u8], operation: &str) -> Fingerprint {
    let uri = framework::original_uri(&parts.extensions, &parts.uri);
    let mut digest = recipe
        .request(parts.method.as_str(), operation)
        .path_value("path", uri.path())
        .query(uri.query().unwrap_or(""));
    if recipe.chooses_headers() {
        for (name, value) in &parts.headers {
            digest = digest.header(name.as_str(), value.as_bytes());
        }
    }
    // No body and an empty one are the same here: proxies turn one into the other.
    if !body.is_empty() {
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        digest = digest.body(content_type, body);
    }
    digest.finish()
}
