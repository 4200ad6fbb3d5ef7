//! A realistic client: impatient, persistent, and sometimes careless with its keys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel::http::{Code, headers};
use tokio::task::JoinSet;

use super::ledger::Charge;
use super::line::{Answer, Connection};
use super::plan::{IntentNo, Luck, Send};

/// Max attempts of one send, and its backoff: together far longer than a lease and a restart.
const TRIES_MAX: u32 = 60;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// Timeout for the first answer; it doubles with each attempt.
const PATIENCE: Duration = Duration::from_millis(300);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// How long it retries an uncertain intent before it leaves that to a person.
const DOUBT_MAX: Duration = Duration::from_secs(3);

/// How a send ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The payment was made for this send, as far as its client can tell.
    Paid,
    /// With the answer of an earlier send.
    Replayed,
    /// The outcome is uncertain; the client gives up.
    Held,
    /// In a way that must not happen.
    Wrong(String),
}

/// The result of a send.
#[derive(Clone, Debug)]
pub(super) struct SendResult {
    pub(super) ending: Ending,
    /// Requests sent.
    pub(super) attempts: u64,
    /// No answer: the client hung up, or the connection broke.
    pub(super) unanswered: u64,
    pub(super) failed: u64,
    pub(super) in_flight: u64,
    pub(super) uncertain: u64,
    pub(super) conflicts: u64,
    /// The payment in the final answer.
    pub(super) payment: Option<String>,
}

enum Means {
    Paid { replayed: bool, charge: Charge },
    InFlight,
    Uncertain,
    Conflict,
    Failed,
    Wrong(String),
}

/// Sends payments to a server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) to: SocketAddr,
    pub(super) path: &'static str,
    pub(super) seed: u64,
    /// The server accepts a key for one request only.
    pub(super) guarded: bool,
    /// Some sends also go here: the planted bug.
    pub(super) beside: Option<SocketAddr>,
}

impl Client {
    /// Sends until there is an answer.
    pub(super) async fn send(&self, send: Send) -> SendResult {
        let luck = Luck::of(self.seed, send);
        let mut result = SendResult {
            ending: Ending::Wrong(format!("{} had no answer after {TRIES_MAX} tries", send.intent)),
            attempts: 0,
            unanswered: 0,
            failed: 0,
            in_flight: 0,
            uncertain: 0,
            conflicts: 0,
            payment: None,
        };
        if let Some(beside) = self.beside.filter(|_| send.number.is_multiple_of(50)) {
            let _ =
                Connection::new(beside, self.path).pay(&send.intent.to_string(), send.intent.amount()).await;
        }
        let mut connection = Connection::new(self.to, self.path);
        if let Some(ending) = self.pay(&mut connection, send.intent, &luck, &mut result).await {
            result.ending = ending;
        }
        if luck.reuses && matches!(result.ending, Ending::Paid | Ending::Replayed) {
            let ending = self.reuse(&mut connection, send.intent, &mut result).await;
            result.ending = ending.unwrap_or(result.ending);
        }
        result
    }

    async fn pay(
        &self,
        connection: &mut Connection,
        intent: IntentNo,
        luck: &Luck,
        result: &mut SendResult,
    ) -> Option<Ending> {
        let mut doubt: Option<Instant> = None;
        let (mut pause, mut patience) = (PAUSE_MIN, PATIENCE);
        for attempt in 0..TRIES_MAX {
            let waits = luck.hangs_up.filter(|_| attempt == 0).unwrap_or(patience);
            match ask(connection, intent, intent.amount(), waits, result).await {
                None => patience = (patience * 2).min(PATIENCE_MAX),
                Some(Means::Paid { replayed, charge }) => {
                    if charge.key != intent.to_string() || charge.amount != intent.amount() {
                        return Some(Ending::Wrong(format!("{intent} was answered with {charge:?}")));
                    }
                    result.payment = Some(charge.id);
                    return Some(if replayed { Ending::Replayed } else { Ending::Paid });
                }
                Some(Means::Uncertain) => {
                    result.uncertain += 1;
                    if doubt.get_or_insert_with(Instant::now).elapsed() > DOUBT_MAX {
                        return Some(Ending::Held);
                    }
                    pause = PAUSE_MAX;
                }
                Some(Means::InFlight) => result.in_flight += 1,
                Some(Means::Failed) => result.failed += 1,
                Some(Means::Conflict) => {
                    return Some(Ending::Wrong(format!("{intent} was taken for another request")));
                }
                Some(Means::Wrong(why)) => return Some(Ending::Wrong(why)),
            }
            rest(&mut pause).await;
        }
        None
    }

