//! A connection of a source: its lease, and the parts that are its own.

use std::time::{Duration, Instant};

use sqlx::mysql::MySqlRow;
use sqlx::{Decode, MySql, Row, Type};

use super::MysqlOutbox;
use crate::relay::outbox_reader::{Lag, OutboxLineage, OutboxReaderError, Pruned, Rebase};
use crate::relay::poll::{LANES, ahead, known_version, no_outbox, share};
use crate::store::mysql::literal;
use crate::store::mysql::session::{Brought, Session};
use crate::store::{ErrorKind, Fate, StoreError};

/// The server's clock in ms.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)";
const BITE: u64 = 1_000;
const BITES_MAX: u32 = 20;
const COUNT_MAX: u64 = 10_000;
const NO_SUCH_TABLE: u16 = 1146;

/// Whose tables these are, what the cursors say of that, and whether this is a place to write.
const START: &str =
    "SELECT CONVERT(m.lineage USING utf8mb4), CONVERT(c.lineage USING utf8mb4), @@global.read_only,
     CAST(m.version AS SIGNED),
     (SELECT COUNT(*) FROM semel_outbox_cursor s JOIN semel_outbox_part p ON p.part = s.part
      WHERE s.after_n > p.n OR s.until_n > p.n)
     FROM semel_outbox_meta m LEFT JOIN semel_outbox_cursor c ON c.lineage IS NOT NULL
     GROUP BY m.lineage, c.lineage, m.version";

/// How far a part has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartitionCursor {
    pub(super) part: i16,
    pub(super) epoch: i64,
    pub(super) after: i64,
    pub(super) recorded: Option<i64>,
}

pub(super) struct LeasedSession {
    pub(super) session: Session,
    pub(super) outbox: MysqlOutbox,
    me: String,
    pub(super) lineage: String,
    pub(super) places: Vec<PartitionCursor>,
    pub(super) ours_until: Instant,
    pub(super) beat_at: Instant,
    others: Vec<String>,
    /// They were heard of, and parts not shared out since. By whomever: a relay that is always busy hears of others while
    /// a batch is on its way.
    pub(super) heard: bool,
    /// Which part comes first, so that none is always last.
    pub(super) turn: usize,
}

