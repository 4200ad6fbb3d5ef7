//! Amazon SQS, standard and FIFO queues.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | the queue's name |
//! | `place` | `MessageId`, the same for every redelivery |
//! | `lineage` | region and account, from the queue's ARN |
//! | `key` | `MessageGroupId` |
//! | `headers` | `MessageDeduplicationId`, `MessageGroupId`, `SequenceNumber`, then its text attributes |
//! | `deliveries` | `ApproximateReceiveCount` |
//!
//! **Leases.** A received message is invisible to others for the [visibility
//! timeout](SqsSourceOptions::visibility), which [`keep`](Source::keep) extends. It is counted from before the request
//! was sent, so that by our clock it expires no later than by SQS's. An expired message is [lost](Source::lost), and
//! settling it does nothing. A message is deleted only after its ack.
//!
//! **Order** is that of a FIFO queue's message groups. A standard queue has none, and may deliver a message twice at
//! once: the inbox deduplicates it.
//!
//! **Deduplication.** SQS drops what is *sent* again within five minutes. Nothing here relies on it: the inbox uses the
//! id that [`Identify`](crate::source::Identify) finds, by default `semel-id`. Set
//! `Identify::ByHeader("MessageDeduplicationId".into())` for producers that write no other id.
//!
//! | module | what it decides |
//! |---|---|
//! | `acks` | deletes messages and changes their visibility timeout, ten at a time |
//! | `in_flight` | messages in flight, and when their leases (visibility timeout) expire |
//! | `record` | from an SQS message to a delivery |
//! | `options` | which queue, with which credentials |

use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use futures_util::TryFutureExt;
use tokio::task::JoinHandle;

use self::acks::{AckAction, AckResult};
use self::in_flight::InFlight;
use crate::broker::sqs::client::{SqsError, queue_name};
use crate::broker::sqs::message::ENTRIES_MAX;
use crate::broker::sqs::queue::Facts;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};
use crate::timeout::bounded;

mod acks;
mod in_flight;
mod options;
mod record;

pub use options::SqsSourceOptions;

/// Longest long poll that SQS accepts.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Requests in one `receive`, as long as each one comes back full.
const REQUESTS_MAX: usize = 10;

/// Wait between polls while messages are in flight.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A wait this much short of a whole second still counts as one: the call itself took a moment.
const ROUNDING_SLACK: Duration = Duration::from_millis(50);

/// Receives from an SQS queue.
///
/// ```no_run
/// use semel::source::sqs::SqsSource;
///
/// let source = SqsSource::options("https://sqs.eu-west-1.amazonaws.com/123456789012/payments.fifo").open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct SqsSource {
    options: SqsSourceOptions,
    client: Client,
    facts: Option<Facts>,
    in_flight: InFlight,
    /// A receive request goes on when its caller is cancelled: else its messages would stay invisible to everyone.
    pending: Option<PendingReceive>,
    /// Attempt id of a request whose answer was lost: repeated with it, a FIFO queue returns the same messages.
    attempt: Option<(String, usize)>,
}

struct PendingReceive {
    attempt: (String, usize),
    answer: JoinHandle<ReceiveAnswer>,
}

impl Drop for PendingReceive {
    fn drop(&mut self) {
        self.answer.abort();
    }
}

/// Messages, and when they were requested.
type ReceiveAnswer = Result<(Vec<Message>, Instant), SqsError>;

impl SqsSource {
    /// A source for the queue at this URL.
    pub fn options(url: &str) -> SqsSourceOptions {
        SqsSourceOptions::new(url)
    }

    fn open(options: SqsSourceOptions) -> Result<Self, SourceError> {
        let client = options.access.open(WAIT_MAX).map_err(SourceError::for_good)?;
        Ok(Self {
            options,
            client,
            facts: None,
            in_flight: InFlight::default(),
            pending: None,
            attempt: None,
        })
    }

    /// Warnings about the queue's settings, each with what to do about it. Also logged, once.
    ///
    /// # Errors
    /// When the queue's attributes cannot be read.
    pub async fn check(&mut self) -> Result<Vec<String>, SourceError> {
        let name = queue_name(&self.options.access.url).to_owned();
        Ok(warnings(&name, self.facts().await?))
    }

