//! Asking the service itself whether an uncertain intent happened.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use semel::guard::Lookup as Asked;
use semel::store::Record;
use semel::{Body, Found, Headers, Outcome};

use super::body::{collected, whole};
use super::operation::Lookup;
use super::upstream::Upstream;

/// What of a lookup's answer is given to the client, beside its body.
const GIVEN: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LOCATION,
];

/// `lookup = "GET /payments/by-key/{key}"`: 2xx means that it happened, 404 that it did not, and anything else,
/// no answer included, that it is still not known.
pub(super) struct UpstreamLookup {
    upstream: Upstream,
    lookup: Lookup,
    body_bytes_max: usize,
}

impl UpstreamLookup {
    pub(super) fn new(upstream: Upstream, lookup: Lookup, body_bytes_max: usize) -> Self {
        Self { upstream, lookup, body_bytes_max }
    }

    async fn ask(&self, record: Record) -> Found {
        let intent = &record.intent;
        // These would name another place, escaped or not.
        if matches!(intent.key().as_str(), "." | "..") {
            return Found::Unknown;
        }
        let path = filled(&self.lookup.question.path, intent.key().as_str(), intent.scope().tenant_text());
        let host = self.upstream.host().cloned();
        let mut request = match Request::builder()
            .method(&self.lookup.question.method)
            .uri(path)
            .body(whole(""))
        {
            Ok(request) => request,
            Err(error) => {
                tracing::error!(%error, operation = intent.operation().as_str(), "a lookup cannot be asked");
                return Found::Unknown;
            }
        };
        let headers = request.headers_mut();
        if let Some(host) = host {
            headers.insert(header::HOST, host);
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.extend(self.lookup.headers.iter().cloned());
        let response = match self.upstream.send(request).await {
            Ok(response) => response,
            Err(failed) => {
                tracing::warn!(%failed, operation = intent.operation().as_str(), "a lookup was not answered");
                return Found::Unknown;
            }
        };
        match response.status() {
            StatusCode::NOT_FOUND => return Found::NotApplied,
            status if status.is_success() => {}
            status => {
                let operation = intent.operation().as_str();
                tracing::warn!(%status, operation, "a lookup was answered with neither 2xx nor 404");
                return Found::Unknown;
            }
        }
        let (parts, body) = response.into_parts();
        let status = self.lookup.status.unwrap_or(parts.status);
        let mut outcome = Outcome { code: status.as_u16(), headers: Headers::NONE, body: Body::NotKept };
        for name in GIVEN {
            for value in parts.headers.get_all(&name) {
                outcome = outcome.header(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
            }
        }
        match collected(body, self.body_bytes_max).await {
            Ok(body) => Found::Applied(Outcome { body: Body::Kept(body), ..outcome }),
            // It happened; what it answered is too large to keep, or broke off.
            Err(error) => {
                tracing::warn!(%error, "the body of a lookup is not kept");
                Found::Applied(outcome)
            }
        }
    }
}

impl Asked for UpstreamLookup {
    fn look_up(&self, record: Record) -> Pin<Box<dyn Future<Output = Found> + Send + '_>> {
        Box::pin(self.ask(record))
    }
}

/// The tenant's text is escaped already where it has a slash; it is escaped again so that upstream reads back
/// exactly the text that `semel ls` shows.
fn filled(template: &str, key: &str, tenant: &str) -> String {
    let mut path = String::with_capacity(template.len() + key.len());
    let mut rest = template;
    // Both in one pass: a key may look like a placeholder.
    while let Some(at) = rest.find('{') {
        path.push_str(&rest[..at]);
        rest = &rest[at..];
        let (value, after) = match (rest.strip_prefix("{key}"), rest.strip_prefix("{tenant}")) {
            (Some(after), _) => (key, after),
            (_, Some(after)) => (tenant, after),
            _ => break,
        };
        path.push_str(&escaped(value));
        rest = after;
    }
    path + rest
}

/// Everything but unreserved characters, so that a key stays one segment whatever is in it.
fn escaped(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_one_segment() {
        for (key, path) in [
            ("order-1001", "/p/by-key/order-1001?t=acme"),
            ("../admin?x=1#y", "/p/by-key/..%2Fadmin%3Fx%3D1%23y?t=acme"),
            ("{tenant}", "/p/by-key/%7Btenant%7D?t=acme"),
            ("a b%", "/p/by-key/a%20b%25?t=acme"),
        ] {
            assert_eq!(filled("/p/by-key/{key}?t={tenant}", key, "acme"), path);
        }
        assert_eq!(filled("/{key}", "k", "acme"), "/k");
    }
}
