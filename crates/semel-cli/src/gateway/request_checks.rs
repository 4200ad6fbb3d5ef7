//! Checks that refuse a request before anything else.

use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{Method, StatusCode, Version};

use super::problem::{GatewayError, Problem};

/// Whether a request can be forwarded at all.
pub(super) fn screen(parts: &Parts, headers_max: usize) -> Result<(), Problem> {
    // HTTP/1 headers were counted on the wire; HTTP/2 limits only their bytes.
    if parts.headers.len() > headers_max {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(Problem::from(GatewayError::BadRequest)
            .status(status)
            .detail("There are too many headers."));
    }
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Err(GatewayError::MethodRefused.into());
    }
    if asks_for_other_protocol(&parts.headers) {
        return Err(GatewayError::UpgradeRefused.into());
    }
    let bad = |detail| Err(Problem::from(GatewayError::BadRequest).detail(detail));
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return bad("There is more than one Host header.");
    }
    // In HTTP/2 the authority replaces Host.
    if host.is_none() && parts.version == Version::HTTP_11 {
        return bad("The Host header is missing.");
    }
    let host = match host.map(|host| host.to_str()) {
        Some(Ok(host)) => Some(host),
        Some(Err(_)) => return bad("The Host header is not text."),
        None => None,
    };
    if host.is_some_and(|host| !host.is_empty() && host.parse::<http::uri::Authority>().is_err()) {
        return bad("The Host header is invalid.");
    }
    if let Some(authority) = parts.uri.authority() {
        if authority.as_str().contains('@') {
            return bad("The URL contains a user name.");
        }
        if host.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_str())) {
            return bad("The URL and the Host header disagree.");
        }
        if parts.uri.scheme_str().is_some_and(|scheme| scheme != "http" && scheme != "https") {
            return bad("The URL is not an HTTP URL.");
        }
    }
    let path = parts.uri.path();
    let of_server = path == "*" && parts.method == Method::OPTIONS;
    if !path.starts_with('/') && !of_server {
        return bad("The path does not begin with a slash.");
    }
    Ok(())
}

/// An upgrade to cleartext HTTP/2 is an offer that may be ignored, and curl makes it; anything else expects the
/// protocol to change.
fn asks_for_other_protocol(headers: &HeaderMap) -> bool {
    let tokens = headers
        .get_all(header::UPGRADE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.map(<[u8]>::trim_ascii).any(|token| !token.eq_ignore_ascii_case(b"h2c"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn code(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<&'static str> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        screen(&request.body(()).unwrap().into_parts().0, 2).err().map(|problem| problem.error.code())
    }

    #[test]
    fn what_is_forwarded_and_what_is_not() {
        let bad = Some("GATEWAY_BAD_REQUEST");
        for (method, uri, headers, refused) in [
            ("GET", "/a?b", &[("host", "a")][..], None),
            ("OPTIONS", "*", &[("host", "a")], None),
            ("GET", "http://a/b", &[("host", "a")], None),
            ("GET", "http://A:80/b", &[("host", "a:80")], None),
            ("GET", "/", &[("host", "a"), ("upgrade", "h2c")], None),
            ("CONNECT", "a:80", &[("host", "a:80")], Some("GATEWAY_METHOD_REFUSED")),
            ("TRACE", "/", &[("host", "a")], Some("GATEWAY_METHOD_REFUSED")),
            ("GET", "/", &[("host", "a"), ("upgrade", "websocket")], Some("GATEWAY_UPGRADE_REFUSED")),
            ("GET", "/", &[("host", "a"), ("upgrade", "h2c, foo")], Some("GATEWAY_UPGRADE_REFUSED")),
            ("GET", "/", &[], bad),
            ("GET", "/", &[("host", "a"), ("host", "a")], bad),
            ("GET", "/", &[("host", "a/b")], bad),
            ("GET", "http://a/b", &[("host", "b")], bad),
            ("GET", "ftp://a/b", &[("host", "a")], bad),
            ("GET", "http://u@a/b", &[("host", "u@a")], bad),
            ("GET", "*", &[("host", "a")], bad),
            ("GET", "/", &[("host", "a"), ("a", "b")], None),
            ("GET", "/", &[("host", "a"), ("a", "b"), ("a", "c")], bad),
        ] {
            assert_eq!(code(method, uri, headers), refused, "{method} {uri} {headers:?}");
        }
    }
}
