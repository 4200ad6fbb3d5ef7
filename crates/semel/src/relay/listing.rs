//! What a person sees of the outbox: which events are in it, and what became of them.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::outbox::Event;

/// Most events looked at for one listing, and for one event by its id: nothing is indexed for that.
pub const LOOKED_EVENTS_MAX: usize = 100_000;

/// Which events are listed: the newest, unless said otherwise.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EventFilter {
    pub(super) events_max: usize,
    pub(super) unpublished: bool,
    pub(super) oldest_first: bool,
    pub(super) topic: Option<String>,
    pub(super) key: Option<String>,
}

impl EventFilter {
    /// So many. They are found among [`LOOKED_EVENTS_MAX`].
    pub fn new(events_max: usize) -> Self {
        Self { events_max: events_max.min(LOOKED_EVENTS_MAX), ..Self::default() }
    }

    /// Only those that the cursor has before it. What is parked is listed apart.
    pub fn unpublished(mut self) -> Self {
        self.unpublished = true;
        self
    }

    /// The oldest instead of the newest.
    pub fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// Only those for this topic.
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// Only those whose order is kept by this key.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }
}

/// How far an event has come, as far as the polling cursor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventStatus {
    /// Before the cursor.
    Waiting,
    /// In the batch that is being sent.
    Sending,
    /// Behind the cursor.
    Published,
    /// Set aside: the sink did not take it.
    Parked,
    /// Behind one of its key that is parked.
    Held,
}

impl EventStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Sending, Self::Published, Self::Parked, Self::Held];

    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Sending => "sending",
            Self::Published => "published",
            Self::Parked => "parked",
            Self::Held => "held",
        }
    }

    /// What [`as_str`](Self::as_str) says. The statements say it too.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
    pub(super) fn read(text: &str) -> Self {
        Self::ALL.into_iter().find(|standing| standing.as_str() == text).unwrap_or(Self::Waiting)
    }
}

/// An event in a listing. Its payload may be large and is not read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventSummary {
    /// Its id.
    pub id: Uuid,
    /// Where it goes.
    pub topic: String,
    /// What happened.
    pub kind: String,
    /// What its order is kept by.
    pub key: Option<String>,
    /// When it was appended, by the database's clock.
    pub made_at: SystemTime,
    /// How large its payload is.
    pub payload_bytes: u64,
    /// How far it has come.
    pub standing: EventStatus,
}

/// One event, payload and all.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventDetail {
    /// The event.
    pub event: Event,
    /// When it was appended, by the database's clock.
    pub made_at: SystemTime,
    /// How far it has come.
    pub standing: EventStatus,
    /// What the sink said, where it is parked.
    pub error: Option<String>,
    /// Names what is held together, where it is parked or held: what it is tried again by.
    pub parked_key: Option<String>,
}

/// A right that a relay needs and does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MissingPrivilege {
    /// Such as `UPDATE on semel_outbox_cursor`.
    pub right: String,
    /// It is needed to forget what was published, and for nothing else.
    pub only_to_prune: bool,
}

/// A database's ms since 1970.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
pub(super) fn moment(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs())
}
