//! The lag: how much is left to publish. Also which keys are parked.

use tokio_postgres::types::Type;

use super::held_by;
use crate::relay::outbox_reader::{Lag, OutboxReaderError, Pending};
use crate::relay::postgres::leased_session::{LeasedSession, get};
use crate::store::postgres::statement::Sql;

pub(super) async fn lag(leased: &LeasedSession, slot: &str) -> Result<Lag, OutboxReaderError> {
    // From restart_lsn: an open transaction keeps it behind the confirmed LSN.
    static KEPT: Sql = Sql {
        text: "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint
               FROM pg_replication_slots WHERE slot_name = $1::text",
        types: &[Type::TEXT],
    };
    // Counted from the last checkpoint, so a little more than is really left. A routed table is not counted.
    let mut lag = leased.lag().await?;
    let rows = leased.query(&KEPT, &[&slot]).await?;
    let kept: Option<i64> = rows.first().map_or(Ok(None), |row| get(row, 0))?;
    lag.bytes = Some(kept.unwrap_or(0).max(0).unsigned_abs());
    Ok(lag)
}

pub(super) async fn any_parked(leased: &LeasedSession) -> Result<bool, OutboxReaderError> {
    static ANY: Sql = Sql { text: "SELECT EXISTS (SELECT FROM semel_outbox_parked_key)", types: &[] };
    let rows = leased.query(&ANY, &[]).await?;
    Ok(rows.first().map_or(Ok(true), |row| get(row, 0))?)
}

/// Marks events whose key is parked as held. Only the leader parks and unparks keys.
pub(super) async fn mark_held(
    leased: &LeasedSession,
    events: &mut [Pending],
) -> Result<(), OutboxReaderError> {
    static PARKED: Sql = Sql {
        text: "SELECT key FROM semel_outbox_parked_key WHERE key = ANY ($1::text[])",
        types: &[Type::TEXT_ARRAY],
    };
    let mut keys: Vec<String> = events.iter().map(|pending| held_by(&pending.event)).collect();
    keys.sort_unstable();
    keys.dedup();
    let rows = leased.query(&PARKED, &[&keys]).await?;
    let parked: std::collections::HashSet<String> =
        rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
    for pending in events {
        pending.held = parked.contains(&held_by(&pending.event));
    }
    Ok(())
}
