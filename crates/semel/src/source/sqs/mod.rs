//! Amazon SQS, standard and FIFO queues.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | the queue's name |
//! | `place` | `MessageId`, the same whenever it comes again |
//! | `lineage` | region and account, from the queue's ARN |
//! | `key` | `MessageGroupId` |
//! | `headers` | `MessageDeduplicationId`, `MessageGroupId`, `SequenceNumber`, then its attributes that are text |
//! | `deliveries` | `ApproximateReceiveCount` |
//!
//! **Ours for a while.** A received message is invisible to others for the [visibility
//! timeout](SqsSourceOptions::visibility), which [`keep`](Source::keep) prolongs. It is counted from before the request was
//! sent, so that by our clock it is over no later than by SQS's; what is over is [lost](Source::lost), and settling it does
//! nothing. It is deleted after it was said to be done, and not before.
//!
//! **Order** is that of a FIFO queue's groups. A standard queue has none, and may deliver a message twice at once: the
//! inbox tells.
//!
//! **Repeats.** SQS drops what is *sent* again within five minutes. Nothing here relies on it: a message is known by what
//! [`Identify`](super::Identify) finds, `semel-id` unless told otherwise, or
//! `Identify::ByHeader("MessageDeduplicationId".into())` for producers who name messages by that alone.

use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use tokio::task::JoinHandle;

use self::acks::{AckResult, Fate};
use self::in_flight::InFlight;
use super::{Delivery, Receipt, Settle, Source, SourceError};
use crate::sink::sqs::client::{SqsError, queue_name};
use crate::sink::sqs::message::ENTRIES_MAX;
use crate::sink::sqs::queue::Facts;

mod acks;
mod in_flight;
mod options;
mod record;

pub use options::SqsSourceOptions;

/// Longest wait that SQS takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Requests for more, as long as each one brings as many as it can.
const REQUESTS_MAX: usize = 10;

/// How soon it is asked again while messages are handled.
const LOOK: Duration = Duration::from_secs(1);
/// What a whole second may lack to be one: it took a moment to get there.
const A_LITTLE: Duration = Duration::from_millis(50);

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
    held: InFlight,
    /// A request for messages goes on when nobody waits for it: what it brings would be invisible to all.
    asking: Option<Asking>,
    /// Of a request whose answer was lost: asked again under it, a FIFO queue gives the same messages.
    attempt: Option<(String, usize)>,
}

struct Asking {
    attempt: (String, usize),
    answer: JoinHandle<Asked>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.answer.abort();
    }
}

/// Messages, and when they were asked for.
type Asked = Result<(Vec<Message>, Instant), SqsError>;

impl SqsSource {
    /// A source for the queue at this URL.
    pub fn options(url: &str) -> SqsSourceOptions {
        SqsSourceOptions::new(url)
    }

    fn open(options: SqsSourceOptions) -> Result<Self, SourceError> {
        let client = options.access.open(WAIT_MAX).map_err(SourceError::for_good)?;
        Ok(Self { options, client, facts: None, held: InFlight::default(), asking: None, attempt: None })
    }

    /// What in the queue's settings may surprise, each with what to do about it. Also said in the log, once.
    ///
    /// # Errors
    /// When the queue cannot be asked.
    pub async fn check(&mut self) -> Result<Vec<String>, SourceError> {
        let name = queue_name(&self.options.access.url).to_owned();
        Ok(warnings(&name, self.facts().await?))
    }

