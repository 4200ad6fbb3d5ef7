//! A connection of a source: its lease, and the lanes that are its own.

use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};
use uuid::Uuid;

use super::partition_group::{self, Lane, PartitionGroup, ScanPlan, Window};
use super::prefetch::Prefetch;
use super::snapshot::Snapshot;
use super::{Outbox, unreadable};
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError};
use crate::relay::poll::{LANES, known_version, no_outbox, share};
use crate::store::postgres::connect::{Path, Session};
use crate::store::postgres::statement::Sql;
use crate::store::{ErrorKind, Fate, StoreError};

/// A bitmap is made whole before the first row comes of it, and a look wants only the first. A walk by seq must not be a
/// sort of all that is left, whatever the statistics say. Workers take longer to start than a chunk to read.
const QUICK: &str =
    "SET enable_bitmapscan = off; SET enable_sort = off; SET max_parallel_workers_per_gather = 0";
/// The same behind a pooler, with what a session of ours has from the beginning.
const QUICK_ONCE: &str = "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
                          SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL enable_seqscan = off; \
                          SET LOCAL jit = off";

pub(in crate::relay) struct LeasedSession {
    pub(in crate::relay) session: Arc<Session>,
    pub(in crate::relay) lineage: OutboxLineage,
    pub(in crate::relay) groups: Vec<PartitionGroup>,
    /// Until then nobody else takes our lanes. Counted from before the server was asked.
    pub(in crate::relay) ours_until: Instant,
    pub(in crate::relay) beat_at: Instant,
    pub(in crate::relay) me: Uuid,
    /// Who else has a lease.
    others: Vec<String>,
    /// They were heard of, and lanes not shared out since. By whomever: a relay that is always busy hears of others while a
    /// batch is on its way.
    pub(in crate::relay) heard: bool,
    pub(super) ahead: Option<Prefetch>,
}

impl LeasedSession {
    /// Connects, and looks whose tables these are. A standby is refused by the connection: there the list of what is
    /// under way is empty, and whatever commits late would be lost.
    pub(in crate::relay) async fn open(outbox: &Outbox, me: Uuid) -> Result<Self, OutboxReaderError> {
        let (session, _) = outbox.connections.session().await.map_err(|trouble| trouble.not_applied())?;
        if session.path == Path::Direct {
            session.batch(QUICK).await.map_err(|trouble| trouble.not_applied())?;
        }
        any_bytes(&session).await?;
        let now = Instant::now();
        let lineage = lineage(&session).await?;
        Ok(Self {
            session: Arc::new(session),
            lineage,
            groups: Vec::new(),
            ours_until: now,
            beat_at: now,
            me,
            others: Vec::new(),
            heard: false,
            ahead: None,
        })
    }

    pub(in crate::relay) async fn query(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.session.query(sql, values).await.map_err(|trouble| trouble.explain())
    }

    /// Looks for events. See [`look`].
    pub(super) async fn look(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        look(&self.session, sql, values).await
    }

