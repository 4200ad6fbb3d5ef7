//! Telling semel's own 202 from a service's: one predicate for everything that reads answers.

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

/// The longest body of such a 202. Whoever reads less of an answer cannot tell.
#[cfg_attr(not(feature = "client"), allow(dead_code))]
pub(crate) const IN_PROGRESS_BYTES_MAX: usize = 4 << 10;

/// Whether that is a 202 of semel's own, the layer's or the gateway's: an attempt under the same key is under way, and
/// may still fail. Any other 202 is the service's word that it has taken it.
pub(crate) fn is_in_progress(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Accepted {
        state: String,
    }
    status == StatusCode::ACCEPTED
        && headers.contains_key(RETRY_AFTER)
        && serde_json::from_slice::<Accepted>(body).is_ok_and(|accepted| accepted.state == "in_progress")
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
    }
}
