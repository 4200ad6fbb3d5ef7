//! RabbitMQ: publisher confirms, mandatory and persistent messages.
//!
//! | in the message | from the event |
//! |---|---|
//! | routing key | its topic; in the default exchange that is the name of a queue |
//! | `message_id`, `type`, `content_type` | its id, type and content type |
//! | headers | the common ones, see [`headers`]; `semel-key` is its partition key |
//!
//! A confirm from a durable queue means on disk; from a quorum queue, on the disks of a majority. RabbitMQ also acks
//! unroutable messages, so every message is mandatory, and a returned one is not confirmed.
//!
//! **Order.** At most one event of a key is in flight: a queue may reject one message and accept the next. Keys do not
//! wait for each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ExchangeKind};
use tokio::time::{Instant, timeout_at};

use super::client::{dial, short};
use crate::outbox::Event;
use crate::sink::headers::{self, Style};
use crate::sink::key_queues::KeyQueues;
use crate::sink::publish_results::PublishResults;
use crate::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

const PERSISTENT: u8 = 2;
/// Longest AMQP short string.
const SHORT_BYTES_MAX: usize = 255;

/// What to do with an event that no queue is bound for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Unroutable {
    /// Retry until a queue is bound.
    #[default]
    Wait,
    /// Refuse it.
    Refuse,
}

/// Where and how to publish. See [`RabbitmqSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RabbitmqOptions {
    url: String,
    exchange: String,
    unroutable: Unroutable,
    timeout: Duration,
}

impl RabbitmqOptions {
    /// The exchange, which must exist: by default the default exchange.
    pub fn exchange(mut self, exchange: &str) -> Self {
        self.exchange = exchange.to_owned();
        self
    }

    /// What to do with unroutable events: by default [`Unroutable::Wait`].
    pub fn unroutable(mut self, unroutable: Unroutable) -> Self {
        self.unroutable = unroutable;
        self
    }

    /// Timeout of one call: by default 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Creates the sink. It connects when it first publishes.
    pub fn open(self) -> RabbitmqSink {
        RabbitmqSink { options: self, connection: None, left: false, violations: Vec::new() }
    }
}

/// Publishes to RabbitMQ at least once.
///
/// ```no_run
/// use semel::sink::rabbitmq::RabbitmqSink;
///
/// let sink = RabbitmqSink::options("amqp://guest:guest@127.0.0.1:5672/%2f").exchange("payments").open();
/// # drop(sink);
/// ```
pub struct RabbitmqSink {
    options: RabbitmqOptions,
    connection: Option<(Connection, Channel)>,
    /// The last call was cancelled: it is in doubt what it sent.
    left: bool,
    violations: Vec<String>,
}

impl RabbitmqSink {
    /// Options of a sink for the broker at this `amqp://` address.
    pub fn options(url: &str) -> RabbitmqOptions {
        RabbitmqOptions {
            url: url.to_owned(),
            exchange: String::new(),
            unroutable: Unroutable::Wait,
            timeout: Duration::from_secs(30),
        }
    }

    async fn connect(&self) -> Result<(Connection, Channel), lapin::Error> {
        let (connection, channel) = dial(&self.options.url).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok((connection, channel))
    }

