//! Asks upstream whether the caller is allowed, before anything is claimed or replayed.
//!
//! A replay is an answer too, and a caller who is not allowed must not get it. Only upstream knows who is allowed, so
//! it is asked with the caller's own credentials, like nginx's `auth_request` does.

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};

use super::body::{Payload, collected, whole};
use super::de::Question;
use super::forward::{Forward, Peer};
use super::forwarded_headers;
use super::problem::{GatewayError, Problem};
use super::upstream::Failed;

/// Most bytes read of an answer that is thrown away, so that its connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 << 10;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// The caller's identity according to upstream, in the extensions of a request.
#[derive(Clone, Debug)]
pub(super) struct Principal(pub(super) HeaderValue);

/// What upstream answered.
pub(super) enum Allowed {
    Yes(Option<Principal>),
    /// Upstream's own answer, to be passed on.
    No(Box<Response<Payload>>),
    /// It could not be checked.
    Failed(Problem),
}

/// The request to ask with, and the caller's headers that go with it.
#[derive(Clone)]
pub(super) struct Authorize {
    pub(super) question: Question,
    pub(super) headers: Vec<HeaderName>,
    /// The answer's header that names the principal.
    pub(super) principal: Option<HeaderName>,
    pub(super) forward: Forward,
}

impl Authorize {
    /// Asks upstream. The answer is not cached: a permission may be withdrawn between two retries.
    pub(super) async fn ask(&self, parts: &Parts) -> Allowed {
        let counted = &self.forward.counted;
        let request = match self.request(parts) {
            Ok(request) => self.forward.address(request),
            Err(error) => {
                tracing::error!(%error, "could not build the authorize request; check the authorize setting");
                return Allowed::Failed(GatewayError::AuthorizeFailed.into());
            }
        };
        let mut response = match self.forward.upstream.send(request).await {
            Ok(response) => response,
            Err(failed) => {
                tracing::warn!(%failed, "upstream did not answer the authorize request; nothing was claimed");
                counted.authorize("failed");
                let timed_out = matches!(failed, Failed::Unknown { timed_out: true, .. });
                let status = if timed_out { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
                return Allowed::Failed(Problem::from(GatewayError::AuthorizeFailed).status(status));
            }
        };
        forwarded_headers::strip(response.headers_mut(), &[]);
        if !response.status().is_success() {
            counted.authorize("refused");
            return Allowed::No(Box::new(response));
        }
        let principal = match &self.principal {
            None => None,
            Some(name) => match only(response.headers(), name) {
                Some(value) => Some(Principal(value)),
                None => {
                    tracing::error!(header = %name, "the answer to authorize lacks the header that names the tenant");
                    counted.authorize("failed");
                    return Allowed::Failed(GatewayError::AuthorizeFailed.into());
                }
            },
        };
        counted.authorize("allowed");
        // Read to its end, so that the connection can be reused.
        let _ = collected(response.into_body(), ANSWER_BYTES_MAX).await;
        Allowed::Yes(principal)
    }

    fn request(&self, parts: &Parts) -> Result<Request<Payload>, http::Error> {
        let builder = Request::builder().method(&self.question.method).uri(&self.question.path);
        let mut request = builder.body(whole(""))?;
        if let Some(peer) = parts.extensions.get::<Peer>() {
            request.extensions_mut().insert(peer.clone());
        }
        let headers = request.headers_mut();
        let credentials = [header::AUTHORIZATION, header::COOKIE, header::HOST];
        for name in credentials.iter().chain(&self.headers) {
            for value in parts.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        if !headers.contains_key(header::HOST)
            && let Some(authority) = parts.uri.authority()
        {
            headers.insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
        }
        for (name, value) in forwarded_headers::forwarded_of(&parts.headers) {
            headers.append(name, value);
        }
        // Method and path, in case upstream's permissions depend on them.
        headers.insert(X_FORWARDED_METHOD, HeaderValue::from_str(parts.method.as_str())?);
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        headers.insert(X_FORWARDED_URI, HeaderValue::from_str(path)?);
        Ok(request)
    }
}

fn only(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(value), None) => Some(value.clone()),
        _ => None,
    }
}
