//! Amazon SQS, FIFO queues: in order, and duplicates dropped for five minutes.
//!
//! | in the message | from the event |
//! |---|---|
//! | `MessageDeduplicationId` | its id, a dot, SHA-256 of its topic: a repeat within 5 minutes is acked, not stored |
//! | `MessageGroupId` | the key it is ordered by, `sha256:…` if SQS does not accept it; else the deduplication id |
//! | body | its payload; in base64 if it is not text (`semel-encoding`) |
//! | attributes | the common headers, see [`headers`](crate::sink::headers), and `semel-topic` |
//! | `semel-headers` | its own headers as JSON, if they do not fit into SQS's ten attributes |
//!
//! **Queues.** All topics go to the queue of the URL, or each to its own if the URL contains `{topic}`.
//!
//! **Order.** At most one event of a key is in flight. SQS answers each message of a batch separately and may reject
//! one and accept the next, which would then overtake it.
//!
//! **An event in doubt** is sent again as long as SQS still deduplicates it. After that it is [parked](InDoubt::Park).
//! What an earlier relay sent is unknown: such an event is sent again, however late.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use self::unconfirmed::Unconfirmed;
use crate::broker::sqs::client::{SqsError, queue_name};
use crate::broker::sqs::message::{self, Message};
use crate::broker::sqs::queue::Facts;
use crate::outbox::Event;
use crate::sink::key_queues::KeyQueues;
use crate::sink::publish_results::PublishResults;
use crate::sink::repeats::deduplication_id;
use crate::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

mod options;
mod unconfirmed;

pub use options::{InDoubt, SqsOptions};

/// Most requests in flight at once.
const REQUESTS_MAX: usize = 8;
/// Stands for the event's topic in a URL.
const TOPIC: &str = "{topic}";
/// Longest name of a queue.
const NAME_CHARS_MAX: usize = 80;

/// Publishes to Amazon SQS.
///
/// ```no_run
/// use semel::sink::sqs::SqsSink;
///
/// let sink = SqsSink::options("https://sqs.eu-west-1.amazonaws.com/123456789012/payments.fifo").open()?;
/// # drop(sink); Ok::<(), semel::sink::SinkError>(())
/// ```
pub struct SqsSink {
    options: SqsOptions,
    client: Client,
    unconfirmed: Unconfirmed,
    violations: Vec<String>,
}

/// The outcome of one message of a request.
enum Outcome {
    Confirmed,
    Failed { reason: String, maybe: bool },
    Refused { reason: String },
}

impl SqsSink {
    /// Options of a sink for the queue at this URL, whose name ends in `.fifo`.
    pub fn options(url: &str) -> SqsOptions {
        SqsOptions::new(url)
    }

    fn open(options: SqsOptions) -> Result<Self, SinkError> {
        let client = options.access.open(Duration::ZERO).map_err(SinkError::not_published)?;
        let violations = not_fifo(&options.access.url).into_iter().collect();
        Ok(Self { client, unconfirmed: Unconfirmed::new(options.window), violations, options })
    }

    /// The URL of a topic's queue. An error: the topic cannot be part of a queue's name.
    fn queue(&self, topic: &str) -> Result<String, String> {
        let url = self.options.access.url.replace(TOPIC, topic);
        let name = queue_name(&url);
        let stem = name.strip_suffix(".fifo").unwrap_or(name);
        let fits = url.len() - name.len() == self.options.access.url.rfind('/').map_or(0, |at| at + 1)
            && name.len() <= NAME_CHARS_MAX
            && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        fits.then_some(url).ok_or_else(|| {
            format!(
                "the topic {topic:?} makes no valid queue name: only letters, digits, - and _ are allowed, at most \
                 {NAME_CHARS_MAX} characters"
            )
        })
    }

    /// The messages of a round that can be sent, by queue. The others get their results here.
    fn prepare(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) -> Vec<(String, Vec<(usize, Message)>)> {
        let now = Instant::now();
        let mut by_queue: Vec<(String, Vec<(usize, Message)>)> = Vec::new();
        for &n in round {
            let event = &events[n];
            let made = self.queue(event.topic()).and_then(|url| Ok((url, Message::of(event)?)));
            let (url, message) = match made {
                Ok(made) => made,
                Err(reason) => {
                    answers.set(n, Published::Refused(SinkError::not_published(reason)));
                    continue;
                }
            };
            let (bytes, most) = (message.bytes(), self.options.message_bytes);
            if bytes > most {
                let reason = format!(
                    "the message has {bytes} bytes, but {most} are allowed: store the payload and send a reference"
                );
                answers.set(n, Published::Refused(SinkError::not_published(reason)));
                continue;
            }
            let late = self.unconfirmed.too_late(&message.id, now.into_std(), until.into_std());
            if let (Some(ago), InDoubt::Park) = (late, self.options.in_doubt) {
                // Refused once only: if an operator has the event retried after checking the queue, it is sent.
                self.unconfirmed.known(&message.id);
                answers.set(n, Published::Refused(SinkError::maybe_published(parked(ago, event))));
                continue;
            }
            match by_queue.iter_mut().find(|(there, _)| *there == url) {
                Some((_, messages)) => messages.push((n, message)),
                None => by_queue.push((url, vec![(n, message)])),
            }
        }
        by_queue
    }

