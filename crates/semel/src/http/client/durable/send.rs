//! Writes an intent to the journal, sends it, and writes the answer to the journal.

use std::convert::Infallible;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use super::headers;
use super::journal::{Answer, Begun, JournalState, Owner, Written};
use super::{DurableClient, DurableError};
use crate::http::body::BufferedBody;
use crate::http::client::decide::Why;
use crate::http::client::error::{Attempts, BoxError, ClientError, GaveUp};
use crate::http::client::prepare::Prepared;
use crate::http::client::response_class::Signals;
use crate::http::headers::{IDEMPOTENCY_BODY, IDEMPOTENCY_PROBLEM, IDEMPOTENCY_REPLAYED, kept, restore};
use crate::http::problem::Code;
use crate::intent::key::Key;

/// An extension of a response: it comes from the journal, and nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FromJournal;

/// An extension of a response: it is the correct answer, but could not be written to the journal. The intent will be
/// resumed once more, and the server's replay is the same answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unrecorded;

impl<S> DurableClient<S> {
    /// Writes the intent to the journal, sends it until there is an answer, and stores the answer.
    ///
    /// When the first byte is sent the intent is on disk. If the key is already in the journal, the same request
    /// continues where it was left, or gets the stored answer ([`FromJournal`]). An intent whose answer is lost is done,
    /// too: the same request gets [`AnswerLost`](ClientError::AnswerLost) from the journal.
    pub async fn send<B, R>(&self, request: Request<B>) -> Result<Response<BufferedBody<R>>, DurableError>
    where
        B: Body<Data = Bytes>,
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone,
        S::Error: Into<BoxError>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let mut prepared = self.client.prepare(request).await.map_err(DurableError::Invalid)?;
        let owner = new_owner();
        let written = self.written(&prepared)?;
        match self.journal.begin(written, owner, self.limits).await? {
            Begun::New => {}
            Begun::Again { sendable } => {
                prepared.sent_before = true;
                prepared.sendable = prepared.sendable.min(sendable);
            }
            Begun::Answered(answer) => return Ok(from_journal(&prepared.key, answer)?),
            Begun::Mismatch => return Err(DurableError::Mismatch),
            Begun::Elsewhere { lease_left } => return Err(DurableError::Elsewhere { lease_left }),
            Begun::Expired => return Err(DurableError::Expired),
            Begun::Full => return Err(DurableError::Full { intents_max: self.limits.unfinished_max }),
        }
        Ok(self.carry_out(&prepared, owner).await?)
    }

    fn written(&self, prepared: &Prepared) -> Result<Written, DurableError> {
        let head = &prepared.head;
        let authority = head.uri.authority().ok_or(DurableError::Uri)?;
        if authority.as_str().contains('@') {
            return Err(DurableError::Uri);
        }
        let sorted = self.rules.sort(&head.headers).map_err(DurableError::Header)?;
        if let (Some(name), None) = (sorted.given_again, &self.credentials) {
            return Err(DurableError::NoCredentials(name));
        }
        Ok(Written {
            key: prepared.key.clone(),
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            headers: sorted.stored,
            identity: sorted.identity,
            body: prepared.body.clone(),
            sendable: prepared.sendable,
        })
    }

    /// Sends an intent that is in the journal and claimed.
    pub(super) async fn carry_out<R>(
        &self,
        prepared: &Prepared,
        owner: Owner,
    ) -> Result<Response<BufferedBody<R>>, ClientError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone,
        S::Error: Into<BoxError>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        // In this future, not in a task: a caller that stops waiting stops renewing, and another one may continue.
        let mut answered = tokio::select! {
            biased;
            answered = Box::pin(self.client.send_prepared(prepared)) => answered,
            never = self.keep_claim(prepared, owner) => match never {},
        };
        let recorded = match &answered {
            Ok(response) if is_about_the_caller(response.status()) => {
                let why = format!("answered with {}", response.status());
                self.journal.leave(prepared.key.as_str(), owner, JournalState::Held, 1, why).await
            }
            Ok(response) => {
                let attempts = response.extensions().get::<Attempts>().map_or(0, |attempts| attempts.count());
                self.journal.answer(&prepared.key, attempts, answer(response)).await
            }
            Err(ClientError::AnswerLost(gave_up)) => {
                self.journal.answer(&prepared.key, gave_up.attempts.count(), answer_lost(gave_up)).await
            }
            Err(error) => {
                let (state, attempts) = match error.gave_up() {
                    Some(gave_up) => (state_after(gave_up.why), gave_up.attempts.count()),
                    None => (JournalState::Held, 0),
                };
                self.journal.leave(prepared.key.as_str(), owner, state, attempts, error.to_string()).await
            }
        };
        if let Err(error) = recorded {
            // The lease expires by itself, and the server's replay gives the same answer.
            tracing::warn!(
                key = %prepared.key.short_hash(),
                %error,
                "the result of an intent could not be written to the journal; resume will send it again"
            );
            match &mut answered {
                Ok(response) => drop(response.extensions_mut().insert(Unrecorded)),
                Err(ClientError::AnswerLost(gave_up)) => {
                    gave_up.response.as_mut().map(|response| response.extensions_mut().insert(Unrecorded));
                }
                Err(_) => {}
            }
        }
        answered
    }

    async fn keep_claim(&self, prepared: &Prepared, owner: Owner) -> Infallible {
        loop {
            tokio::time::sleep(self.limits.lease / 3).await;
            if let Err(error) = self.journal.renew(&prepared.key, owner, self.limits.lease).await {
                tracing::debug!(key = %prepared.key.short_hash(), %error, "an intent's lease could not be renewed");
            }
        }
    }
}

