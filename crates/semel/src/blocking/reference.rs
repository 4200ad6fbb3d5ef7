//! [`tx::reference`](mod@crate::tx::reference).

use rusqlite::Connection;

use super::ready;
use crate::intent::identity::{Intent, IntentId};
use crate::tx::reference::{self, ReferenceError};

/// [`reference::record`].
pub fn record(
    mut tx: &Connection,
    intent: &Intent,
    provider: &str,
    reference: &str,
) -> Result<(), ReferenceError> {
    ready(reference::record(&mut tx, intent, provider, reference))
}

/// [`reference::find`].
pub fn find(
    mut tx: &Connection,
    provider: &str,
    reference: &str,
) -> Result<Option<IntentId>, ReferenceError> {
    ready(reference::find(&mut tx, provider, reference))
}
