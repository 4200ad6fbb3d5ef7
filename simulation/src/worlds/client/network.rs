//! The network between client and server: a transport in memory that loses, delays, repeats and breaks off.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use semel::http::Code;
use tokio::sync::oneshot;
use tower_service::Service;

use super::body::Chunks;
use super::ledger::Sent;
use super::plan::Delivery;
use super::scene::Scene;
use super::server::{Reply, intent_of, response};

/// How long a proxy takes to answer by itself.
const PROXY_TAKES: Duration = Duration::from_millis(50);

/// One process's way into the network.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) scene: Arc<Scene>,
    pub(super) process: usize,
    /// Nothing gets out: for reading the journal when all is over.
    pub(super) closed: bool,
}

type Answer = Result<Response<Chunks>, io::Error>;

impl Service<Request<Full<Bytes>>> for Network {
    type Response = Response<Chunks>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let network = self.clone();
        Box::pin(async move {
            if network.closed {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (reply, answer) = oneshot::channel();
            let scene = &network.scene;
            let (request, body) = read(request).await;
            let intent = intent_of(&body).ok_or_else(|| io::Error::other("not a request of this world"))?;
            let (request, delivery) = scene.leaves(request, intent, network.process);
            // On its way whatever becomes of the sender.
            tokio::spawn(carry(Arc::clone(scene), intent, request, delivery, reply));
            answer.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into()))
        })
    }
}

async fn read(request: Request<Full<Bytes>>) -> (Request<Full<Bytes>>, Bytes) {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await;
    let body = body.to_bytes();
    (Request::from_parts(head, Full::new(body.clone())), body)
}

impl Scene {
    /// Writes down that a request leaves, and says what becomes of it.
    fn leaves(
        &self,
        mut request: Request<Full<Bytes>>,
        intent: usize,
        process: usize,
    ) -> (Request<Full<Bytes>>, Delivery) {
        let (set_backs, unnoticed_set_backs) = self.machine.set_backs();
        let sent = Sent { at: self.stage.elapsed(), unnoticed_set_backs, set_backs };
        let number = self.ledger.with(intent, |pages| {
            pages.sent.push(sent);
            pages.sent.len()
        });
        self.stage.count("requests", 1);
        let delivery = match self.plan.intents[intent].deliveries.get(number - 1) {
            _ if self.machine.is_network_down(&self.stage) => Delivery::Refused,
            Some(delivery) if !self.is_calm() => delivery.clone(),
            _ => Delivery::Arrives { there_ms: 5, back_ms: 5 },
        };
        self.stage
            .trace(format_args!("intent {intent}: request {number} leaves process {process}: {delivery:?}"));
        let headers = request.headers_mut();
        if number > 1 && self.stage.has("key-lost-on-retries") {
            headers.remove("idempotency-key");
        }
        if self.stage.has("new-key-for-each-attempt")
            && let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok())
            && let Ok(key) = format!("{key}-{number}").parse()
        {
            headers.insert("idempotency-key", key);
        }
        (request, delivery)
    }

    /// Writes down what the client is about to read.
    fn arrives(&self, intent: usize, answer: Answer) -> Answer {
        match &answer {
            Ok(response) => {
                let status = response.status();
                let named = response.headers().get("idempotency-problem").and_then(|code| code.to_str().ok());
                let code = named.and_then(|named| Code::ALL.into_iter().find(|code| code.as_str() == named));
                let replayed = ["idempotency-replayed", "idempotent-replayed"]
                    .iter()
                    .any(|name| response.headers().contains_key(*name));
                let about_the_caller = matches!(status.as_u16(), 401 | 403 | 407 | 413 | 431);
                let is_final = code.is_some_and(|code| !code.retryable());
                self.ledger.with(intent, |pages| pages.may_hold |= about_the_caller || is_final);
                self.stage.count("replays", u64::from(replayed));
                self.stage.count("uncertain", u64::from(code == Some(Code::Uncertain)));
                self.stage.count("mismatches", u64::from(code == Some(Code::Reused)));
                self.stage.count("in progress", u64::from(code == Some(Code::InProgress)));
                let said = named.unwrap_or(if replayed { "replayed" } else { "" });
                self.stage.trace(format_args!("intent {intent}: {status} arrives {said}"));
            }
            Err(error) => self.stage.trace(format_args!("intent {intent}: {}", error.kind())),
        }
        answer
    }
}

