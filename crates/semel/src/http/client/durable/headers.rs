//! Which headers of a request are stored, which are supplied again on resume, and which belong to one attempt.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

/// Stored: headers about the request.
const STORED: [HeaderName; 7] = [
    header::ACCEPT,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::HOST,
    header::USER_AGENT,
];

/// Secrets: not stored unless the caller names them, supplied again on resume.
const GIVEN_AGAIN: [HeaderName; 3] = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];

/// Not stored: made for every attempt, or about one attempt.
const LEFT_OUT: [HeaderName; 13] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::EXPECT,
    header::TE,
    header::TRANSFER_ENCODING,
    HeaderName::from_static("baggage"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
];

/// The caller's rules for headers.
#[derive(Clone, Debug)]
pub(super) struct HeaderRules {
    pub(super) key: HeaderName,
    pub(super) stored: Vec<HeaderName>,
    pub(super) given_again: Vec<HeaderName>,
}

/// A request's headers, sorted.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub(super) stored: Vec<u8>,
    /// Those the caller named: a tenant, an account. The same key with another value of these is a mismatch.
    pub(super) identity: Vec<u8>,
    pub(super) given_again: Option<HeaderName>,
}

impl HeaderRules {
    /// `Err`: a header without a rule. If it were silently dropped, it could be the one by which the server
    /// distinguishes tenants, and a resumed intent would be another tenant's.
    pub(super) fn sort(&self, headers: &HeaderMap) -> Result<Sorted, HeaderName> {
        let mut sorted = Sorted::default();
        for (name, value) in headers {
            if self.stored.contains(name) {
                line(&mut sorted.stored, name, value.as_bytes());
                line(&mut sorted.identity, name, value.as_bytes());
            } else if self.given_again.contains(name) || GIVEN_AGAIN.contains(name) {
                sorted.given_again = Some(name.clone());
            } else if STORED.contains(name) || *name == self.key {
                line(&mut sorted.stored, name, value.as_bytes());
            } else if !LEFT_OUT.contains(name) {
                return Err(name.clone());
            }
        }
        Ok(sorted)
    }
}

fn line(lines: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    // A value has no line breaks, so one line per header is enough.
    for part in [name.as_str().as_bytes(), b": ", value, b"\n"] {
        lines.extend_from_slice(part);
    }
}

pub(super) fn lines(headers: &[(String, Bytes)]) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        for part in [name.as_bytes(), b": ", value, b"\n"] {
            lines.extend_from_slice(part);
        }
    }
    lines
}

/// Parses lines into headers; `None` if semel did not write them.
pub(super) fn read(lines: &[u8]) -> Option<Vec<(String, Bytes)>> {
    let mut headers = Vec::new();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let at = line.windows(2).position(|two| two == b": ")?;
        let name = String::from_utf8(line[..at].to_vec()).ok()?;
        headers.push((name, Bytes::copy_from_slice(&line[at + 2..])));
    }
    Some(headers)
}

pub(super) fn map(lines: &[u8]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in read(lines)? {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::IDEMPOTENCY_KEY;

    fn rules() -> HeaderRules {
        let tenant = HeaderName::from_static("x-tenant-id");
        let signature = HeaderName::from_static("x-signature");
        HeaderRules { key: IDEMPOTENCY_KEY, stored: vec![tenant], given_again: vec![signature] }
    }

    fn headers(pairs: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static [u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn secrets_are_not_written_down() {
        let sent = headers(&[
            ("authorization", b"Bearer secret"),
            ("cookie", b"secret=1"),
            ("x-signature", b"secret"),
            ("traceparent", b"00-1"),
            ("content-type", b"application/json"),
            ("x-tenant-id", b"a\xffcme: b"),
        ]);
        let sorted = rules().sort(&sent).unwrap();
        assert!(!sorted.stored.windows(6).any(|w| w == b"secret"));
        assert_eq!(sorted.identity, b"x-tenant-id: a\xffcme: b\n");
        assert!(sorted.given_again.is_some());
        let again = map(&sorted.stored).unwrap();
        assert_eq!(again, headers(&[("content-type", b"application/json"), ("x-tenant-id", b"a\xffcme: b")]));
    }

    #[test]
    fn a_header_without_a_rule_is_refused() {
        let unknown = rules().sort(&headers(&[("x-account", b"7")])).unwrap_err();
        assert_eq!(unknown, "x-account");
    }

    #[test]
    fn a_secret_is_stored_if_that_is_configured() {
        let rules = HeaderRules { stored: vec![header::AUTHORIZATION], ..rules() };
        let sorted = rules.sort(&headers(&[("authorization", b"Bearer x")])).unwrap();
        assert_eq!(sorted.stored, b"authorization: Bearer x\n");
        assert!(sorted.given_again.is_none());
    }

    #[test]
    fn lines_that_are_no_headers_are_noticed() {
        assert!(map(b"no colon\n").is_none() && map(b"a b: c\n").is_none() && map(b"a: \x01\n").is_none());
        assert!(map(b"").unwrap().is_empty());
    }
}