    /// The same key for another amount: a bug in the client.
    async fn reuse(
        &self,
        connection: &mut Connection,
        intent: IntentNo,
        result: &mut SendResult,
    ) -> Option<Ending> {
        let (mut pause, mut patience) = (PAUSE_MIN, PATIENCE);
        for _ in 0..TRIES_MAX {
            match ask(connection, intent, intent.amount() + 1_000_000, patience, result).await {
                None => patience = (patience * 2).min(PATIENCE_MAX),
                Some(Means::Conflict) => {
                    result.conflicts += 1;
                    return None;
                }
                Some(Means::Paid { .. }) if self.guarded => {
                    return Some(Ending::Wrong(format!("{intent} was paid with another amount")));
                }
                Some(Means::Paid { .. }) => return None,
                Some(Means::Wrong(why)) => return Some(Ending::Wrong(why)),
                Some(Means::Failed) => result.failed += 1,
                Some(Means::InFlight | Means::Uncertain) => {}
            }
            rest(&mut pause).await;
        }
        Some(Ending::Wrong(format!("{intent} with another amount had no answer after {TRIES_MAX} tries")))
    }
}

/// One attempt; `None` without an answer.
async fn ask(
    connection: &mut Connection,
    intent: IntentNo,
    amount: u64,
    patience: Duration,
    result: &mut SendResult,
) -> Option<Means> {
    result.attempts += 1;
    match tokio::time::timeout(patience, connection.pay(&intent.to_string(), amount)).await {
        Ok(Ok(answer)) => Some(means(&answer)),
        Ok(Err(_)) | Err(_) => {
            result.unanswered += 1;
            None
        }
    }
}

fn means(answer: &Answer) -> Means {
    let problem = answer.headers.get(headers::IDEMPOTENCY_PROBLEM).and_then(|code| code.to_str().ok());
    match problem {
        Some(code) if code == Code::InProgress.as_str() => Means::InFlight,
        Some(code) if code == Code::Uncertain.as_str() => Means::Uncertain,
        Some(code) if code == Code::Reused.as_str() => Means::Conflict,
        Some(code) if code == Code::AttemptFailed.as_str() => Means::Failed,
        _ if answer.status.is_server_error() => Means::Failed,
        None if answer.status.is_success() => match serde_json::from_slice(&answer.body) {
            Ok(charge) => {
                Means::Paid { replayed: answer.headers.contains_key(headers::IDEMPOTENCY_REPLAYED), charge }
            }
            Err(error) => Means::Wrong(format!("an answer is not a payment: {error}")),
        },
        problem => Means::Wrong(format!("an answer is {} {}", answer.status, problem.unwrap_or(""))),
    }
}

async fn rest(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// Sends with `tasks` clients at once, and reports the result of each send.
pub(super) async fn from_tasks(
    client: &Client,
    sends: &[Send],
    tasks: u32,
    mut on_result: impl FnMut(Send, SendResult),
) {
    let (sends, next) = (Arc::new(sends.to_vec()), Arc::new(AtomicUsize::new(0)));
    let (results, mut receiver) = tokio::sync::mpsc::channel(tasks as usize);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (client, sends, next, results) =
            (client.clone(), Arc::clone(&sends), Arc::clone(&next), results.clone());
        running.spawn(async move {
            while let Some(send) = sends.get(next.fetch_add(1, Ordering::Relaxed)) {
                if results.send((*send, client.send(*send).await)).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(results);
    while let Some((send, result)) = receiver.recv().await {
        on_result(send, result);
    }
}
