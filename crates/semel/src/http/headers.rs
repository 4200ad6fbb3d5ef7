//! All header names that the layer uses, and which headers of a response are kept for replays.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

use crate::intent::outcome::Headers;

/// The key, unless the layer is configured with another name.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// On a replay: `true`.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The same under the stripe profile.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// `false` when the answer is correct but not stored yet.
pub const IDEMPOTENCY_STORED: HeaderName = HeaderName::from_static("idempotency-stored");
/// `false` when the store was down and the work ran without a claim, as the operation allows.
pub const IDEMPOTENCY_GUARDED: HeaderName = HeaderName::from_static("idempotency-guarded");
/// `not-kept` on a replay whose body was too large, or a stream.
pub const IDEMPOTENCY_BODY: HeaderName = HeaderName::from_static("idempotency-body");
/// The code of a problem that semel itself answered with, or of its 202 while an attempt is in flight. If the client
/// reaches this semel through another one, the outer one does not store the answer: this one has the intent's record.
pub const IDEMPOTENCY_PROBLEM: HeaderName = HeaderName::from_static("idempotency-problem");
/// From the service to the layer, never to the client: whether the effect happened, `applied` or
/// `not-applied`.
pub const IDEMPOTENCY_EFFECT: HeaderName = HeaderName::from_static("idempotency-effect");
/// Mirrors `retryable` of a problem; generated SDKs read it.
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The same under the stripe profile; Stripe's SDKs retry every 409 without it.
pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// Prefix of every header between two semels, or between semel and the service.
const OUR_PREFIX: &str = "idempoten";

/// Headers that only the layer may set. They are removed from the service's own answers, so that a service cannot
/// forge them. The code of a problem is not among them: another semel further in may set it, for those further out.
static OURS: [HeaderName; 6] = [
    IDEMPOTENCY_REPLAYED,
    IDEMPOTENT_REPLAYED,
    IDEMPOTENCY_STORED,
    IDEMPOTENCY_GUARDED,
    IDEMPOTENCY_BODY,
    IDEMPOTENCY_EFFECT,
];

/// Kept for replays: headers about the representation, where the result is, and whether to retry. Headers about one
/// exchange (`date`, request ids, rate limits) would be wrong in a replay.
static KEPT: [HeaderName; 17] = [
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::RETRY_AFTER,
    header::VARY,
    X_SHOULD_RETRY,
    STRIPE_SHOULD_RETRY,
];

/// Never kept, whatever is configured: cookies and credentials belong to one session, hop-by-hop headers to one
/// connection, `date` to one moment; the length is computed from the body.
static NEVER: [HeaderName; 14] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("keep-alive"),
];

/// Most bytes of names and values that are kept of one response.
pub(super) const KEPT_HEADERS_BYTES_MAX: usize = 16 << 10;
/// Most headers that are kept of one response.
const KEPT_HEADERS_MAX: usize = 128;

pub(super) fn is_never_kept(name: &HeaderName) -> bool {
    let cookie = name.as_str().starts_with("set-cookie");
    cookie || NEVER.contains(name) || OURS.contains(name) || name.as_str().starts_with("proxy-")
}

/// Whether any of these headers is semel's. Rarely; one pass over the few names costs less than a search for each of
/// ours.
pub(super) fn has_our_headers(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(OUR_PREFIX))
}

/// Removes the headers that only the layer may set.
pub(super) fn strip_ours(headers: &mut HeaderMap) {
    if has_our_headers(headers) {
        for name in &OURS {
            headers.remove(name);
        }
    }
}

thread_local! {
    /// The headers that were kept last. Most answers have the same headers as the one before, so their records share
    /// one copy.
    static LAST: RefCell<Headers> = const { RefCell::new(Headers::NONE) };
}