    async fn facts(&mut self) -> Result<&Facts, SourceError> {
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => {
                let (client, url) = (&self.client, &self.options.access.url);
                let asked = Facts::ask(client, url).map_err(|error| SourceError::later(error.message));
                let facts = bounded(self.options.access.timeout, asked, late).await?;
                for warning in warnings(queue_name(url), &facts) {
                    tracing::warn!(target: "semel::sqs", "{warning}");
                }
                facts
            }
        };
        Ok(self.facts.insert(facts))
    }

    /// Receives messages into the buffer. Returns how many arrived, and how many were requested.
    async fn take_in(&mut self, most: usize, wait: Duration) -> Result<(usize, usize), SourceError> {
        let facts = self.facts().await?;
        let (fifo, lineage) = (facts.fifo, facts.lineage.clone());
        if self.pending.is_none() {
            // A request repeated under its attempt id has to be the same request.
            let attempt = self.attempt.take();
            let attempt =
                attempt.unwrap_or_else(|| (uuid::Uuid::now_v7().to_string(), most.clamp(1, ENTRIES_MAX)));
            let request = self
                .client
                .receive_message()
                .queue_url(&self.options.access.url)
                .max_number_of_messages(i32::try_from(attempt.1).unwrap_or(1))
                .visibility_timeout(seconds(self.options.visibility))
                .wait_time_seconds(seconds(wait.min(WAIT_MAX).min(self.options.visibility / 3)))
                .set_receive_request_attempt_id(fifo.then(|| attempt.0.clone()))
                .message_system_attribute_names(MessageSystemAttributeName::All)
                .message_attribute_names("All");
            let answer = tokio::spawn(async move {
                let begun = Instant::now();
                let answer = request.send().await.map_err(|error| SqsError::of(&error))?;
                Ok((answer.messages.unwrap_or_default(), begun))
            });
            self.pending = Some(PendingReceive { attempt, answer });
        }
        let bound = wait.min(WAIT_MAX) + self.options.access.timeout;
        let Some(pending) = &mut self.pending else { return Ok((0, 1)) };
        // The request goes on, and the next call gets its answer.
        let Ok(answer) = tokio::time::timeout(bound, &mut pending.answer).await else {
            return Err(late());
        };
        let attempt = std::mem::take(&mut pending.attempt);
        self.pending = None;
        let (messages, begun) = match answer {
            Ok(Ok(received)) => received,
            Ok(Err(error)) => {
                if error.maybe_done {
                    self.attempt = Some(attempt);
                }
                return Err(SourceError::later(error.message));
            }
            Err(error) => return Err(SourceError::later(error)),
        };
        let received = messages.len();
        self.in_flight.drop_expired(Instant::now());
        for message in messages {
            // Without a handle it cannot be settled; SQS redelivers it.
            let Some(handle) = message.receipt_handle().map(str::to_owned) else { continue };
            let delivery =
                record::delivery(&message, queue_name(&self.options.access.url), lineage.as_deref());
            self.in_flight.arrived(delivery, handle, begun + self.options.visibility, fifo);
        }
        Ok((received, attempt.1))
    }

    /// Sends acks, nacks or lease extensions. Forgets what SQS confirmed, and what is no longer ours.
    async fn send(&mut self, receipts: &[Receipt], action: AckAction) -> Result<(), SourceError> {
        let now = Instant::now();
        let ours: Vec<(Receipt, String)> = receipts
            .iter()
            .filter_map(|receipt| Some((*receipt, self.in_flight.handle(*receipt, now)?.to_owned())))
            .collect();
        let until = tokio::time::Instant::now() + self.options.access.timeout;
        let results = acks::send(&self.client, &self.options.access.url, &ours, action, until).await;
        let mut unconfirmed: Option<String> = None;
        for (receipt, result) in results {
            match (result, action) {
                (AckResult::Confirmed, AckAction::Extend(visibility)) => {
                    self.in_flight.extended(receipt, now + visibility)
                }
                (AckResult::Confirmed, _) => self.in_flight.forget(receipt),
                (AckResult::NotOurs, _) => self.in_flight.mark_lost(receipt),
                (AckResult::Unconfirmed(why), _) => drop(unconfirmed.get_or_insert(why)),
            }
        }
        unconfirmed.map_or(Ok(()), |why| Err(SourceError::later(why)))
    }
}

