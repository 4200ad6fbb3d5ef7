//! A reader's connection, its lease, and the partitions (column `lane`) it owns: heartbeat, rebalance, release.

use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};

use super::partition_group::{self, PartitionGroup, PartitionRow, ScanPlan, Window};
use super::prefetch::Prefetch;
use super::snapshot::Snapshot;
use super::{Outbox, unreadable};
use crate::relay::lease::{PARTITIONS, RelayLease, share_of};
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError};
use crate::relay::table_checks::{known_version, no_outbox};
use crate::store::postgres::connect::{Path, Session};
use crate::store::postgres::statement::Sql;
use crate::store::{ErrorKind, Fate, StoreError};

/// Planner settings. A bitmap scan builds the whole bitmap before its first row, and a poll wants only the first. A
/// scan by seq must not sort everything left, whatever the statistics say. Parallel workers start slower than a chunk
/// reads.
const QUICK: &str =
    "SET enable_bitmapscan = off; SET enable_sort = off; SET max_parallel_workers_per_gather = 0";
/// The same behind a pooler, plus the settings that a direct session has from the start.
const QUICK_ONCE: &str = "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
                          SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL enable_seqscan = off; \
                          SET LOCAL jit = off";

/// A connection to an outbox in PostgreSQL.
pub struct LeasedSession {
    pub(in crate::relay) outbox: Arc<Outbox>,
    pub(in crate::relay) session: Arc<Session>,
    pub(in crate::relay) lease: RelayLease,
    /// The other relays with a lease.
    others: Vec<String>,
    pub(in crate::relay) groups: Vec<PartitionGroup>,
    /// Polling groups take turns.
    pub(in crate::relay) next_group: usize,
    /// Has asked for all partitions or none.
    pub(in crate::relay) exclusive: bool,
    pub(in crate::relay) prefetch: Option<Prefetch>,
}

impl LeasedSession {
    /// Connects, and checks version and lineage. A standby is refused: its snapshots list no open transactions, so late
    /// commits would be lost.
    pub(in crate::relay) async fn open(outbox: &Arc<Outbox>, me: &str) -> Result<Self, OutboxReaderError> {
        let (session, _) = outbox.connections.session().await.map_err(|error| error.not_applied())?;
        if session.path == Path::Direct {
            session.batch(QUICK).await.map_err(|error| error.not_applied())?;
        }
        any_bytes(&session).await?;
        let lease = RelayLease::new(me, lineage(&session).await?);
        Ok(Self {
            outbox: Arc::clone(outbox),
            session: Arc::new(session),
            lease,
            others: Vec::new(),
            groups: Vec::new(),
            next_group: 0,
            exclusive: false,
            prefetch: None,
        })
    }

    pub(in crate::relay) async fn query(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.session.query(sql, values).await.map_err(|error| error.explain())
    }

    /// See [`read_by_index`].
    pub(in crate::relay) async fn read_by_index(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        read_by_index(&self.session, sql, values).await
    }

