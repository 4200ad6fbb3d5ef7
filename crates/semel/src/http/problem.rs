//! Problem documents (RFC 9457), each with a stable code.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use super::headers::IDEMPOTENCY_PROBLEM;
use super::key::KeyRefusal;
use super::profile::Profile;
use crate::guard::GuardError;
use crate::intent::outcome::Verdict;

/// When to retry if nothing better is known.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Default prefix of a problem's `type`.
pub(crate) const TYPES: &str = "urn:problem-type:semel:";

/// The codes of all problems. Their texts are part of the contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Code {
    /// A required key is missing.
    KeyMissing,
    /// The key is invalid, or weaker than the operation requires.
    KeyInvalid,
    /// The same key with another request.
    Reused,
    /// The same key, and the first request is still in flight.
    InProgress,
    /// It is not known whether it happened, and retries cannot find out.
    Uncertain,
    /// A retry so late that the outcome may have been deleted.
    KeyExpired,
    /// The key's timestamp is in the future.
    KeyFromFuture,
    /// The scope (tenant) of the request could not be determined.
    ScopeMissing,
    /// The request's body is larger than allowed.
    BodyTooLarge,
    /// The request's body did not arrive completely.
    BodyUnreadable,
    /// The attempt failed and nothing happened.
    AttemptFailed,
    /// It took effect, but its answer was lost on the way.
    AnswerLost,
    /// It took effect, but its answer cannot be rebuilt now.
    NotRebuilt,
    /// The store is unavailable.
    StoreUnavailable,
    /// The limit of requests in flight, or of buffered bytes, is reached.
    Busy,
    /// The process is stopping.
    Draining,
    /// No such intent here, or it belongs to another caller.
    IntentNotFound,
    /// The status of an intent can only be read.
    MethodNotAllowed,
}

impl Code {
    /// All of them, for tables.
    pub const ALL: [Self; 18] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::Reused,
        Self::InProgress,
        Self::Uncertain,
        Self::KeyExpired,
        Self::KeyFromFuture,
        Self::ScopeMissing,
        Self::BodyTooLarge,
        Self::BodyUnreadable,
        Self::AttemptFailed,
        Self::AnswerLost,
        Self::NotRebuilt,
        Self::StoreUnavailable,
        Self::Busy,
        Self::Draining,
        Self::IntentNotFound,
        Self::MethodNotAllowed,
    ];

    /// The code's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "IDEMPOTENCY_KEY_MISSING",
            Self::KeyInvalid => "IDEMPOTENCY_KEY_INVALID",
            Self::Reused => "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST",
            Self::InProgress => "IDEMPOTENCY_REQUEST_IN_PROGRESS",
            Self::Uncertain => "IDEMPOTENCY_OUTCOME_UNCERTAIN",
            Self::KeyExpired => "IDEMPOTENCY_KEY_EXPIRED",
            Self::KeyFromFuture => "IDEMPOTENCY_KEY_FROM_FUTURE",
            Self::ScopeMissing => "IDEMPOTENCY_SCOPE_MISSING",
            Self::BodyTooLarge => "IDEMPOTENCY_BODY_TOO_LARGE",
            Self::BodyUnreadable => "IDEMPOTENCY_BODY_UNREADABLE",
            Self::AttemptFailed => "IDEMPOTENCY_ATTEMPT_FAILED",
            Self::AnswerLost => "IDEMPOTENCY_ANSWER_LOST",
            Self::NotRebuilt => "IDEMPOTENCY_ANSWER_NOT_REBUILT",
            Self::StoreUnavailable => "IDEMPOTENCY_STORE_UNAVAILABLE",
            Self::Busy => "IDEMPOTENCY_BUSY",
            Self::Draining => "IDEMPOTENCY_DRAINING",
            Self::IntentNotFound => "IDEMPOTENCY_INTENT_NOT_FOUND",
            Self::MethodNotAllowed => "IDEMPOTENCY_METHOD_NOT_ALLOWED",
        }
    }

    /// A short description.
    pub fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "An idempotency key is required",
            Self::KeyInvalid => "The idempotency key is not valid",
            Self::Reused => "The idempotency key was used for a different request",
            Self::InProgress => "The request is still being processed",
            Self::Uncertain => "It is not known whether the request took effect",
            Self::KeyExpired => "The idempotency key is too old",
            Self::KeyFromFuture => "The idempotency key is from the future",
            Self::ScopeMissing => "The request does not say whose it is",
            Self::BodyTooLarge => "The request body is too large",
            Self::BodyUnreadable => "The request body could not be read",
            Self::AttemptFailed => "The attempt failed and may be made again",
            Self::AnswerLost => "The request took effect, but its answer was lost",
            Self::NotRebuilt => "The request took effect, but its answer cannot be given now",
            Self::StoreUnavailable => "Idempotency cannot be guaranteed right now",
            Self::Busy => "Too many requests are under way",
            Self::Draining => "The service is stopping",
            Self::IntentNotFound => "There is no such intent",
            Self::MethodNotAllowed => "The status of an intent can only be read",
        }
    }

    /// Whether a client may retry the same request automatically.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Self::InProgress
                | Self::AttemptFailed
                | Self::NotRebuilt
                | Self::StoreUnavailable
                | Self::Busy
                | Self::Draining
        )
    }

    /// Its default status.
    pub fn status(self, profile: Profile) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::ScopeMissing | Self::BodyUnreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::Reused => profile.mismatch(),
            Self::InProgress | Self::Uncertain | Self::AttemptFailed => StatusCode::CONFLICT,
            Self::KeyExpired | Self::KeyFromFuture => StatusCode::PRECONDITION_FAILED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotRebuilt | Self::StoreUnavailable | Self::Busy | Self::Draining => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::AnswerLost => StatusCode::INTERNAL_SERVER_ERROR,
            Self::IntentNotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    /// The error type by which Stripe's SDKs choose their exception.
    fn stripe_type(self) -> &'static str {
        match self {
            Self::Reused | Self::InProgress | Self::Uncertain | Self::KeyExpired => "idempotency_error",
            _ if self.retryable() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Problem {
    code: Code,
    status: Option<StatusCode>,
    detail: String,
    retry_after: Option<Duration>,
}

/// The body of a problem, the layer's or the gateway's.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<StripeError<'a>>,
}