    async fn facts(&mut self) -> Result<&Facts, SourceError> {
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => {
                let (client, url) = (&self.client, &self.options.access.url);
                let facts = self.within(Facts::ask(client, url)).await?;
                for warning in warnings(queue_name(url), &facts) {
                    tracing::warn!(target: "semel::sqs", "{warning}");
                }
                facts
            }
        };
        Ok(self.facts.insert(facts))
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, SqsError>>) -> Result<T, SourceError> {
        match tokio::time::timeout(self.options.access.timeout, work).await {
            Ok(done) => done.map_err(|trouble| SourceError::later(trouble.told)),
            Err(_) => Err(SourceError::later("SQS did not answer in time")),
        }
    }

    /// Asks for messages and takes them in: as many as came, and were asked for.
    async fn take_in(&mut self, most: usize, wait: Duration) -> Result<(usize, usize), SourceError> {
        let facts = self.facts().await?;
        let (fifo, lineage) = (facts.fifo, facts.lineage.clone());
        if self.asking.is_none() {
            // Asked again under its name, a request is to be the same request.
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
                let told = request.send().await.map_err(|error| SqsError::of(&error))?;
                Ok((told.messages.unwrap_or_default(), begun))
            });
            self.asking = Some(Asking { attempt, answer });
        }
        let bound = wait.min(WAIT_MAX) + self.options.access.timeout;
        let Some(asking) = &mut self.asking else { return Ok((0, 1)) };
        // It goes on by itself, and the next call gets its answer.
        let Ok(answer) = tokio::time::timeout(bound, &mut asking.answer).await else {
            return Err(SourceError::later("SQS did not answer in time"));
        };
        let attempt = std::mem::take(&mut asking.attempt);
        self.asking = None;
        let (messages, begun) = match answer {
            Ok(Ok(came)) => came,
            Ok(Err(trouble)) => {
                if trouble.maybe_done {
                    self.attempt = Some(attempt);
                }
                return Err(SourceError::later(trouble.told));
            }
            Err(ended) => return Err(SourceError::later(ended)),
        };
        let came = messages.len();
        self.held.run_out(Instant::now());
        for message in messages {
            // Without a handle it cannot be settled; it comes again.
            let Some(handle) = message.receipt_handle().map(str::to_owned) else { continue };
            let delivery =
                record::delivery(&message, queue_name(&self.options.access.url), lineage.as_deref());
            self.held.came(delivery, handle, begun + self.options.visibility, fifo);
        }
        Ok((came, attempt.1))
    }

    /// Says to SQS what became of messages; what it heard, and what is not ours any more, is forgotten.
    async fn tell(&mut self, receipts: &[Receipt], fate: Fate) -> Result<(), SourceError> {
        let now = Instant::now();
        let ours: Vec<(Receipt, String)> = receipts
            .iter()
            .filter_map(|receipt| Some((*receipt, self.held.handle(*receipt, now)?.to_owned())))
            .collect();
        let until = tokio::time::Instant::now() + self.options.access.timeout;
        let told = acks::tell(&self.client, &self.options.access.url, &ours, fate, until).await;
        let mut unheard: Option<String> = None;
        for (receipt, told) in told {
            match (told, fate) {
                (AckResult::Heard, Fate::Keep(visibility)) => self.held.kept(receipt, now + visibility),
                (AckResult::Heard, _) => self.held.forget(receipt),
                (AckResult::NotOurs, _) => self.held.taken(receipt),
                (AckResult::Unheard(why), _) => drop(unheard.get_or_insert(why)),
            }
        }
        unheard.map_or(Ok(()), |why| Err(SourceError::later(why)))
    }
}

impl Source for SqsSource {
    /// SQS waits for whole seconds. What is left of a wait is slept through, and then it is looked once more.
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let until = Instant::now() + wait;
        let mut requests = 0;
        while self.held.waiting() < most && requests < REQUESTS_MAX {
            let has = self.held.waiting() > 0;
            let left = if has { Duration::ZERO } else { until.saturating_duration_since(Instant::now()) };
            let whole = Duration::from_secs((left + A_LITTLE).as_secs());
            let (came, asked) = match self.take_in(most - self.held.waiting(), whole).await {
                // What came before it is given all the same.
                Err(_) if has => break,
                taken => taken?,
            };
            requests += 1;
            if came == 0 && !has {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(Duration::from_secs(1))).await;
            } else if came < asked {
                break;
            }
        }
        Ok(self.held.give(most, Instant::now()))
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        let of = |wanted: Settle| -> Vec<Receipt> {
            settled.iter().filter(|(_, settle)| *settle == wanted).map(|(receipt, _)| *receipt).collect()
        };
        let done = self.tell(&of(Settle::Ack), Fate::Delete).await;
        let again = of(Settle::Nack);
        // A group goes on with what is given back, and not while anything behind it is with us.
        let behind = self.held.behind(&again);
        let mut back = [again, behind.clone()].concat();
        back.sort_unstable();
        let worked_on: Vec<Receipt> =
            behind.iter().copied().filter(|receipt| !self.held.waits(*receipt)).collect();
        let again = self.tell(&back, Fate::GiveBack).await;
        behind.into_iter().for_each(|receipt| self.held.forget(receipt));
        worked_on.into_iter().for_each(|receipt| self.held.taken(receipt));
        done.and(again)
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        let held = self.held.with_waiting(held);
        self.tell(&held, Fate::Keep(self.options.visibility)).await
    }

    fn renew_after(&self) -> Duration {
        self.options.visibility / 3
    }

    /// A request costs the same whether it waits or not, and whether it brings anything.
    fn poll_interval(&self) -> Duration {
        LOOK
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.held.lost(Instant::now())
    }

    async fn retention(&mut self) -> Option<Duration> {
        self.facts().await.ok()?.retention
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        if self.asking.is_some() {
            // What it brings has to be given back too.
            let waited =
                tokio::time::timeout(self.options.access.timeout, self.take_in(1, Duration::ZERO)).await;
            if !matches!(waited, Ok(Ok(_))) {
                tracing::debug!(target: "semel::sqs", "a request for messages was left; what it took is seen again soon");
            }
            self.asking = None;
        }
        let all = self.held.all();
        let told = self.tell(&all, Fate::GiveBack).await;
        self.held = InFlight::default();
        told
    }
}

/// Whole seconds, as SQS counts.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

fn warnings(name: &str, facts: &Facts) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((receipts, to)) = &facts.redrive {
        let order = match facts.fifo {
            true => ", and what is behind it in its group goes on without it",
            false => "",
        };
        warnings.push(format!(
            "SQS moves a message of {name:?} to {to} when it was received {receipts} times, also where it was only given back \
             or a consumer died with it{order}; let maxReceiveCount be far above the tries of the consumer, which buries \
             with a reason what cannot be handled"
        ));
    }
    if !facts.fifo {
        warnings.push(format!("{name:?} is a standard queue: messages of one key have no order"));
    }
    warnings
}
