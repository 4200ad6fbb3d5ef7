//! A reader's connection, its lease, and the partitions (column `part`) it owns: heartbeat, rebalance, release, prune.

use std::time::{Duration, Instant};

use sqlx::mysql::MySqlRow;
use sqlx::{Decode, MySql, Row, Type};

use super::MysqlTables;
use crate::relay::lease::{PARTITIONS, RelayLease, share_of};
use crate::relay::outbox_reader::{Lag, OutboxLineage, OutboxReaderError, Pruned};
use crate::relay::row::OutboxRow;
use crate::relay::table_checks::{cursor_ahead, known_version, no_outbox};
use crate::store::mysql::literal;
use crate::store::mysql::session::{Brought, Session};
use crate::store::{ErrorKind, Fate, StoreError};

/// The server's clock in ms.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)";
/// Retention: rows deleted by one statement, and statements per partition.
const CHUNK_ROWS: u64 = 1_000;
const CHUNKS_MAX: u32 = 20;
const COUNT_MAX: u64 = 10_000;
const NO_SUCH_TABLE: u16 = 1146;

/// Lineage of tables and cursors, read-only or not, version, and how many cursors are ahead of their counter.
const START: &str =
    "SELECT CONVERT(m.lineage USING utf8mb4), CONVERT(c.lineage USING utf8mb4), @@global.read_only,
     CAST(m.version AS SIGNED),
     (SELECT COUNT(*) FROM semel_outbox_cursor s JOIN semel_outbox_part p ON p.part = s.part
      WHERE s.after_n > p.n OR s.until_n > p.n)
     FROM semel_outbox_meta m LEFT JOIN semel_outbox_cursor c ON c.lineage IS NOT NULL
     GROUP BY m.lineage, c.lineage, m.version";

/// The cursor of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartitionCursor {
    pub(super) partition: i16,
    pub(super) epoch: i64,
    pub(super) after: i64,
    pub(super) recorded: Option<i64>,
}

/// A connection to an outbox in MySQL.
pub struct LeasedMysqlSession {
    pub(super) session: Session,
    pub(super) outbox: MysqlTables,
    pub(super) lease: RelayLease,
    /// The other relays with a lease.
    others: Vec<String>,
    pub(super) cursors: Vec<PartitionCursor>,
    /// Which partition is read first, so that none is always last.
    pub(super) first_partition: usize,
}

