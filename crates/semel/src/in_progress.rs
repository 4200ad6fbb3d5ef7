//! Recognises semel's own answers, from the layer or the gateway in front of a service: an attempt that is in progress,
//! and an effect whose answer was lost.

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

/// The longest body of such a 202. Code that reads less of an answer cannot recognise it.
#[cfg_attr(not(feature = "client"), allow(dead_code))]
pub(crate) const IN_PROGRESS_BYTES_MAX: usize = 4 << 10;

/// The header of such a 202. The layer and the HTTP clients do not share a feature, so the name is repeated here.
const PROBLEM: HeaderName = HeaderName::from_static("idempotency-problem");
/// Its values.
const CODE: &str = "IDEMPOTENCY_REQUEST_IN_PROGRESS";
#[cfg(feature = "webhook")]
const ANSWER_LOST: &str = "IDEMPOTENCY_ANSWER_LOST";

/// Whether this 202 is semel's own, from the layer or the gateway: an attempt under the same key is in flight, and may
/// still fail. Any other 202 means that the service has accepted the request. A header marks it; earlier releases
/// marked it in the body only.
pub(crate) fn is_in_progress(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Accepted {
        state: String,
    }
    if status != StatusCode::ACCEPTED {
        return false;
    }
    if headers.get(PROBLEM).is_some_and(|code| code == CODE) {
        return true;
    }
    headers.contains_key(RETRY_AFTER)
        && serde_json::from_slice::<Accepted>(body).is_ok_and(|accepted| accepted.state == "in_progress")
}

/// Whether the request took effect, whatever the status: only its answer was lost.
#[cfg(feature = "webhook")]
pub(crate) fn is_answer_lost(headers: &HeaderMap) -> bool {
    headers.get(PROBLEM).is_some_and(|code| code == ANSWER_LOST)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_semel_s_own_202_is_still_under_way() {
        let is = |status: u16, retry: bool, body: &str| {
            let mut headers = HeaderMap::new();
            if retry {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            is_in_progress(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes())
        };
        let ours = r#"{"state":"in_progress","status_url":"/.semel/intents/1"}"#;
        assert!(is(202, true, ours));
        for (status, retry, body) in
            [(200, true, ours), (202, false, ours), (202, true, ""), (202, true, r#"{"state":"queued"}"#)]
        {
            assert!(!is(status, retry, body), "{status} {retry} {body}");
        }
        let headers = HeaderMap::from_iter([(PROBLEM, HeaderValue::from_static(CODE))]);
        assert!(is_in_progress(StatusCode::ACCEPTED, &headers, b""));
        assert!(!is_in_progress(StatusCode::CONFLICT, &headers, b""));
    }

    #[cfg(feature = "http")]
    #[test]
    fn it_is_named_as_the_layer_names_it() {
        assert_eq!(PROBLEM, crate::http::headers::IDEMPOTENCY_PROBLEM);
        assert_eq!(CODE, crate::http::Code::InProgress.as_str());
        #[cfg(feature = "webhook")]
        assert_eq!(ANSWER_LOST, crate::http::Code::AnswerLost.as_str());
    }
}
