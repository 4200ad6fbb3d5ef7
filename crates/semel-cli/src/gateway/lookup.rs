//! The lookup: asks the service itself whether an uncertain intent happened.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request};
use semel::guard::Lookup as Asked;
use semel::http::headers::IDEMPOTENCY_EFFECT;
use semel::store::Record;
use semel::{Body, Found, Headers, Outcome};

use super::body::{collected, whole};
use super::operation::{Lookup, TENANT};
use super::upstream::Upstream;

/// Headers of a lookup's answer that the client gets, beside the body.
const GIVEN: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LOCATION,
];

/// `lookup = "GET /payments/by-key/{key}"`: 2xx means applied. `Idempotency-Effect: not-applied`, or the status in
/// `lookup_absent`, means not applied. Anything else, no answer included, means still unknown: "not found" may come
/// from the wrong host, a wrong path or a replica that lags behind.
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
        // Escaped or not, these would change the path.
        if matches!(intent.key().as_str(), "." | "..") {
            return Found::Unknown;
        }
        let tenant = intent.scope().tenant_name();
        let path = filled(&self.lookup.question.path, intent.key().as_str(), &tenant);
        let host = self.lookup.host.clone().or_else(|| self.upstream.host().cloned());
        let mut request = match Request::builder()
            .method(&self.lookup.question.method)
            .uri(path)
            .body(whole(""))
        {
            Ok(request) => request,
            Err(error) => {
                let operation = intent.operation().as_str();
                tracing::error!(%error, operation, "could not build the lookup request; check the lookup setting");
                return Found::Unknown;
            }
        };
        let headers = request.headers_mut();
        if let Some(host) = host {
            headers.insert(header::HOST, host);
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &self.lookup.headers {
            let Ok(mut value) = HeaderValue::from_str(&value.replace(TENANT, &tenant)) else {
                tracing::error!(
                    %name, operation = intent.operation().as_str(),
                    "the tenant cannot be sent in this lookup header; the intent stays uncertain"
                );
                return Found::Unknown;
            };
            value.set_sensitive(true);
            headers.insert(name.clone(), value);
        }
        let response = match self.upstream.send(request).await {
            Ok(response) => response,
            Err(failed) => {
                let operation = intent.operation().as_str();
                tracing::warn!(%failed, operation, "upstream did not answer a lookup; the intent stays uncertain");
                return Found::Unknown;
            }
        };
        match (says_not_applied(response.headers()), response.status()) {
            (true, _) => return Found::NotApplied,
            (false, status) if Some(status) == self.lookup.absent => return Found::NotApplied,
            (false, status) if status.is_success() => {}
            (false, status) => {
                let operation = intent.operation().as_str();
                tracing::warn!(
                    %status, operation,
                    "a lookup's answer does not say whether the intent was applied; have the service send \
                     `Idempotency-Effect: not-applied`, or set lookup_absent to the status that means it"
                );
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
            // It was applied; the answer is too large to keep, or was cut off.
            Err(error) => {
                tracing::warn!(%error, "could not keep the body of a lookup's answer; callers get none");
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

/// The service stated explicitly that it was not applied.
fn says_not_applied(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(IDEMPOTENCY_EFFECT).iter();
    values.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"not-applied"))
        && values.next().is_none()
}

/// Key and tenant are escaped once each, so that upstream decodes what the client sent.
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

/// Percent-encodes all but unreserved characters, so that any key stays one path segment.
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
        assert_eq!(filled("/{tenant}/{key}", "k", "org/42"), "/org%2F42/k");
    }
}