    /// The same, and renews the lease meanwhile.
    pub(in crate::relay) async fn read_by_index_renewing(
        &mut self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OutboxReaderError> {
        let session = Arc::clone(&self.session);
        self.renew_while(async { Ok(read_by_index(&session, sql, values).await?) }).await
    }

    /// Waits for a read, and renews the lease when due. With a large table or a busy server one statement may take
    /// longer than a lease.
    pub(in crate::relay) async fn renew_while<T>(
        &mut self,
        read: impl Future<Output = Result<T, OutboxReaderError>>,
    ) -> Result<T, OutboxReaderError> {
        if self.groups.is_empty() {
            return read.await;
        }
        let mut read = std::pin::pin!(read);
        loop {
            tokio::select! {
                biased;
                found = &mut read => return found,
                () = tokio::time::sleep_until(self.lease.heartbeat_at.into()) => self.heartbeat_on_new_session().await?,
            }
        }
    }

    /// Changes something under the epochs of these partitions. A fenced relay changes nothing.
    pub(in crate::relay) async fn fenced(
        &self,
        sql: &Sql,
        (partitions, epochs): (&[i16], &[i64]),
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OutboxReaderError> {
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![&partitions, &epochs];
        all.extend_from_slice(values);
        let rows = self.query(sql, &all).await?;
        if rows.len() == partitions.len() { Ok(rows) } else { Err(OutboxReaderError::Fenced) }
    }

    /// Stores the new ctids of a group's cursor rows after an update moved them.
    pub(in crate::relay) fn moved(&mut self, at: usize, rows: &[Row]) -> Result<(), OutboxReaderError> {
        let Some(group) = self.groups.get_mut(at) else { return Ok(()) };
        for row in rows {
            let partition: i16 = get(row, 0)?;
            if let Some((_, tid)) =
                group.partitions.iter().zip(&mut group.tids).find(|(one, _)| **one == partition)
            {
                *tid = get(row, 1)?;
            }
        }
        Ok(())
    }

    /// Whether the lease has expired: another relay may own our partitions by now.
    fn is_expired(&self) -> bool {
        !self.groups.is_empty() && !self.lease.is_safe()
    }

    /// Heartbeat: renews the lease. An expired lease is not renewed, and an answer after the expiry does not count:
    /// another relay may have taken the partitions before.
    pub(in crate::relay) async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        if self.prefetch.as_ref().is_some_and(Prefetch::is_running) {
            return self.heartbeat_on_new_session().await;
        }
        let session = Arc::clone(&self.session);
        self.heartbeat_on(&session).await
    }

    /// The same on a new connection, while ours is busy. If none can be opened, it waits until ours is free.
    async fn heartbeat_on_new_session(&mut self) -> Result<(), OutboxReaderError> {
        // Boxed: connecting is rare, and its future is large.
        let Ok((session, _)) = Box::pin(self.outbox.connections.session()).await else {
            let session = Arc::clone(&self.session);
            return self.heartbeat_on(&session).await;
        };
        let renewed = self.heartbeat_on(&session).await;
        session.close().await;
        renewed
    }

    async fn heartbeat_on(&mut self, session: &Session) -> Result<(), OutboxReaderError> {
        if self.is_expired() {
            return Err(OutboxReaderError::Fenced);
        }
        let asked = Instant::now();
        let values: [&(dyn ToSql + Sync); 2] = [&self.lease.me, &self.outbox.options.lease_ms()];
        let rows = session.query(&self.outbox.statements.heartbeat, &values).await;
        let rows = rows.map_err(|error| error.explain())?;
        if self.is_expired() {
            return Err(OutboxReaderError::Fenced);
        }
        let row = rows.first().ok_or_else(|| unreadable("the heartbeat returned no row"))?;
        let store: Option<String> = get(row, 1)?;
        let found = OutboxLineage::new(store.unwrap_or_default(), None);
        if !found.matches(&self.lease.lineage) {
            return Err(OutboxReaderError::OutboxLineage { stored: self.lease.lineage.clone(), found });
        }
        self.others = get(row, 0)?;
        self.lease.rebalance_due = true;
        self.lease.renewed(asked, self.outbox.options.lease);
        Ok(())
    }

    /// Renews the lease if due, between two steps of a long operation.
    pub(in crate::relay) async fn heartbeat_if_due(&mut self) -> Result<(), OutboxReaderError> {
        if self.lease.heartbeat_due() { self.heartbeat().await } else { Ok(()) }
    }

    /// Rebalances: releases partitions that are other relays' share now, and takes ours. Not while a batch is in
    /// flight.
    pub(in crate::relay) async fn rebalance(&mut self) -> Result<(), OutboxReaderError> {
        let (outbox, me) = (Arc::clone(&self.outbox), self.lease.me.clone());
        if self.groups.is_empty() {
            // Owned before a connection broke: others cannot take them while our lease is valid.
            self.query(&outbox.statements.release_all, &[&me]).await?;
        }
        let share = share_of(&me, &self.others);
        let extra = |partition: &i16| !share.contains(partition);
        for group in &self.groups {
            let (partitions, epochs): (Vec<i16>, Vec<i64>) = group
                .partitions
                .iter()
                .copied()
                .zip(group.epochs.iter().copied())
                .filter(|(partition, _)| extra(partition))
                .unzip();
            if !partitions.is_empty() {
                self.query(&outbox.statements.release, &[&partitions, &epochs]).await?;
            }
        }
        let owned: Vec<i16> = self.groups.iter().flat_map(|group| group.partitions.iter().copied()).collect();
        let gone: Vec<i16> = owned.iter().copied().filter(extra).collect();
        partition_group::without(&mut self.groups, &gone);
        let missing: Vec<i16> = share.into_iter().filter(|partition| !owned.contains(partition)).collect();
        if !missing.is_empty() {
            let values: [&(dyn ToSql + Sync); 3] = [&me, &missing, &self.lease.lineage.to_string()];
            let rows = self.query(&outbox.statements.take, &values).await?;
            for row in &rows {
                partition_group::join(&mut self.groups, partition_row(row)?);
            }
            if rows.len() < missing.len() {
                // Their owners are about to release them.
                let soon = Instant::now() + outbox.options.lease / 10;
                self.lease.heartbeat_at = self.lease.heartbeat_at.min(soon);
            }
            if !rows.is_empty() {
                tracing::info!(
                    lanes = rows.len(),
                    relays = self.others.len() + 1,
                    "this relay took over outbox partitions"
                );
            }
        }
        self.lease.rebalance_due = false;
        Ok(())
    }

    /// Takes all partitions or none. A waiting relay holds no lease: it would be counted among those that share.
    pub(in crate::relay) async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.exclusive = true;
        let (outbox, me) = (Arc::clone(&self.outbox), self.lease.me.clone());
        let all = usize::from(PARTITIONS.unsigned_abs());
        match self.groups.iter().map(|group| group.partitions.len()).sum::<usize>() {
            owned if owned == all => return Ok(true),
            0 => {}
            _ => {
                for group in std::mem::take(&mut self.groups) {
                    self.query(&outbox.statements.release, &[&group.partitions, &group.epochs]).await?;
                }
            }
        }
        if !self.lease.heartbeat_due() {
            return Ok(false);
        }
        let partitions: Vec<i16> = (0..PARTITIONS).collect();
        let free = self.query(&outbox.statements.free, &[&me]).await?;
        let free: i64 = free.first().map_or(Ok(0), |row| get(row, 0))?;
        if usize::try_from(free) == Ok(all) {
            self.heartbeat().await?;
            let values: [&(dyn ToSql + Sync); 3] = [&me, &partitions, &self.lease.lineage.to_string()];
            let rows = self.query(&outbox.statements.acquire_exclusive, &values).await?;
            for row in &rows {
                partition_group::join(&mut self.groups, partition_row(row)?);
            }
            if rows.len() == all {
                tracing::info!("this relay took over all outbox partitions");
                return Ok(true);
            }
            self.unlist().await;
        }
        self.lease.retry_soon(outbox.options.lease);
        Ok(false)
    }

