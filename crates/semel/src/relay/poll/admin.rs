//! Operator commands, the same in every database: list and find events, list, retry and skip parked ones, check the
//! privileges a relay needs. A database brings the text of each [`AdminCommand`] and runs it.

use uuid::Uuid;

use super::outbox::{PollDatabase, PolledOutbox};
use crate::relay::listing::{EventDetail, EventFilter, EventStatus, EventSummary, MissingPrivilege, moment};
use crate::relay::outbox_reader::{OutboxReaderError, Parked};
use crate::relay::row::{Columns, OutboxRow, event_uuid};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::Value;

/// A statement of an operator command, and the columns of its rows.
pub enum AdminCommand<'c> {
    /// Parked events in the order in which they would be published: the event, parked key, error, ms since 1970.
    /// Parameters: the key or NULL, and how many at most.
    Parked,
    /// Makes a parked key due, or all of them: how many. Parameter: the key or NULL.
    ///
    /// Never sets the same time as before: by that a relay that just retried sees that an operator was here.
    Retry,
    /// Parked events that may have this id: number, topic, id. Parameter: the id.
    OfId,
    /// Deletes these parked events, and makes their keys due: how many. The relay that owns a key's partition continues
    /// with it or unparks it. Only the owner may unpark a key: only it knows what else of that key is in flight.
    Skip(&'c [i64]),
    /// Events in order: id, topic, type, ordering key, ms since 1970, payload bytes, status. Parameters: topic or NULL,
    /// key or NULL, and how many at most.
    List(&'c EventFilter),
    /// One event: the event, ms since 1970, status, error, parked key. Parked events come first. Parameter: its id.
    Find,
}

/// What a row of a command contains.
pub trait FromRow: Sized + Send + 'static {
    /// Reads it.
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error>;
}

impl FromRow for i64 {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        row.int(0)
    }
}

impl FromRow for (i64, String, String) {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        Ok((row.int(0)?, row.readable(1)?, row.readable(2)?))
    }
}

impl FromRow for Parked {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            event: Columns::read(row, 0)?.event(),
            key: row.readable(12)?,
            error: row.readable_if_any(13)?,
            since: moment(row.int(14)?),
        })
    }
}

impl FromRow for EventSummary {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            id: event_uuid(&row.readable(0)?),
            topic: row.readable(1)?,
            kind: row.readable(2)?,
            key: row.readable_if_any(3)?,
            made_at: moment(row.int(4)?),
            payload_bytes: row.int(5)?.unsigned_abs(),
            standing: EventStatus::read(&row.readable(6)?),
        })
    }
}

impl FromRow for EventDetail {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            event: Columns::read(row, 0)?.event(),
            made_at: moment(row.int(12)?),
            standing: EventStatus::read(&row.readable(13)?),
            error: row.readable_if_any(14)?,
            parked_key: row.readable_if_any(15)?,
        })
    }
}

impl FromRow for MissingPrivilege {
    fn from_row<R: OutboxRow>(row: &R) -> Result<Self, R::Error> {
        Ok(Self { right: row.readable(0)?, only_to_prune: row.int(1)? != 0 })
    }
}

impl<D: PollDatabase> PolledOutbox<D> {
    async fn ask<T: FromRow>(
        &self,
        command: AdminCommand<'_>,
        values: Vec<Value>,
    ) -> Result<Vec<T>, OutboxReaderError> {
        let text = D::text(command);
        self.database.ask(text, values).await
    }

    /// Parked and held events, of one key or of all, in the order in which they would be published.
    pub async fn parked(
        &self,
        key: Option<&str>,
        events_max: usize,
    ) -> Result<Vec<Parked>, OutboxReaderError> {
        self.ask(AdminCommand::Parked, vec![key.map(str::to_owned).into(), bound(events_max).into()]).await
    }

    /// Retries a parked key now, or all of them with `None`. Returns the number of keys.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, OutboxReaderError> {
        let keys = self.ask::<i64>(AdminCommand::Retry, vec![key.map(str::to_owned).into()]).await?;
        Ok(keys.iter().sum::<i64>().unsigned_abs())
    }

    /// Skips a parked event for good, so that the events behind it in its key continue. `false`: it is not parked.
    ///
    /// # Errors
    /// Also if events with this id are parked on several topics: see [`skip_on`](Self::skip_on).
    pub async fn skip(&self, id: Uuid) -> Result<bool, OutboxReaderError> {
        self.give_up(id, None).await
    }

    /// Like [`skip`](Self::skip), for the event with this id on this topic.
    pub async fn skip_on(&self, id: Uuid, topic: &str) -> Result<bool, OutboxReaderError> {
        self.give_up(id, Some(topic)).await
    }

    async fn give_up(&self, id: Uuid, topic: Option<&str>) -> Result<bool, OutboxReaderError> {
        let candidates =
            self.ask::<(i64, String, String)>(AdminCommand::OfId, vec![id.to_string().into()]).await?;
        // A stored id that is not a UUID is hashed into one.
        let parked = candidates.into_iter().filter(|(_, _, stored)| event_uuid(stored) == id);
        let ns = to_skip(id, parked.map(|(n, topic, _)| (n, topic)).collect(), topic)?;
        if ns.is_empty() {
            return Ok(false);
        }
        Ok(self.ask::<i64>(AdminCommand::Skip(&ns), Vec::new()).await?.iter().any(|gone| *gone > 0))
    }

    /// Events with their status.
    pub async fn list(&self, listing: &EventFilter) -> Result<Vec<EventSummary>, OutboxReaderError> {
        let values =
            vec![listing.topic.clone().into(), listing.key.clone().into(), bound(listing.events_max).into()];
        let mut listed = self.ask::<EventSummary>(AdminCommand::List(listing), values).await?;
        if D::NUMBERS_EACH_PARTITION {
            // A stable sort: events of one partition with the same time keep their order.
            match listing.oldest_first {
                true => listed.sort_by_key(|event| event.made_at),
                false => listed.sort_by_key(|event| std::cmp::Reverse(event.made_at)),
            }
            listed.truncate(listing.events_max);
        }
        Ok(listed)
    }

    /// One event, if it is parked or among the newest [`LOOKED_EVENTS_MAX`](crate::relay::LOOKED_EVENTS_MAX).
    pub async fn find(&self, id: Uuid) -> Result<Option<EventDetail>, OutboxReaderError> {
        Ok(self.ask(AdminCommand::Find, vec![id.to_string().into()]).await?.into_iter().next())
    }

    /// Checks whether a relay could run here: the tables exist, have the right version and lineage, and can be written
    /// to. Returns the privileges it lacks; a file has none that could be missing.
    pub async fn check(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        self.database.missing_privileges().await
    }
}

/// Which of these parked events (number and topic) to skip: those on `topic`, which may be omitted if there is only
/// one.
fn to_skip(id: Uuid, parked: Vec<(i64, String)>, topic: Option<&str>) -> Result<Vec<i64>, OutboxReaderError> {
    let mut topics: Vec<&str> = parked.iter().map(|(_, topic)| topic.as_str()).collect();
    topics.sort_unstable();
    topics.dedup();
    if topic.is_none() && topics.len() > 1 {
        let message = format!(
            "events with the id {id} are parked on several topics ({}); name the topic of the one to skip",
            topics.join(", ")
        );
        return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).into());
    }
    let wanted = parked.iter().filter(|(_, of)| topic.is_none_or(|topic| topic == of));
    Ok(wanted.map(|(n, _)| *n).collect())
}

/// Numbers, separated by commas.
pub(super) fn numbers(ns: &[i64]) -> String {
    ns.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn bound(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}