impl LeasedMysqlSession {
    pub(super) async fn open(outbox: &MysqlTables, me: &str) -> Result<Self, OutboxReaderError> {
        let session =
            outbox.dial.open().await.map_err(|error| error.explain(&outbox.server, Fate::NotApplied))?;
        let mut leased = Self {
            session,
            outbox: outbox.clone(),
            lease: RelayLease::new(me, OutboxLineage::read("")),
            others: Vec::new(),
            cursors: Vec::new(),
            first_partition: 0,
        };
        let asked = leased.session.run(START.to_owned()).await;
        let brought = asked.map_err(|failed| match failed.error.number() {
            Some(NO_SUCH_TABLE) => no_outbox(&outbox.server),
            _ => failed.error.explain(&outbox.server, Fate::NotApplied),
        })?;
        for row in brought.iter().flat_map(|brought| &brought.rows) {
            known_version(get(row, 3)?)?;
            let (found, stored): (String, Option<String>) = (get(row, 0)?, get(row, 1)?);
            let (found, stored) = (OutboxLineage::read(&found), stored.as_deref().map(OutboxLineage::read));
            match stored {
                Some(stored) if !stored.matches(&found) => {
                    return Err(OutboxReaderError::OutboxLineage { stored, found });
                }
                _ => leased.lease.lineage = found,
            }
            if get::<i64>(row, 4)? != 0 {
                return Err(cursor_ahead());
            }
            if get::<i64>(row, 2)? != 0 {
                let message =
                    format!("{} is read-only, perhaps a replica; use the URL of the primary", outbox.server);
                return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).into());
            }
        }
        Ok(leased)
    }

    /// Runs statements sent in one packet.
    pub(super) async fn run(&mut self, text: String) -> Result<Vec<Brought>, OutboxReaderError> {
        let failed = match self.session.run(text).await {
            Ok(brought) => return Ok(brought),
            Err(failed) => failed,
        };
        Err(failed.error.explain(&self.outbox.server, Fate::InDoubt).into())
    }

    pub(super) async fn rows(&mut self, text: &str) -> Result<Vec<MySqlRow>, OutboxReaderError> {
        Ok(self.run(text.to_owned()).await?.into_iter().flat_map(|brought| brought.rows).collect())
    }

    /// Changes something under the epochs of these partitions. A fenced relay changes nothing. `set` is for their rows.
    pub(super) async fn fenced(
        &mut self,
        fence: &[(i16, i64)],
        set: &str,
        also: &[String],
    ) -> Result<(), OutboxReaderError> {
        let owned: Vec<String> = fence.iter().map(|(part, epoch)| format!("({part},{epoch})")).collect();
        let owned = owned.join(",");
        let text = format!(
            "START TRANSACTION; UPDATE semel_outbox_cursor SET {set} WHERE (part, epoch) IN ({owned})"
        );
        let brought = self.run(text).await?;
        let matched = brought.last().map_or(0, |brought| brought.matched);
        if matched != fence.len() as u64 {
            self.session.roll_back().await;
            return Err(OutboxReaderError::Fenced);
        }
        let mut text = also.join("; ");
        text.push_str(if also.is_empty() { "COMMIT" } else { "; COMMIT" });
        self.run(text).await.map(drop)
    }

    /// Whether the lease has expired: another relay may own our partitions by now.
    fn is_expired(&self) -> bool {
        !self.cursors.is_empty() && !self.lease.is_safe()
    }

    /// Heartbeat: renews the lease. An expired lease is not renewed, and an answer after the expiry does not count:
    /// another relay may have taken the partitions before.
    pub(super) async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        if self.is_expired() {
            return Err(OutboxReaderError::Fenced);
        }
        let asked = Instant::now();
        let (me, lease) = (literal::text(&self.lease.me), self.outbox.options.lease);
        let text = format!(
            "INSERT INTO semel_outbox_relay (id, lease_until) VALUES ({me}, {NOW} + {ms})
                 ON DUPLICATE KEY UPDATE lease_until = VALUES(lease_until);
             DELETE FROM semel_outbox_relay WHERE lease_until < {NOW} - 3600000;
             SELECT CONVERT(id USING utf8mb4) FROM semel_outbox_relay WHERE lease_until > {NOW} AND id <> {me};
             SELECT CONVERT(lineage USING utf8mb4),
                    (SELECT COUNT(*) FROM semel_outbox_cursor s JOIN semel_outbox_part p ON p.part = s.part
                     WHERE s.after_n > p.n OR s.until_n > p.n)
             FROM semel_outbox_meta",
            ms = self.outbox.options.lease_ms()
        );
        let mut brought = self.run(text).await?.into_iter().skip(2);
        if self.is_expired() {
            return Err(OutboxReaderError::Fenced);
        }
        let others = brought.next().unwrap_or_default().rows;
        self.others = others.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        let (found, is_ahead): (String, bool) = match brought.next().unwrap_or_default().rows.first() {
            Some(row) => (get(row, 0)?, get::<i64>(row, 1)? != 0),
            None => (String::new(), false),
        };
        let (stored, found) = (self.lease.lineage.clone(), OutboxLineage::read(&found));
        if found != stored {
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        if is_ahead {
            return Err(cursor_ahead());
        }
        self.lease.rebalance_due = true;
        self.lease.renewed(asked, lease);
        Ok(())
    }

    /// Rebalances: releases partitions that are other relays' share now, and takes ours. Not while a batch is in
    /// flight.
    pub(super) async fn rebalance(&mut self) -> Result<(), OutboxReaderError> {
        self.lease.rebalance_due = false;
        if self.cursors.is_empty() {
            // Owned before a connection broke: others cannot take them while our lease is valid.
            let me = literal::text(&self.lease.me);
            self.run(format!("UPDATE semel_outbox_cursor SET owner = NULL WHERE owner = {me}")).await?;
        }
        let share = share_of(&self.lease.me, &self.others);
        let (kept, extra): (Vec<PartitionCursor>, Vec<PartitionCursor>) =
            self.cursors.iter().partition(|cursor| share.contains(&cursor.partition));
        for cursor in &extra {
            let free = format!(
                "UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                cursor.partition, cursor.epoch
            );
            self.run(free).await?;
        }
        self.cursors = kept;
        let missing: Vec<String> = share
            .iter()
            .filter(|part| !self.cursors.iter().any(|cursor| cursor.partition == **part))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let (me, lineage) = (literal::text(&self.lease.me), literal::text(&self.lease.lineage.to_string()));
        let parts = missing.join(",");
        let text = format!(
            "UPDATE semel_outbox_cursor c SET owner = {me}, epoch = epoch + 1, lineage = COALESCE(lineage, {lineage})
             WHERE part IN ({parts}) AND (owner IS NULL OR owner = {me} OR NOT EXISTS (
                 SELECT 1 FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > {NOW}));
             SELECT part, epoch, after_n, until_n FROM semel_outbox_cursor WHERE owner = {me} AND part IN ({parts})"
        );
        let taken = self.run(text).await?.pop().unwrap_or_default().rows;
        if taken.len() < missing.len() {
            // Their owners are about to release them.
            let soon = Instant::now() + self.outbox.options.lease / 10;
            self.lease.heartbeat_at = self.lease.heartbeat_at.min(soon);
        }
        for row in &taken {
            self.cursors.push(stored(row)?);
        }
        Ok(())
    }

    /// Takes all partitions or none. A waiting relay holds no lease: it would be counted among those that share.
    pub(super) async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        let (me, lineage) = (literal::text(&self.lease.me), literal::text(&self.lease.lineage.to_string()));
        let all = usize::from(PARTITIONS.unsigned_abs());
        if self.cursors.len() == all {
            return Ok(true);
        }
        for cursor in std::mem::take(&mut self.cursors) {
            let free = format!(
                "UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                cursor.partition, cursor.epoch
            );
            self.run(free).await?;
        }
        if !self.lease.heartbeat_due() {
            return Ok(false);
        }
        let free = format!(
            "SELECT part FROM semel_outbox_cursor c WHERE owner IS NULL OR owner = {me} OR NOT EXISTS (
                 SELECT 1 FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > {NOW})"
        );
        if self.rows(&free).await?.len() == all {
            self.heartbeat().await?;
            // Checked again under locks, so that no other relay can take one.
            let locked = format!("START TRANSACTION; {free} ORDER BY part FOR UPDATE");
            if self.rows(&locked).await?.len() == all {
                let take = format!(
                    "UPDATE semel_outbox_cursor
                     SET owner = {me}, epoch = epoch + 1, lineage = COALESCE(lineage, {lineage});
                     SELECT part, epoch, after_n, until_n FROM semel_outbox_cursor ORDER BY part; COMMIT"
                );
                for row in &self.rows(&take).await? {
                    self.cursors.push(stored(row)?);
                }
                return Ok(true);
            }
            self.session.roll_back().await;
            self.run(format!("DELETE FROM semel_outbox_relay WHERE id = {me}")).await?;
        }
        self.lease.retry_soon(self.outbox.options.lease);
        Ok(false)
    }

    /// Releases everything, and disconnects.
    pub(super) async fn release(mut self) -> Result<(), OutboxReaderError> {
        let me = literal::text(&self.lease.me);
        let mut text = format!("DELETE FROM semel_outbox_relay WHERE id = {me}");
        for cursor in &self.cursors {
            text.push_str(&format!(
                "; UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                cursor.partition, cursor.epoch
            ));
        }
        self.run(text).await?;
        self.session.close().await;
        Ok(())
    }

    /// Retention: deletes old published events in bounded batches.
    pub(super) async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        let mut pruned = Pruned::default();
        for cursor in self.cursors.clone() {
            for _ in 0..CHUNKS_MAX {
                let delete = format!(
                    "DELETE FROM semel_outbox WHERE part = {} AND n <= {}
                     AND made_at < SYSDATE(3) - INTERVAL {} * 1000 MICROSECOND ORDER BY n LIMIT {CHUNK_ROWS}",
                    cursor.partition,
                    cursor.after,
                    older_than.as_millis()
                );
                let gone = self.run(delete).await?.pop().unwrap_or_default().matched;
                pruned.rows += gone;
                if self.lease.heartbeat_due() {
                    self.heartbeat().await?;
                }
                if gone < CHUNK_ROWS {
                    break;
                }
            }
        }
        Ok(pruned)
    }

    pub(super) async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        let mut lag = Lag {
            partitions: u32::try_from(self.cursors.len()).unwrap_or(0),
            epoch: self.cursors.iter().map(|cursor| cursor.epoch.unsigned_abs()).max(),
            ..Lag::default()
        };
        for cursor in self.cursors.clone() {
            let text = format!(
                "SELECT COUNT(*), {NOW} - CAST(UNIX_TIMESTAMP(MIN(made_at)) * 1000 AS SIGNED) FROM (
                     SELECT made_at FROM semel_outbox WHERE part = {} AND n > {} ORDER BY n LIMIT {COUNT_MAX}) waiting",
                cursor.partition, cursor.after
            );
            for row in &self.rows(&text).await? {
                let (events, oldest): (i64, Option<i64>) = (get(row, 0)?, get(row, 1)?);
                lag.events = (lag.events + events.unsigned_abs()).min(COUNT_MAX);
                lag.oldest = lag.oldest.max(oldest.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs())));
            }
        }
        let parked =
            format!("SELECT COUNT(*) FROM (SELECT n FROM semel_outbox_parked LIMIT {COUNT_MAX}) parked");
        for row in &self.rows(&parked).await? {
            lag.parked = get::<i64>(row, 0)?.unsigned_abs();
        }
        Ok(lag)
    }
}

fn stored(row: &MySqlRow) -> Result<PartitionCursor, StoreError> {
    Ok(PartitionCursor {
        partition: get(row, 0)?,
        epoch: get(row, 1)?,
        after: get(row, 2)?,
        recorded: get(row, 3)?,
    })
}

pub(super) fn get<'r, T: Decode<'r, MySql> + Type<MySql>>(
    row: &'r MySqlRow,
    at: usize,
) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| MySqlRow::unreadable(error.to_string()))
}

impl OutboxRow for MySqlRow {
    type Error = StoreError;

    fn text(&self, at: usize) -> Result<Option<&[u8]>, StoreError> {
        Ok(get::<Option<&str>>(self, at)?.map(str::as_bytes))
    }

    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, StoreError> {
        get(self, at)
    }

    fn int(&self, at: usize) -> Result<i64, StoreError> {
        get(self, at)
    }

    fn unreadable(why: String) -> StoreError {
        let message = "cannot read the semel_outbox tables; inspect them with the mysql client";
        StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message).with_source(why)
    }
}