impl Source for SqsSource {
    /// SQS waits for whole seconds only. This sleeps through the rest of the wait, then polls once more.
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let until = Instant::now() + wait;
        let mut requests = 0;
        while self.in_flight.waiting() < most && requests < REQUESTS_MAX {
            let has = self.in_flight.waiting() > 0;
            let left = if has { Duration::ZERO } else { until.saturating_duration_since(Instant::now()) };
            let whole = Duration::from_secs((left + ROUNDING_SLACK).as_secs());
            let (received, asked) = match self.take_in(most - self.in_flight.waiting(), whole).await {
                // What arrived before the error is delivered all the same.
                Err(_) if has => break,
                taken => taken?,
            };
            requests += 1;
            if received == 0 && !has {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(Duration::from_secs(1))).await;
            } else if received < asked {
                break;
            }
        }
        Ok(self.in_flight.give(most, Instant::now()))
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        let of = |wanted: Settle| -> Vec<Receipt> {
            settled.iter().filter(|(_, settle)| *settle == wanted).map(|(receipt, _)| *receipt).collect()
        };
        let acked = self.send(&of(Settle::Ack), AckAction::Delete).await;
        let nacked = of(Settle::Nack);
        // A group continues with the nacked message, so everything behind it has to go back too.
        let behind = self.in_flight.behind(&nacked);
        let mut back = [nacked, behind.clone()].concat();
        back.sort_unstable();
        let delivered: Vec<Receipt> =
            behind.iter().copied().filter(|receipt| !self.in_flight.is_waiting(*receipt)).collect();
        let nacked = self.send(&back, AckAction::Release).await;
        behind.into_iter().for_each(|receipt| self.in_flight.forget(receipt));
        delivered.into_iter().for_each(|receipt| self.in_flight.mark_lost(receipt));
        acked.and(nacked)
    }

    async fn keep(&mut self, in_flight: &[Receipt]) -> Result<(), SourceError> {
        let in_flight = self.in_flight.with_waiting(in_flight);
        self.send(&in_flight, AckAction::Extend(self.options.visibility)).await
    }

    fn renew_after(&self) -> Duration {
        self.options.visibility / 3
    }

    /// SQS charges per request, also for an empty one.
    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.in_flight.lost(Instant::now())
    }

    async fn retention(&mut self) -> Option<Duration> {
        self.facts().await.ok()?.retention
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        if self.pending.is_some() {
            // What it receives has to be given back too.
            let waited =
                tokio::time::timeout(self.options.access.timeout, self.take_in(1, Duration::ZERO)).await;
            if !matches!(waited, Ok(Ok(_))) {
                tracing::debug!(
                    target: "semel::sqs",
                    "gave up on a receive request; its messages are visible again after the visibility timeout"
                );
            }
            self.pending = None;
        }
        let all = self.in_flight.all();
        let released = self.send(&all, AckAction::Release).await;
        self.in_flight = InFlight::default();
        released
    }
}

fn late() -> SourceError {
    SourceError::later("SQS did not answer in time")
}

/// Whole seconds, as SQS counts them.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

fn warnings(name: &str, facts: &Facts) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((receipts, to)) = &facts.redrive {
        let order = match facts.fifo {
            true => ", and the messages behind it in its group continue without it",
            false => "",
        };
        warnings.push(format!(
            "SQS moves a message of {name:?} to {to} after {receipts} receives, also if it was only given back or a \
             consumer crashed with it{order}; set maxReceiveCount far above the consumer's max attempts: the consumer \
             dead-letters failing messages itself, with the reason"
        ));
    }
    if !facts.fifo {
        warnings.push(format!(
            "{name:?} is a standard queue: messages of one key have no order; use a FIFO queue if they need it"
        ));
    }
    warnings
}
