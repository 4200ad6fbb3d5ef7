//! Why outbox tables are refused.

use crate::store::{ErrorKind, Fate, StoreError};

/// Refuses tables whose schema version this build does not know.
pub(in crate::relay) fn known_version(version: i64) -> Result<(), StoreError> {
    // The versions of the outbox are the same in all dialects.
    let checked = crate::outbox::TABLES.check(crate::tx::driver::Dialect::Postgres, version, "this database");
    checked.map_err(crate::migration::wrong)
}

/// The outbox tables do not exist.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::relay) fn no_outbox(database: &str) -> StoreError {
    let message = format!(
        "{database} has no outbox tables; create them with `semel migrate --outbox URL` or `semel::outbox::schema`"
    );
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

/// The cursor is ahead of the table: new events would get numbers that already count as published.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(in crate::relay) fn cursor_ahead() -> super::outbox_reader::OutboxReaderError {
    let message = "the outbox's cursor is ahead of every event ever appended here: the events were restored from a \
                   backup without the cursor, or the event counter was lost; find out which, then choose where to \
                   continue with `semel outbox rebase`";
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into()
}
