//! Amazon SQS, FIFO queues: in order, and repeats dropped for five minutes.
//!
//! | in the message | from the event |
//! |---|---|
//! | `MessageDeduplicationId` | its id, a dot and the SHA-256 of its topic: within five minutes a repeat is confirmed and not stored again |
//! | `MessageGroupId` | what its order is kept by; `sha256:…` of it where SQS does not take that; without one, as before |
//! | body | its payload; in base64 where that is no text (`semel-encoding`) |
//! | attributes | as everywhere, see [`headers`](super::headers), and `semel-topic` |
//! | `semel-headers` | its own headers as JSON, where they do not fit among SQS's ten attributes |
//!
//! **Queues.** All topics go to the queue of the URL, or each to its own where the URL has `{topic}` in it.
//!
//! **Order.** Of one key at most one event is under way. SQS answers each message of a batch by itself and may refuse one
//! and take the next; then the next would have overtaken it.
//!
//! **What is in doubt** is sent again as long as SQS knows a repeat when it sees one. After that it is
//! [parked](InDoubt::Park). What a relay before this one has sent, nobody knows: that is sent again, however late.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use self::client::{SqsError, queue_name};
use self::message::Message;
use self::queue::Facts;
use self::unconfirmed::Unconfirmed;
use super::key_queues::KeyQueues;
use super::publish_results::PublishResults;
use super::repeats::deduplication_id;
use super::{DeliverySemantics, Guarantee, Published, Sink, SinkError};
use crate::outbox::Event;

pub(crate) mod client;
pub(crate) mod message;
mod options;
pub(crate) mod queue;
mod unconfirmed;

pub use options::{InDoubt, SqsOptions};

/// Requests under way at once.
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
    doubts: Unconfirmed,
    violations: Vec<String>,
}

/// What became of a message of a request.
enum Outcome {
    There,
    Not { told: String, maybe: bool },
    Never { told: String },
}

impl SqsSink {
    /// A sink for the queue at this URL, whose name ends in `.fifo`.
    pub fn options(url: &str) -> SqsOptions {
        SqsOptions::new(url)
    }

    fn open(options: SqsOptions) -> Result<Self, SinkError> {
        let client = options.access.open(Duration::ZERO).map_err(SinkError::not_published)?;
        let violations = not_fifo(&options.access.url).into_iter().collect();
        Ok(Self { client, doubts: Unconfirmed::new(options.window), violations, options })
    }

    /// The queue of a topic. An error: there can be none.
    fn queue(&self, topic: &str) -> Result<String, String> {
        let url = self.options.access.url.replace(TOPIC, topic);
        let name = queue_name(&url);
        let stem = name.strip_suffix(".fifo").unwrap_or(name);
        let fits = url.len() - name.len() == self.options.access.url.rfind('/').map_or(0, |at| at + 1)
            && name.len() <= NAME_CHARS_MAX
            && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        fits.then_some(url).ok_or_else(|| {
            format!("the topic {topic:?} makes no name of a queue: letters, digits, - and _, at most {NAME_CHARS_MAX}")
        })
    }

