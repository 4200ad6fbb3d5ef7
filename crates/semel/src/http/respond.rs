//! From an outcome to a response.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use super::headers::{
    IDEMPOTENCY_BODY, IDEMPOTENCY_GUARDED, IDEMPOTENCY_PROBLEM, IDEMPOTENCY_STORED, restore,
};
use super::problem::{Code, seconds};
use super::profile::Profile;
use crate::intent::outcome::{Outcome, Verdict};

const TRUE: HeaderValue = HeaderValue::from_static("true");
const FALSE: HeaderValue = HeaderValue::from_static("false");

pub(super) fn replay(outcome: &Outcome, verdict: Verdict, profile: Profile) -> Response<Bytes> {
    let body = outcome.body_bytes();
    let mut response = Response::new(body.cloned().unwrap_or_default());
    *response.status_mut() = status(outcome.code, verdict);
    let headers = response.headers_mut();
    restore(&outcome.headers, body.is_some(), headers);
    headers.insert(profile.replayed(), TRUE);
    if body.is_none() {
        headers.insert(IDEMPOTENCY_BODY, HeaderValue::from_static("not-kept"));
    }
    response
}

/// The stored status, or a default: an intent that a person decided may have none.
fn status(code: u16, verdict: Verdict) -> StatusCode {
    let unknown =
        if verdict == Verdict::FailedFinal { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let known = StatusCode::from_u16(code).ok();
    known.filter(|status| !status.is_informational()).unwrap_or(unknown)
}

/// Marks a correct answer that is not stored, or ran unguarded.
pub(super) fn flag(headers: &mut HeaderMap, stored: bool, guarded: bool) {
    if !stored {
        headers.insert(IDEMPOTENCY_STORED, FALSE);
    }
    if !guarded {
        headers.insert(IDEMPOTENCY_GUARDED, FALSE);
    }
}

/// A 202: the work goes on, and its status is at this URL.
pub(super) fn accepted(status_url: Option<String>, retry_after: Duration) -> Response<Bytes> {
    let body = serde_json::json!({ "state": "in_progress", "status_url": status_url });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::RETRY_AFTER, seconds(retry_after));
    // A semel further out and a client distinguish it by this header from a 202 of the service.
    headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(Code::InProgress.as_str()));
    // Always valid: the path was checked when the layer was built, and the rest is hex digits.
    if let Some(status_url) = status_url.and_then(|url| HeaderValue::try_from(url).ok()) {
        headers.insert(header::LOCATION, status_url);
    }
    response
}