    /// The same, with the lease renewed meanwhile.
    pub(super) async fn look_kept(
        &mut self,
        outbox: &Outbox,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OutboxReaderError> {
        let session = Arc::clone(&self.session);
        self.keep_while(outbox, async { Ok(look(&session, sql, values).await?) }).await
    }

    /// Waits for something that is read, and renews the lease as often as that falls due. A table may be so large, or its
    /// server so busy, that one statement takes longer than a lease.
    pub(super) async fn keep_while<T>(
        &mut self,
        outbox: &Outbox,
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
                () = tokio::time::sleep_until(self.beat_at.into()) => self.beat_aside(outbox).await?,
            }
        }
    }

    /// Changes something under the epochs of these lanes, or nothing.
    pub(in crate::relay) async fn fenced(
        &self,
        sql: &Sql,
        group: &PartitionGroup,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OutboxReaderError> {
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![&group.lanes, &group.epochs];
        all.extend_from_slice(values);
        let rows = self.query(sql, &all).await?;
        if rows.len() == group.lanes.len() { Ok(rows) } else { Err(OutboxReaderError::Fenced) }
    }

    /// Remembers where the rows of a group are after a change of them.
    pub(in crate::relay) fn moved(&mut self, at: usize, rows: &[Row]) -> Result<(), OutboxReaderError> {
        let Some(group) = self.groups.get_mut(at) else { return Ok(()) };
        for row in rows {
            let lane: i16 = get(row, 0)?;
            if let Some((_, tid)) = group.lanes.iter().zip(&mut group.tids).find(|(one, _)| **one == lane) {
                *tid = get(row, 1)?;
            }
        }
        Ok(())
    }

    /// Whether lanes were ours that may be another's by now.
    fn is_over(&self) -> bool {
        !self.groups.is_empty() && Instant::now() >= self.ours_until
    }

    /// Renews the lease. One that is over is not renewed, and one that was over when the answer came is not believed: what
    /// it was about may have become another's before.
    pub(in crate::relay) async fn heartbeat(&mut self, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        if self.ahead.as_ref().is_some_and(Prefetch::is_under_way) {
            return self.beat_aside(outbox).await;
        }
        let session = Arc::clone(&self.session);
        self.beat_on(&session, outbox).await
    }

    /// The same while our connection is busy: on another one, which ends with it. Where none is to be had, it has to wait
    /// until ours is free.
    async fn beat_aside(&mut self, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        let Ok((session, _)) = outbox.connections.session().await else {
            let session = Arc::clone(&self.session);
            return self.beat_on(&session, outbox).await;
        };
        let renewed = self.beat_on(&session, outbox).await;
        session.close().await;
        renewed
    }

    async fn beat_on(&mut self, session: &Session, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        if self.is_over() {
            return Err(OutboxReaderError::Fenced);
        }
        let asked = Instant::now();
        let lease_ms = i64::try_from(outbox.options.lease.as_millis()).unwrap_or(i64::MAX);
        let values: [&(dyn ToSql + Sync); 2] = [&self.me.to_string(), &lease_ms];
        let rows = session.query(&outbox.statements.heartbeat, &values).await;
        let rows = rows.map_err(|trouble| trouble.explain())?;
        if self.is_over() {
            return Err(OutboxReaderError::Fenced);
        }
        let row = rows.first().ok_or_else(|| unreadable("a beat brought no answer"))?;
        let store: Option<String> = get(row, 1)?;
        let found = OutboxLineage::new(store.unwrap_or_default(), None);
        if !found.matches(&self.lineage) {
            return Err(OutboxReaderError::OutboxLineage { stored: self.lineage.clone(), found });
        }
        self.others = get(row, 0)?;
        self.heard = true;
        // A little is kept back: clocks differ in speed, and what we send takes its way.
        self.ours_until = asked + outbox.options.lease * 7 / 8;
        self.beat_at = asked + outbox.options.lease / 3;
        Ok(())
    }

    /// Renews it between two steps of something long.
    pub(in crate::relay) async fn beat_if_due(&mut self, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        if Instant::now() < self.beat_at { Ok(()) } else { self.heartbeat(outbox).await }
    }

    /// Gives back the lanes that fall to others now, and takes those that fall to us. Not while a batch is on its way.
    pub(in crate::relay) async fn balance(&mut self, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        let my = self.me.to_string();
        if self.groups.is_empty() {
            // Had before a connection broke: nobody else may take them while we live.
            self.query(&outbox.statements.let_go, &[&my]).await?;
        }
        let place = self.others.iter().filter(|other| **other < my).count();
        let share = share(place, self.others.len() + 1);
        let extra = |lane: &i16| !share.contains(lane);
        for group in &self.groups {
            let (lanes, epochs): (Vec<i16>, Vec<i64>) = group
                .lanes
                .iter()
                .copied()
                .zip(group.epochs.iter().copied())
                .filter(|(lane, _)| extra(lane))
                .unzip();
            if !lanes.is_empty() {
                self.query(&outbox.statements.release, &[&lanes, &epochs]).await?;
            }
        }
        let owned: Vec<i16> = self.groups.iter().flat_map(|group| group.lanes.iter().copied()).collect();
        let gone: Vec<i16> = owned.iter().copied().filter(extra).collect();
        partition_group::without(&mut self.groups, &gone);
        let missing: Vec<i16> = share.into_iter().filter(|lane| !owned.contains(lane)).collect();
        if !missing.is_empty() {
            let values: [&(dyn ToSql + Sync); 3] = [&my, &missing, &self.lineage.to_string()];
            let rows = self.query(&outbox.statements.take, &values).await?;
            for row in &rows {
                partition_group::join(&mut self.groups, lane(row)?);
            }
            if rows.len() < missing.len() {
                // Somebody is about to give them back.
                self.beat_at = self.beat_at.min(Instant::now() + outbox.options.lease / 10);
            }
            if !rows.is_empty() {
                tracing::info!(lanes = rows.len(), relays = self.others.len() + 1, "lanes taken");
            }
        }
        self.heard = false;
        Ok(())
    }

    /// Takes all lanes or none. Who stands by has no lease: it would be counted among those who share.
    pub(super) async fn acquire_exclusive(&mut self, outbox: &Outbox) -> Result<bool, OutboxReaderError> {
        let (my, all) = (self.me.to_string(), usize::from(LANES.unsigned_abs()));
        match self.groups.iter().map(|group| group.lanes.len()).sum::<usize>() {
            owned if owned == all => return Ok(true),
            0 => {}
            _ => {
                for group in std::mem::take(&mut self.groups) {
                    self.query(&outbox.statements.release, &[&group.lanes, &group.epochs]).await?;
                }
            }
        }
        if Instant::now() < self.beat_at {
            return Ok(false);
        }
        let lanes: Vec<i16> = (0..LANES).collect();
        let free = self.query(&outbox.statements.free, &[&my]).await?;
        let free: i64 = free.first().map_or(Ok(0), |row| get(row, 0))?;
        if usize::try_from(free) == Ok(all) {
            self.heartbeat(outbox).await?;
            let values: [&(dyn ToSql + Sync); 3] = [&my, &lanes, &self.lineage.to_string()];
            let rows = self.query(&outbox.statements.acquire_exclusive, &values).await?;
            for row in &rows {
                partition_group::join(&mut self.groups, lane(row)?);
            }
            if rows.len() == all {
                tracing::info!("all lanes taken");
                return Ok(true);
            }
            self.unlist().await;
        }
        self.beat_at = Instant::now() + outbox.options.lease / 10;
        Ok(false)
    }

    /// What was done before need not be on disk yet. It has to be before the next is published: taken back by a crash of
    /// the server, it would be published again. Any commit that waits for the disk puts it there.
    pub(super) async fn settle_what_was_done(&mut self, outbox: &Outbox) -> Result<(), OutboxReaderError> {
        self.heartbeat(outbox).await
    }

    /// Gives up the lease.
    async fn unlist(&self) {
        let gone = format!("DELETE FROM semel_outbox_relay WHERE id = '{}'", self.me);
        let _ = self.session.batch(&gone).await;
    }

    /// Gives everything back.
    pub(in crate::relay) async fn release(self, outbox: &Outbox) -> Result<(), StoreError> {
        for group in &self.groups {
            self.query(&outbox.statements.release, &[&group.lanes, &group.epochs]).await?;
        }
        self.unlist().await;
        self.close().await;
        Ok(())
    }

    /// Ends the connection in order.
    pub(in crate::relay) async fn close(self) {
        // Whoever reads ahead on it is given up, and lets go of it by itself.
        drop(self.ahead);
        if let Some(session) = Arc::into_inner(self.session) {
            session.close().await;
        }
    }
}

