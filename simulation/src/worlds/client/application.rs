//! The application: it calls its clients, keeps its keys, and goes on with the same key while it is in doubt.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use semel::http::BufferedBody;
use semel::http::client::decide::Why;
use semel::http::client::durable::{DurableError, End, FromJournal};
use semel::http::client::{ClientError, FirstSent};

use super::body::Chunks;
use super::ledger::{Answer, Given, Seen, request_body};
use super::machine::Client;
use super::plan::Call;
use super::scene::{Scene, TENANT};

/// The amount of an intent, and of another request under its key.
pub(super) fn amount(intent: usize, other_request: bool) -> u64 {
    let amount = 1_000 + intent as u64;
    if other_request { 10 * amount } else { amount }
}

impl Scene {
    /// One call, until it has an end.
    pub(super) async fn call(self: Arc<Self>, intent: usize, call: Call, process: usize, client: Client) {
        let amount = amount(intent, call.other_request);
        let calls = async {
            if self.plan.intents[intent].durable {
                self.call_durable(intent, amount, process, &client).await
            } else {
                self.call_plain(intent, amount, process, &client).await
            }
        };
        let given = match call.leaves_after_ms {
            None => calls.await,
            Some(after_ms) => match tokio::time::timeout(Duration::from_millis(after_ms), calls).await {
                Ok(given) => given,
                Err(_) => {
                    self.stage.count("callers that leave", 1);
                    self.stage.trace(format_args!("intent {intent}: its caller stops waiting"));
                    return;
                }
            },
        };
        self.ledger.with(intent, |pages| pages.seen.push(Seen { amount, given }));
    }

    fn request(&self, intent: usize, amount: u64, process: usize) -> (http::request::Builder, String) {
        let (order, _) = self.order(intent);
        let request = Request::post("http://payments.example/payments")
            .header("content-type", "application/json")
            .header("x-tenant-id", TENANT)
            .header("authorization", self.token(process))
            .extension(order.key);
        (request, request_body(intent, amount))
    }

    async fn call_durable(&self, intent: usize, amount: u64, process: usize, client: &Client) -> Given {
        let (request, body) = self.request(intent, amount, process);
        let Ok(request) = request.body(body) else { return Given::Other };
        let begun = self.stage.elapsed();
        let sent = client.durable.send(request).await;
        self.call_took(intent, begun);
        match sent {
            Ok(response) => {
                let from_journal = response.extensions().get::<FromJournal>().is_some();
                self.stage.count("answers from the journal", u64::from(from_journal));
                self.answered(intent, response).await
            }
            Err(error) => {
                self.stage.trace(format_args!("intent {intent}: no answer, {error}"));
                match error {
                    DurableError::Client(error) => self.gave_up(&error, true),
                    DurableError::Mismatch => {
                        self.stage.count("mismatches", 1);
                        Given::Other
                    }
                    _ => Given::Other,
                }
            }
        }
    }

    /// Without a journal the application keeps the key and when it first sent it, and goes on while it is in doubt.
    async fn call_plain(&self, intent: usize, amount: u64, process: usize, client: &Client) -> Given {
        let (order, mut is_first) = self.order(intent);
        loop {
            let (mut request, body) = self.request(intent, amount, process);
            if !is_first {
                request = request.extension(FirstSent(order.first_sent));
            }
            is_first = false;
            let Ok(request) = request.body(body) else { return Given::Other };
            let begun = self.stage.elapsed();
            let sent = client.plain.send(request).await;
            self.call_took(intent, begun);
            let error = match sent {
                Ok(response) => return self.answered(intent, response).await,
                Err(error) => error,
            };
            self.stage.trace(format_args!("intent {intent}: no answer, {error}"));
            match &error {
                ClientError::InDoubt(gave_up) if matches!(gave_up.why, Why::Attempts | Why::Time) => {
                    self.stage.count("rounds in doubt", 1);
                    tokio::time::sleep(Duration::from_millis(self.plan.settings.resume_every_ms)).await;
                }
                _ => return self.gave_up(&error, false),
            }
        }
    }

    fn gave_up(&self, error: &ClientError, durable: bool) -> Given {
        match error {
            ClientError::AnswerLost(_) => {
                self.stage.count("done, answer lost", 1);
                Given::AnswerLost
            }
            // What is written down is going to be sent all the same.
            _ if durable => Given::Other,
            ClientError::NotSent(_) => {
                self.stage.count("not sent", 1);
                Given::NotSent
            }
            ClientError::Refused(gave_up) if gave_up.why != Why::Mismatch => {
                self.stage.count("refused", 1);
                Given::Refused
            }
            _ => Given::Other,
        }
    }

    async fn answered(&self, intent: usize, response: Response<BufferedBody<Chunks>>) -> Given {
        let Some(answer) = read(response).await else { return Given::Other };
        self.stage.count("answered", 1);
        self.stage.trace(format_args!("intent {intent}: a caller has {} {:?}", answer.status, answer.body));
        Given::Answer(answer)
    }

    /// What a resume came to is given to somebody, too.
    pub(super) async fn was_resumed(&self, intent: usize, end: End<Chunks>) {
        match end {
            End::Answered(response) => {
                let given = self.answered(intent, *response).await;
                self.resumed_to(intent, given);
            }
            End::AnswerLost(_) => {
                self.stage.count("done, answer lost", 1);
                self.resumed_to(intent, Given::AnswerLost);
            }
            End::Expired => self.stage.count("expired", 1),
            _ => {}
        }
    }

    fn resumed_to(&self, intent: usize, given: Given) {
        let seen = Seen { amount: amount(intent, false), given };
        // Which of two requests was written down first is not known here; the journal is read at the end.
        let sure = self.plan.intents[intent].calls.iter().all(|call| !call.other_request);
        if sure {
            self.ledger.with(intent, |pages| pages.seen.push(seen));
        }
    }

    fn call_took(&self, intent: usize, begun: Duration) {
        let took = self.stage.elapsed().saturating_sub(begun);
        self.ledger.with(intent, |pages| pages.longest_call = pages.longest_call.max(took));
    }
}

/// `None` for what is about the caller and no answer to the intent, and for a body that breaks.
pub(super) async fn read(response: Response<BufferedBody<Chunks>>) -> Option<Answer> {
    let status = response.status().as_u16();
    let not_kept = response.headers().contains_key("idempotency-body");
    let body = response.into_body().collect().await.ok()?.to_bytes();
    let about_the_caller = matches!(status, 401 | 403 | 407 | 413 | 431);
    let body = String::from_utf8_lossy(&body).into_owned();
    (!about_the_caller).then_some(Answer { status, body, not_kept })
}