    async fn send_round(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) {
        let mut requests = Vec::new();
        for (url, mut messages) in self.prepare(events, round, answers, until) {
            while !messages.is_empty() {
                let sizes = messages.iter().map(|(_, message)| message.bytes());
                let rest = messages.split_off(message::fitting(sizes, self.options.message_bytes));
                requests.push((url.clone(), std::mem::replace(&mut messages, rest)));
            }
        }
        let now = Instant::now().into_std();
        for (_, message) in requests.iter().flat_map(|(_, messages)| messages) {
            self.unconfirmed.begun(&message.id, now);
        }
        let client = &self.client;
        let sent = requests.into_iter().map(|(url, messages)| send(client, url, messages, until));
        let mut sent = futures_util::stream::iter(sent).buffer_unordered(REQUESTS_MAX);
        while let Some(outcomes) = sent.next().await {
            for (n, outcome) in outcomes {
                let id = deduplication_id(&events[n]);
                let answer = match outcome {
                    Outcome::Confirmed => {
                        self.unconfirmed.known(&id);
                        Published::Confirmed
                    }
                    Outcome::Refused { reason } => {
                        self.unconfirmed.known(&id);
                        Published::Refused(SinkError::not_published(reason))
                    }
                    Outcome::Failed { reason, maybe } if maybe || self.unconfirmed.not_sent(&id) => {
                        Published::Failed(SinkError::maybe_published(reason))
                    }
                    Outcome::Failed { reason, .. } => Published::Failed(SinkError::not_published(reason)),
                };
                answers.set(n, answer);
            }
        }
    }
}

impl Sink for SqsSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::Deduplicated,
            sentence: "SQS FIFO: every event at least once, in the order of its key; a repeat within five minutes of \
                       the first attempt is stored once, one that is in doubt for longer is parked rather than sent \
                       blindly, and after a restart or a takeover a repeat later than that is stored again, with the \
                       same MessageDeduplicationId."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let url = &self.options.access.url;
        if url.contains(TOPIC) {
            // The queues depend on the events' topics. Any request shows whether SQS is up.
            let asked = self.client.list_queues().max_results(1).send().await;
            return match asked.map_err(|error| SqsError::of(&error)) {
                Err(error) if error.code.is_none() || error.maybe_done => {
                    Err(SinkError::not_published(error.message))
                }
                _ => Ok(()),
            };
        }
        self.violations = match Facts::ask(&self.client, url).await {
            Ok(Facts { fifo: true, .. }) => not_fifo(url).into_iter().collect(),
            Ok(Facts { fifo: false, .. }) => vec![standard(queue_name(url))],
            Err(error) if error.code.is_some() && !error.maybe_done => {
                let name = queue_name(url);
                vec![format!(
                    "the queue {name:?} cannot be inspected ({}); create it first, or permit GetQueueAttributes",
                    error.message
                )]
            }
            Err(error) => return Err(SinkError::not_published(error.message)),
        };
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.access.timeout;
        let mut answers = PublishResults::to(events);
        if let Some(reason) = not_fifo(&self.options.access.url) {
            let answer = Published::Failed(SinkError::not_published(reason));
            (0..events.len()).for_each(|n| answers.set(n, answer.clone()));
            return answers.finish();
        }
        let mut queues = KeyQueues::of(events);
        loop {
            let round = queues.next(&mut answers);
            if round.is_empty() {
                break;
            }
            self.send_round(events, &round, &mut answers, until).await;
        }
        answers.finish()
    }
}

