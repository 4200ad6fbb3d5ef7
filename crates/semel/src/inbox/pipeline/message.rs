//! Inputs and outputs of a pipeline.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rdkafka::Message as _;
use rdkafka::message::{Header, Headers, OwnedHeaders, OwnedMessage};
use rdkafka::producer::BaseRecord;

use super::super::consumer::Message;
use crate::broker::kafka::producer::{Batch, Record, Ticket};
use crate::broker::kafka::source::{Part, record};
use crate::source::{Identify, MissingIdentity};

/// Header in the dead-letter topic: why the message is there.
pub const DEAD_ERROR: &str = "semel-dead-error";
/// Header in the dead-letter topic: where the message was, as `topic/partition/offset`.
pub const DEAD_PLACE: &str = "semel-dead-place";
/// Longest error that is written into a header.
const ERROR_BYTES_MAX: usize = 1_000;

/// A message of an input topic, as Kafka has it. Cheap to clone.
#[derive(Clone)]
pub struct Input(Arc<Inner>);

struct Inner {
    message: OwnedMessage,
    lineage: Arc<str>,
}

impl Input {
    pub(super) fn new(message: OwnedMessage, lineage: &Arc<str>) -> Self {
        Self(Arc::new(Inner { message, lineage: Arc::clone(lineage) }))
    }

    /// Its topic.
    pub fn topic(&self) -> &str {
        self.0.message.topic()
    }

    /// Its partition.
    pub fn partition(&self) -> i32 {
        self.0.message.partition()
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> i64 {
        self.0.message.offset()
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.message.key()
    }

    /// Its payload; `None` for a tombstone.
    pub fn payload(&self) -> Option<&[u8]> {
        self.0.message.payload()
    }

    /// When it was published, in milliseconds since 1970.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.0.message.timestamp().to_millis()
    }

    /// Its headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let headers = self.0.message.headers().into_iter().flat_map(Headers::iter);
        headers.map(|header| (header.key, header.value))
    }

    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(header, _)| *header == name)?.1
    }

    /// `topic/partition/offset`.
    pub fn place(&self) -> String {
        format!("{}/{}/{}", self.topic(), self.partition(), self.offset())
    }

    /// The message as the [inbox](crate::inbox::Inbox) marks it, for an effect in a database.
    ///
    /// # Errors
    /// If it has no id.
    pub fn named(&self, identify: &Identify) -> Result<Message, MissingIdentity> {
        let delivery = record::delivery(&self.0.message, &self.0.lineage);
        Ok(Message::new(identify.identify(&delivery)?, delivery))
    }

    pub(super) fn part(&self) -> Part {
        (self.topic().to_owned(), self.partition())
    }

    pub(super) fn is_of(&self, part: &Part) -> bool {
        self.partition() == part.1 && self.topic() == part.0
    }

    /// Whether both are in the same partition.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.partition() == other.partition() && self.topic() == other.topic()
    }

    /// Its approximate size in memory.
    pub(super) fn bytes(&self) -> usize {
        let headers: usize =
            self.headers().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum();
        self.key().map_or(0, <[u8]>::len) + self.payload().map_or(0, <[u8]>::len) + headers
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("place", &self.place()).finish_non_exhaustive()
    }
}

/// A message for an output topic.
///
/// ```
/// use semel::inbox::pipeline::Output;
///
/// let output = Output::to("invoices").key("customer-7").header("content-type", "text/plain").payload("42.00");
/// # drop(output);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Output {
    topic: Arc<str>,
    key: Field,
    headers: Vec<(String, Option<Bytes>)>,
    payload: Field,
}

/// A key or a payload.
#[derive(Clone, Debug)]
enum Field {
    None,
    Own(Bytes),
    /// Shared with an input, not copied.
    Of(Input),
}

impl Field {
    fn bytes<'a>(&'a self, of: impl Fn(&'a Input) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
        match self {
            Self::None => None,
            Self::Own(bytes) => Some(bytes),
            Self::Of(input) => of(input),
        }
    }
}

impl Output {
    /// An empty message for that topic. Without a payload it is a tombstone.
    pub fn to(topic: impl Into<Arc<str>>) -> Self {
        Self { topic: topic.into(), key: Field::None, headers: Vec::new(), payload: Field::None }
    }

    /// A message for that topic with the key, the headers and the payload of an input. Key and payload are not copied,
    /// nor is the topic if it is an `Arc<str>`.
    pub fn like(input: &Input, topic: impl Into<Arc<str>>) -> Self {
        let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        Self {
            topic: topic.into(),
            key: Field::Of(input.clone()),
            headers: input.headers().map(|(name, value)| (name.to_owned(), value.map(copy))).collect(),
            payload: Field::Of(input.clone()),
        }
    }

    /// Messages of one key go to one partition and keep their order.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Field::Own(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Field::Own(payload.into());
        self
    }

    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The dead letter of a message that cannot be transformed.
    pub(super) fn dead(input: &Input, topic: &str, error: &str) -> Self {
        let cut = (0..=ERROR_BYTES_MAX.min(error.len())).rev().find(|at| error.is_char_boundary(*at));
        let text = error.get(..cut.unwrap_or(0)).unwrap_or_default().to_owned();
        Self::like(input, topic).header(DEAD_PLACE, input.place()).header(DEAD_ERROR, text)
    }

    /// The record; its delivery report goes to that index of the batch.
    pub(super) fn record(&self, batch: &Arc<Batch>, index: usize) -> Record<'_, [u8]> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, Box::new(Ticket::new(batch, index)));
        if let Some(key) = self.key.bytes(Input::key) {
            record = record.key(key);
        }
        if let Some(payload) = self.payload.bytes(Input::payload) {
            record = record.payload(payload);
        }
        if self.headers.is_empty() {
            return record;
        }
        let mut all = OwnedHeaders::new_with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            all = all.insert(Header { key: name, value: value.as_deref() });
        }
        record.headers(all)
    }
}