    /// Makes earlier acks durable before the next batch is published: they did not wait for the disk, and one undone by
    /// a server crash would be published again. Any commit that waits for the disk flushes them.
    pub(in crate::relay) async fn flush_acks(&mut self) -> Result<(), OutboxReaderError> {
        self.heartbeat().await
    }

    /// Gives up the lease.
    async fn unlist(&self) {
        let gone = format!("DELETE FROM semel_outbox_relay WHERE id = '{}'", self.lease.me);
        let _ = self.session.batch(&gone).await;
    }

    /// Releases everything, and disconnects.
    pub(in crate::relay) async fn release(self) -> Result<(), StoreError> {
        for group in &self.groups {
            self.query(&self.outbox.statements.release, &[&group.partitions, &group.epochs]).await?;
        }
        self.unlist().await;
        self.close().await;
        Ok(())
    }

    /// Closes the connection cleanly.
    pub(in crate::relay) async fn close(self) {
        // Aborts the prefetch, which drops its handle to the session.
        drop(self.prefetch);
        if let Some(session) = Arc::into_inner(self.session) {
            session.close().await;
        }
    }
}

/// Reads events by the indexes, whatever the statistics say.
pub(in crate::relay) async fn read_by_index(
    session: &Session,
    sql: &Sql,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let rows = match session.path {
        Path::Direct => session.query(sql, values).await,
        Path::Pooled => session.query_under(QUICK_ONCE, sql, values).await,
    };
    rows.map_err(|error| error.not_applied())
}

