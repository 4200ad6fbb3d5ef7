//! Checks whether the server is set up for logical replication, before anything depends on it.

use std::fmt;

use super::options::{Cdc, CdcOutbox, Names};
use super::setup::{self, Published};
use super::slot::SlotState;
use super::table::Table;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::postgres::leased_session::{LeasedSession, get};
use crate::store::postgres::statement::Sql;

/// While a sink is down, less than this is used up soon.
const KEEP_BYTES_MIN: i64 = 1 << 30;

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// How severe it is.
    pub severity: Severity,
    /// What was checked, in a word or two.
    pub about: &'static str,
    /// What was found, and what to do.
    pub says: String,
}

/// How severe a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It works, but has a risk.
    Warning,
    /// It cannot work.
    Error,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Fine => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {}", self.about, self.says)
    }
}

fn found(severity: Severity, about: &'static str, says: impl Into<String>) -> Finding {
    Finding { severity, about, says: says.into() }
}

impl CdcOutbox {
    /// Checks the server, the privileges, the slot and the publication. Changes nothing. An error means that the checks
    /// could not run, for example because the server is a standby.
    pub async fn check(&self) -> Result<Vec<Finding>, OutboxReaderError> {
        let cdc = &self.cdc;
        let leased = LeasedSession::open(&cdc.outbox, "").await?;
        let names = cdc.stream.names(leased.lease.lineage.store());
        let table = setup::table(&leased, cdc.stream.table.as_ref()).await?;
        let state = SlotState::query(&leased, &names.slot).await?;
        let mut findings = Vec::new();
        server(&leased, state.slot.is_some(), &mut findings).await?;
        slot(cdc, &names, &state, &mut findings);
        publication(cdc, &leased, &names, &table, &mut findings).await?;
        if table.routed.is_some() {
            let says = "if the slot is lost, events whose rows are already deleted are lost too, and the relay stops; \
                        keep rows for a while, so that you can check";
            findings.push(found(Severity::Warning, "table", says));
        }
        leased.close().await;
        Ok(findings)
    }
}

