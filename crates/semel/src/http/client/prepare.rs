//! Before the first attempt: chooses the key and reads the body into memory.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request};
use http_body::Body;
use http_body_util::Full;

use tokio::time::Instant;

use super::error::InvalidRequest;
use super::policy::RetryPolicy;
use crate::http::body::{BufferedBody, Extent};
use crate::http::key;
use crate::intent::key::Key;

/// An extension of a request: this intent has been sent before, first at that moment.
///
/// Use it to continue after [`InDoubt`](super::ClientError::InDoubt), with the same key. The client then counts the
/// server's retention from that moment, and reports nothing as "did not happen" that an earlier attempt may have done.
/// A moment in the future means that the clock was set back: then the age of the intent is unknown, and it is not sent.
///
/// ```
/// use std::time::SystemTime;
/// use semel::{Key, http::client::FirstSent};
///
/// # let (key, then) = (Key::new("order-1001")?, SystemTime::now());
/// let request = http::Request::post("https://api.example/payments")
///     .extension(key)
///     .extension(FirstSent(then))
///     .body("…".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstSent(pub SystemTime);

/// When the age of an intent was determined, by both clocks: the monotonic one may stand still while the machine is
/// suspended, the wall clock may be set back.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
}

impl Judged {
    pub(super) fn now(wall: SystemTime) -> Self {
        Self { at: Instant::now(), wall }
    }

    /// How long ago that was, by the clock that has advanced further.
    pub(super) fn passed(&self, wall: SystemTime) -> Duration {
        self.at.elapsed().max(wall.duration_since(self.wall).unwrap_or_default())
    }
}

/// An intent, ready for any number of attempts.
pub(super) struct Prepared {
    pub(super) key: Key,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    /// An earlier attempt, of unknown result, may have taken effect.
    pub(super) sent_before: bool,
    /// How long it may be sent, counted from `judged`.
    pub(super) sendable: Duration,
    /// Not the first attempt: a process may be paused before that, while another one sends.
    pub(super) judged: Judged,
}

impl Prepared {
    pub(super) async fn new<B>(
        request: Request<B>,
        policy: &RetryPolicy,
        now: SystemTime,
    ) -> Result<Self, InvalidRequest>
    where
        B: Body<Data = Bytes>,
    {
        let judged = Judged::now(now);
        let (mut head, body) = request.into_parts();
        let key = choose_key(&mut head, &policy.key_header)?;
        let bytes_max = policy.body_bytes_max;
        let mut body = BufferedBody::untouched(body);
        let body = match body.fill(bytes_max, None).await {
            Extent::Whole => body.data().clone(),
            Extent::Bound | Extent::Full => return Err(InvalidRequest::BodyTooLarge { bytes_max }),
            Extent::Error | Extent::Trailers => return Err(InvalidRequest::BodyUnreadable),
        };
        let first_sent = head.extensions.get().map(|FirstSent(at)| *at);
        let age = match first_sent.map(|at| now.duration_since(at)) {
            None => Duration::ZERO,
            Some(Ok(age)) => age,
            // The clock was set back since. By a little: the intent is young. By more: its age is unknown.
            Some(Err(ahead)) if ahead.duration() <= policy.margin() / 2 => Duration::ZERO,
            Some(Err(_)) => Duration::MAX,
        };
        let sendable = policy.sendable_for().saturating_sub(age);
        Ok(Self { key, head, body, sent_before: first_sent.is_some(), sendable, judged })
    }

    /// The request, the same every time.
    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        Request::from_parts(self.head.clone(), Full::new(self.body.clone()))
    }
}

/// The request's own key, or else a new one. An existing header is left unchanged.
fn choose_key(head: &mut Parts, name: &HeaderName) -> Result<Key, InvalidRequest> {
    let carried =
        key::read(&head.headers, name, 0).map_err(|refusal| InvalidRequest::Key(refusal.to_string()))?;
    let given = head.extensions.remove::<Key>();
    match (carried, given) {
        (Some(carried), Some(given)) if carried != given => Err(InvalidRequest::TwoKeys),
        (Some(carried), _) => Ok(carried),
        (None, given) => {
            let key = given.unwrap_or_else(Key::random);
            write_key(&mut head.headers, name, &key)?;
            Ok(key)
        }
    }
}

