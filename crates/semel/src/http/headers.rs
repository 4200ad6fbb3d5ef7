//! Every header name the edge knows, and which of a response's headers are kept for replays.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

use crate::intent::outcome::Headers;

/// The key, unless the layer is told another name.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// On a replay: `true`.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The same under the stripe profile.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// `false` when the answer is true but the store does not have it yet.
pub const IDEMPOTENCY_STORED: HeaderName = HeaderName::from_static("idempotency-stored");
/// `false` when the store was down and the work ran without a claim, as the operation allows.
pub const IDEMPOTENCY_GUARDED: HeaderName = HeaderName::from_static("idempotency-guarded");
/// `not-kept` on a replay whose body was too large, or a stream.
pub const IDEMPOTENCY_BODY: HeaderName = HeaderName::from_static("idempotency-body");
/// The code of a problem that semel itself answered with, or of its 202 while an attempt is under way. Another semel
/// further out does not remember such an answer: whoever gave it has its own record of the intent.
pub const IDEMPOTENCY_PROBLEM: HeaderName = HeaderName::from_static("idempotency-problem");
/// From the service to the layer, never to the client: what is known of the effect, `applied` or
/// `not-applied`.
pub const IDEMPOTENCY_EFFECT: HeaderName = HeaderName::from_static("idempotency-effect");
/// Mirrors `retryable` of a problem; generated SDKs read it.
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The same under the stripe profile; Stripe's SDKs retry every 409 without it.
pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// How every name begins by which one semel tells something to another, or to the service.
const OUR_PREFIX: &str = "idempoten";

/// What only the layer says. Taken out of the service's own answers, so that nothing can pretend. The code of
/// a problem is not among them: it is as true of the semel further in, and those further out shall see it.
static OURS: [HeaderName; 6] = [
    IDEMPOTENCY_REPLAYED,
    IDEMPOTENT_REPLAYED,
    IDEMPOTENCY_STORED,
    IDEMPOTENCY_GUARDED,
    IDEMPOTENCY_BODY,
    IDEMPOTENCY_EFFECT,
];

/// Kept for replays: what describes the representation, where the result is, and whether to ask again. What describes one exchange
/// (`date`, request ids, rate limits) would be untrue the second time.
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

/// Never kept, whatever the builder is told: cookies and credentials belong to one session, hop-by-hop
/// headers to one connection, `date` to one moment; the length is made anew from the body.
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

/// Whether a semel has anything to say in these headers: this one, or one further in. Hardly ever; and to look at
/// the few names there are costs less than to look for each of ours.
pub(super) fn speaks_of_us(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(OUR_PREFIX))
}

/// Takes out what only the layer may say.
pub(super) fn strip_ours(headers: &mut HeaderMap) {
    if speaks_of_us(headers) {
        for name in &OURS {
            headers.remove(name);
        }
    }
}

thread_local! {
    /// What was kept last. Most answers have the same headers as the one before, and one copy of them will do for
    /// all their records.
    static LAST: RefCell<Headers> = const { RefCell::new(Headers::NONE) };
}

/// The headers of a response that are kept, in their order. `None` when they are more than may be kept.
pub(super) fn kept(headers: &HeaderMap, also: &[HeaderName]) -> Option<Headers> {
    let hop_by_hop = headers.keys().any(|name| *name == header::CONNECTION);
    // Nothing in the list of ours is among those that are never kept; what the builder was told may be.
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
    // Mostly it is one or two, and they are kept for long.
    let (mut kept, mut bytes) = (Vec::with_capacity(2), 0);
    for (name, value) in chosen() {
        bytes += name.as_str().len() + value.len();
        if bytes > KEPT_HEADERS_BYTES_MAX || kept.len() == KEPT_HEADERS_MAX {
            return None;
        }
        kept.push((name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    }
    let kept = Headers::from(kept);
    // A thread that ends keeps nothing any more.
    let _ = LAST.try_with(|last| last.replace(kept.clone()));
    Some(kept)
}

/// `Connection: x` makes `x` a header of this connection only.
fn is_hop_by_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let named = headers.get_all(header::CONNECTION);
    let mut named = named.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    named.any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}

/// Puts kept headers back. Without the body, what describes the body is left out.
pub(super) fn give_again(kept: &[(String, Bytes)], body_kept: bool, headers: &mut HeaderMap) {
    for (name, value) in kept {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        else {
            continue;
        };
        let describes_body = name.as_str().starts_with("content-") && name != header::CONTENT_LOCATION;
        // A store can be written by others too: what must never be replayed is checked on the way out as well.
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
        give_again(&stored, true, &mut out);
        assert_eq!(out, headers(&[("etag", "\"1\"")]));
    }
}
