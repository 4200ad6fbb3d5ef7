//! What an answer means for the message. Pure.

use http::Uri;

use crate::http::client::Signals;
use crate::http::problem::Code;
use crate::http_post::Says;
use crate::inbox::consumer::HandlerError;

/// `Err`: why it is not done, and whether trying again may help.
pub(super) fn judge(uri: &Uri, signals: &Signals) -> Result<(), HandlerError> {
    let status = signals.status.as_u16();
    let told = match signals.code {
        Some(code) => format!("{uri} answered {} ({})", signals.status, code.as_str()),
        None => format!("{uri} answered {}", signals.status),
    };
    let says = Says::of(signals.status);
    let failed = match (says, signals.code) {
        (Says::Taken, _) if !signals.is_under_way() => return Ok(()),
        (_, Some(Code::Reused)) => HandlerError::permanent(told).not_applied(),
        // Nobody there knows; asking again brings the same.
        (_, Some(Code::Uncertain)) => HandlerError::permanent(told),
        (_, Some(Code::StoreUnavailable | Code::Busy | Code::Draining)) => {
            HandlerError::transient(told).not_applied()
        }
        (_, Some(Code::InProgress | Code::AttemptFailed | Code::NotRebuilt)) => HandlerError::transient(told),
        _ if signals.should_retry == Some(false) => HandlerError::permanent(told),
        (Says::Refused, _) => HandlerError::permanent(told).not_applied(),
        (Says::Redirected, _) => {
            let failed = HandlerError::retry(format!(
                "{told}; redirects are not followed: name the place it points to"
            ));
            // Those two say that the request has to be made there. Others may point to what was made of it.
            if matches!(status, 307 | 308) { failed.not_applied() } else { failed }
        }
        _ => match status {
            408 | 425 | 429 => HandlerError::transient(told).not_applied(),
            // With a Retry-After the service itself speaks; without, it may be whoever stands before it.
            503 if signals.retry_after.is_some() => HandlerError::transient(told).not_applied(),
            503 => HandlerError::transient(told),
            501 => HandlerError::retry(told).not_applied(),
            400..=499 => HandlerError::retry(told).not_applied(),
            _ => HandlerError::retry(told),
        },
    };
    Err(match signals.retry_after {
        Some(pause) => failed.after(pause),
        None => failed,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;
    use crate::inbox::consumer::{AFTER_MAX, HandlerErrorKind};

    fn judged(status: u16, headers: &[(&'static str, &'static str)]) -> Result<(), HandlerError> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect();
        let status = StatusCode::from_u16(status).unwrap();
        read(status, &headers, b"")
    }

    fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<(), HandlerError> {
        let signals = Signals::read(status, headers, body, std::time::SystemTime::UNIX_EPOCH);
        judge(&"http://h/in".parse().unwrap(), &signals)
    }

    #[test]
    fn each_status_has_its_meaning() {
        use HandlerErrorKind::{Permanent, Retry, Transient};
        for (status, kind, not_applied) in [
            (400, Permanent, true),
            (401, Retry, true),
            (404, Retry, true),
            (408, Transient, true),
            (409, Retry, true),
            (410, Permanent, true),
            (413, Permanent, true),
            (422, Permanent, true),
            (425, Transient, true),
            (429, Transient, true),
            (302, Retry, false),
            (303, Retry, false),
            (308, Retry, true),
            (500, Retry, false),
            (501, Retry, true),
            (502, Retry, false),
            (503, Transient, false),
            (504, Retry, false),
        ] {
            let failed = judged(status, &[]).unwrap_err();
            assert_eq!((failed.kind(), failed.is_not_applied()), (kind, not_applied), "{status}");
        }
        for status in [200, 201, 202, 204] {
            assert_eq!(judged(status, &[]), Ok(()));
        }
    }

    #[test]
    fn a_problem_says_more_than_its_status() {
        use HandlerErrorKind::{Permanent, Transient};
        for (code, kind) in [
            ("IDEMPOTENCY_REQUEST_IN_PROGRESS", Transient),
            ("IDEMPOTENCY_OUTCOME_UNCERTAIN", Permanent),
            ("IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", Permanent),
        ] {
            assert_eq!(judged(409, &[("idempotency-problem", code)]).unwrap_err().kind(), kind, "{code}");
        }
        assert_eq!(judged(500, &[("x-should-retry", "false")]).unwrap_err().kind(), Permanent);
    }

    #[test]
    fn a_202_of_semels_own_is_not_done_yet() {
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), HeaderValue::from_static("3"))]);
        let ours = read(StatusCode::ACCEPTED, &headers, br#"{"state":"in_progress","status_url":null}"#);
        let failed = ours.unwrap_err();
        assert_eq!(
            (failed.kind(), failed.pause()),
            (HandlerErrorKind::Transient, Some(Duration::from_secs(3)))
        );
        assert_eq!(read(StatusCode::ACCEPTED, &headers, br#"{"state":"queued"}"#), Ok(()));
    }

    #[test]
    fn a_retry_after_is_waited_for_up_to_a_bound() {
        let pause = |text| judged(503, &[("retry-after", text)]).unwrap_err().pause();
        assert_eq!(pause("7"), Some(Duration::from_secs(7)));
        assert_eq!(pause("99999999999999999999"), Some(AFTER_MAX));
        assert_eq!(judged(503, &[]).unwrap_err().pause(), None);
        assert!(judged(503, &[("retry-after", "7")]).unwrap_err().is_not_applied());
    }
}