/// Writes the key bare if every reader parses that as the same key, else as a structured-field string.
pub(super) fn write_key(headers: &mut HeaderMap, name: &HeaderName, key: &Key) -> Result<(), InvalidRequest> {
    let text = key.as_str();
    let value = if text.starts_with('"') || text.contains(',') {
        HeaderValue::from_str(&format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
    } else {
        HeaderValue::from_str(text)
    };
    // Printable ASCII is always a valid header value; an error is better than a panic if that ever changes.
    let value = value.map_err(|error| InvalidRequest::Key(error.to_string()))?;
    headers.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::IDEMPOTENCY_KEY;
    use proptest::prelude::*;

    async fn prepared(request: http::request::Builder) -> Result<Prepared, InvalidRequest> {
        let request = request.body("four".to_owned()).unwrap();
        Prepared::new(request, &RetryPolicy::default(), SystemTime::now()).await
    }

    #[tokio::test]
    async fn a_key_is_kept_given_or_made() {
        let post = || Request::post("http://a/");
        let order = Key::new("order-1").unwrap();

        let made = prepared(post()).await.unwrap();
        assert!(made.key.time_ms().is_some());
        assert_eq!(made.head.headers[IDEMPOTENCY_KEY], made.key.as_str());

        let given = prepared(post().extension(order.clone())).await.unwrap();
        assert_eq!(
            (given.key, &given.head.headers[IDEMPOTENCY_KEY]),
            (order.clone(), &"order-1".parse().unwrap())
        );

        // Spelled as before: a proxy that compares strings must see no difference.
        let carried = prepared(post().header(IDEMPOTENCY_KEY, "\"order-1\"").extension(order.clone())).await;
        let carried = carried.unwrap();
        assert_eq!(
            (carried.key, &carried.head.headers[IDEMPOTENCY_KEY]),
            (order.clone(), &"\"order-1\"".parse().unwrap())
        );

        let two = prepared(post().header(IDEMPOTENCY_KEY, "order-2").extension(order)).await;
        assert!(matches!(two, Err(InvalidRequest::TwoKeys)));
        let bad = prepared(post().header(IDEMPOTENCY_KEY, "a, b")).await;
        assert!(matches!(bad, Err(InvalidRequest::Key(_))));
    }

    #[tokio::test]
    async fn an_intent_of_unknown_age_is_too_old() {
        let (policy, now) = (RetryPolicy::default(), SystemTime::now());
        let hour = Duration::from_secs(3_600);
        for (first_sent, sendable) in [
            (now, 23 * hour),
            (now - hour, 22 * hour),
            (now - 24 * hour, Duration::ZERO),
            (now + hour / 2, 23 * hour),
            (now + hour, Duration::ZERO),
        ] {
            let request = Request::post("http://a/").extension(FirstSent(first_sent));
            let request = request.body("four".to_owned()).unwrap();
            let prepared = Prepared::new(request, &policy, now).await.unwrap();
            assert_eq!(prepared.sendable, sendable, "{first_sent:?}");
        }
    }

    #[tokio::test]
    async fn the_body_is_bounded_exactly() {
        for (bytes_max, taken) in [(3, false), (4, true)] {
            let policy = RetryPolicy::default().body_bytes_max(bytes_max);
            let request = Request::post("http://a/").body("four".to_owned()).unwrap();
            let prepared = Prepared::new(request, &policy, SystemTime::now()).await;
            assert_eq!(prepared.is_ok(), taken, "{bytes_max}");
            if let Err(error) = prepared {
                assert!(matches!(error, InvalidRequest::BodyTooLarge { bytes_max: 3 }));
            }
        }
    }

    proptest! {
        #[test]
        fn every_key_arrives_as_it_was(text in "[!-~]([ -~]{0,200}[!-~])?") {
            let key = Key::new(text).unwrap();
            let mut headers = HeaderMap::new();
            write_key(&mut headers, &IDEMPOTENCY_KEY, &key).unwrap();
            prop_assert_eq!(key::read(&headers, &IDEMPOTENCY_KEY, 0).unwrap(), Some(key));
        }
    }
}
