//! Classifies the service's response. Pure.

use http::Uri;

use crate::http::client::Signals;
use crate::http::problem::Code;
use crate::http_post::Says;
use crate::inbox::consumer::HandlerError;

/// `Err`: why it is not done, and whether a retry may help.
pub(super) fn judge(uri: &Uri, signals: &Signals) -> Result<(), HandlerError> {
    let status = signals.status.as_u16();
    let message = match signals.code {
        Some(code) => format!("{uri} answered {} ({})", signals.status, code.as_str()),
        None => format!("{uri} answered {}", signals.status),
    };
    let says = Says::of(signals.status);
    let failed = match (says, signals.code) {
        (Says::Taken, _) if !signals.is_under_way() => return Ok(()),
        // It took effect, and a message needs no answer.
        (_, Some(Code::AnswerLost)) => return Ok(()),
        (_, Some(Code::Reused)) => HandlerError::permanent(message).not_applied(),
        // The outcome is unknown there; a retry would get the same answer.
        (_, Some(Code::Uncertain)) => HandlerError::permanent(message),
        (_, Some(Code::StoreUnavailable | Code::Busy | Code::Draining)) => {
            HandlerError::transient(message).not_applied()
        }
        (_, Some(Code::InProgress | Code::AttemptFailed | Code::NotRebuilt)) => {
            HandlerError::transient(message)
        }
        _ if signals.should_retry == Some(false) => HandlerError::permanent(message),
        (Says::Refused, _) => HandlerError::permanent(message).not_applied(),
        (Says::Redirected, _) => {
            let failed = HandlerError::retry(format!(
                "{message}; redirects are not followed: configure the address it points to"
            ));
            // 307 and 308 ask to repeat the request elsewhere. Other redirects may point to its result.
            if matches!(status, 307 | 308) { failed.not_applied() } else { failed }
        }
        _ => match status {
            408 | 425 | 429 => HandlerError::transient(message).not_applied(),
            // With a Retry-After it comes from the service itself; without, maybe from a proxy in front of it.
            503 if signals.retry_after.is_some() => HandlerError::transient(message).not_applied(),
            503 => HandlerError::transient(message),
            501 => HandlerError::retry(message).not_applied(),
            400..=499 => HandlerError::retry(message).not_applied(),
            _ => HandlerError::retry(message),
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

    fn judge_status(status: u16, headers: &[(&'static str, &'static str)]) -> Result<(), HandlerError> {
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
            let failed = judge_status(status, &[]).unwrap_err();
            assert_eq!((failed.kind(), failed.is_not_applied()), (kind, not_applied), "{status}");
        }
        for status in [200, 201, 202, 204] {
            assert_eq!(judge_status(status, &[]), Ok(()));
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
            assert_eq!(
                judge_status(409, &[("idempotency-problem", code)]).unwrap_err().kind(),
                kind,
                "{code}"
            );
        }
        assert_eq!(judge_status(500, &[("x-should-retry", "false")]).unwrap_err().kind(), Permanent);
        let lost = [("idempotency-problem", "IDEMPOTENCY_ANSWER_LOST"), ("x-should-retry", "false")];
        assert_eq!(judge_status(500, &lost), Ok(()), "it took effect");
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
        let pause = |text| judge_status(503, &[("retry-after", text)]).unwrap_err().pause();
        assert_eq!(pause("7"), Some(Duration::from_secs(7)));
        assert_eq!(pause("99999999999999999999"), Some(AFTER_MAX));
        assert_eq!(judge_status(503, &[]).unwrap_err().pause(), None);
        assert!(judge_status(503, &[("retry-after", "7")]).unwrap_err().is_not_applied());
    }
}
