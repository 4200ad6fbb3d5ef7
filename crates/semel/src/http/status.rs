//! The status resource that a 202 points to.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tower_service::Service;

use super::builder::Shared;
use super::operations::Prepared;
use super::problem::{Code, Problem, RETRY_AFTER, uncertain};
use super::respond;
use super::service::in_time;
use crate::guard::GuardError;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::state::State;
use crate::store::{Record, Store};

/// Answers `GET …/{intent}`: pending (202), the result, or what is wrong.
///
/// An intent is shown only at the URL that a 202 gave, which is signed with a secret
/// ([`Builder::status_secrets`](super::Builder::status_secrets)), only if its operation answers with 202, and only to a
/// caller of the same scope; otherwise the answer is 404. Put the same authentication in front of it as in front of the
/// operations.
///
/// ```
/// use axum::{Router, routing::post};
/// use semel::http::{IdempotencyLayer, Rule};
/// use semel::{Guard, store::memory::MemoryStore};
///
/// let layer = IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
///     .scope_header("x-tenant-id".parse()?)
///     .rule(Rule::on("POST /reports").respond_accepted())
///     .status_path("/intents")
///     .build()?;
/// let app: Router = Router::new()
///     .route("/reports", post(|| async { "a long time later" }))
///     .layer(layer.clone())
///     .route_service("/intents/{id}", layer.status_service());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StatusService<S> {
    shared: Arc<Shared<S>>,
}

impl<S: Store> StatusService<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Self {
        Self { shared }
    }
}

impl<S: Store, B> Service<Request<B>> for StatusService<S> {
    type Response = Response<StatusBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let (parts, _) = request.into_parts();
        Box::pin(async move {
            let response = match shared.status(&parts).await {
                Ok(response) => response,
                Err(problem) => problem.response(shared.profile, &shared.types),
            };
            Ok(response.map(StatusBody))
        })
    }
}

impl<S: Store> Shared<S> {
    async fn status(&self, parts: &Parts) -> Result<Response<Bytes>, Problem> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(Problem::new(Code::MethodNotAllowed, "Use GET."));
        }
        // No scope, a forged URL, another caller's intent and no intent at all get the same answer, so that trying
        // URLs reveals nothing.
        let not_found =
            || Problem::new(Code::IntentNotFound, "It may have been deleted, or may never have existed.");
        let segment = parts.uri.path().rsplit('/').next().unwrap_or("");
        let id = self.tokens.intent(segment).ok_or_else(not_found)?;
        let scope = (self.scope)(parts).map_err(|_| not_found())?;
        let unavailable = |error| Problem::from(&GuardError::StoreUnavailable(error));
        let store = self.guard.store();
        let record = in_time(store.get(id)).await.map_err(unavailable)?.ok_or_else(not_found)?;
        // The rules may have changed since the URL was given out.
        let prepared = self.operations.named(record.intent.operation());
        if *record.intent.scope() != scope || !prepared.rule.accept {
            return Err(not_found());
        }
        let now = in_time(store.now()).await.map_err(unavailable)?;
        let lapsed = record.head.is_lapsed(now);
        match record.state_at(now).ok_or_else(not_found)? {
            State::InProgress if !lapsed => Ok(self.accepted(&id, RETRY_AFTER)),
            State::Completed => self.result(&prepared, record, Verdict::Completed).await,
            State::FailedFinal => self.result(&prepared, record, Verdict::FailedFinal).await,
            // No attempt is running and it may run again: with "pending" the client would wait in vain.
            State::InProgress | State::FailedRetryable => {
                let detail = "The attempt failed. Send the original request again with the same key.";
                Err(Problem::new(Code::AttemptFailed, detail))
            }
            State::Uncertain => Err(uncertain(&id.to_string())),
        }
    }

    async fn result(
        &self,
        prepared: &Prepared<S>,
        record: Record,
        verdict: Verdict,
    ) -> Result<Response<Bytes>, Problem> {
        let outcome = record.outcome.unwrap_or_else(Outcome::unknown);
        let outcome = match prepared.guarded.replay_stored(&record.intent, verdict, outcome).await {
            Ok(answer) => answer.outcome,
            Err(error) => return Err(Problem::from(&error)),
        };
        Ok(respond::replay(&outcome, verdict, self.profile))
    }
}

/// The body of a status response.
#[derive(Debug)]
pub struct StatusBody(Bytes);

impl Body for StatusBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = std::mem::take(&mut self.0);
        Poll::Ready((!data.is_empty()).then(|| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

impl<S> Clone for StatusService<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for StatusService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusService").finish_non_exhaustive()
    }
}
