//! The cursors of a listing, newest first.

use super::{ErrorKind, Fate, StoreError};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;

/// Where a page ends in a list that is sorted by creation time, then by id.
pub(super) type Cursor = (StoreTime, IntentId);

pub(super) fn text((created, id): Cursor) -> String {
    format!("{}-{id}", created.0)
}

pub(super) fn parse(cursor: &str) -> Result<Cursor, StoreError> {
    let parsed = cursor
        .split_once('-')
        .and_then(|(created, id)| Some((StoreTime(created.parse().ok()?), id.parse().ok()?)));
    parsed.ok_or_else(|| unknown(cursor))
}

/// The error for a cursor that is not from a page of this store.
pub(super) fn unknown(cursor: &str) -> StoreError {
    let message =
        format!("{cursor:?} is not a cursor of this store; use the one the previous page ended with");
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}
