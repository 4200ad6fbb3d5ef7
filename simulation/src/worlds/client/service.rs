//! The service behind the layer: it charges, declines or fails as the plan says, and writes that down.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use semel::http::ClaimHandle;
use tower_service::Service;

use super::body::Chunks;
use super::ledger::{Answer, read_request};
use super::plan::{Ends, On5xx, Run};
use super::scene::Scene;

/// What a run does when the plan says nothing about it.
const PLAIN: Run = Run { takes_ms: 10, ends: Ends::Charged };

/// A service that charges.
#[derive(Clone)]
pub(super) struct Payments(pub(super) Arc<Scene>);

type Answered = Pin<Box<dyn Future<Output = Result<Response<Chunks>, io::Error>> + Send>>;

impl<B> Service<Request<B>> for Payments
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    type Response = Response<Chunks>;
    type Error = io::Error;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answered {
        let scene = Arc::clone(&self.0);
        let claim = request.extensions().get::<ClaimHandle>().cloned();
        Box::pin(async move {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let Some((intent, amount)) = read_request(&body) else {
                return Err(io::Error::other("not a request of this world"));
            };
            let answered = scene.run(intent, amount, claim.as_ref()).await;
            let unknown = match &answered {
                Ok(response) => response.status().as_u16() == 502,
                Err(_) => true,
            };
            if unknown && scene.stage.has("service-retried-behind-the-layer") {
                scene.stage.trace(format_args!("intent {intent}: something behind the layer tries again"));
                return scene.run(intent, amount, claim.as_ref()).await;
            }
            answered
        })
    }
}

impl Scene {
    async fn run(
        &self,
        intent: usize,
        amount: u64,
        claim: Option<&ClaimHandle>,
    ) -> Result<Response<Chunks>, io::Error> {
        let number = self.ledger.with(intent, |pages| {
            pages.runs += 1;
            pages.runs
        });
        let Run { takes_ms, ends } = match self.plan.intents[intent].runs.get(number - 1) {
            Some(run) if !self.is_calm() => run.clone(),
            _ => PLAIN,
        };
        self.stage.trace(format_args!("intent {intent}: run {number} begins, {takes_ms} ms, {ends:?}"));
        let half = Duration::from_millis(takes_ms / 2);
        tokio::time::sleep(half).await;
        let charges = match ends {
            Ends::Charged | Ends::ChargedWith202 | Ends::ChargedWith500 | Ends::BreaksOff => true,
            Ends::AnswerLost { .. } => !self.stage.has("service-marks-what-did-not-happen"),
            Ends::BadGateway { charged } | Ends::Breaks { charged } => charged,
            Ends::Failed => self.stage.has("service-charges-then-answers-500"),
            _ => false,
        };
        if charges {
            self.charge(intent, amount);
        }
        tokio::time::sleep(half).await;
        if let (Ends::AnswerLost { half: false }, Some(claim)) = (ends, claim) {
            claim.mark_applied();
        }
        self.answer(intent, amount, ends)
    }

    /// A service that honours keys does it once for each.
    fn charge(&self, intent: usize, amount: u64) {
        let at = self.stage.elapsed();
        let charged = self.ledger.with(intent, |pages| {
            let again = self.plan.settings.keyed && !pages.charges.is_empty();
            if !again {
                pages.charges.push((at, amount));
            }
            !again
        });
        if charged {
            self.stage.count("effects", 1);
            self.stage.trace(format_args!("intent {intent}: charged {amount}"));
        }
    }

    fn answer(&self, intent: usize, amount: u64, ends: Ends) -> Result<Response<Chunks>, io::Error> {
        let (status, body) = match ends {
            Ends::Charged | Ends::BreaksOff | Ends::AnswerLost { half: true } => {
                (201, receipt(intent, amount))
            }
            Ends::ChargedWith202 => (202, r#"{"state":"queued"}"#.to_owned()),
            Ends::ChargedWith500 => (500, receipt(intent, amount)),
            Ends::Declined => (402, format!("declined {intent} over {amount}")),
            Ends::Conflict => (409, format!("conflict {intent} over {amount}")),
            Ends::Failed => (500, "failed".to_owned()),
            Ends::Busy => (503, "busy".to_owned()),
            Ends::Unauthorised => (401, "who are you".to_owned()),
            Ends::Throttled => (429, "slowly".to_owned()),
            Ends::BadGateway { .. } => (502, "bad gateway".to_owned()),
            Ends::Breaks { .. } | Ends::AnswerLost { half: false } => {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        };
        let replayed_5xx = self.plan.settings.on_5xx == On5xx::Replay;
        let is_final = match ends {
            // Where an answer is too large to be kept, that it breaks off is not noticed; its status is final.
            Ends::Charged
            | Ends::ChargedWith202
            | Ends::ChargedWith500
            | Ends::BreaksOff
            | Ends::AnswerLost { .. }
            | Ends::Declined
            | Ends::Conflict => true,
            Ends::Failed | Ends::Busy => replayed_5xx,
            _ => false,
        };
        self.ledger.with(intent, |pages| {
            if is_final {
                let answer = Answer { status, body: body.clone(), not_kept: false };
                pages.finals.push((amount, answer));
            }
            pages.may_hold |= ends == Ends::Unauthorised;
        });
        self.stage.trace(format_args!("intent {intent}: the service answers {status}"));
        let body = Bytes::from(body);
        let mut response = Response::builder().status(status);
        match ends {
            Ends::Busy | Ends::Throttled => response = response.header("retry-after", "1"),
            // A 202 of a service's own may look much like semel's.
            Ends::ChargedWith202 => {
                response = response.header("retry-after", "1").header("content-type", "application/json");
            }
            Ends::ChargedWith500 | Ends::AnswerLost { .. } => {
                response = response.header("idempotency-effect", "applied");
            }
            _ => {}
        }
        let broken = matches!(ends, Ends::BreaksOff | Ends::AnswerLost { .. });
        let body = if broken { Chunks::broken(&body) } else { Chunks::whole(body) };
        response.body(body).map_err(io::Error::other)
    }
}

/// What the service answers when it has charged.
pub(super) fn receipt(intent: usize, amount: u64) -> String {
    format!("receipt {intent} over {amount}")
}
