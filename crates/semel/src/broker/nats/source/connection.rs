//! The connection: the stream, its consumer (checked before use), and one pull request at a time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::{self, BatchConfig};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, consumer};
use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;

use super::options::{NatsSourceOptions, refused};
use crate::broker::nats::client::connect;
use crate::source::SourceError;
use crate::timeout::bounded;

/// Concurrent acks that wait for the server's answer.
const ACKS_MAX: usize = 64;

/// Grace period after a pull request's deadline before it counts as lost.
const OVERDUE: Duration = Duration::from_millis(100);

/// Longest wait of a pull request: `leave` has to wait for it.
const PULL_WAIT_MAX: Duration = Duration::from_secs(1);

/// Most messages of one pull request.
const PULL_MAX: usize = 1_000;

pub(super) struct Connection {
    /// The client's connect count when this was opened.
    connects: u64,
    context: jetstream::Context,
    client: Client,
    stream: Stream,
    consumer: consumer::Consumer<pull::Config>,
    /// One inbox for all pull requests: messages of a cancelled request still arrive here.
    inbox: Subject,
    arrivals: Subscriber,
    /// How many messages the server may still send, and until when.
    asked: usize,
    asked_until: Instant,
    /// The incarnation of the stream: its creation time.
    pub(super) lineage: String,
    pub(super) ack_wait: Duration,
    /// Timeout for all acks of a call: handlers wait meanwhile.
    ack_timeout: Duration,
    /// The last sequence that the server may have sent to another reader, and the time since when we wait for that
    /// reader to ack.
    sent_before: u64,
    since: Instant,
    /// The highest sequence that was sent to us, and the sequence of the last message.
    last: u64,
    latest: u64,
    /// The highest sequence that was sent to us as a first delivery.
    newest: u64,
}

/// The result of reading from the inbox once.
pub(super) enum Arrival {
    Message {
        message: Message,
        sequence: u64,
        delivered: i64,
    },
    /// The request has ended, or it was a heartbeat.
    Nothing,
}

impl Connection {
    pub(super) async fn open(options: &NatsSourceOptions) -> Result<Self, SourceError> {
        let opening = Self::open_unbounded(options);
        bounded(options.timeout, opening, || SourceError::later("NATS did not answer in time")).await
    }

    async fn open_unbounded(options: &NatsSourceOptions) -> Result<Self, SourceError> {
        let context = connect(&options.url, options.timeout).await.map_err(SourceError::later)?;
        let connects = connects_of(&context.client());
        let (name, stream) = (&options.stream, context.get_stream(&options.stream).await);
        let stream = stream.map_err(|error| {
            SourceError::later(format!("cannot read the stream {name:?} ({error}); check that it exists"))
        })?;
        let info = Self::consumer(options, &stream).await?;
        let client = context.client();
        let inbox = Subject::from(client.new_inbox());
        let arrivals = client.subscribe(inbox.clone()).await.map_err(SourceError::later)?;
        let config = pull::Config { durable_name: Some(options.consumer.clone()), ..pull::Config::default() };
        let consumer = consumer::Consumer::new(config, info.clone(), context.clone());
        Ok(Self {
            lineage: stream.cached_info().created.unix_timestamp_nanos().to_string(),
            ack_wait: info.config.ack_wait,
            ack_timeout: options.timeout.min(info.config.ack_wait / 2),
            connects,
            sent_before: info.delivered.stream_sequence,
            since: Instant::now(),
            last: info.delivered.stream_sequence,
            latest: 0,
            newest: 0,
            asked: 0,
            asked_until: Instant::now(),
            context,
            client,
            stream,
            consumer,
            inbox,
            arrivals,
        })
    }

    /// The consumer. Creates a missing one if that is allowed.
    async fn consumer(options: &NatsSourceOptions, stream: &Stream) -> Result<consumer::Info, SourceError> {
        let (name, of) = (&options.consumer, &options.stream);
        let info = match stream.consumer_info(name).await {
            Ok(info) => info,
            Err(error) => {
                let missing = matches!(error.kind(), ConsumerInfoErrorKind::NotFound);
                let Some(wanted) = options.wanted().filter(|_| missing) else {
                    let message =
                        format!("cannot use the consumer {name:?} of {of:?} ({error}); create it first");
                    return Err(SourceError::later(message));
                };
                let made = stream.create_consumer(wanted).await;
                let made = made.map_err(|error| {
                    SourceError::later(format!("cannot create the consumer {name:?} of {of:?}: {error}"))
                })?;
                made.cached_info().clone()
            }
        };
        match refused(&info.config) {
            Some(why) => {
                Err(SourceError::for_good(format!("refused the consumer {name:?} of {of:?}: {why}")))
            }
            None => Ok(info),
        }
    }

    /// Whether the client has reconnected by itself. Messages on their way to us at that time are stuck until their
    /// leases expire, and new ones would overtake them.
    pub(super) fn has_reconnected(&self) -> bool {
        connects_of(&self.client) != self.connects
    }

    /// Sends a pull request, unless one is still open.
    pub(super) async fn ask(&mut self, most: usize, wait: Duration) -> Result<(), SourceError> {
        let now = Instant::now();
        if self.asked > 0 && now < self.asked_until() {
            return Ok(());
        }
        // The client would buffer this request, and the next one, until the server is back.
        if self.client.connection_state() != State::Connected || self.has_reconnected() {
            return Err(disconnected());
        }
        let (batch, wait) = (most.clamp(1, PULL_MAX), wait.min(PULL_WAIT_MAX));
        let request = BatchConfig {
            batch,
            expires: (!wait.is_zero()).then_some(wait),
            no_wait: wait.is_zero(),
            ..BatchConfig::default()
        };
        let asked = self.consumer.request_batch(request, self.inbox.clone()).await;
        asked
            .map_err(|error| SourceError::later(format!("sending a pull request to NATS failed: {error}")))?;
        (self.asked, self.asked_until) = (batch, now + wait);
        Ok(())
    }

