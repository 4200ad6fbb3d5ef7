//! The path of one request: checked, authorised, limited, guarded, forwarded, answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use semel::Effect;
use semel::http::{IdempotencyLayer, IdempotencyService, Inspection, Profile, headers};
use semel::store::AnyStore;
use tower_service::Service;

use super::authorize::{Allowed, Authorize};
use super::body::{BoxError, Payload, Progress, Watched, whole};
use super::forward::{Broken, FirstRun, Forward, Peer};
use super::idle_timeout::Busy;
use super::limits::Limits;
use super::metrics::Counted;
use super::problem::{GatewayError, Problem};
use super::request_checks::screen;
use super::shadow::Shadow;
use super::upstream::Failed;

/// The public side of a gateway.
pub(super) struct Edge {
    pub(super) layer: IdempotencyLayer<AnyStore>,
    pub(super) guarded: IdempotencyService<Forward, AnyStore>,
    pub(super) authorize: Option<Authorize>,
    pub(super) limits: Option<Limits>,
    pub(super) shadow: Option<Shadow>,
    pub(super) counted: Counted,
    pub(super) profile: Profile,
    /// The path of the status resource, if an operation needs it.
    pub(super) status_path: Option<String>,
    /// The effect of each declared operation, and the delay of its lookup; others are opaque and have none.
    pub(super) effects: HashMap<String, (Effect, Option<Duration>)>,
    pub(super) headers_max: usize,
    pub(super) body_idle: Duration,
}

impl Edge {
    /// Answers one request of a client's connection.
    pub(super) async fn answer<B>(
        self: Arc<Self>,
        request: Request<B>,
        peer: Peer,
        busy: Busy,
    ) -> Response<Payload>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let progress = Progress::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(peer);
        parts.extensions.insert(progress.clone());
        let body = Watched::new(body, Some(self.body_idle), progress, ()).boxed_unsync();
        let response = match self.respond(parts, body).await {
            Ok(response) => response,
            Err(problem) => {
                self.counted.request("problem");
                problem.response(self.profile).map(whole)
            }
        };
        // The connection is busy until the last byte is sent.
        response.map(|body| Watched::new(body, None, Progress::default(), busy).boxed_unsync())
    }

    async fn respond(&self, mut parts: Parts, body: Payload) -> Result<Response<Payload>, Problem> {
        screen(&parts, self.headers_max)?;
        if let Some(shadow) = &self.shadow {
            return Box::pin(shadow.watch(parts, body)).await.map_err(|broken| self.problem(&broken));
        }
        let status = self.status_path.as_deref().is_some_and(|path| is_under(parts.uri.path(), path));
        let inspected = self.layer.inspect(&parts);
        if let Some(authorize) = &self.authorize
            && (status || matches!(inspected, Inspection::Guarded(_) | Inspection::NoScope))
        {
            match Box::pin(authorize.ask(&parts)).await {
                Allowed::Yes(Some(principal)) => {
                    parts.extensions.insert(principal);
                }
                Allowed::Yes(None) => {}
                Allowed::No(response) => {
                    self.counted.request("unauthorised");
                    return Ok(*response);
                }
                Allowed::Failed(problem) => return Err(problem),
            }
        }
        if status {
            self.counted.request("status");
            let mut service = self.layer.status_service();
            let response = match service.call(Request::from_parts(parts, ())).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            return Ok(response.map(|body| body.map_err(|never| match never {}).boxed_unsync()));
        }
        let mut _permit = None;
        if let Some(limits) = &self.limits
            && let Inspection::Guarded(intent) = self.layer.inspect(&parts)
        {
            let first = FirstRun::default();
            parts.extensions.insert(first.clone());
            _permit = Box::pin(limits.admit(&intent, first)).await?;
        }
        let mut guarded = self.guarded.clone();
        let answered = guarded.call(Request::from_parts(parts, body)).await;
        let response = answered.map_err(|broken| self.problem(&broken))?;
        let ours = response.headers();
        self.counted.request(match () {
            () if ours.contains_key(headers::IDEMPOTENCY_PROBLEM) => "problem",
            () if ours.contains_key(self.profile.replayed()) => "replay",
            () => "upstream",
        });
        Ok(response.map(|body| body.boxed_unsync()))
    }

    /// The problem that a client gets when upstream gave no answer.
    pub(super) fn problem(&self, broken: &Broken) -> Problem {
        match (&broken.failed, &broken.operation) {
            (Failed::NotSent(_), _) => GatewayError::UpstreamUnreachable.into(),
            (Failed::ClientBroke, _) => GatewayError::BodyBroken.into(),
            (Failed::Unknown { timed_out, .. }, None) => {
                if *timed_out { GatewayError::UpstreamTimeout } else { GatewayError::UpstreamBroken }.into()
            }
            (Failed::Unknown { timed_out, .. }, Some(operation)) => {
                let (effect, settle) = self.effects.get(operation).copied().unwrap_or_default();
                let error = if effect.may_rerun() {
                    GatewayError::AttemptFailed
                } else {
                    GatewayError::OutcomeUncertain
                };
                let status = if *timed_out { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
                let problem = Problem::from(error).status(status);
                // By then a lookup may have settled it.
                match settle.filter(|_| error == GatewayError::OutcomeUncertain) {
                    Some(settle) => problem.retry_after(settle),
                    None => problem,
                }
            }
        }
    }
}

fn is_under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}