    /// Sends one round and waits for its confirms. Drops a closed channel. Returns the events that failed because the
    /// broker closed the channel over one of them: sent alone, each shows whether it is to blame.
    async fn send_round(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) -> Vec<usize> {
        if self.connection.is_none() {
            match timeout_at(until, self.connect()).await {
                Ok(Ok(connection)) => self.connection = Some(connection),
                failed => {
                    let message = match failed {
                        Ok(Err(error)) => format!("RabbitMQ could not be reached: {error}"),
                        _ => "RabbitMQ did not answer in time".to_owned(),
                    };
                    let answer = Published::Failed(SinkError::not_published(message));
                    round.iter().for_each(|&n| answers.set(n, answer.clone()));
                    return Vec::new();
                }
            }
        }
        let Some((_, channel)) = &self.connection else { return Vec::new() };
        let mut failed = Vec::new();
        let mut waiting = Vec::with_capacity(round.len());
        for &n in round {
            let event = &events[n];
            let sent = match message(event) {
                Err(error) => {
                    answers.set(n, Published::Refused(error));
                    continue;
                }
                Ok((key, properties)) => channel.basic_publish(
                    short(&self.options.exchange).unwrap_or_default(),
                    key,
                    BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                    event.payload(),
                    properties,
                ),
            };
            match timeout_at(until, sent).await {
                Ok(Ok(confirm)) => waiting.push((n, confirm)),
                Ok(Err(error)) => failed.push((n, error)),
                Err(_) => answers.set(n, silent()),
            }
        }
        let mut broken = waiting.len() < round.len();
        // The client attaches a returned message to the next confirm, which may belong to another event. So wait for
        // all confirms of the round, then match each returned message by its topic and id.
        let (mut confirmed, mut returned) = (Vec::with_capacity(waiting.len()), HashMap::new());
        for (n, confirm) in waiting {
            match timeout_at(until, confirm).await {
                Ok(Ok(confirmation)) => {
                    if let Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) = &confirmation
                        && let Some(id) = back.delivery.properties.message_id()
                    {
                        let why = format!("{} ({})", back.reply_text, back.reply_code);
                        returned.insert((back.delivery.routing_key.to_string(), id.to_string()), why);
                    }
                    confirmed.push((n, confirmation));
                }
                Ok(Err(error)) => {
                    broken = true;
                    failed.push((n, error));
                }
                Err(_) => {
                    broken = true;
                    answers.set(n, silent());
                }
            }
        }
        let mut again = Vec::new();
        if round.len() > 1 && failed.iter().any(|(_, error)| unwanted(error).is_some()) {
            again.extend(failed.into_iter().map(|(n, _)| n));
        } else {
            for (n, error) in failed {
                answers.set(n, unwanted(&error).unwrap_or_else(|| doubtful(&error)));
            }
        }
        for (n, confirmation) in confirmed {
            let event = &events[n];
            let name = (event.topic().to_owned(), event.id().to_string());
            let answer = match (returned.get(&name), confirmation) {
                (Some(why), _) => self.unroutable(event.topic(), why),
                // The returned message is another event's; its own may be attached to a confirm that never came.
                (None, Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))) if broken => silent(),
                (None, confirmation) => classify(&confirmation, event.topic()),
            };
            answers.set(n, answer);
        }
        if broken {
            self.connection = None;
        }
        again
    }

    fn unroutable(&self, topic: &str, why: &str) -> Published {
        let message = format!(
            "RabbitMQ could not route the event: {why}; bind a queue for {topic:?} to the exchange {:?}",
            self.options.exchange
        );
        match self.options.unroutable {
            Unroutable::Refuse => Published::Refused(SinkError::not_published(message)),
            Unroutable::Wait => Published::Failed(SinkError::not_published(message).destination_down()),
        }
    }
}

/// Classifies the confirm of a message that was not returned.
fn classify(confirmation: &Confirmation, topic: &str) -> Published {
    match confirmation {
        Confirmation::Ack(_) => Published::Confirmed,
        // If it was routed to several queues, one of them may have accepted it.
        Confirmation::Nack(_) => Published::Failed(SinkError::maybe_published(format!(
            "a queue for {topic:?} rejected the event; check whether it is full or has lost its majority"
        ))),
        Confirmation::NotRequested => {
            Published::Failed(SinkError::maybe_published("publisher confirms are not enabled on the channel"))
        }
    }
}

