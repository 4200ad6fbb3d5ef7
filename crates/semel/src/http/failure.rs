//! What a response says about the effect.

use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use http::{HeaderMap, StatusCode, header};

use super::headers::{IDEMPOTENCY_EFFECT, IDEMPOTENCY_PROBLEM, has_our_headers};
use crate::guard::WorkResult;

/// What a 5xx of the service itself means: 500, 501, and 503 with `Retry-After`.
///
/// Any other 5xx (502, 504, 52x, a bare 503) comes from a proxy between the layer and the effect, which cannot know
/// whether the effect happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum On5xx {
    /// The service failed and undid what it had begun: the same key may run again.
    #[default]
    Retry,
    /// The intent becomes uncertain, for a person to decide. The choice for payments.
    Hold,
    /// It is the final answer, replayed to every retry.
    Replay,
}

/// What a handler knows about its effect, whatever it answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Known {
    Applied,
    NotApplied,
}

impl Known {
    pub(super) fn result(self) -> WorkResult {
        match self {
            Self::Applied => WorkResult::Completed,
            Self::NotApplied => WorkResult::NotApplied,
        }
    }

    /// Reads [`IDEMPOTENCY_EFFECT`].
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        match headers.get(IDEMPOTENCY_EFFECT)?.as_bytes() {
            b"applied" => Some(Self::Applied),
            b"not-applied" => Some(Self::NotApplied),
            // Any other value means nothing: the status decides.
            _ => None,
        }
    }
}

/// Decides by status, or with the service's own function.
#[derive(Clone)]
pub(super) enum Failures {
    ByStatus(On5xx),
    By(Arc<dyn Fn(&Parts) -> WorkResult + Send + Sync>),
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByStatus(on_5xx) => f.debug_tuple("ByStatus").field(on_5xx).finish(),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}

impl Failures {
    /// How the work ended. The source nearest to the effect decides: the handler's mark, then the service's header,
    /// then the status.
    pub(super) fn judge(&self, marked: Option<Known>, parts: &Parts) -> WorkResult {
        let has_ours = has_our_headers(&parts.headers);
        let in_headers = || has_ours.then(|| Known::from_headers(&parts.headers)).flatten();
        if let Some(known) = marked.or_else(in_headers) {
            return known.result();
        }
        // Another semel further in refused and has its own record, so ours must not block a retry.
        if has_ours && parts.headers.contains_key(IDEMPOTENCY_PROBLEM) {
            return WorkResult::NotApplied;
        }
        match self {
            Self::ByStatus(on_5xx) => by_status(parts.status, &parts.headers, *on_5xx),
            Self::By(judge) => judge(parts),
        }
    }
}

fn by_status(status: StatusCode, headers: &HeaderMap, on_5xx: On5xx) -> WorkResult {
    match status.as_u16() {
        200..=399 => WorkResult::Completed,
        // About this attempt (who sent it, or when), not about the intent.
        401 | 403 | 408 | 425 | 429 => WorkResult::NotApplied,
        400..=499 => WorkResult::FailedFinal,
        500 | 501 => answered(on_5xx),
        503 if headers.contains_key(header::RETRY_AFTER) => answered(on_5xx),
        _ => WorkResult::Unknown,
    }
}

fn answered(on_5xx: On5xx) -> WorkResult {
    match on_5xx {
        On5xx::Retry => WorkResult::NotApplied,
        On5xx::Hold => WorkResult::Hold,
        On5xx::Replay => WorkResult::FailedFinal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Response};

    fn parts(status: u16, headers: &[(&'static str, &'static str)]) -> Parts {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, HeaderValue::from_static(value));
        }
        response.body(()).unwrap().into_parts().0
    }

    #[test]
    fn each_status_says_what_it_says() {
        use WorkResult::{Completed, FailedFinal, Hold, NotApplied, Unknown};
        let busy: &[_] = &[("retry-after", "1")];
        for (status, headers, retry, hold, replay) in [
            (101, &[][..], Unknown, Unknown, Unknown),
            (200, &[], Completed, Completed, Completed),
            (204, &[], Completed, Completed, Completed),
            (302, &[], Completed, Completed, Completed),
            (400, &[], FailedFinal, FailedFinal, FailedFinal),
            (401, &[], NotApplied, NotApplied, NotApplied),
            (402, &[], FailedFinal, FailedFinal, FailedFinal),
            (403, &[], NotApplied, NotApplied, NotApplied),
            (404, &[], FailedFinal, FailedFinal, FailedFinal),
            (408, &[], NotApplied, NotApplied, NotApplied),
            (409, &[], FailedFinal, FailedFinal, FailedFinal),
            (409, &[("idempotency-problem", "X")], NotApplied, NotApplied, NotApplied),
            (422, &[], FailedFinal, FailedFinal, FailedFinal),
            (425, &[], NotApplied, NotApplied, NotApplied),
            (429, &[], NotApplied, NotApplied, NotApplied),
            (499, &[], FailedFinal, FailedFinal, FailedFinal),
            (500, &[], NotApplied, Hold, FailedFinal),
            (501, &[], NotApplied, Hold, FailedFinal),
            (502, &[], Unknown, Unknown, Unknown),
            (503, &[], Unknown, Unknown, Unknown),
            (503, busy, NotApplied, Hold, FailedFinal),
            (504, busy, Unknown, Unknown, Unknown),
            (520, &[], Unknown, Unknown, Unknown),
            (599, &[], Unknown, Unknown, Unknown),
            (999, &[], Unknown, Unknown, Unknown),
        ] {
            let parts = parts(status, headers);
            for (on_5xx, ended) in [(On5xx::Retry, retry), (On5xx::Hold, hold), (On5xx::Replay, replay)] {
                assert_eq!(Failures::ByStatus(on_5xx).judge(None, &parts), ended, "{status} {on_5xx:?}");
            }
        }
    }

    #[test]
    fn the_nearest_to_the_effect_is_believed() {
        let by = Failures::By(Arc::new(|_| WorkResult::Hold));
        let said = parts(500, &[("idempotency-effect", "applied")]);
        assert_eq!(by.judge(Some(Known::NotApplied), &said), WorkResult::NotApplied);
        assert_eq!(by.judge(None, &said), WorkResult::Completed);
        assert_eq!(by.judge(None, &parts(500, &[("idempotency-effect", "perhaps")])), WorkResult::Hold);
        assert_eq!(
            by.judge(None, &parts(200, &[("idempotency-effect", "not-applied")])),
            WorkResult::NotApplied
        );
    }
}
