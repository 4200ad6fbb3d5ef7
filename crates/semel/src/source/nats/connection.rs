//! The connection: the stream, the consumer that is judged before it is used, and one request for messages at a time.

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
use crate::sink::nats::connect;
use crate::source::SourceError;

/// Words to the server that wait for its answer at once.
const WORDS_MAX: usize = 64;

/// How much later than agreed the server may end a request before it is taken for lost.
const OVERDUE: Duration = Duration::from_millis(100);

/// How long the server waits for messages at most: who leaves waits for that.
const PULL_WAIT_MAX: Duration = Duration::from_secs(1);

/// Most messages that are asked for at once.
const PULL_MAX: usize = 1_000;

pub(super) struct Connection {
    /// How often the client had connected when this was opened.
    connects: u64,
    context: jetstream::Context,
    client: Client,
    stream: Stream,
    consumer: consumer::Consumer<pull::Config>,
    /// Where everything arrives that is asked for: nothing is lost with a request that nobody waits for any more.
    inbox: Subject,
    arrivals: Subscriber,
    /// Messages that the server may still send, and until when.
    asked: usize,
    asked_until: Instant,
    /// Which making of the stream.
    pub(super) lineage: String,
    pub(super) ack_wait: Duration,
    /// How long all words of a call may take: handlers stand still meanwhile.
    patience: Duration,
    /// The last message that anybody may have whose it is not known, and since when that is so.
    sent_before: u64,
    since: Instant,
    /// The last one of the stream that was ever sent to us, and the one that came last.
    last: u64,
    latest: u64,
    /// The last one that was sent to us for its first time.
    newest: u64,
}

/// What came.
pub(super) enum Arrival {
    Message {
        message: Message,
        sequence: u64,
        delivered: i64,
    },
    /// The request has ended, or there is nothing.
    Nothing,
}

impl Connection {
    pub(super) async fn open(options: &NatsSourceOptions) -> Result<Self, SourceError> {
        let opening = Self::open_unbounded(options);
        let slow = || SourceError::later("NATS did not answer in time");
        tokio::time::timeout(options.timeout, opening).await.map_err(|_| slow())?
    }

