//! Before anything is claimed: whose request it is, under which key, and what it asks for.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http_body::Body;

use super::body::{EdgeBody, Extent, read};
use super::builder::Shared;
use super::framework;
use super::key::{self, KeyRefusal};
use super::operations::{Found, Prepared};
use super::problem::{Code, Problem};
use super::rule::KeyRule;
use crate::intent::fingerprint::{Fingerprint, Recipe};
use crate::intent::identity::Intent;
use crate::store::Store;

/// What becomes of a request before anything is claimed.
pub(super) enum Admitted<S, B: Body> {
    /// Not guarded.
    Pass(Request<EdgeBody<B>>),
    Refused(Problem),
    Guard {
        prepared: Arc<Prepared<S>>,
        intent: Intent,
        fingerprint: Fingerprint,
        request: Request<EdgeBody<B>>,
    },
}

/// Reads what identifies a request and what it asks for. Until here a client that goes away leaves nothing.
pub(super) async fn admit<S: Store, B: Body<Data = Bytes>>(
    shared: &Shared<S>,
    request: Request<B>,
) -> Admitted<S, B> {
    let (mut parts, body) = request.into_parts();
    let pass = |parts, body| Admitted::Pass(Request::from_parts(parts, EdgeBody::untouched(body)));
    let sent = framework::sent(&parts.extensions, &parts.uri);
    let template = framework::template(&parts.extensions);
    let found = shared.operations.find(&parts.method, template, sent.path());
    let Some(Found { prepared, key_required }) = found else { return pass(parts, body) };
    let rule = &prepared.rule;
    if rule.key == KeyRule::Ignored {
        return pass(parts, body);
    }
    let key = match key::read(&parts.headers, &shared.header, rule.key_bytes_min) {
        Ok(Some(key)) => key,
        Ok(None) if key_required => {
            return Admitted::Refused(KeyRefusal::Missing(shared.header.clone()).into());
        }
        Ok(None) => return pass(parts, body),
        Err(refusal) => return Admitted::Refused(refusal.into()),
    };
    let scope = match (shared.scope)(&parts) {
        Ok(scope) => scope,
        Err(error) => {
            tracing::debug!(%error, "a request without a scope was refused");
            let detail = "Whose request this is cannot be told, so nothing was done.";
            return Admitted::Refused(Problem::new(Code::ScopeMissing, detail));
        }
    };
    let (extent, body) = read(body, rule.body_bytes_max, None).await;
    match extent {
        Extent::Whole | Extent::Trailers => {}
        Extent::Bound => {
            let detail = format!("At most {} bytes are taken.", rule.body_bytes_max);
            return Admitted::Refused(Problem::new(Code::BodyTooLarge, detail));
        }
        Extent::Error => {
            let detail = "The body did not arrive whole, so nothing was done.";
            return Admitted::Refused(Problem::new(Code::BodyUnreadable, detail));
        }
    }
    let intent = prepared.guarded.intent(&scope, &key);
    let fingerprint = fingerprint(&rule.recipe, &parts, intent.operation().as_str(), body.data());
    // The answer is for every retry, whatever that one accepts. A layer outside of this one may compress it.
    // Said always, because to say nothing means that any coding is welcome.
    parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Admitted::Guard { prepared, intent, fingerprint, request: Request::from_parts(parts, body) }
}

/// What was asked for. The operation's name stands for the route: a template whose variables are renamed by a
/// deploy is still the same operation, and the path itself is in it all the same.
fn fingerprint(recipe: &Recipe, parts: &Parts, operation: &str, body: &Bytes) -> Fingerprint {
    let sent = framework::sent(&parts.extensions, &parts.uri);
    let mut digest = recipe
        .request(parts.method.as_str(), operation)
        .path_value("path", sent.path())
        .query(sent.query().unwrap_or(""));
    for (name, value) in &parts.headers {
        digest = digest.header(name.as_str(), value.as_bytes());
    }
    // No body and an empty one are the same here: proxies turn one into the other.
    if !body.is_empty() {
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        digest = digest.body(content_type, body);
    }
    digest.finish()
}
