//! The gateway's own errors, as problem documents like the layer's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use semel::http::{Code, Profile, headers};
use serde::Serialize;

/// The prefix of a problem's `type`.
const TYPES: &str = "urn:problem-type:semel:";
/// The default for Retry-After.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Errors of the gateway itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum GatewayError {
    /// An invalid request, which is not forwarded.
    BadRequest,
    /// CONNECT and TRACE.
    MethodRefused,
    /// A protocol upgrade.
    UpgradeRefused,
    /// The client's body did not arrive whole; the request may have reached upstream in part.
    BodyBroken,
    /// Nothing was sent to upstream.
    UpstreamUnreachable,
    /// Upstream closed the connection after the request was sent.
    UpstreamBroken,
    /// Upstream did not answer in time.
    UpstreamTimeout,
    /// The same two, for a guarded request whose effect nothing protects.
    OutcomeUncertain,
    /// The same two, for a guarded request that may run again.
    AttemptFailed,
    /// The caller's permission could not be checked.
    AuthorizeFailed,
    /// Too many new intents from a tenant.
    TooManyIntents,
    /// Too many attempts at one intent.
    TooManyAttempts,
    /// A tenant's stored outcomes have reached the quota.
    QuotaExceeded,
}

impl GatewayError {
    /// All of them, for tables.
    pub(super) const ALL: [Self; 13] = [
        Self::BadRequest,
        Self::MethodRefused,
        Self::UpgradeRefused,
        Self::BodyBroken,
        Self::UpstreamUnreachable,
        Self::UpstreamBroken,
        Self::UpstreamTimeout,
        Self::OutcomeUncertain,
        Self::AttemptFailed,
        Self::AuthorizeFailed,
        Self::TooManyIntents,
        Self::TooManyAttempts,
        Self::QuotaExceeded,
    ];

    /// The code's text, part of the contract.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::BadRequest => "GATEWAY_BAD_REQUEST",
            Self::MethodRefused => "GATEWAY_METHOD_REFUSED",
            Self::UpgradeRefused => "GATEWAY_UPGRADE_REFUSED",
            Self::BodyBroken => "GATEWAY_BODY_BROKEN",
            Self::UpstreamUnreachable => "GATEWAY_UPSTREAM_UNREACHABLE",
            Self::UpstreamBroken => "GATEWAY_UPSTREAM_BROKEN",
            Self::UpstreamTimeout => "GATEWAY_UPSTREAM_TIMEOUT",
            Self::OutcomeUncertain => Code::Uncertain.as_str(),
            Self::AttemptFailed => Code::AttemptFailed.as_str(),
            Self::AuthorizeFailed => "GATEWAY_AUTHORIZE_FAILED",
            Self::TooManyIntents => "GATEWAY_TOO_MANY_INTENTS",
            Self::TooManyAttempts => "GATEWAY_TOO_MANY_ATTEMPTS",
            Self::QuotaExceeded => "GATEWAY_QUOTA_EXCEEDED",
        }
    }

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::MethodRefused => StatusCode::METHOD_NOT_ALLOWED,
            Self::UpgradeRefused => StatusCode::NOT_IMPLEMENTED,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::TooManyIntents | Self::TooManyAttempts | Self::QuotaExceeded => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::UpstreamUnreachable
            | Self::UpstreamBroken
            | Self::OutcomeUncertain
            | Self::AttemptFailed
            | Self::AuthorizeFailed => StatusCode::BAD_GATEWAY,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is invalid",
            Self::MethodRefused => "The method is not forwarded",
            Self::UpgradeRefused => "Protocol upgrades are not supported",
            Self::BodyBroken => "The request body could not be read",
            Self::UpstreamUnreachable => "The service cannot be reached",
            Self::UpstreamBroken => "The service closed the connection without an answer",
            Self::UpstreamTimeout => "The service did not answer in time",
            Self::OutcomeUncertain => "It is not known whether the request took effect",
            Self::AttemptFailed => "The attempt failed",
            Self::AuthorizeFailed => "The permission for this request could not be checked",
            Self::TooManyIntents => "Too many new requests",
            Self::TooManyAttempts => "Too many attempts at one request",
            Self::QuotaExceeded => "The storage quota is used up",
        }
    }

    pub(super) fn detail(self) -> &'static str {
        match self {
            Self::BadRequest => "The request was not forwarded.",
            Self::MethodRefused => "CONNECT and TRACE are not forwarded.",
            Self::UpgradeRefused => "Upgrades such as WebSocket are not forwarded.",
            Self::BodyBroken => "The body did not arrive completely.",
            Self::UpstreamUnreachable => {
                "Nothing was sent to it, so nothing was done. Retry with the same key."
            }
            Self::UpstreamBroken => "The connection to it was lost before an answer came.",
            Self::UpstreamTimeout => "It is not known whether it did what was asked.",
            Self::OutcomeUncertain => {
                "The service gave no answer and may have done what was asked. It will not be repeated automatically; \
                 do not send it with a new key before the outcome is known."
            }
            Self::AttemptFailed => "The service gave no answer. Retry with the same key.",
            Self::AuthorizeFailed => "Nothing was done. Retry with the same key.",
            Self::TooManyIntents => "Nothing was done. Retry later with the same key.",
            Self::TooManyAttempts => "Retry later with the same key.",
            Self::QuotaExceeded => {
                "Nothing was done. Retry with the same key after earlier outcomes have expired."
            }
        }
    }

    pub(super) fn retryable(self) -> bool {
        match self {
            Self::UpstreamUnreachable
            | Self::AttemptFailed
            | Self::AuthorizeFailed
            | Self::TooManyIntents
            | Self::TooManyAttempts
            | Self::QuotaExceeded => true,
            Self::BadRequest
            | Self::MethodRefused
            | Self::UpgradeRefused
            | Self::BodyBroken
            | Self::UpstreamBroken
            | Self::UpstreamTimeout
            | Self::OutcomeUncertain => false,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<StripeError<'a>>,
}

#[derive(Serialize)]
struct StripeError<'a> {
    r#type: &'a str,
    code: &'a str,
    message: &'a str,
}

