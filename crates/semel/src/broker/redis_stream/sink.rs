//! Redis Streams: a script appends events and deduplicates them by id.
//!
//! | in Redis | from the event |
//! |---|---|
//! | stream | prefix and topic |
//! | field `semel-payload` | its payload |
//! | other fields | the common headers, see [`headers`]; `semel-key` is its partition key |
//!
//! Beside each stream is a sorted set of the ids of the last day, `{stream}:semel-seen`. One script writes event and
//! id, so an event that is published again within that time is not appended again.
//!
//! What Redis cannot guarantee: acked events are on disk only with `appendonly yes` and `appendfsync always`, and a
//! replica that is promoted without the last writes has lost them.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, Script};
use tokio::time::{Instant, timeout_at};

use super::client::connect;
use super::durability;
use crate::outbox::Event;
use crate::sink::headers::{self, Style};
use crate::sink::publish_results::PublishResults;
use crate::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

pub use super::{KEY, PAYLOAD};

/// Most events in one run of the script, which blocks Redis meanwhile.
const SCRIPT_EVENTS_MAX: usize = 100;
/// Most bytes of payload in one run of the script, but always at least one event.
const SCRIPT_BYTES_MAX: usize = 1 << 20;

/// Where and how to publish. See [`RedisStreamSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisStreamOptions {
    client: Client,
    prefix: String,
    entries_max: u64,
    remember: Duration,
    timeout: Duration,
}

impl RedisStreamOptions {
    /// Prefix of the stream's name, before the topic: by default none.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// Retention: about how many entries a stream keeps; older ones are dropped, read or not. By default all are kept.
    pub fn entries_max(mut self, entries: u64) -> Self {
        self.entries_max = entries;
        self
    }

    /// Deduplication window: by default a day. Each event costs about a hundred bytes for that long.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// Timeout of one call: by default 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Creates the sink. It connects when it first publishes.
    pub fn open(self) -> RedisStreamSink {
        RedisStreamSink {
            options: self,
            script: Script::new(include_str!("append.lua")),
            connection: None,
            left: false,
            violations: Vec::new(),
        }
    }
}

/// Publishes to Redis Streams, on one server.
///
/// ```no_run
/// use semel::sink::redis_stream::RedisStreamSink;
///
/// let sink = RedisStreamSink::options("redis://127.0.0.1")?.prefix("events:").open();
/// # drop(sink); Ok::<(), semel::sink::SinkError>(())
/// ```
pub struct RedisStreamSink {
    options: RedisStreamOptions,
    script: Script,
    connection: Option<MultiplexedConnection>,
    /// The last call was cancelled: what it sent may still be in flight.
    left: bool,
    violations: Vec<String>,
}

impl RedisStreamSink {
    /// Options of a sink for the server at this `redis://` address.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn options(url: &str) -> Result<RedisStreamOptions, SinkError> {
        let client = Client::open(url)
            .map_err(|error| SinkError::not_published(format!("not a valid Redis address: {error}")))?;
        Ok(RedisStreamOptions {
            client,
            prefix: String::new(),
            entries_max: 0,
            remember: Duration::from_secs(24 * 3_600),
            timeout: Duration::from_secs(30),
        })
    }

    async fn connect(&self, until: Instant) -> Result<MultiplexedConnection, SinkError> {
        let reach = connect(&self.options.client, self.options.timeout);
        let late = |_| SinkError::not_published("Redis did not answer in time");
        timeout_at(until, reach).await.map_err(late)?.map_err(SinkError::not_published)
    }

    /// Appends events of one topic, in their order. Events after a failed one are not appended.
    async fn append(
        &mut self,
        events: &[Arc<Event>],
        chunk: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) {
        let fail = |answers: &mut PublishResults<'_>, from: usize, error: SinkError| {
            chunk[from..].iter().for_each(|&n| answers.set(n, Published::Failed(error.clone())));
        };
        if self.connection.is_none() {
            match self.connect(until).await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => return fail(answers, 0, error),
            }
        }
        let Some(connection) = &mut self.connection else { return };
        let stream = format!("{}{}", self.options.prefix, events[chunk[0]].topic());
        let mut call = self.script.prepare_invoke();
        call.key(&stream).key(seen_key(&stream));
        call.arg(u64::try_from(self.options.remember.as_millis()).unwrap_or(u64::MAX >> 12));
        call.arg(self.options.entries_max);
        for &n in chunk {
            arguments(&mut call, &events[n]);
        }
        let answer: Result<Result<(usize, String), RedisError>, _> =
            timeout_at(until, call.invoke_async(connection)).await;
        match answer {
            Ok(Ok((done, wrong))) => {
                let done = done.min(chunk.len());
                chunk[..done].iter().for_each(|&n| answers.set(n, Published::Confirmed));
                if done < chunk.len() {
                    fail(
                        answers,
                        done,
                        SinkError::not_published(format!(
                            "Redis did not accept the event for {stream}: {wrong}"
                        )),
                    );
                }
            }
            // The server answered that the script did not run. Otherwise it may have run, completely or in part.
            Ok(Err(error)) if error.code().is_some() && !error.is_io_error() => {
                // The server may be a replica by now, and the address may lead to another one.
                self.connection = None;
                fail(
                    answers,
                    0,
                    SinkError::maybe_published(format!(
                        "Redis did not accept the event for {stream}: {error}"
                    )),
                );
            }
            Ok(Err(error)) => {
                self.connection = None;
                fail(answers, 0, SinkError::maybe_published(format!("Redis did not answer: {error}")));
            }
            Err(_) => {
                self.connection = None;
                fail(answers, 0, SinkError::maybe_published("Redis did not answer in time"));
            }
        }
    }
}