impl<'a> Document<'a> {
    /// A problem with this code; its `type` is `types` followed by the code.
    pub(crate) fn new(types: &str, code: &'a str, title: &'a str, detail: &'a str, retryable: bool) -> Self {
        let r#type = format!("{types}{}", code.to_ascii_lowercase().replace('_', "-"));
        Self { r#type, title, status: 0, detail, code, retryable, error: None }
    }

    /// The response, which proxies must not cache.
    pub(crate) fn response(mut self, status: StatusCode) -> Response<Bytes> {
        self.status = status.as_u16();
        // Strings and numbers always serialise.
        let mut response = Response::new(Bytes::from(serde_json::to_vec(&self).unwrap_or_default()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

#[derive(Serialize)]
struct StripeError<'a> {
    r#type: &'a str,
    code: &'a str,
    message: &'a str,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = code.retryable().then_some(RETRY_AFTER);
        Self { code, status: None, detail: detail.into(), retry_after }
    }

    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
    }

    fn retry_after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }

    pub(super) fn response(&self, profile: Profile, types: &str) -> Response<Bytes> {
        let (code, retryable) = (self.code, self.code.retryable());
        let status = self.status.unwrap_or_else(|| code.status(profile));
        let stripe = StripeError { r#type: code.stripe_type(), code: code.as_str(), message: &self.detail };
        let mut document = Document::new(types, code.as_str(), code.title(), &self.detail, retryable);
        document.error = (profile == Profile::Stripe).then_some(stripe);
        let mut response = document.response(status);
        let headers = response.headers_mut();
        headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(code.as_str()));
        let should_retry = if retryable { "true" } else { "false" };
        headers.insert(profile.should_retry(), HeaderValue::from_static(should_retry));
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds(after));
        }
        if code == Code::MethodNotAllowed {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

/// Whole seconds, rounded up: a retry a moment too early is wasted.
pub(crate) fn seconds(duration: Duration) -> HeaderValue {
    HeaderValue::from(duration.as_millis().div_ceil(1_000).clamp(1, u64::MAX.into()) as u64)
}

impl From<KeyRefusal> for Problem {
    fn from(refusal: KeyRefusal) -> Self {
        let code =
            if matches!(refusal, KeyRefusal::Missing(_)) { Code::KeyMissing } else { Code::KeyInvalid };
        Self::new(code, refusal.to_string())
    }
}

impl From<&GuardError> for Problem {
    /// Details never contain the store's errors, which may name hosts and paths. Those are logged instead.
    fn from(error: &GuardError) -> Self {
        match error {
            GuardError::Mismatch => Self::new(
                Code::Reused,
                "This key was used before for a different request. Use a new key for a new intent; retries must \
                 repeat the request exactly.",
            ),
            GuardError::InFlight { retry_after } => {
                let detail =
                    "The first request with this key is still being processed. Retry with the same key.";
                Self::new(Code::InProgress, detail).retry_after(Some(*retry_after))
            }
            GuardError::Uncertain { id, settles_in } => uncertain(&id.to_string()).retry_after(*settles_in),
            GuardError::KeyExpired => Self::new(
                Code::KeyExpired,
                "This key is older than the retention of outcomes, so it may have been used before. Find out whether \
                 the request took effect before sending it with a new key.",
            ),
            GuardError::KeyFromFuture => {
                Self::new(Code::KeyFromFuture, "The timestamp in this key is in the future; check the clock.")
            }
            GuardError::KeyNotTimeOrdered => {
                Self::new(Code::KeyInvalid, "This operation needs a time-ordered key: a UUIDv7 or a ULID.")
            }
            GuardError::StoreUnavailable(_) => Self::new(
                Code::StoreUnavailable,
                "It cannot be checked now whether this request was made before, so nothing was done. Retry with the \
                 same key.",
            ),
            GuardError::NotRebuilt { .. } => Self::new(
                Code::NotRebuilt,
                "The request took effect before and was not run again, but its answer could not be rebuilt. Retry \
                 with the same key.",
            ),
            GuardError::Busy { .. } => Self::new(Code::Busy, "Nothing was done. Retry with the same key."),
            GuardError::Draining => Self::new(Code::Draining, "Nothing was done. Retry with the same key."),
            GuardError::Panicked { verdict } => {
                broken(*verdict, None).with_status(StatusCode::INTERNAL_SERVER_ERROR)
            }
            GuardError::TimedOut { verdict, .. } | GuardError::ClaimLost { verdict } => {
                broken(*verdict, None).with_status(StatusCode::GATEWAY_TIMEOUT)
            }
        }
    }
}

/// Detail for an attempt that broke off and may run again.
pub(super) const ATTEMPT_FAILED: &str = "The attempt broke off. Retry with the same key.";

/// The work broke off; a lookup may know its result after `settles_in`.
pub(super) fn broken(verdict: Verdict, settles_in: Option<Duration>) -> Problem {
    if verdict == Verdict::FailedRetryable {
        return Problem::new(Code::AttemptFailed, ATTEMPT_FAILED);
    }
    let detail = "The attempt broke off and may have taken effect. It is not run again automatically. Do not send it \
                  with a new key before you know whether it took effect.";
    Problem::new(Code::Uncertain, detail).retry_after(settles_in)
}

pub(super) fn uncertain(id: &str) -> Problem {
    let detail = format!(
        "It is not known whether this request took effect, and it is not run again automatically. Do not send it \
         with a new key before you know; ask the operator about intent {id}."
    );
    Problem::new(Code::Uncertain, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_error_is_not_shown_to_clients() {
        use crate::store::{ErrorKind, Fate, StoreError};
        let error =
            StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, "postgres://db-7.internal refused");
        let response = Problem::from(&GuardError::StoreUnavailable(error)).response(Profile::Classic, TYPES);
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        assert!(!body.contains("db-7"), "{body}");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &HeaderValue::from(1))
        );
    }

    #[test]
    fn every_code_is_in_the_contract_that_clients_are_given() {
        let contract = include_str!("../../../../docs/http-contract.md");
        for code in Code::ALL {
            assert!(contract.contains(&format!("`{}`", code.as_str())), "{}", code.as_str());
        }
    }

    #[test]
    fn waiting_times_round_up_to_a_second() {
        for (ms, text) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2")] {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }
}