/// From the sender to the server and back.
async fn carry(
    scene: Arc<Scene>,
    intent: usize,
    request: Request<Full<Bytes>>,
    delivery: Delivery,
    mut reply: oneshot::Sender<Answer>,
) {
    let ms = Duration::from_millis;
    let lost = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
    let answer = match delivery {
        Delivery::Refused => {
            scene.stage.count("connections refused", 1);
            Err(io::ErrorKind::ConnectionRefused.into())
        }
        Delivery::RequestLost => {
            scene.stage.count("requests lost", 1);
            lost()
        }
        Delivery::RequestSwallowed => {
            scene.stage.count("requests lost", 1);
            return reply.closed().await;
        }
        Delivery::Arrives { there_ms, back_ms } => {
            tokio::time::sleep(ms(there_ms)).await;
            let Some(answer) = serve(&scene, request, &mut reply).await else { return };
            tokio::time::sleep(ms(back_ms)).await;
            given(&scene, answer, false)
        }
        Delivery::AnswerLost => {
            let Some(_) = serve(&scene, request, &mut reply).await else { return };
            scene.stage.count("answers lost", 1);
            lost()
        }
        Delivery::AnswerSwallowed => {
            let Some(_) = serve(&scene, request, &mut reply).await else { return };
            scene.stage.count("answers lost", 1);
            return reply.closed().await;
        }
        Delivery::BreaksOff => {
            let Some(answer) = serve(&scene, request, &mut reply).await else { return };
            scene.stage.count("answers broken off", 1);
            given(&scene, answer, true)
        }
        Delivery::ArrivesTwice { later_ms } => {
            scene.stage.count("requests doubled", 1);
            let (second, scene_of_second) = (request.clone(), Arc::clone(&scene));
            tokio::spawn(async move {
                tokio::time::sleep(ms(later_ms)).await;
                drop(scene_of_second.server.serve(second).await);
            });
            let Some(answer) = serve(&scene, request, &mut reply).await else { return };
            given(&scene, answer, false)
        }
        Delivery::Proxy { status, retry_after, passes } => {
            scene.stage.count("answers of proxies", 1);
            if passes {
                let scene = Arc::clone(&scene);
                tokio::spawn(async move { drop(scene.server.serve(request).await) });
            }
            tokio::time::sleep(PROXY_TAKES).await;
            let mut response = Response::builder().status(status);
            if let Some(seconds) = retry_after {
                response = response.header("retry-after", seconds);
            }
            response.body(Chunks::whole("proxy")).map_err(io::Error::other)
        }
    };
    if reply.is_closed() {
        return;
    }
    let _ = reply.send(scene.arrives(intent, answer));
}

/// `None` when the client has closed the connection and the server noticed.
async fn serve(
    scene: &Scene,
    request: Request<Full<Bytes>>,
    reply: &mut oneshot::Sender<Answer>,
) -> Option<Reply> {
    let notices = scene.plan.settings.notices_hang_ups;
    let mut served = Box::pin(scene.server.serve(request));
    tokio::select! {
        biased;
        answer = &mut served => Some(answer),
        () = poll_fn(|context| reply.poll_closed(context)), if notices => {
            scene.stage.count("hang-ups", 1);
            None
        }
    }
}

fn given(scene: &Scene, reply: Reply, break_off: bool) -> Answer {
    let (mut head, body, breaks_off) = reply?;
    let in_progress = head.status.as_u16() == 202 && body.starts_with(br#"{"state":"in_progress""#);
    if in_progress {
        scene.stage.count("202 of the layer", 1);
        if scene.stage.has("proxy-strips-headers") {
            head.headers.remove("retry-after");
            head.headers.remove("idempotency-problem");
        }
    }
    Ok(response(head, &body, breaks_off || break_off))
}
