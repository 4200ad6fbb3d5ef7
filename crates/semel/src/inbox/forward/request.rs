//! Builds the request for a message.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Uri};
use http_body_util::Full;

use crate::http_post::is_ours;
use crate::inbox::consumer::HandlerError;
use crate::inbox::store_dedup::WorkAttempt;
use crate::sink::headers;

/// Most bytes of header names and values taken from a message. With more it is a poison message: servers refuse such
/// requests, each with a different status.
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;

pub(super) fn of(call: &WorkAttempt, uri: &Uri) -> Result<Request<Full<Bytes>>, HandlerError> {
    let delivery = call.message.delivery();
    let mut map = HeaderMap::new();
    let mut bytes = 0;
    for (name, text) in &delivery.headers {
        let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) else { continue };
        if is_ours(&header) {
            continue;
        }
        bytes += name.len() + text.len();
        if bytes > HEADERS_BYTES_MAX {
            return Err(HandlerError::permanent(format!(
                "the message's headers have more than {HEADERS_BYTES_MAX} bytes, which HTTP servers refuse"
            ))
            .not_applied());
        }
        map.append(header, value);
    }
    // Ours last: they overwrite headers of the same name in the message.
    let ours = [
        ("idempotency-key", Some(format!("\"{}\"", call.key.as_str()))),
        ("user-agent", Some("semel".to_owned())),
        (headers::ID, Some(call.message.identity().id())),
        (headers::KIND, call.message.kind().map(str::to_owned)),
        (headers::SOURCE, Some(delivery.from.clone())),
        (headers::KEY, delivery.key.clone()),
        (headers::ATTEMPT, call.attempt.map(|attempt| attempt.to_string())),
    ];
    for (name, text) in ours {
        map.remove(name);
        // A value that HTTP cannot carry is left out. The idempotency key can always be carried.
        if let Some(Ok(value)) = text.map(|text| HeaderValue::from_bytes(text.as_bytes())) {
            map.insert(name, value);
        }
    }
    if !map.contains_key(CONTENT_TYPE) {
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    }
    let mut request = Request::new(Full::new(delivery.payload.clone()));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = map;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Identity;
    use crate::inbox::consumer::{HandlerErrorKind, Message};
    use crate::source::{Delivery, Receipt};

    fn call(headers: &[(&str, &str)]) -> WorkAttempt {
        let mut delivery = Delivery::new(Receipt(1), "payments", "0:1".into(), "{}");
        delivery.key = Some("account-7".into());
        delivery.headers = headers.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        let identity = Identity::new("payments", "e-1").unwrap();
        let key = identity.key("mail");
        WorkAttempt { message: Message::new(identity, delivery), key, attempt: Some(3) }
    }

    #[test]
    fn a_message_cannot_pass_for_another_by_its_headers() {
        let call = call(&[
            ("Idempotency-Key", "other"),
            ("semel-id", "other"),
            ("Authorization", "Bearer stolen"),
            ("host", "elsewhere"),
            ("semel-attempt", "99"),
            ("ce_type", "payment.completed"),
            ("traceparent", "00-1-2-00"),
            ("no\nheader", "x"),
            ("region", "eu"),
        ]);
        let request = of(&call, &"http://h/in".parse().unwrap()).unwrap();
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("idempotency-key"), Some(format!("\"{}\"", call.key.as_str()).as_str()));
        for (name, wanted) in [
            ("semel-id", Some("e-1")),
            ("semel-type", Some("payment.completed")),
            ("semel-key", Some("account-7")),
            ("semel-source", Some("payments")),
            ("semel-attempt", Some("3")),
            ("traceparent", Some("00-1-2-00")),
            ("region", Some("eu")),
            ("content-type", Some("application/octet-stream")),
            ("authorization", None),
            ("host", None),
        ] {
            assert_eq!(header(name), wanted, "{name}");
        }
    }

    #[test]
    fn more_headers_than_a_server_takes_are_poison() {
        let long = "x".repeat(HEADERS_BYTES_MAX - 1);
        assert!(of(&call(&[("a", &long)]), &"http://h".parse().unwrap()).is_ok());
        let failed = of(&call(&[("a", &long), ("b", "y")]), &"http://h".parse().unwrap()).unwrap_err();
        assert_eq!(failed.kind(), HandlerErrorKind::Permanent);
    }
}