/// The headers of a response that are kept, in their order. `None` when they exceed the bounds.
pub(super) fn kept(headers: &HeaderMap, also: &[HeaderName]) -> Option<Headers> {
    let hop_by_hop = headers.keys().any(|name| *name == header::CONNECTION);
    // Nothing in `KEPT` is among those that are never kept; `also` may be.
    let is_kept = |name: &HeaderName| {
        let allowed = KEPT.contains(name) || (also.contains(name) && !is_never_kept(name));
        allowed && !(hop_by_hop && is_hop_by_hop(headers, name))
    };
    let chosen = || headers.iter().filter(|(name, _)| is_kept(name));
    let as_before = LAST.try_with(|last| {
        let last = last.borrow();
        let same = |(name, value): (&HeaderName, &HeaderValue), (before, kept): &(String, Bytes)| {
            name.as_str() == before && value.as_bytes() == kept
        };
        let mut before = last.iter();
        let all = chosen().all(|header| before.next().is_some_and(|kept| same(header, kept)));
        (all && before.next().is_none()).then(|| last.clone())
    });
    if let Ok(Some(kept)) = as_before {
        return Some(kept);
    }
    // Usually one or two, and they are kept for long, so no spare capacity.
    let (mut kept, mut bytes) = (Vec::with_capacity(2), 0);
    for (name, value) in chosen() {
        bytes += name.as_str().len() + value.len();
        if bytes > KEPT_HEADERS_BYTES_MAX || kept.len() == KEPT_HEADERS_MAX {
            return None;
        }
        kept.push((name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    }
    let kept = Headers::from(kept);
    // Fails only while the thread ends.
    let _ = LAST.try_with(|last| last.replace(kept.clone()));
    Some(kept)
}

/// `Connection: x` makes `x` a header of this connection only.
fn is_hop_by_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let named = headers.get_all(header::CONNECTION);
    let mut named = named.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    named.any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}

/// Restores kept headers for a replay. Without the body, headers about the body are left out.
pub(super) fn restore(kept: &[(String, Bytes)], body_kept: bool, headers: &mut HeaderMap) {
    for (name, value) in kept {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        else {
            continue;
        };
        let describes_body = name.as_str().starts_with("content-") && name != header::CONTENT_LOCATION;
        // Others can write to the store too, so what must never be replayed is checked on the way out as well.
        if is_never_kept(&name) || (describes_body && !body_kept) {
            continue;
        }
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_describes_the_result_is_kept_and_what_belongs_to_one_exchange_is_not() {
        let sent = headers(&[
            ("content-type", "application/json"),
            ("location", "/payments/7"),
            ("link", "</a>; rel=next"),
            ("x-receipt", "r-1"),
            ("set-cookie", "session=secret"),
            ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("x-request-id", "1"),
            ("connection", "link, close"),
            ("idempotency-replayed", "true"),
        ]);
        let receipt = HeaderName::from_static("x-receipt");
        let names: Vec<_> = kept(&sent, &[receipt]).unwrap().iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, ["content-type", "location", "x-receipt"]);
    }

    #[test]
    fn one_copy_of_equal_headers_serves_many_answers_and_others_get_their_own() {
        let answer = |id: &str| kept(&headers(&[("content-type", "a/b"), ("location", id)]), &[]).unwrap();
        let (first, same, other, back) = (answer("/1"), answer("/1"), answer("/2"), answer("/1"));
        assert!(std::ptr::eq(&*first, &*same) && first == back && first != other);
        let shorter = kept(&headers(&[("content-type", "a/b")]), &[]).unwrap();
        assert_eq!(shorter.len(), 1);
        assert_eq!(answer("/1").len(), 2);
        assert!(kept(&HeaderMap::new(), &[]).unwrap().is_empty());
    }

    #[test]
    fn all_that_semel_says_to_semel_begins_the_same() {
        assert!(OURS.iter().chain([&IDEMPOTENCY_PROBLEM]).all(|name| name.as_str().starts_with(OUR_PREFIX)));
    }

    #[test]
    fn no_list_names_what_is_never_kept() {
        assert!(!KEPT.iter().any(is_never_kept));
    }

    #[test]
    fn too_many_headers_are_noticed_at_the_bound() {
        let filling = |len: usize| headers(&[("link", &"x".repeat(len))]);
        assert!(kept(&filling(KEPT_HEADERS_BYTES_MAX - 4), &[]).is_some());
        assert!(kept(&filling(KEPT_HEADERS_BYTES_MAX - 3), &[]).is_none());
    }

    #[test]
    fn a_planted_cookie_in_the_store_does_not_come_out() {
        let stored =
            [("set-cookie".to_owned(), Bytes::from("a=b")), ("etag".to_owned(), Bytes::from("\"1\""))];
        let mut out = HeaderMap::new();
        restore(&stored, true, &mut out);
        assert_eq!(out, headers(&[("etag", "\"1\"")]));
    }
}