impl LeasedSession {
    pub(super) async fn open(outbox: &MysqlOutbox, me: &str) -> Result<Self, OutboxReaderError> {
        let session =
            outbox.dial.open().await.map_err(|trouble| trouble.explain(&outbox.server, Fate::NotApplied))?;
        let now = Instant::now();
        let mut link = Self {
            session,
            outbox: outbox.clone(),
            me: me.to_owned(),
            lineage: String::new(),
            places: Vec::new(),
            ours_until: now,
            beat_at: now,
            others: Vec::new(),
            heard: false,
            turn: 0,
        };
        let asked = link.session.run(START.to_owned()).await;
        let brought = asked.map_err(|failed| match failed.trouble.number() {
            Some(NO_SUCH_TABLE) => no_outbox(&outbox.server),
            _ => failed.trouble.explain(&outbox.server, Fate::NotApplied),
        })?;
        for row in brought.iter().flat_map(|brought| &brought.rows) {
            known_version(get(row, 3)?)?;
            let (found, stored): (String, Option<String>) = (get(row, 0)?, get(row, 1)?);
            let (one, other) = (OutboxLineage::read(&found), stored.as_deref().map(OutboxLineage::read));
            match other {
                Some(stored) if !stored.matches(&one) => {
                    return Err(OutboxReaderError::OutboxLineage { stored, found: one });
                }
                _ => link.lineage = found,
            }
            if get::<i64>(row, 4)? != 0 {
                return Err(ahead());
            }
            if get::<i64>(row, 2)? != 0 {
                let message = format!("{} is read-only, a replica perhaps; name the primary", outbox.server);
                return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).into());
            }
        }
        Ok(link)
    }

    /// Sends statements in one packet.
    pub(super) async fn run(&mut self, text: String) -> Result<Vec<Brought>, OutboxReaderError> {
        let failed = match self.session.run(text).await {
            Ok(brought) => return Ok(brought),
            Err(failed) => failed,
        };
        Err(failed.trouble.explain(&self.outbox.server, Fate::InDoubt).into())
    }

    pub(super) async fn rows(&mut self, text: &str) -> Result<Vec<MySqlRow>, OutboxReaderError> {
        Ok(self.run(text.to_owned()).await?.into_iter().flat_map(|brought| brought.rows).collect())
    }

    /// Changes something under the epochs of these parts, or nothing. `cursor` is what is set in their rows.
    pub(super) async fn fenced(
        &mut self,
        places: &[PartitionCursor],
        cursor: &str,
        also: &[String],
    ) -> Result<(), OutboxReaderError> {
        let fence: Vec<String> =
            places.iter().map(|place| format!("({},{})", place.part, place.epoch)).collect();
        let fence = fence.join(",");
        let text = format!(
            "START TRANSACTION; UPDATE semel_outbox_cursor SET {cursor} WHERE (part, epoch) IN ({fence})"
        );
        let brought = self.run(text).await?;
        let matched = brought.last().map_or(0, |brought| brought.matched);
        if matched != places.len() as u64 {
            self.session.roll_back().await;
            return Err(OutboxReaderError::Fenced);
        }
        let mut text = also.join("; ");
        text.push_str(if also.is_empty() { "COMMIT" } else { "; COMMIT" });
        self.run(text).await.map(drop)
    }

    /// Whether parts were ours that may be another's by now.
    fn is_over(&self) -> bool {
        !self.places.is_empty() && Instant::now() >= self.ours_until
    }

    /// Renews the lease. One that is over is not renewed, and one that was over when the answer came is not believed: what
    /// it was about may have become another's before.
    pub(super) async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        if self.is_over() {
            return Err(OutboxReaderError::Fenced);
        }
        let asked = Instant::now();
        let (me, lease) = (literal::text(&self.me), self.outbox.lease);
        let text = format!(
            "INSERT INTO semel_outbox_relay VALUES ({me}, {NOW} + {ms})
                 ON DUPLICATE KEY UPDATE lease_until = VALUES(lease_until);
             DELETE FROM semel_outbox_relay WHERE lease_until < {NOW} - 3600000;
             SELECT CONVERT(id USING utf8mb4) FROM semel_outbox_relay WHERE lease_until > {NOW} AND id <> {me};
             SELECT CONVERT(lineage USING utf8mb4),
                    (SELECT COUNT(*) FROM semel_outbox_cursor s JOIN semel_outbox_part p ON p.part = s.part
                     WHERE s.after_n > p.n OR s.until_n > p.n)
             FROM semel_outbox_meta",
            ms = lease.as_millis()
        );
        let mut brought = self.run(text).await?.into_iter().skip(2);
        if self.is_over() {
            return Err(OutboxReaderError::Fenced);
        }
        let others = brought.next().unwrap_or_default().rows;
        self.others = others.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        let (found, is_ahead): (String, bool) = match brought.next().unwrap_or_default().rows.first() {
            Some(row) => (get(row, 0)?, get::<i64>(row, 1)? != 0),
            None => (String::new(), false),
        };
        if found != self.lineage {
            let [stored, found] = [&self.lineage, &found].map(|text| OutboxLineage::read(text));
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        if is_ahead {
            return Err(ahead());
        }
        self.heard = true;
        self.ours_until = asked + lease * 7 / 8;
        self.beat_at = asked + lease / 3;
        Ok(())
    }

    /// Gives back the parts that fall to others now, and takes those that fall to us. Not while a batch is on its way.
    pub(super) async fn balance(&mut self) -> Result<(), OutboxReaderError> {
        self.heard = false;
        if self.places.is_empty() {
            // Had before a connection broke: nobody else may take them while we live.
            let me = literal::text(&self.me);
            self.run(format!("UPDATE semel_outbox_cursor SET owner = NULL WHERE owner = {me}")).await?;
        }
        let place = self.others.iter().filter(|other| **other < self.me).count();
        let share = share(place, self.others.len() + 1);
        let (kept, extra): (Vec<PartitionCursor>, Vec<PartitionCursor>) =
            self.places.iter().partition(|place| share.contains(&place.part));
        for place in &extra {
            let free = format!(
                "UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                place.part, place.epoch
            );
            self.run(free).await?;
        }
        self.places = kept;
        let missing: Vec<String> = share
            .iter()
            .filter(|part| !self.places.iter().any(|place| place.part == **part))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let (me, parts, lineage) = (literal::text(&self.me), missing.join(","), literal::text(&self.lineage));
        let text = format!(
            "UPDATE semel_outbox_cursor c SET owner = {me}, epoch = epoch + 1, lineage = COALESCE(lineage, {lineage})
             WHERE part IN ({parts}) AND (owner IS NULL OR owner = {me} OR NOT EXISTS (
                 SELECT 1 FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > {NOW}));
             SELECT part, epoch, after_n, until_n FROM semel_outbox_cursor WHERE owner = {me} AND part IN ({parts})"
        );
        let taken = self.run(text).await?.pop().unwrap_or_default().rows;
        if taken.len() < missing.len() {
            // Somebody is about to give them back.
            self.beat_at = self.beat_at.min(Instant::now() + self.outbox.lease / 10);
        }
        for row in &taken {
            self.places.push(stored(row)?);
        }
        Ok(())
    }

    /// Takes all parts or none. Who stands by has no lease: it would be counted among those who share.
    pub(super) async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        let (me, lineage) = (literal::text(&self.me), literal::text(&self.lineage));
        let all = usize::from(LANES.unsigned_abs());
        if self.places.len() == all {
            return Ok(true);
        }
        for place in std::mem::take(&mut self.places) {
            let free = format!(
                "UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                place.part, place.epoch
            );
            self.run(free).await?;
        }
        if Instant::now() < self.beat_at {
            return Ok(false);
        }
        let free = format!(
            "SELECT part FROM semel_outbox_cursor c WHERE owner IS NULL OR owner = {me} OR NOT EXISTS (
                 SELECT 1 FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > {NOW})"
        );
        if self.rows(&free).await?.len() == all {
            self.heartbeat().await?;
            // Looked at once more, now that nobody else can take one.
            let locked = format!("START TRANSACTION; {free} ORDER BY part FOR UPDATE");
            if self.rows(&locked).await?.len() == all {
                let take = format!(
                    "UPDATE semel_outbox_cursor
                     SET owner = {me}, epoch = epoch + 1, lineage = COALESCE(lineage, {lineage});
                     SELECT part, epoch, after_n, until_n FROM semel_outbox_cursor ORDER BY part; COMMIT"
                );
                for row in &self.rows(&take).await? {
                    self.places.push(stored(row)?);
                }
                return Ok(true);
            }
            self.session.roll_back().await;
            self.run(format!("DELETE FROM semel_outbox_relay WHERE id = {me}")).await?;
        }
        self.beat_at = Instant::now() + self.outbox.lease / 10;
        Ok(false)
    }

    /// Gives everything back.
    pub(super) async fn release(mut self) -> Result<(), OutboxReaderError> {
        let me = literal::text(&self.me);
        let mut text = format!("DELETE FROM semel_outbox_relay WHERE id = {me}");
        for place in &self.places {
            text.push_str(&format!(
                "; UPDATE semel_outbox_cursor SET owner = NULL WHERE part = {} AND epoch = {}",
                place.part, place.epoch
            ));
        }
        self.run(text).await?;
        self.session.close().await;
        Ok(())
    }

    /// What is published and old, a bite at a time and part by part.
    pub(super) async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        let mut pruned = Pruned::default();
        for place in self.places.clone() {
            for _ in 0..BITES_MAX {
                let bite = format!(
                    "DELETE FROM semel_outbox WHERE part = {} AND n <= {}
                     AND made_at < SYSDATE(3) - INTERVAL {} * 1000 MICROSECOND ORDER BY n LIMIT {BITE}",
                    place.part,
                    place.after,
                    older_than.as_millis()
                );
                let gone = self.run(bite).await?.pop().unwrap_or_default().matched;
                pruned.rows += gone;
                if Instant::now() >= self.beat_at {
                    self.heartbeat().await?;
                }
                if gone < BITE {
                    break;
                }
            }
        }
        Ok(pruned)
    }

    pub(super) async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        let mut lag = Lag {
            lanes: u32::try_from(self.places.len()).unwrap_or(0),
            epoch: self.places.iter().map(|place| place.epoch.unsigned_abs()).max(),
            ..Lag::default()
        };
        for place in self.places.clone() {
            let text = format!(
                "SELECT COUNT(*), {NOW} - CAST(UNIX_TIMESTAMP(MIN(made_at)) * 1000 AS SIGNED) FROM (
                     SELECT made_at FROM semel_outbox WHERE part = {} AND n > {} ORDER BY n LIMIT {COUNT_MAX}) waiting",
                place.part, place.after
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
        part: get(row, 0)?,
        epoch: get(row, 1)?,
        after: get(row, 2)?,
        recorded: get(row, 3)?,
    })
}

impl MysqlOutbox {
    /// Takes these tables for the right ones from here on. Relays that run are fenced.
    pub async fn rebase(&self, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let after = match rebase {
            Rebase::Everything => "0",
            Rebase::FromNow => {
                "(SELECT p.n FROM semel_outbox_part p WHERE p.part = semel_outbox_cursor.part)"
            }
        };
        let text = format!(
            "UPDATE semel_outbox_cursor SET epoch = epoch + 1, owner = NULL, until_n = NULL, after_n = {after},
             lineage = (SELECT m.lineage FROM semel_outbox_meta m)"
        );
        self.ask(text).await.map(drop)
    }
}

/// A column of an answer.
pub(super) fn get<'r, T: Decode<'r, MySql> + Type<MySql>>(
    row: &'r MySqlRow,
    at: usize,
) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| {
        let message = "an answer about semel_outbox makes no sense; look at its tables";
        StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message).with_source(error.to_string())
    })
}