/// Looks for events, by the indexes whatever the statistics say.
pub(super) async fn look(
    session: &Session,
    sql: &Sql,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let rows = match session.path {
        Path::Direct => session.query(sql, values).await,
        Path::Pooled => session.query_under(QUICK_ONCE, sql, values).await,
    };
    rows.map_err(|trouble| trouble.not_applied())
}

/// Whose tables these are, and that the cursors are of the same.
async fn lineage(session: &Session) -> Result<OutboxLineage, OutboxReaderError> {
    static START: Sql = Sql { text: include_str!("../sql/postgres_start.sql"), types: &[] };
    let rows = session.query(&START, &[]).await.map_err(|trouble| match trouble.lacks_table() {
        true => no_outbox("the search_path of this database"),
        false => trouble.not_applied(),
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
        let message = "the outbox's cursor has seen transactions that are still to come here: the tables came from \
                       another cluster, with a dump; find out, then say where to go on with `semel outbox rebase`";
        return Err(StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into());
    }
    Ok(found)
}

/// The cluster's own number, where this user may ask.
pub(in crate::relay) async fn system(session: &Session) -> Option<String> {
    static SYSTEM: Sql = Sql { text: "SELECT system_identifier::text FROM pg_control_system()", types: &[] };
    let rows = session.query(&SYSTEM, &[]).await.ok()?;
    rows.first()?.try_get(0).ok()
}

pub(in crate::relay) fn lane(row: &Row) -> Result<Lane, StoreError> {
    let snapshot = |text: String| {
        Snapshot::read(&text)
            .ok_or_else(|| unreadable(&format!("{text:?} in semel_outbox_cursor is no snapshot")))
    };
    let high: Option<String> = get(row, 3)?;
    let window = match high {
        None => None,
        Some(high) => Some(Window {
            high: snapshot(high)?,
            after: get(row, 4)?,
            recorded: get(row, 5)?,
            walk: ScanPlan::Unknown,
        }),
    };
    Ok(Lane {
        lane: get(row, 0)?,
        epoch: get(row, 1)?,
        tid: get(row, 6)?,
        low: snapshot(get(row, 2)?)?,
        window,
    })
}

/// A column of an answer.
/// A database whose encoding is SQL_ASCII has text of any bytes, and the server refuses to give it to a client that wants
/// UTF-8, or ends the stream over it. What is no UTF-8 is found when it is read.
pub(in crate::relay) const ANY_BYTES: &str = "SELECT set_config('client_encoding', 'SQL_ASCII', false)
    WHERE current_setting('server_encoding') = 'SQL_ASCII'";

pub(super) async fn any_bytes(session: &Session) -> Result<(), StoreError> {
    session.batch(ANY_BYTES).await.map_err(|trouble| trouble.not_applied())
}

pub(in crate::relay) fn get<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| unreadable(&error.to_string()))
}