/// Sends the messages in one request, or in halves if SQS finds the request too long.
async fn send(
    client: &Client,
    url: String,
    messages: Vec<(usize, Message)>,
    until: Instant,
) -> Vec<(usize, Outcome)> {
    let mut outcomes = Vec::with_capacity(messages.len());
    let mut parts = vec![&messages[..]];
    while let Some(part) = parts.pop() {
        let failed = |error: &SqsError| {
            let (reason, maybe) = (error.message.clone(), error.maybe_done);
            let outcome = |n: usize| (n, Outcome::Failed { reason: reason.clone(), maybe });
            part.iter().map(|(n, _)| outcome(*n)).collect::<Vec<_>>()
        };
        if Instant::now() >= until {
            outcomes.extend(failed(&late(false)));
            continue;
        }
        let entries: Result<Vec<_>, String> = part.iter().map(|(n, message)| entry(*n, message)).collect();
        let request = match entries {
            Ok(entries) => client.send_message_batch().queue_url(&url).set_entries(Some(entries)),
            Err(reason) => {
                outcomes.extend(failed(&SqsError { message: reason, code: None, maybe_done: false }));
                continue;
            }
        };
        match timeout_at(until, request.send()).await {
            Err(_) => outcomes.extend(failed(&late(true))),
            Ok(Err(error)) => {
                let error = SqsError::of(&error);
                match error.is("BatchRequestTooLong") {
                    true if part.len() > 1 => {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    }
                    true => outcomes.push((part[0].0, Outcome::Refused { reason: error.message })),
                    false => outcomes.extend(failed(&error)),
                }
            }
            Ok(Ok(response)) => outcomes.extend(part.iter().map(|(n, _)| {
                let id = n.to_string();
                if response.successful().iter().any(|entry| entry.id() == id) {
                    return (*n, Outcome::Confirmed);
                }
                let Some(entry) = response.failed().iter().find(|entry| entry.id() == id) else {
                    let reason = "SQS returned no result for the event".to_owned();
                    return (*n, Outcome::Failed { reason, maybe: true });
                };
                (*n, classify(entry.code(), entry.message().unwrap_or(""), entry.sender_fault()))
            })),
        }
    }
    outcomes
}

fn late(maybe_done: bool) -> SqsError {
    SqsError { message: "SQS did not answer in time".to_owned(), code: None, maybe_done }
}

/// Classifies the error of a message. An error about its content is permanent; a missing key or permission, or a rate
/// limit, may be fixed later.
fn classify(code: &str, message: &str, sender_fault: bool) -> Outcome {
    let reason = format!("SQS did not accept the event: {code}: {message}");
    let content =
        ["InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MessageTooLong"];
    match sender_fault {
        true if content.iter().any(|name| code.ends_with(name)) => Outcome::Refused { reason },
        true => Outcome::Failed { reason, maybe: false },
        false => Outcome::Failed { reason, maybe: true },
    }
}

fn entry(n: usize, message: &Message) -> Result<SendMessageBatchRequestEntry, String> {
    let mut entry = SendMessageBatchRequestEntry::builder()
        .id(n.to_string())
        .message_body(&message.body)
        .message_group_id(&message.group)
        .message_deduplication_id(&message.id);
    for (name, text) in &message.attributes {
        let value = MessageAttributeValue::builder().data_type("String").string_value(text);
        entry = entry.message_attributes(name, value.build().map_err(|error| error.to_string())?);
    }
    entry.build().map_err(|error| error.to_string())
}

/// In SQS the names of FIFO queues, and only those, end in `.fifo`.
fn not_fifo(url: &str) -> Option<String> {
    let name = queue_name(url);
    (!name.ends_with(".fifo")).then(|| standard(name))
}

fn standard(name: &str) -> String {
    format!(
        "the queue {name:?} is a standard queue, which keeps no order and drops no duplicates; create a FIFO queue, \
         whose name ends in .fifo"
    )
}

fn parked(ago: Duration, event: &Event) -> String {
    format!(
        "the event may be in the queue already: it was first sent {} s ago without an answer, and SQS drops duplicates \
         only for five minutes; look for semel-id {} in the queue or at its readers, then skip the event or retry it",
        ago.as_secs(),
        event.id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_the_message_itself_is_for_ever() {
        let of = |code: &str, sender_fault| classify(code, "", sender_fault);
        assert!(matches!(of("InvalidParameterValue", true), Outcome::Refused { .. }));
        assert!(matches!(of("AWS.SimpleQueueService.InvalidMessageContents", true), Outcome::Refused { .. }));
        assert!(matches!(of("KmsAccessDenied", true), Outcome::Failed { maybe: false, .. }));
        assert!(matches!(of("InternalError", false), Outcome::Failed { maybe: true, .. }));
    }

    #[test]
    fn a_topic_s_queue_is_one_beside_the_others_or_none() {
        let open = |url: &str| SqsSink::options(url).credentials("a", "b", None).open().unwrap();
        let each = open("http://127.0.0.1:1/0/{topic}.fifo");
        assert_eq!(each.queue("payments").unwrap(), "http://127.0.0.1:1/0/payments.fifo");
        for odd in ["a/b", "a.b", "../x", "a?b", &"t".repeat(76)] {
            assert!(each.queue(odd).unwrap_err().contains("makes no valid queue name"), "{odd}");
        }
        let all = open("http://127.0.0.1:1/0/all.fifo");
        assert_eq!(all.queue("a/b").unwrap(), "http://127.0.0.1:1/0/all.fifo");
        assert!(SqsSink::options("payments").open().is_err());
    }
}
