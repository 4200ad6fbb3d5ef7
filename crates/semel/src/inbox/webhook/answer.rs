//! The responses to webhook requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::received::Done;
use crate::http::problem::{Document, TYPES, seconds};
use crate::observe::WebhookResult;

/// The body of a response.
pub type ReceiverBody = Full<Bytes>;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WebhookEnd {
    Done(Done),
    Forged,
    Stale,
    Malformed,
    UnknownTenant,
    MissingId,
    Method,
    TooLarge,
    Slow,
    Broken,
    Busy,
    Failed,
    TimedOut,
    Panicked,
}

impl WebhookEnd {
    /// Its metric label.
    pub(super) fn result(self) -> WebhookResult {
        match self {
            Self::Done(Done::Now) => WebhookResult::Accepted,
            Self::Done(Done::Already) => WebhookResult::Replayed,
            Self::Done(Done::Ignored) => WebhookResult::Ignored,
            Self::Forged => WebhookResult::Forged,
            Self::Stale => WebhookResult::Stale,
            Self::Malformed | Self::Method => WebhookResult::Malformed,
            Self::UnknownTenant => WebhookResult::UnknownTenant,
            Self::MissingId => WebhookResult::MissingId,
            Self::TooLarge => WebhookResult::TooLarge,
            Self::Slow | Self::Broken => WebhookResult::Broken,
            Self::Busy => WebhookResult::Busy,
            Self::Failed | Self::TimedOut | Self::Panicked => WebhookResult::Failed,
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Done(_) => StatusCode::OK,
            // The same for all three: a stranger must not learn which tenants exist or that a signature was valid.
            Self::Forged | Self::Stale | Self::UnknownTenant => StatusCode::UNAUTHORIZED,
            Self::Malformed | Self::Broken => StatusCode::BAD_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            // The signature is valid: our fault. The provider sends it again after the fix.
            Self::MissingId | Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Busy | Self::Failed | Self::TimedOut => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn problem(self) -> Document<'static> {
        let (code, title, detail) = match self.status() {
            StatusCode::UNAUTHORIZED => {
                ("WEBHOOK_REFUSED", "The webhook is not accepted", "Its signature could not be confirmed.")
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                ("WEBHOOK_METHOD_NOT_ALLOWED", "Webhooks are posted", "Use POST.")
            }
            StatusCode::PAYLOAD_TOO_LARGE => {
                ("WEBHOOK_TOO_LARGE", "The webhook is too large", "Its body is larger than the limit.")
            }
            StatusCode::REQUEST_TIMEOUT => (
                "WEBHOOK_TOO_SLOW",
                "The webhook did not arrive in time",
                "Its body was not complete in time.",
            ),
            StatusCode::BAD_REQUEST => (
                "WEBHOOK_MALFORMED",
                "The webhook is not well formed",
                "It is incomplete, or its signature is not in the expected format.",
            ),
            _ => ("WEBHOOK_NOT_HANDLED", "The webhook was not handled", "Send it again later."),
        };
        Document::new(TYPES, code, title, detail, self.status().is_server_error())
    }

    pub(super) fn response(self, retry_after: Duration) -> Response<ReceiverBody> {
        let status = self.status();
        if status.is_success() {
            return Response::new(Full::default());
        }
        let mut response = self.problem().response(status);
        let headers = response.headers_mut();
        if status.is_server_error() {
            headers.insert(header::RETRY_AFTER, seconds(retry_after));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        response.map(Full::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [WebhookEnd; 13] = [
        WebhookEnd::Forged,
        WebhookEnd::Stale,
        WebhookEnd::Malformed,
        WebhookEnd::UnknownTenant,
        WebhookEnd::MissingId,
        WebhookEnd::Method,
        WebhookEnd::TooLarge,
        WebhookEnd::Slow,
        WebhookEnd::Broken,
        WebhookEnd::Busy,
        WebhookEnd::Failed,
        WebhookEnd::TimedOut,
        WebhookEnd::Panicked,
    ];

    #[test]
    fn only_what_is_done_is_answered_with_success_and_failures_ask_for_more() {
        for done in [Done::Now, Done::Already, Done::Ignored] {
            assert_eq!(WebhookEnd::Done(done).response(Duration::ZERO).status(), 200);
        }
        for ended in ALL {
            let response = ended.response(Duration::from_secs(7));
            assert!(!response.status().is_success() && !response.status().is_redirection(), "{ended:?}");
            let retry_after = response.headers().get(header::RETRY_AFTER);
            assert_eq!(retry_after.is_some(), response.status().is_server_error(), "{ended:?}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json", "{ended:?}");
        }
    }

    #[test]
    fn a_stranger_does_not_learn_why() {
        let shown = |ended: WebhookEnd| format!("{:?}", ended.response(Duration::ZERO));
        assert_eq!(shown(WebhookEnd::Forged), shown(WebhookEnd::Stale));
        assert_eq!(shown(WebhookEnd::Forged), shown(WebhookEnd::UnknownTenant));
        assert_eq!(shown(WebhookEnd::Failed), shown(WebhookEnd::TimedOut));
    }
}