impl Sink for RabbitmqSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "RabbitMQ, publisher confirms: every event at least once, in the order of its key within a \
                       queue; after a crash or a lost answer more often, with the same message id. As durable as the \
                       queue is: use quorum queues."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let failed = |what: &str| SinkError::not_published(what.to_owned());
        let until = Instant::now() + self.options.timeout;
        let reached = timeout_at(until, self.connect()).await;
        let (connection, channel) = match reached {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(failed(&format!("RabbitMQ could not be reached: {error}"))),
            Err(_) => return Err(failed("RabbitMQ did not answer in time")),
        };
        self.violations.clear();
        if !self.options.exchange.is_empty() {
            let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let name = ShortString::from(self.options.exchange.as_str());
            let asked = channel.exchange_declare(name, ExchangeKind::Topic, passive, FieldTable::default());
            match timeout_at(until, asked).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if is_about_the_channel(&error) => {
                    self.violations.push(format!(
                        "the exchange {:?} does not exist ({error}); declare it, or name another",
                        self.options.exchange
                    ));
                }
                // Only an answer of the broker counts.
                Ok(Err(error)) => return Err(failed(&format!("RabbitMQ could not be asked: {error}"))),
                Err(_) => return Err(failed("RabbitMQ did not answer in time")),
            }
        }
        let _ = timeout_at(until, connection.close(200, ShortString::from("asked"))).await;
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        if std::mem::replace(&mut self.left, true) {
            self.connection = None;
        }
        let mut answers = PublishResults::to(events);
        let mut queues = KeyQueues::of(events);
        loop {
            let round = queues.next(&mut answers);
            if round.is_empty() {
                break;
            }
            for alone in self.send_round(events, &round, &mut answers, until).await {
                self.send_round(events, &[alone], &mut answers, until).await;
            }
        }
        self.left = false;
        answers.finish()
    }
}

/// The routing key and the properties of an event.
fn message(event: &Event) -> Result<(ShortString, BasicProperties), SinkError> {
    let too_long = |what: &str| {
        SinkError::not_published(format!(
            "{what} has more than {SHORT_BYTES_MAX} bytes, which AMQP cannot carry"
        ))
    };
    let mut table = FieldTable::default();
    let key = event.ordered_by().map(|key| (headers::KEY.to_owned(), key.to_owned()));
    for (name, text) in headers::of(event, &Style::Plain, "cloudEvents:").into_iter().chain(key) {
        let name = short(&name).ok_or_else(|| too_long("a header's name"))?;
        table.insert(name, AMQPValue::LongString(text.into()));
    }
    let mut properties = BasicProperties::default()
        .with_headers(table)
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&event.id().to_string()).unwrap_or_default());
    // The headers carry them too, so a value that is too long for a property is only in the headers.
    if let Some(kind) = short(event.kind()) {
        properties = properties.with_type(kind);
    }
    if let Some(content_type) = short(event.media_type()) {
        properties = properties.with_content_type(content_type);
    }
    Ok((short(event.topic()).ok_or_else(|| too_long("the topic"))?, properties))
}

fn doubtful(error: &lapin::Error) -> Published {
    Published::Failed(SinkError::maybe_published(format!("RabbitMQ did not confirm the event: {error}")))
}

/// Classifies an error that closes the channel over one event: too large, or not permitted. `None` for others; a
/// missing exchange concerns all events.
fn unwanted(error: &lapin::Error) -> Option<Published> {
    const ACCESS_REFUSED: u16 = 403;
    const PRECONDITION_FAILED: u16 = 406;
    let lapin::ErrorKind::ProtocolError(protocol) = error.kind() else { return None };
    let rejected = || SinkError::not_published(format!("RabbitMQ does not accept the event: {error}"));
    match protocol.get_id() {
        ACCESS_REFUSED => Some(Published::Failed(rejected().destination_down())),
        PRECONDITION_FAILED => Some(Published::Refused(rejected())),
        _ => None,
    }
}

fn silent() -> Published {
    Published::Failed(SinkError::maybe_published("RabbitMQ did not confirm the event in time"))
}

/// Whether the broker rejected a request (a channel error), rather than the connection.
fn is_about_the_channel(error: &lapin::Error) -> bool {
    use lapin::protocol::AMQPErrorKind;
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)))
}