    async fn open_unbounded(options: &NatsSourceOptions) -> Result<Self, SourceError> {
        let context = connect(&options.url, options.timeout).await.map_err(SourceError::later)?;
        let connects = connects_of(&context.client());
        let (name, stream) = (&options.stream, context.get_stream(&options.stream).await);
        let stream = stream.map_err(|error| {
            SourceError::later(format!("the stream {name:?} cannot be read ({error}); is it there?"))
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
            patience: options.timeout.min(info.config.ack_wait / 2),
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

    /// The consumer, which is made if it is not there and may be.
    async fn consumer(options: &NatsSourceOptions, stream: &Stream) -> Result<consumer::Info, SourceError> {
        let (name, of) = (&options.consumer, &options.stream);
        let info = match stream.consumer_info(name).await {
            Ok(info) => info,
            Err(error) => {
                let missing = matches!(error.kind(), ConsumerInfoErrorKind::NotFound);
                let Some(wanted) = options.wanted().filter(|_| missing) else {
                    let told =
                        format!("the consumer {name:?} of {of:?} cannot be used ({error}); make it first");
                    return Err(SourceError::later(told));
                };
                let made = stream.create_consumer(wanted).await;
                let made = made.map_err(|error| {
                    SourceError::later(format!("the consumer {name:?} of {of:?} cannot be made: {error}"))
                })?;
                made.cached_info().clone()
            }
        };
        match refused(&info.config) {
            Some(why) => {
                Err(SourceError::for_good(format!("the consumer {name:?} of {of:?} is not used: {why}")))
            }
            None => Ok(info),
        }
    }

    /// Whether the client has connected again by itself: what was on its way to us then is nobody's until it runs out, and
    /// what comes next would overtake it.
    pub(super) fn is_of_before(&self) -> bool {
        connects_of(&self.client) != self.connects
    }

    /// Asks for messages, unless that was done and is still being answered.
    pub(super) async fn ask(&mut self, most: usize, wait: Duration) -> Result<(), SourceError> {
        let now = Instant::now();
        if self.asked > 0 && now < self.asked_until() {
            return Ok(());
        }
        // The client would keep the request, and the next one, until the server is back.
        if self.client.connection_state() != State::Connected || self.is_of_before() {
            return Err(away());
        }
        let (batch, wait) = (most.clamp(1, PULL_MAX), wait.min(PULL_WAIT_MAX));
        let request = BatchConfig {
            batch,
            expires: (!wait.is_zero()).then_some(wait),
            no_wait: wait.is_zero(),
            ..BatchConfig::default()
        };
        let asked = self.consumer.request_batch(request, self.inbox.clone()).await;
        asked.map_err(|error| SourceError::later(format!("NATS was not asked for messages: {error}")))?;
        (self.asked, self.asked_until) = (batch, now + wait);
        Ok(())
    }

    /// The next one of what was asked for. `None`: the connection is gone for good.
    pub(super) async fn arrival(&mut self) -> Option<Result<Arrival, SourceError>> {
        let message = self.arrivals.next().await?;
        match message.status.unwrap_or(StatusCode::OK) {
            StatusCode::OK => {}
            StatusCode::IDLE_HEARTBEAT => return Some(Ok(Arrival::Nothing)),
            StatusCode::NO_RESPONDERS => {
                self.asked = 0;
                return Some(Err(SourceError::later("the consumer is not there, or JetStream is not ready")));
            }
            // Nothing there, the time is over, or enough is out.
            status => {
                self.asked = 0;
                let told = message.description.unwrap_or_default();
                return Some(match told.to_ascii_lowercase() {
                    told if told.contains("deleted") => Err(SourceError::later("the consumer was deleted")),
                    told if status == StatusCode::REQUEST_TERMINATED
                        && told.contains("exceeded maxwaiting") =>
                    {
                        Err(SourceError::later("too many ask for messages at once; set max_waiting higher"))
                    }
                    _ => Ok(Arrival::Nothing),
                });
            }
        }
        self.asked = self.asked.saturating_sub(1);
        let message = jetstream::Message { message, context: self.context.clone() };
        let info = message.info().map(|info| (info.stream_sequence, info.delivered));
        Some(match info {
            // What is sent for its first time only rises, whoever else reads, while stream and consumer are the same.
            Ok((sequence, 1)) if sequence <= self.newest => {
                Err(SourceError::later("the stream or its consumer was made anew"))
            }
            Ok((sequence, delivered)) => {
                if delivered == 1 {
                    self.newest = sequence;
                }
                (self.last, self.latest) = (self.last.max(sequence), sequence);
                Ok(Arrival::Message { message: message.message, sequence, delivered })
            }
            Err(error) => Err(SourceError::later(format!("what came is no message of a stream: {error}"))),
        })
    }

    /// Whether the server is still to answer.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// When nothing comes any more that was asked for.
    pub(super) fn asked_until(&self) -> Instant {
        self.asked_until + OVERDUE
    }

    /// What was sent to us so far may be anybody's.
    pub(super) fn begin_anew(&mut self) {
        (self.sent_before, self.since, self.latest) = (self.last, Instant::now(), 0);
    }

    /// Whether new ones come: what has run out comes before them.
    pub(super) fn is_ahead(&self) -> bool {
        self.latest > self.sent_before
    }

    /// Whether what others had has run out wherever it was. The server looks only every now and then.
    pub(super) fn has_run_out(&self) -> bool {
        self.since.elapsed() > self.ack_wait * 2 + Duration::from_secs(1)
    }

    /// Whether nobody else has anything of what was sent before: all of that is done, or ours. A server that was killed may
    /// have forgotten that it sent some of ours, which then are not among those it waits for: they do not stand for others
    /// that got lost on the way.
    pub(super) async fn is_settled(&self, ours: impl Fn(u64) -> usize) -> Result<bool, SourceError> {
        let info = self.stream.consumer_info(&self.consumer.cached_info().name).await;
        let info =
            info.map_err(|error| SourceError::later(format!("the consumer is not told of: {error}")))?;
        let ours = ours(info.delivered.stream_sequence);
        Ok(info.ack_floor.stream_sequence >= self.sent_before || info.num_ack_pending <= ours)
    }

    /// Until when words to the server may take that are said now.
    pub(super) fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.patience
    }

    /// Says something about deliveries, until the server has answered of each or the time is over. Those that it has.
    pub(super) async fn say<T: Copy>(
        &self,
        word: &'static str,
        about: Vec<(T, Subject)>,
        until: tokio::time::Instant,
    ) -> Result<Vec<T>, (Vec<T>, SourceError)> {
        // The client would keep the words, and say them when they may be about somebody else's delivery.
        if self.client.connection_state() != State::Connected {
            return Err((Vec::new(), away()));
        }
        let words = about.into_iter().map(|(what, reply)| async move {
            let request = self.client.request(reply, Bytes::from_static(word.as_bytes()));
            (what, tokio::time::timeout_at(until, request).await)
        });
        let answers: Vec<_> = futures_util::stream::iter(words).buffer_unordered(WORDS_MAX).collect().await;
        let (mut heard, mut wrong) = (Vec::new(), None);
        for (what, answer) in answers {
            match answer {
                Ok(Ok(_)) => heard.push(what),
                Err(_) => wrong = Some(SourceError::later("NATS did not answer in time")),
                Ok(Err(error)) => {
                    wrong = Some(SourceError::later(format!("NATS did not hear of messages: {error}")))
                }
            }
        }
        match wrong {
            None => Ok(heard),
            Some(error) => Err((heard, error)),
        }
    }

    /// How long the stream keeps messages, or did when it was last asked.
    pub(super) async fn retention(&mut self) -> Option<Duration> {
        let told = self.stream.info().await.ok().map(|info| info.config.max_age);
        let kept = told.unwrap_or_else(|| self.stream.cached_info().config.max_age);
        Some(if kept.is_zero() { Duration::MAX } else { kept })
    }
}

fn away() -> SourceError {
    SourceError::later("NATS is away; the client connects again by itself")
}

fn connects_of(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