impl Sink for RedisStreamSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::Deduplicated,
            sentence: "Redis Streams: every event at least once, in the order of its topic; a repeat is recognised for \
                       a day (unless set) and appended once. As durable as Redis is: use appendonly yes and \
                       appendfsync always."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let until = Instant::now() + self.options.timeout;
        let mut connection = self.connect(until).await?;
        let asked = durability::violations(&mut connection).await;
        self.violations = asked.map_err(SinkError::not_published)?;
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        if std::mem::replace(&mut self.left, true) {
            self.connection = None;
        }
        let mut answers = PublishResults::to(events);
        let mut topics: Vec<(&str, Vec<usize>)> = Vec::new();
        for (n, event) in events.iter().enumerate() {
            match topics.iter_mut().find(|(topic, _)| *topic == event.topic()) {
                Some((_, of_topic)) => of_topic.push(n),
                None => topics.push((event.topic(), vec![n])),
            }
        }
        for (_, of_topic) in topics {
            let mut rest = &of_topic[..];
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(chunk_len(events, rest));
                self.append(events, chunk, &mut answers, until).await;
                rest = after;
                if chunk.last().is_some_and(|&n| !answers.is_confirmed(n)) {
                    let waits = SinkError::not_published(
                        "not sent, because an earlier event of its topic was not confirmed",
                    );
                    rest.iter().for_each(|&n| answers.set(n, Published::Failed(waits.clone())));
                    break;
                }
            }
        }
        self.left = false;
        answers.finish()
    }
}

fn chunk_len(events: &[Arc<Event>], rest: &[usize]) -> usize {
    let mut bytes = 0;
    let fits = rest.iter().take(SCRIPT_EVENTS_MAX).take_while(|&&n| {
        bytes += events[n].payload().len();
        bytes <= SCRIPT_BYTES_MAX
    });
    fits.count().max(1)
}

fn arguments(call: &mut redis::ScriptInvocation<'_>, event: &Event) {
    let mut pairs = headers::of(event, &Style::Plain, "ce_");
    // A reader would mistake it for the payload.
    pairs.retain(|(name, _)| name != PAYLOAD);
    if let Some(key) = event.ordered_by() {
        pairs.push((KEY.to_owned(), key.to_owned()));
    }
    call.arg(event.id().to_string()).arg(pairs.len() * 2 + 2);
    call.arg(PAYLOAD).arg(event.payload().as_ref());
    for (name, text) in &pairs {
        call.arg(name).arg(text);
    }
}

/// The key of the recent ids, in the same cluster slot as the stream.
fn seen_key(stream: &str) -> String {
    match stream.contains('{') {
        true => format!("{stream}:semel-seen"),
        false => format!("{{{stream}}}:semel-seen"),
    }
}