    /// What of a wave can be sent, by queue. The rest is answered.
    fn prepare(
        &mut self,
        events: &[Arc<Event>],
        wave: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) -> Vec<(String, Vec<(usize, Message)>)> {
        let now = Instant::now();
        let mut by_queue: Vec<(String, Vec<(usize, Message)>)> = Vec::new();
        for &n in wave {
            let event = &events[n];
            let made = self.queue(event.topic()).and_then(|url| Ok((url, Message::of(event)?)));
            let (url, message) = match made {
                Ok(made) => made,
                Err(told) => {
                    answers.set(n, Published::Refused(SinkError::not_published(told)));
                    continue;
                }
            };
            let (bytes, most) = (message.bytes(), self.options.message_bytes);
            if bytes > most {
                let told = format!(
                    "the message has {bytes} bytes and SQS takes {most}: store the payload and send its place"
                );
                answers.set(n, Published::Refused(SinkError::not_published(told)));
                continue;
            }
            let late = self.doubts.too_late(&message.id, now.into_std(), until.into_std());
            if let (Some(ago), InDoubt::Park) = (late, self.options.in_doubt) {
                // Told once: whoever has it tried again has looked.
                self.doubts.known(&message.id);
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

    async fn wave(
        &mut self,
        events: &[Arc<Event>],
        wave: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) {
        let mut requests = Vec::new();
        for (url, mut messages) in self.prepare(events, wave, answers, until) {
            while !messages.is_empty() {
                let sizes = messages.iter().map(|(_, message)| message.bytes());
                let rest = messages.split_off(message::fitting(sizes, self.options.message_bytes));
                requests.push((url.clone(), std::mem::replace(&mut messages, rest)));
            }
        }
        let now = Instant::now().into_std();
        for (_, message) in requests.iter().flat_map(|(_, messages)| messages) {
            self.doubts.begun(&message.id, now);
        }
        let client = &self.client;
        let sent = requests.into_iter().map(|(url, messages)| send(client, url, messages, until));
        let mut sent = futures_util::stream::iter(sent).buffer_unordered(REQUESTS_MAX);
        while let Some(outcomes) = sent.next().await {
            for (n, outcome) in outcomes {
                let id = deduplication_id(&events[n]);
                let answer = match outcome {
                    Outcome::There => {
                        self.doubts.known(&id);
                        Published::Confirmed
                    }
                    Outcome::Never { told } => {
                        self.doubts.known(&id);
                        Published::Refused(SinkError::not_published(told))
                    }
                    Outcome::Not { told, maybe } if maybe || self.doubts.not_sent(&id) => {
                        Published::Failed(SinkError::maybe_published(told))
                    }
                    Outcome::Not { told, .. } => Published::Failed(SinkError::not_published(told)),
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
            sentence: "SQS FIFO: every event at least once, in the order of its key; a repeat within five minutes of the \
                       first attempt is stored once, one that is in doubt for longer is parked rather than sent blindly, \
                       and after a restart or a takeover a repeat later than that is stored again, with the same \
                       MessageDeduplicationId."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let url = &self.options.access.url;
        if url.contains(TOPIC) {
            // Which queues there are to be is only known by the events. Whether SQS is there is known by asking anything.
            let asked = self.client.list_queues().max_results(1).send().await;
            return match asked.map_err(|error| SqsError::of(&error)) {
                Err(trouble) if trouble.code.is_none() || trouble.maybe_done => {
                    Err(SinkError::not_published(trouble.told))
                }
                _ => Ok(()),
            };
        }
        self.violations = match Facts::ask(&self.client, url).await {
            Ok(Facts { fifo: true, .. }) => not_fifo(url).into_iter().collect(),
            Ok(Facts { fifo: false, .. }) => vec![standard(queue_name(url))],
            Err(trouble) if trouble.code.is_some() && !trouble.maybe_done => {
                let name = queue_name(url);
                vec![format!(
                    "the queue {name:?} cannot be asked ({}); make it first, or allow it",
                    trouble.told
                )]
            }
            Err(trouble) => return Err(SinkError::not_published(trouble.told)),
        };
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.access.timeout;
        let mut answers = PublishResults::to(events);
        if let Some(told) = not_fifo(&self.options.access.url) {
            let answer = Published::Failed(SinkError::not_published(told));
            (0..events.len()).for_each(|n| answers.set(n, answer.clone()));
            return answers.finish();
        }
        let mut lanes = KeyQueues::of(events);
        loop {
            let wave = lanes.next(&mut answers);
            if wave.is_empty() {
                break;
            }
            self.wave(events, &wave, &mut answers, until).await;
        }
        answers.finish()
    }
}

/// One request after another for what is to be one, as long as SQS finds it too long.
async fn send(
    client: &Client,
    url: String,
    messages: Vec<(usize, Message)>,
    until: Instant,
) -> Vec<(usize, Outcome)> {
    let mut outcomes = Vec::with_capacity(messages.len());
    let mut parts = vec![&messages[..]];
    while let Some(part) = parts.pop() {
        let failed = |trouble: &SqsError| {
            let (told, maybe) = (trouble.told.clone(), trouble.maybe_done);
            part.iter().map(|(n, _)| (*n, Outcome::Not { told: told.clone(), maybe })).collect::<Vec<_>>()
        };
        if Instant::now() >= until {
            outcomes.extend(failed(&late(false)));
            continue;
        }
        let entries: Result<Vec<_>, String> = part.iter().map(|(n, message)| entry(*n, message)).collect();
        let request = match entries {
            Ok(entries) => client.send_message_batch().queue_url(&url).set_entries(Some(entries)),
            Err(told) => {
                outcomes.extend(failed(&SqsError { told, code: None, maybe_done: false }));
                continue;
            }
        };
        match timeout_at(until, request.send()).await {
            Err(_) => outcomes.extend(failed(&late(true))),
            Ok(Err(error)) => {
                let trouble = SqsError::of(&error);
                match trouble.is("BatchRequestTooLong") {
                    true if part.len() > 1 => {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    }
                    true => outcomes.push((part[0].0, Outcome::Never { told: trouble.told })),
                    false => outcomes.extend(failed(&trouble)),
                }
            }
            Ok(Ok(told)) => outcomes.extend(part.iter().map(|(n, _)| {
                let id = n.to_string();
                if told.successful().iter().any(|entry| entry.id() == id) {
                    return (*n, Outcome::There);
                }
                let Some(entry) = told.failed().iter().find(|entry| entry.id() == id) else {
                    let told = "SQS said nothing of it".to_owned();
                    return (*n, Outcome::Not { told, maybe: true });
                };
                (*n, judge(entry.code(), entry.message().unwrap_or(""), entry.sender_fault()))
            })),
        }
    }
    outcomes
}

fn late(maybe_done: bool) -> SqsError {
    SqsError { told: "SQS did not answer in time".to_owned(), code: None, maybe_done }
}

/// What a message that was not taken has to expect. What is said of its content stays true; a key, a right or a limit of
/// requests may be there tomorrow.
fn judge(code: &str, message: &str, sender_fault: bool) -> Outcome {
    let told = format!("SQS did not take it: {code}: {message}");
    let content =
        ["InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MessageTooLong"];
    match sender_fault {
        true if content.iter().any(|name| code.ends_with(name)) => Outcome::Never { told },
        true => Outcome::Not { told, maybe: false },
        false => Outcome::Not { told, maybe: true },
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

/// SQS has it that the name of a FIFO queue ends so, and that of no other.
fn not_fifo(url: &str) -> Option<String> {
    let name = queue_name(url);
    (!name.ends_with(".fifo")).then(|| standard(name))
}

fn standard(name: &str) -> String {
    format!(
        "the queue {name:?} is a standard one, which keeps no order and knows no repeats; make a FIFO queue, whose name \
         ends in .fifo"
    )
}

fn parked(ago: Duration, event: &Event) -> String {
    format!(
        "it may be in the queue already: it was first sent {} s ago without an answer, and SQS knows repeats for five \
         minutes only. Look for semel-id {} in the queue or at its readers; then skip it, or have it sent again",
        ago.as_secs(),
        event.id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_the_message_itself_is_for_ever() {
        let of = |code: &str, sender_fault| judge(code, "", sender_fault);
        assert!(matches!(of("InvalidParameterValue", true), Outcome::Never { .. }));
        assert!(matches!(of("AWS.SimpleQueueService.InvalidMessageContents", true), Outcome::Never { .. }));
        assert!(matches!(of("KmsAccessDenied", true), Outcome::Not { maybe: false, .. }));
        assert!(matches!(of("InternalError", false), Outcome::Not { maybe: true, .. }));
    }

    #[test]
    fn a_topic_s_queue_is_one_beside_the_others_or_none() {
        let open = |url: &str| SqsSink::options(url).credentials("a", "b", None).open().unwrap();
        let each = open("http://127.0.0.1:1/0/{topic}.fifo");
        assert_eq!(each.queue("payments").unwrap(), "http://127.0.0.1:1/0/payments.fifo");
        for odd in ["a/b", "a.b", "../x", "a?b", &"t".repeat(76)] {
            assert!(each.queue(odd).unwrap_err().contains("makes no name"), "{odd}");
        }
        let all = open("http://127.0.0.1:1/0/all.fifo");
        assert_eq!(all.queue("a/b").unwrap(), "http://127.0.0.1:1/0/all.fifo");
        assert!(SqsSink::options("payments").open().is_err());
    }
}
