//! The result of an attempt, read from the response without deciding anything.

use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use crate::http::headers::{
    IDEMPOTENCY_PROBLEM, IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY,
};
use crate::http::problem::Code;
use crate::in_progress::is_in_progress;

/// Most bytes of a problem that are parsed for its code.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// The result of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResponseClass {
    /// No connection was made: the server never saw the request.
    NotSent,
    /// It was sent, or may have been, and the connection broke before the answer was complete.
    Lost,
    /// No answer within the attempt's time.
    TimedOut,
    /// An answer.
    Answer(Signals),
}

/// What a response says about retrying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Signals {
    /// The status.
    pub status: StatusCode,
    /// The problem's code, if it is one of semel's. A 202 of semel's own counts as
    /// [`InProgress`](Code::InProgress).
    pub code: Option<Code>,
    /// `x-should-retry` or `Stripe-Should-Retry`. If they contradict each other: no.
    pub should_retry: Option<bool>,
    /// `Retry-After`, counted from now.
    pub retry_after: Option<Duration>,
    /// It is a replay of the recorded answer; a retry gets the same.
    pub replayed: bool,
}

impl Signals {
    /// A response of which only the status is known.
    pub fn status(status: StatusCode) -> Self {
        Self { status, code: None, should_retry: None, retry_after: None, replayed: false }
    }

    /// A 202 of semel's own: an attempt is in flight, and this is not the answer yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.status == StatusCode::ACCEPTED && self.code == Some(Code::InProgress) && !self.replayed
    }

    /// Reads a response. The body is parsed for the code of a problem if no header has it; an HTTP-date is compared
    /// with `now`.
    pub fn read(status: StatusCode, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Self {
        let replayed = [IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED]
            .iter()
            .any(|name| text(headers, name).is_some_and(|text| text.eq_ignore_ascii_case("true")));
        // A replay is the service's own answer, whatever it looks like.
        let in_progress = !replayed && is_in_progress(status, headers, body);
        Self {
            status,
            code: if in_progress { Some(Code::InProgress) } else { code(headers, body) },
            should_retry: should_retry(headers),
            retry_after: retry_after(headers, now),
            replayed,
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

fn code(headers: &HeaderMap, body: &[u8]) -> Option<Code> {
    let known = |text: &str| Code::ALL.into_iter().find(|code| code.as_str() == text);
    if let Some(code) = text(headers, &IDEMPOTENCY_PROBLEM).and_then(known) {
        return Some(code);
    }
    // A proxy on the way may have dropped the header. Only problem documents are parsed.
    let media = text(headers, &CONTENT_TYPE)?.split(';').next()?.trim();
    if !media.eq_ignore_ascii_case("application/problem+json") || body.len() > PROBLEM_BYTES_MAX {
        return None;
    }
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    known(document.get("code")?.as_str()?)
}

fn should_retry(headers: &HeaderMap) -> Option<bool> {
    let values = [X_SHOULD_RETRY, STRIPE_SHOULD_RETRY].into_iter().filter_map(|name| {
        let text = text(headers, &name)?;
        match text {
            _ if text.eq_ignore_ascii_case("true") => Some(true),
            _ if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }
    });
    values.reduce(|one, other| one && other)
}

/// Seconds, or an HTTP-date (RFC 9110, section 10.2.3). A date in the past means now.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = text(headers, &RETRY_AFTER)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that overflows is as good as never.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(pairs: &[(&str, &str)], body: &str) -> Signals {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let headers = pairs.iter().map(pair).collect();
        // Sun, 06 Nov 1994 08:49:37 GMT, the moment of RFC 9110's example.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        Signals::read(StatusCode::CONFLICT, &headers, body.as_bytes(), now)
    }

    #[test]
    fn retry_after_in_both_forms() {
        for (sent, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:49:37 1994", Some(0)),
            ("Sat, 05 Nov 1994 08:49:37 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("+3", None),
            ("soon", None),
            ("", None),
        ] {
            let read = read(&[("retry-after", sent)], "");
            assert_eq!(read.retry_after, seconds.map(Duration::from_secs), "{sent:?}");
        }
    }

    #[test]
    fn should_retry_under_both_names_and_no_wins() {
        let (x, stripe) = ("x-should-retry", "stripe-should-retry");
        for (pairs, said) in [
            (vec![], None),
            (vec![(x, "true")], Some(true)),
            (vec![(stripe, "TRUE")], Some(true)),
            (vec![(stripe, "false")], Some(false)),
            (vec![(x, "true"), (stripe, "false")], Some(false)),
            (vec![(x, "false"), (stripe, "true")], Some(false)),
            (vec![(x, "perhaps")], None),
        ] {
            assert_eq!(read(&pairs, "").should_retry, said, "{pairs:?}");
        }
    }

    #[test]
    fn the_code_comes_from_the_header_or_else_from_a_problem() {
        let body = r#"{"code":"IDEMPOTENCY_REQUEST_IN_PROGRESS"}"#;
        let problem = ("content-type", "Application/Problem+JSON; charset=utf-8");
        for (pairs, body, code) in [
            (vec![("idempotency-problem", "IDEMPOTENCY_OUTCOME_UNCERTAIN")], "", Some(Code::Uncertain)),
            (vec![("idempotency-problem", "IDEMPOTENCY_BUSY"), problem], body, Some(Code::Busy)),
            (vec![problem], body, Some(Code::InProgress)),
            (vec![("idempotency-problem", "FROM_LATER"), problem], body, Some(Code::InProgress)),
            (vec![("content-type", "application/json")], body, None),
            (vec![problem], r#"{"code":"CARD_DECLINED"}"#, None),
            (vec![problem], r#"{"code":7}"#, None),
            (vec![problem], "not json", None),
            (vec![], body, None),
        ] {
            assert_eq!(read(&pairs, body).code, code, "{pairs:?} {body}");
        }
    }

    #[test]
    fn a_202_of_semels_own_is_an_attempt_under_way() {
        let code = |pairs: &[(&'static str, &'static str)], body: &str| {
            let pair = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            let headers = pairs.iter().map(pair).collect();
            let read = Signals::read(StatusCode::ACCEPTED, &headers, body.as_bytes(), SystemTime::UNIX_EPOCH);
            read.code
        };
        let ours = r#"{"state":"in_progress","status_url":null}"#;
        let (retry_after, replayed) = (("retry-after", "1"), ("idempotency-replayed", "true"));
        assert_eq!(code(&[retry_after], ours), Some(Code::InProgress));
        assert_eq!(code(&[retry_after], r#"{"state":"queued"}"#), None);
        assert_eq!(code(&[retry_after, replayed], ours), None);
    }

    #[test]
    fn a_replay_under_either_name() {
        assert!(read(&[("idempotency-replayed", "true")], "").replayed);
        assert!(read(&[("idempotent-replayed", "true")], "").replayed);
        assert!(!read(&[("idempotency-replayed", "false")], "").replayed);
    }
}
