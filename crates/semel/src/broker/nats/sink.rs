//! NATS JetStream: a stream acks each event, and drops duplicates.
//!
//! | in the message | from the event |
//! |---|---|
//! | subject | its topic |
//! | `Nats-Msg-Id` | its id, a dot, SHA-256 of its topic: a repeat within the duplicate window is acked, not stored |
//! | headers | the common ones, see [`headers`]; `semel-key` is its partition key |
//!
//! If no stream has the subject, the event is not confirmed. With [`stream`](NatsOptions::stream) only that stream may
//! store it.
//!
//! What NATS cannot guarantee: a server acks before the bytes are on disk unless `sync_interval: always` is set. A
//! stream with three replicas survives the power loss of one server.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{AccountErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, timeout_at};

use super::client::connect;
use crate::outbox::Event;
use crate::sink::headers::{self, Style};
use crate::sink::key_queues::KeyQueues;
use crate::sink::publish_results::PublishResults;
use crate::sink::repeats::deduplication_id;
use crate::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

/// Prefix of headers that control the server: events must not set them.
const SERVERS_OWN: &str = "nats-";

/// Where and how to publish. See [`NatsSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct NatsOptions {
    url: String,
    stream: Option<String>,
    style: Style,
    timeout: Duration,
}

impl NatsOptions {
    /// The stream that must store the events: by default any stream that has the subject.
    pub fn stream(mut self, stream: &str) -> Self {
        self.stream = Some(stream.to_owned());
        self
    }

    /// Also sends the attributes of CloudEvents in binary mode, with this `source` (a URI reference).
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.style = Style::CloudEvents { source: source.to_owned() };
        self
    }

    /// Timeout of one call: by default 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Creates the sink. It connects when it first publishes.
    pub fn open(self) -> NatsSink {
        NatsSink { options: self, context: None, left: false, violations: Vec::new() }
    }
}

/// Publishes to NATS JetStream.
///
/// ```no_run
/// use semel::sink::nats::NatsSink;
///
/// let sink = NatsSink::options("nats://127.0.0.1:4222").stream("payments").open();
/// # drop(sink);
/// ```
pub struct NatsSink {
    options: NatsOptions,
    context: Option<jetstream::Context>,
    /// The last call was cancelled: it is in doubt what it sent.
    left: bool,
    violations: Vec<String>,
}

impl NatsSink {
    /// Options of a sink for the server at this `nats://` address.
    pub fn options(url: &str) -> NatsOptions {
        NatsOptions {
            url: url.to_owned(),
            stream: None,
            style: Style::Plain,
            timeout: Duration::from_secs(30),
        }
    }

    async fn connect(&self, until: Instant) -> Result<jetstream::Context, SinkError> {
        match timeout_at(until, connect(&self.options.url, self.options.timeout)).await {
            Ok(connected) => connected.map_err(SinkError::not_published),
            Err(_) => Err(SinkError::not_published("NATS did not answer in time")),
        }
    }

