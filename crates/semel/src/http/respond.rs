//! From an outcome to a response.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use super::headers::{
    IDEMPOTENCY_BODY, IDEMPOTENCY_GUARDED, IDEMPOTENCY_PROBLEM, IDEMPOTENCY_STORED, give_again,
};
use super::problem::{Code, seconds};
use super::profile::Profile;
use crate::intent::outcome::{Outcome, Verdict};

const TRUE: HeaderValue = HeaderValue::from_static("true");
const FALSE: HeaderValue = HeaderValue::from_static("false");

/// A stored outcome, given again.
pub(super) fn replay(outcome: &Outcome, verdict: Verdict, profile: Profile) -> Response<Bytes> {
    let body = outcome.body_bytes();
    let mut response = Response::new(body.cloned().unwrap_or_default());
    *response.status_mut() = status(outcome.code, verdict);
    let headers = response.headers_mut();
    give_again(&outcome.headers, body.is_some(), headers);
    headers.insert(profile.replayed(), TRUE);
    if body.is_none() {
        headers.insert(IDEMPOTENCY_BODY, HeaderValue::from_static("not-kept"));
    }
    response
}

/// A person who decides that something happened need not know which status it had; then there is none.
fn status(code: u16, verdict: Verdict) -> StatusCode {
    let unknown =
        if verdict == Verdict::FailedFinal { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let known = StatusCode::from_u16(code).ok();
    known.filter(|status| !status.is_informational()).unwrap_or(unknown)
}

/// Says what could not be done for an answer that is true all the same.
pub(super) fn flag(headers: &mut HeaderMap, stored: bool, guarded: bool) {
    if !stored {
        headers.insert(IDEMPOTENCY_STORED, FALSE);
    }
    if !guarded {
        headers.insert(IDEMPOTENCY_GUARDED, FALSE);
    }
}

/// The work goes on; here is where to ask for it.
pub(super) fn accepted(place: Option<String>, retry_after: Duration) -> Response<Bytes> {
    let body = serde_json::json!({ "state": "in_progress", "status_url": place });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::RETRY_AFTER, seconds(retry_after));
    // By this a semel further out and a client tell it from a 202 of the service.
    headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(Code::InProgress.as_str()));
    // Where the resource is mounted was checked when the layer was built, and the rest is hex digits.
    if let Some(place) = place.and_then(|place| HeaderValue::try_from(place).ok()) {
        headers.insert(header::LOCATION, place);
    }
    response
}