pub(super) fn new_owner() -> Owner {
    uuid::Uuid::now_v7().into_bytes()
}

/// An answer about the caller, not about the intent. Only the first of all attempts can end here: later ones are in
/// doubt.
fn is_about_the_caller(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 407 | 413 | 431)
}

/// Whether a resume may bring an answer.
fn state_after(why: Why) -> JournalState {
    match why {
        Why::Attempts | Why::Time | Why::Retention | Why::Answered => JournalState::Open,
        Why::ServerSaysNo | Why::Mismatch | Why::Uncertain | Why::AnswerLost | Why::Problem(_) => {
            JournalState::Held
        }
    }
}

fn answer<R: Body<Data = Bytes>>(response: &Response<BufferedBody<R>>) -> Answer {
    let body = response.body();
    // A replay without its body is not an answer with an empty body.
    let not_kept = response.headers().contains_key(IDEMPOTENCY_BODY);
    let whole = !not_kept && body.size_hint().exact() == Some(body.data().len() as u64);
    recorded(response.status(), response.headers(), whole.then(|| body.data().clone()))
}

/// The problem is recorded in place of the answer, with its code in a header: the body may not be the problem's own.
fn answer_lost(gave_up: &GaveUp) -> Answer {
    let (status, headers, body) = match &gave_up.response {
        Some(response) => (response.status(), response.headers().clone(), response.body().clone()),
        None => (StatusCode::INTERNAL_SERVER_ERROR, HeaderMap::new(), Bytes::new()),
    };
    let mut answer = recorded(status, &headers, Some(body));
    let code = Bytes::from_static(Code::AnswerLost.as_str().as_bytes());
    answer.headers.extend(headers::lines(&[(IDEMPOTENCY_PROBLEM.as_str().to_owned(), code)]));
    answer
}

fn recorded(status: StatusCode, headers: &HeaderMap, body: Option<Bytes>) -> Answer {
    // If there are more headers than may be kept, none is kept rather than some.
    let headers = kept(headers, &[]).unwrap_or_default();
    Answer { status: status.as_u16(), headers: headers::lines(&headers), body }
}

fn from_journal<R: Body<Data = Bytes>>(
    key: &Key,
    answer: Answer,
) -> Result<Response<BufferedBody<R>>, ClientError> {
    let response = replayed(answer);
    let body = response.body();
    // A 202 cannot be in the journal as anything but an answer, so the time does not matter.
    let signals = Signals::read(response.status(), response.headers(), body, SystemTime::UNIX_EPOCH);
    if signals.code != Some(Code::AnswerLost) {
        return Ok(response.map(BufferedBody::whole));
    }
    Err(ClientError::AnswerLost(Box::new(GaveUp {
        key: key.clone(),
        why: Why::AnswerLost,
        attempts: Attempts::default(),
        response: Some(response),
        source: None,
    })))
}

fn replayed(answer: Answer) -> Response<Bytes> {
    let body_kept = answer.body.is_some();
    let mut response = Response::new(answer.body.unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let stored = headers::read(&answer.headers).unwrap_or_default();
    restore(&stored, body_kept, response.headers_mut());
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    if !body_kept {
        response.headers_mut().insert(IDEMPOTENCY_BODY, HeaderValue::from_static("not-kept"));
    }
    response.extensions_mut().insert(FromJournal);
    response.extensions_mut().insert(Attempts::default());
    response
}