/// The lineage of the tables, checked against that of the cursors.
async fn lineage(session: &Session) -> Result<OutboxLineage, OutboxReaderError> {
    static START: Sql = Sql { text: include_str!("sql/start.sql"), types: &[] };
    let rows = session.query(&START, &[]).await.map_err(|error| match error.lacks_table() {
        true => no_outbox("the search_path of this database"),
        false => error.not_applied(),
    })?;
    let row = rows.first().ok_or_else(|| unreadable("semel_outbox_meta is empty"))?;
    let version: Option<i32> = get(row, 1)?;
    known_version(version.unwrap_or_default().into())?;
    let store: Option<String> = get(row, 0)?;
    let found = OutboxLineage::new(store.unwrap_or_default(), system(session).await);
    let stored: Vec<String> = get(row, 2)?;
    if let Some(stored) =
        stored.iter().map(|text| OutboxLineage::read(text)).find(|stored| !stored.matches(&found))
    {
        return Err(OutboxReaderError::OutboxLineage { stored, found });
    }
    if get(row, 3)? {
        let message = "the outbox's cursor has seen transactions that are still to come in this cluster: the tables \
                       were restored from a dump of another cluster; find out, then choose where to continue with \
                       `semel outbox rebase`";
        return Err(StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into());
    }
    Ok(found)
}

/// The cluster's system identifier, if this user may read it.
pub(in crate::relay) async fn system(session: &Session) -> Option<String> {
    static SYSTEM: Sql = Sql { text: "SELECT system_identifier::text FROM pg_control_system()", types: &[] };
    let rows = session.query(&SYSTEM, &[]).await.ok()?;
    rows.first()?.try_get(0).ok()
}

pub(in crate::relay) fn partition_row(row: &Row) -> Result<PartitionRow, StoreError> {
    let snapshot = |text: String| {
        Snapshot::read(&text)
            .ok_or_else(|| unreadable(&format!("{text:?} in semel_outbox_cursor is not a snapshot")))
    };
    let high: Option<String> = get(row, 3)?;
    let window = match high {
        None => None,
        Some(high) => Some(Window {
            high: snapshot(high)?,
            after: get(row, 4)?,
            recorded: get(row, 5)?,
            plan: ScanPlan::Unknown,
        }),
    };
    Ok(PartitionRow {
        partition: get(row, 0)?,
        epoch: get(row, 1)?,
        tid: get(row, 6)?,
        low: snapshot(get(row, 2)?)?,
        window,
    })
}

/// With the encoding SQL_ASCII text may be any bytes, and the server refuses to send them to a client that wants UTF-8,
/// or ends the stream. Text that is not UTF-8 is detected when it is read.
pub(in crate::relay) const ANY_BYTES: &str = "SELECT set_config('client_encoding', 'SQL_ASCII', false)
    WHERE current_setting('server_encoding') = 'SQL_ASCII'";

pub(in crate::relay) async fn any_bytes(session: &Session) -> Result<(), StoreError> {
    session.batch(ANY_BYTES).await.map_err(|error| error.not_applied())
}

pub(in crate::relay) fn get<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| unreadable(&error.to_string()))
}