    /// The next answer to a pull request. `None`: the connection is closed.
    pub(super) async fn arrival(&mut self) -> Option<Result<Arrival, SourceError>> {
        let message = self.arrivals.next().await?;
        match message.status.unwrap_or(StatusCode::OK) {
            StatusCode::OK => {}
            StatusCode::IDLE_HEARTBEAT => return Some(Ok(Arrival::Nothing)),
            StatusCode::NO_RESPONDERS => {
                self.asked = 0;
                return Some(Err(SourceError::later(
                    "the consumer does not exist, or JetStream is not ready",
                )));
            }
            // No messages, the request expired, or max_ack_pending is reached.
            status => {
                self.asked = 0;
                let reason = message.description.unwrap_or_default();
                return Some(match reason.to_ascii_lowercase() {
                    reason if reason.contains("deleted") => {
                        Err(SourceError::later("the consumer was deleted"))
                    }
                    reason
                        if status == StatusCode::REQUEST_TERMINATED
                            && reason.contains("exceeded maxwaiting") =>
                    {
                        Err(SourceError::later(
                            "too many pull requests at once; raise the consumer's max_waiting",
                        ))
                    }
                    _ => Ok(Arrival::Nothing),
                });
            }
        }
        self.asked = self.asked.saturating_sub(1);
        let message = jetstream::Message { message, context: self.context.clone() };
        let info = message.info().map(|info| (info.stream_sequence, info.delivered));
        Some(match info {
            // Sequences of first deliveries only rise, even with other readers, while stream and consumer are the same.
            Ok((sequence, 1)) if sequence <= self.newest => {
                Err(SourceError::later("the stream or its consumer was recreated"))
            }
            Ok((sequence, delivered)) => {
                if delivered == 1 {
                    self.newest = sequence;
                }
                (self.last, self.latest) = (self.last.max(sequence), sequence);
                Ok(Arrival::Message { message: message.message, sequence, delivered })
            }
            Err(error) => {
                Err(SourceError::later(format!("NATS sent something that is not a stream message: {error}")))
            }
        })
    }

    /// Whether a pull request is open.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// When the open pull request counts as lost.
    pub(super) fn asked_until(&self) -> Instant {
        self.asked_until + OVERDUE
    }

    /// From now on, anything sent so far may be with another reader.
    pub(super) fn restart_wait(&mut self) {
        (self.sent_before, self.since, self.latest) = (self.last, Instant::now(), 0);
    }

    /// Whether the server sends new messages: expired ones come before them.
    pub(super) fn is_ahead(&self) -> bool {
        self.latest > self.sent_before
    }

    /// Whether all leases of other readers must have expired. The server checks only now and then.
    pub(super) fn has_run_out(&self) -> bool {
        self.since.elapsed() > self.ack_wait * 2 + Duration::from_secs(1)
    }

    /// Whether no other reader has earlier messages: all of them are acked, or ours. A server that was killed may have
    /// forgotten deliveries to us, and then does not count them as pending. So only sequences up to its `delivered`
    /// count as ours: the others would stand for messages that got lost on the way.
    pub(super) async fn is_settled(&self, ours: impl Fn(u64) -> usize) -> Result<bool, SourceError> {
        let info = self.stream.consumer_info(&self.consumer.cached_info().name).await;
        let info =
            info.map_err(|error| SourceError::later(format!("cannot read the consumer's state: {error}")))?;
        let ours = ours(info.delivered.stream_sequence);
        Ok(info.ack_floor.stream_sequence >= self.sent_before || info.num_ack_pending <= ours)
    }

    /// Deadline for acks that are sent now.
    pub(super) fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.ack_timeout
    }

    /// Sends `word` (ack, nack, in progress) for deliveries until the deadline. Returns those the server confirmed.
    pub(super) async fn send<T: Copy>(
        &self,
        word: &'static str,
        about: Vec<(T, Subject)>,
        until: tokio::time::Instant,
    ) -> Result<Vec<T>, (Vec<T>, SourceError)> {
        // The client would buffer them and send them later, when they may hit another reader's delivery.
        if self.client.connection_state() != State::Connected {
            return Err((Vec::new(), disconnected()));
        }
        let requests = about.into_iter().map(|(what, reply)| async move {
            let request = self.client.request(reply, Bytes::from_static(word.as_bytes()));
            (what, tokio::time::timeout_at(until, request).await)
        });
        let answers: Vec<_> = futures_util::stream::iter(requests).buffer_unordered(ACKS_MAX).collect().await;
        let (mut confirmed, mut failure) = (Vec::new(), None);
        for (what, answer) in answers {
            match answer {
                Ok(Ok(_)) => confirmed.push(what),
                Err(_) => failure = Some(SourceError::later("NATS did not answer in time")),
                Ok(Err(error)) => {
                    failure = Some(SourceError::later(format!("sending acks to NATS failed: {error}")))
                }
            }
        }
        match failure {
            None => Ok(confirmed),
            Some(error) => Err((confirmed, error)),
        }
    }

    /// The stream's retention (`max_age`), or its last known one.
    pub(super) async fn retention(&mut self) -> Option<Duration> {
        let current = self.stream.info().await.ok().map(|info| info.config.max_age);
        let kept = current.unwrap_or_else(|| self.stream.cached_info().config.max_age);
        Some(if kept.is_zero() { Duration::MAX } else { kept })
    }
}

fn disconnected() -> SourceError {
    SourceError::later("NATS is disconnected; the client reconnects by itself")
}

fn connects_of(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