    /// The violations in a stream's configuration. Only an answer of the server counts; a lost connection is an error.
    async fn ask(&self, context: &jetstream::Context) -> Result<Vec<String>, SinkError> {
        let Some(name) = &self.options.stream else { return is_on(context).await };
        let stream = match context.get_stream(name).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == GetStreamErrorKind::Request => {
                let off = is_on(context).await?;
                return match off.is_empty() {
                    true => Err(SinkError::not_published(format!(
                        "NATS did not describe the stream {name:?}: {error}"
                    ))),
                    false => Ok(off),
                };
            }
            Err(error) => {
                return Ok(vec![format!("the stream {name:?} does not exist ({error}); create it first")]);
            }
        };
        let config = &stream.cached_info().config;
        let mut violations = Vec::new();
        if config.storage == jetstream::stream::StorageType::Memory {
            violations.push(format!(
                "the stream {name:?} is kept in memory: confirmed events are lost if the server stops; use file storage"
            ));
        }
        if config.no_ack {
            violations.push(format!("the stream {name:?} confirms nothing (no_ack); let it acknowledge"));
        }
        Ok(violations)
    }

    /// Sends one round and waits for its acks.
    async fn send_round(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) {
        if self.context.is_none() {
            match self.connect(until).await {
                Ok(context) => self.context = Some(context),
                Err(error) => {
                    let answer = Published::Failed(error);
                    round.iter().for_each(|&n| answers.set(n, answer.clone()));
                    return;
                }
            }
        }
        let Some(context) = &self.context else { return };
        let mut broken = false;
        let mut waiting = Vec::with_capacity(round.len());
        for &n in round {
            let event = &events[n];
            let headers = match self.headers(event) {
                Ok(headers) => headers,
                Err(error) => {
                    answers.set(n, Published::Refused(error));
                    continue;
                }
            };
            let mut message =
                jetstream::message::PublishMessage::build().payload(event.payload().clone()).headers(headers);
            message = message.message_id(deduplication_id(event));
            if let Some(stream) = &self.options.stream {
                message = message.expected_stream(stream);
            }
            match timeout_at(until, context.send_publish(event.topic().to_owned(), message)).await {
                Ok(Ok(ack)) => waiting.push((n, ack)),
                Ok(Err(error)) => answers.set(n, classify(&error, event.topic())),
                Err(_) => {
                    broken = true;
                    answers.set(n, silent());
                }
            }
        }
        for (n, ack) in waiting {
            let answer = match timeout_at(until, ack.into_future()).await {
                Ok(Ok(_)) => Published::Confirmed,
                Ok(Err(error)) => {
                    broken |=
                        matches!(error.kind(), PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe);
                    classify(&error, events[n].topic())
                }
                Err(_) => {
                    broken = true;
                    silent()
                }
            };
            answers.set(n, answer);
        }
        // The client buffers what it could not send, and sends it after a reconnect. That must not happen after this
        // result is returned, so the client is dropped with its buffer.
        if broken {
            self.context = None;
        }
    }

    fn headers(&self, event: &Event) -> Result<HeaderMap, SinkError> {
        if event.topic().contains(['*', '>']) {
            return Err(SinkError::not_published("a NATS subject to publish to must not contain * or >"));
        }
        let mut map = HeaderMap::new();
        let key = event.ordered_by().map(|key| (headers::KEY.to_owned(), key.to_owned()));
        for (name, text) in headers::of(event, &self.options.style, "ce-").into_iter().chain(key) {
            if name.to_ascii_lowercase().starts_with(SERVERS_OWN) {
                return Err(SinkError::not_published(format!("the header {name:?} is reserved by NATS")));
            }
            let impossible = |error: &dyn std::fmt::Display| {
                SinkError::not_published(format!("NATS cannot carry the header {name:?}: {error}"))
            };
            let header = HeaderName::from_str(&name).map_err(|error| impossible(&error))?;
            map.insert(header, HeaderValue::from_str(&text).map_err(|error| impossible(&error))?);
        }
        Ok(map)
    }
}

/// A violation if JetStream is not enabled.
async fn is_on(context: &jetstream::Context) -> Result<Vec<String>, SinkError> {
    match context.query_account().await {
        Ok(_) => Ok(Vec::new()),
        Err(error) => match error.kind() {
            AccountErrorKind::JetStream(_) | AccountErrorKind::JetStreamUnavailable => {
                Ok(vec![format!("JetStream is not available ({error}); enable it in the server")])
            }
            AccountErrorKind::TimedOut | AccountErrorKind::Other => {
                Err(SinkError::not_published(format!("NATS did not answer: {error}")))
            }
        },
    }
}

impl Sink for NatsSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::Deduplicated,
            sentence: "NATS JetStream: every event at least once, in the order of its key; a repeat within the \
                       stream's duplicate window (two minutes unless set) is stored once, after that again, with the \
                       same Nats-Msg-Id."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let until = Instant::now() + self.options.timeout;
        let context = self.connect(until).await?;
        let asked = timeout_at(until, self.ask(&context)).await;
        self.violations = asked.map_err(|_| SinkError::not_published("NATS did not answer in time"))??;
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        if std::mem::replace(&mut self.left, true) {
            self.context = None;
        }
        let mut answers = PublishResults::to(events);
        let mut queues = KeyQueues::of(events);
        loop {
            let round = queues.next(&mut answers);
            if round.is_empty() {
                break;
            }
            self.send_round(events, &round, &mut answers, until).await;
        }
        self.left = false;
        answers.finish()
    }
}

/// Classifies a publish error.
fn classify(error: &PublishError, topic: &str) -> Published {
    let code = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .map(jetstream::Error::error_code);
    let message = format!("NATS did not accept the event for {topic}: {error}");
    let too_large = [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM];
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Published::Refused(SinkError::not_published(message)),
        PublishErrorKind::StreamNotFound => {
            Published::Failed(SinkError::not_published(format!("{message}; create a stream for the subject")))
        }
        PublishErrorKind::MaxAckPending => Published::Failed(SinkError::not_published(message)),
        _ => match code {
            Some(code) if too_large.contains(&code) => Published::Refused(SinkError::not_published(message)),
            // The server answered with an error, so it did not store the event.
            Some(_) => Published::Failed(SinkError::not_published(message)),
            None => Published::Failed(SinkError::maybe_published(message)),
        },
    }
}

fn silent() -> Published {
    Published::Failed(SinkError::maybe_published("NATS did not ack the event in time"))
}