/// One problem to answer with.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) error: GatewayError,
    status: StatusCode,
    detail: &'static str,
    retry_after: Option<Duration>,
}

impl From<GatewayError> for Problem {
    fn from(error: GatewayError) -> Self {
        let retry_after = error.retryable().then_some(RETRY_AFTER);
        Self { error, status: error.status(), detail: error.detail(), retry_after }
    }
}

impl Problem {
    pub(super) fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(super) fn detail(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }

    pub(super) fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    pub(super) fn response(&self, profile: Profile) -> Response<Bytes> {
        let (error, retryable) = (self.error, self.error.retryable());
        let code = error.code();
        let stripe = StripeError { r#type: "api_error", code, message: self.detail };
        let document = Document {
            r#type: format!("{TYPES}{}", code.to_ascii_lowercase().replace('_', "-")),
            title: error.title(),
            status: self.status.as_u16(),
            detail: self.detail,
            code,
            retryable,
            error: (profile == Profile::Stripe).then_some(stripe),
        };
        // Strings and numbers always serialise.
        let mut response = Response::new(Bytes::from(serde_json::to_vec(&document).unwrap_or_default()));
        *response.status_mut() = self.status;
        let out = response.headers_mut();
        out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        out.insert(headers::IDEMPOTENCY_PROBLEM, HeaderValue::from_static(code));
        let should_retry = if retryable { "true" } else { "false" };
        out.insert(profile.should_retry(), HeaderValue::from_static(should_retry));
        if let Some(after) = self.retry_after {
            let seconds = after.as_millis().div_ceil(1_000).clamp(1, u64::MAX.into()) as u64;
            out.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if error == GatewayError::MethodRefused {
            let allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
            out.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_contract_that_clients_are_given() {
        let contract = include_str!("../../../../docs/http-contract.md");
        for error in GatewayError::ALL {
            assert!(contract.contains(&format!("`{}`", error.code())), "{}", error.code());
        }
    }

    #[test]
    fn contract_problem_codes_and_their_statuses() {
        let mut listing = String::new();
        for error in GatewayError::ALL {
            let retry = Problem::from(error).response(Profile::Classic).headers()["x-should-retry"].clone();
            let retryable = if retry == "true" { "retryable" } else { "final" };
            listing += &format!("{} {} {retryable}\n", error.code(), error.status().as_u16());
        }
        crate::contracts::pinned("problems.gateway", &listing);
    }

    #[test]
    fn what_may_be_retried_says_when() {
        for profile in Profile::ALL {
            for error in GatewayError::ALL {
                let response = Problem::from(error).response(profile);
                let should_retry = &response.headers()[profile.should_retry()];
                assert_eq!(should_retry == "true", response.headers().contains_key("retry-after"));
                assert_eq!(response.status(), error.status());
            }
        }
    }
}