async fn server(
    leased: &LeasedSession,
    has_slot: bool,
    findings: &mut Vec<Finding>,
) -> Result<(), OutboxReaderError> {
    static ASK: Sql = Sql {
        text: "SELECT current_setting('wal_level'),
                      (SELECT bool_or(rolreplication OR rolsuper) FROM pg_roles WHERE rolname = current_user),
                      current_setting('max_replication_slots')::bigint,
                      (SELECT count(*) FROM pg_replication_slots),
                      current_setting('max_wal_senders')::bigint,
                      (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'),
                      (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
                      (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout')",
        types: &[],
    };
    let rows = leased.query(&ASK, &[]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let level: String = get(row, 0)?;
    findings.push(if level == "logical" {
        found(Severity::Fine, "wal_level", "logical")
    } else {
        found(Severity::Error, "wal_level", format!("{level}; set it to logical and restart the server"))
    });
    findings.push(if get::<Option<bool>>(row, 1)?.unwrap_or(false) {
        found(Severity::Fine, "rights", "this user may replicate")
    } else {
        found(Severity::Error, "rights", "this user may not replicate; run ALTER ROLE … REPLICATION")
    });
    let (slots_max, slots): (i64, i64) = (get(row, 2)?, get(row, 3)?);
    findings.push(if slots < slots_max || has_slot {
        found(Severity::Fine, "slots", format!("{slots} of {slots_max} used"))
    } else {
        found(
            Severity::Error,
            "slots",
            format!("all {slots_max} used; raise max_replication_slots, or drop an unused slot"),
        )
    });
    let (senders_max, senders): (i64, i64) = (get(row, 4)?, get(row, 5)?);
    findings.push(if senders < senders_max {
        found(Severity::Fine, "senders", format!("{senders} of {senders_max} used"))
    } else {
        found(Severity::Error, "senders", format!("all {senders_max} used; raise max_wal_senders"))
    });
    // In megabytes.
    let keep: i64 = get::<Option<i64>>(row, 6)?.unwrap_or(-1);
    findings.push(match keep {
        ..0 => found(
            Severity::Warning,
            "max_slot_wal_keep_size",
            "not set: while no relay runs, the slot fills the server's disk; set it, because the table has all events",
        ),
        _ if keep.saturating_mul(1 << 20) < KEEP_BYTES_MIN => found(
            Severity::Warning,
            "max_slot_wal_keep_size",
            format!("{keep} MB is low: the slot is soon lost, and its events come from the table; raise it"),
        ),
        _ => found(Severity::Fine, "max_slot_wal_keep_size", format!("{keep} MB")),
    });
    if get::<Option<i64>>(row, 7)? == Some(0) {
        let says = "0: the server never notices a dead connection; set it, the default is 60s";
        findings.push(found(Severity::Warning, "wal_sender_timeout", says));
    }
    Ok(())
}

fn slot(cdc: &Cdc, names: &Names, state: &SlotState, findings: &mut Vec<Finding>) {
    let name = &names.slot;
    findings.push(match &state.slot {
        None if cdc.stream.create => found(Severity::Fine, "slot", format!("{name} will be created")),
        None => found(
            Severity::Error,
            "slot",
            format!(
                "{name} does not exist; create it with: SELECT \
                 pg_create_logical_replication_slot('{name}', 'pgoutput')"
            ),
        ),
        Some(slot) if slot.plugin != "pgoutput" || !slot.here => found(
            Severity::Error,
            "slot",
            format!("{name} does not use pgoutput, or belongs to another database; choose another slot name"),
        ),
        Some(slot) if slot.lost => found(
            Severity::Warning,
            "slot",
            format!("{name} is lost ({}); the next relay recreates it", state.wal_status),
        ),
        Some(slot) => {
            let held = state.held_bytes.unwrap_or(0);
            let (user, status) =
                (slot.used_by.map_or("no connection".into(), |pid| format!("pid {pid}")), &state.wal_status);
            let severity = if status == "unreserved" || held > cdc.stream.warn_bytes {
                Severity::Warning
            } else {
                Severity::Fine
            };
            found(
                severity,
                "slot",
                format!("{name} is used by {user}, {status}, and retains {held} bytes of the log"),
            )
        }
    });
}

async fn publication(
    cdc: &Cdc,
    leased: &LeasedSession,
    names: &Names,
    table: &Table,
    findings: &mut Vec<Finding>,
) -> Result<(), OutboxReaderError> {
    let name = &names.publication;
    findings.push(match setup::published(leased, names, table).await? {
        None if cdc.stream.create => found(Severity::Fine, "publication", format!("{name} will be created")),
        None => found(
            Severity::Error,
            "publication",
            format!("{name} does not exist; create it with: {}", setup::create_publication(names, table)),
        ),
        Some(Published { ours: false, .. }) => found(
            Severity::Error,
            "publication",
            format!(
                "{name} does not have {}.{}; run ALTER PUBLICATION … ADD TABLE",
                table.schema, table.name
            ),
        ),
        Some(Published { inserts: false, .. }) => {
            let says = format!("{name} has no inserts; run ALTER PUBLICATION … SET (publish = 'insert')");
            found(Severity::Error, "publication", says)
        }
        Some(published @ Published { filtered: true, .. }) => {
            found(Severity::Error, "publication", published.leaves_out(names, table).unwrap_or_default())
        }
        Some(Published { other_tables, more_than_inserts, .. }) if other_tables > 0 || more_than_inserts => {
            found(
                Severity::Warning,
                "publication",
                format!(
                    "{name} has more than the inserts into our table: the server sends it all, and the relay skips it"
                ),
            )
        }
        Some(_) => found(Severity::Fine, "publication", format!("{name} has the inserts into our table")),
    });
    Ok(())
}
