//! Listing the outbox for people: which events are in it, and their status.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::outbox::Event;

/// Most events scanned for one listing, or to find one event by its id: there is no index for that.
pub const LOOKED_EVENTS_MAX: usize = 100_000;

/// Which events are listed: by default the newest.
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
    /// Lists at most this many events, found among [`LOOKED_EVENTS_MAX`].
    pub fn new(events_max: usize) -> Self {
        Self { events_max: events_max.min(LOOKED_EVENTS_MAX), ..Self::default() }
    }

    /// Only events that the cursor has not passed. Parked events are listed separately.
    pub fn unpublished(mut self) -> Self {
        self.unpublished = true;
        self
    }

    /// The oldest first, instead of the newest.
    pub fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// Only events of this topic.
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// Only events that are ordered by this key.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }
}

/// The status of an event, according to the polling cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventStatus {
    /// The cursor has not reached it.
    Waiting,
    /// In flight: in the batch that is being sent.
    Sending,
    /// The cursor has passed it.
    Published,
    /// Parked: the sink did not accept it.
    Parked,
    /// An earlier event of its key is parked.
    Held,
}

impl EventStatus {
    /// All statuses.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Sending, Self::Published, Self::Parked, Self::Held];

    /// The status as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Sending => "sending",
            Self::Published => "published",
            Self::Parked => "parked",
            Self::Held => "held",
        }
    }

    /// Parses [`as_str`](Self::as_str). The SQL statements return the same words.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
    pub(super) fn read(text: &str) -> Self {
        Self::ALL.into_iter().find(|status| status.as_str() == text).unwrap_or(Self::Waiting)
    }
}

/// An event in a listing. Its payload may be large and is not read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventSummary {
    /// Its id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its type.
    pub kind: String,
    /// The key it is ordered by.
    pub key: Option<String>,
    /// When it was appended, by the database's clock.
    pub made_at: SystemTime,
    /// Size of its payload.
    pub payload_bytes: u64,
    /// Its status.
    pub standing: EventStatus,
}

/// One event with its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventDetail {
    /// The event.
    pub event: Event,
    /// When it was appended, by the database's clock.
    pub made_at: SystemTime,
    /// Its status.
    pub standing: EventStatus,
    /// The sink's error, if it is parked.
    pub error: Option<String>,
    /// The parked key, if it is parked or held: a retry goes by this key.
    pub parked_key: Option<String>,
}

/// A database privilege that a relay needs and lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MissingPrivilege {
    /// Such as `UPDATE on semel_outbox_cursor`.
    pub right: String,
    /// Needed only to prune published events.
    pub only_to_prune: bool,
}

/// The time from a database's ms since 1970.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
pub(super) fn moment(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs())
}
