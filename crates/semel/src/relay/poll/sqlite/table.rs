//! The outbox tables of a SQLite file. Everything here blocks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::relay::outbox_reader::{Lag, OutboxLineage, OutboxReaderError, Pending, Pruned, Rebase};
use crate::relay::parking::{OF_KEY_MAX, ParkedRows, RetryBatch, RetryResult};
use crate::relay::reader_options::Bounds;
use crate::relay::row::{Columns, OutboxRow};
use crate::relay::table_checks::{cursor_ahead, known_version};
use crate::store::{ErrorKind, Fate, StoreError};

/// Retention: rows deleted by one statement, and statements.
const CHUNK_ROWS: i64 = 1_000;
const CHUNKS_MAX: u32 = 20;
const COUNT_MAX: i64 = 10_000;
/// How long to wait for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
pub(super) const EVENT: &str = "o.id, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type, o.headers, \
                     o.idempotency_key, o.trace_parent, o.intent, o.payload";

/// The lease, and how far its owner has come.
#[derive(Clone, Debug)]
pub(super) struct LeasedCursor {
    pub(super) epoch: i64,
    pub(super) after: i64,
    pub(super) recorded: Option<i64>,
}

pub(super) struct Table {
    pub(super) connection: Connection,
    pub(super) lineage: OutboxLineage,
    path: PathBuf,
}

impl Table {
    pub(super) fn open(path: &Path) -> Result<Self, OutboxReaderError> {
        let explained = |error| explain(path, &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(explained)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(explained)?;
        // A chunk is on disk before it is sent, with all that others have committed.
        connection.pragma_update(None, "synchronous", "FULL").map_err(explained)?;
        let mut table = Self { connection, lineage: OutboxLineage::read(""), path: path.to_owned() };
        let (found, stored) = table.lineages()?;
        let (found, stored) = (OutboxLineage::read(&found), stored.map(|text| OutboxLineage::read(&text)));
        match stored {
            Some(stored) if !stored.matches(&found) => {
                return Err(OutboxReaderError::OutboxLineage { stored, found });
            }
            _ => table.lineage = found,
        }
        if table.is_ahead()? { Err(cursor_ahead()) } else { Ok(table) }
    }

    /// The lineage of the tables, and the one recorded in the cursor.
    fn lineages(&self) -> Result<(String, Option<String>), OutboxReaderError> {
        let query = "SELECT m.lineage, c.lineage, m.version FROM semel_outbox_meta m, semel_outbox_cursor c";
        let read = self.connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let (found, stored, version) = self.explained(read)?;
        known_version(version)?;
        Ok((found, stored))
    }

    /// Whether the cursor is ahead of every number ever given to an event here.
    fn is_ahead(&self) -> Result<bool, OutboxReaderError> {
        let query = "SELECT max(after_seq, coalesce(until_seq, 0)) > max(
                         coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0),
                         coalesce((SELECT max(seq) FROM semel_outbox), 0))
                     FROM semel_outbox_cursor";
        self.explained(self.connection.query_row(query, [], |row| row.get(0)))
    }

    pub(super) fn explained<T>(&self, result: rusqlite::Result<T>) -> Result<T, OutboxReaderError> {
        result.map_err(|error| explain(&self.path, &error))
    }

    /// One commit under the owner's epoch. A fenced relay changes nothing.
    fn fenced(
        &self,
        epoch: i64,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<bool>,
    ) -> Result<(), OutboxReaderError> {
        let ours = self.explained((|| {
            let tx = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            let stored: i64 = tx.query_row("SELECT epoch FROM semel_outbox_cursor", [], |row| row.get(0))?;
            if stored != epoch || !work(&tx)? {
                return Ok(false);
            }
            tx.commit()?;
            Ok(true)
        })())?;
        if ours { Ok(()) } else { Err(OutboxReaderError::Fenced) }
    }

    /// Renews our lease, or takes a free one. `None`: another relay holds it.
    pub(super) fn take_or_renew(
        &self,
        me: &str,
        epoch: Option<i64>,
        lease_ms: i64,
    ) -> Result<Option<LeasedCursor>, OutboxReaderError> {
        let leased = |row: &Row<'_>| {
            Ok(LeasedCursor { epoch: row.get(0)?, after: row.get(1)?, recorded: row.get(2)? })
        };
        if let Some(epoch) = epoch {
            let renew = format!(
                "UPDATE semel_outbox_cursor SET lease_until = {NOW} + ?1 WHERE epoch = ?2
                 RETURNING epoch, after_seq, until_seq"
            );
            return self
                .explained(self.connection.query_row(&renew, params![lease_ms, epoch], leased).optional());
        }
        // Reads first: a relay that waits for the lease writes nothing.
        let free = format!(
            "SELECT 1 FROM semel_outbox_cursor WHERE owner IS NULL OR owner = ?1 OR lease_until < {NOW}"
        );
        if self.explained(self.connection.query_row(&free, [me], |_| Ok(())).optional())?.is_none() {
            return Ok(None);
        }
        let take = format!(
            "UPDATE semel_outbox_cursor
             SET owner = ?1, epoch = epoch + 1, lease_until = {NOW} + ?2,
                 lineage = (SELECT lineage FROM semel_outbox_meta)
             WHERE owner IS NULL OR owner = ?1 OR lease_until < {NOW}
             RETURNING epoch, after_seq, until_seq"
        );
        self.explained(self.connection.query_row(&take, params![me, lease_ms], leased).optional())
    }

    /// The recorded chunk, or the next one, recorded first.
    #[expect(clippy::type_complexity, reason = "three things that belong together for one call")]
    pub(super) fn chunk(
        &self,
        leased: &LeasedCursor,
        bounds: Bounds,
    ) -> Result<Option<(i64, Vec<i64>, Vec<Pending>)>, OutboxReaderError> {
        let query = format!(
            "SELECT {EVENT}, o.seq,
                    EXISTS (SELECT 1 FROM semel_outbox_parked_key p
                            WHERE p.key = coalesce(o.key, o.aggregate_id, o.id))
             FROM semel_outbox o WHERE o.seq > ?1 AND o.seq <= ?2 ORDER BY o.seq"
        );
        let (mut seqs, mut events, mut bytes) = (Vec::new(), Vec::new(), 0);
        self.explained((|| {
            let mut statement = self.connection.prepare_cached(&query)?;
            let mut rows = statement.query(params![leased.after, leased.recorded.unwrap_or(i64::MAX)])?;
            while let Some(row) = rows.next()? {
                let pending = Columns::read(row, 0)?.pending(row.get(13)?);
                bytes += pending.event.payload().len();
                seqs.push(row.get(12)?);
                events.push(pending);
                if leased.recorded.is_none() && (seqs.len() >= bounds.events_max || bytes >= bounds.bytes_max)
                {
                    break;
                }
            }
            Ok(())
        })())?;
        let Some(until) = leased.recorded.or(seqs.last().copied()) else { return Ok(None) };
        if leased.recorded.is_none() {
            self.fenced(leased.epoch, |tx| {
                Ok(tx.execute("UPDATE semel_outbox_cursor SET until_seq = ?1", [until])? == 1)
            })?;
        }
        Ok(Some((until, seqs, events)))
    }

    /// Acks the chunk, and parks the rest.
    pub(super) fn advance(
        &self,
        epoch: i64,
        until: i64,
        parked: &ParkedRows,
        retry_ms: i64,
    ) -> Result<(), OutboxReaderError> {
        self.fenced(epoch, |tx| {
            let moved = "UPDATE semel_outbox_cursor SET after_seq = until_seq, until_seq = NULL WHERE until_seq = ?1";
            if tx.execute(moved, [until])? != 1 {
                return Ok(false);
            }
            for (at, seq) in parked.seqs.iter().enumerate() {
                let error = parked.errors.get(at).cloned().flatten();
                let flag = |flags: &[bool]| flags.get(at).copied().unwrap_or(false);
                let for_good = flag(&parked.for_good);
                let Some(key) = parked.keys.get(at) else { continue };
                if error.is_some() {
                    let park = format!(
                        "INSERT INTO semel_outbox_parked_key (key, due_at)
                         VALUES (?1, CASE WHEN NOT ?2 THEN {NOW} + ?3 END) ON CONFLICT (key) DO NOTHING"
                    );
                    tx.prepare_cached(&park)?.execute(params![key, for_good, retry_ms])?;
                }
                let copy = format!(
                    "INSERT INTO semel_outbox_parked
                         (parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type,
                          headers, idempotency_key, trace_parent, intent, payload)
                     SELECT ?2, ?3, o.made_at, {EVENT} FROM semel_outbox o WHERE o.seq = ?1"
                );
                tx.prepare_cached(&copy)?.execute(params![seq, key, error])?;
            }
            Ok(true)
        })
    }

    /// Parked events that are due, and due keys without parked events.
    pub(super) fn due(&self, bytes_max: usize) -> Result<(RetryBatch, Vec<Pending>), OutboxReaderError> {
        let (mut tried, mut events, mut bytes) = (RetryBatch::default(), Vec::new(), 0);
        self.explained((|| {
            let due = format!(
                "SELECT key, due_at FROM semel_outbox_parked_key WHERE due_at <= {NOW} ORDER BY due_at LIMIT 100"
            );
            let mut keys = self.connection.prepare_cached(&due)?;
            let keys: Vec<(String, Option<i64>)> =
                keys.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
            let query = format!(
                "SELECT {EVENT}, o.n FROM semel_outbox_parked o WHERE o.parked_key = ?1 ORDER BY o.n LIMIT ?2"
            );
            let mut statement = self.connection.prepare_cached(&query)?;
            for (key, due) in keys {
                let mut rows = statement.query(params![key, OF_KEY_MAX])?;
                let before = tried.ns.len();
                while let Some(row) = rows.next()? {
                    let pending = Columns::read(row, 0)?.pending(false);
                    bytes += pending.event.payload().len();
                    events.push(pending);
                    tried.ns.push(row.get(12)?);
                    tried.keys.push(key.clone());
                    tried.due.push(due);
                    if bytes >= bytes_max {
                        return Ok(());
                    }
                }
                if before == tried.ns.len() {
                    tried.empty.push(key);
                }
            }
            Ok(())
        })())?;
        Ok((tried, events))
    }

    /// These events, if they are still parked.
    pub(super) fn still_parked(&self, ns: &[i64]) -> Result<(RetryBatch, Vec<Pending>), OutboxReaderError> {
        let (mut tried, mut events) = (RetryBatch::default(), Vec::new());
        self.explained((|| {
            let query = format!(
                "SELECT {EVENT}, o.parked_key, k.due_at FROM semel_outbox_parked o
                 LEFT JOIN semel_outbox_parked_key k ON k.key = o.parked_key WHERE o.n = ?1 ORDER BY o.n"
            );
            let mut statement = self.connection.prepare_cached(&query)?;
            for n in ns {
                let mut rows = statement.query([n])?;
                while let Some(row) = rows.next()? {
                    events.push(Columns::read(row, 0)?.pending(false));
                    tried.ns.push(*n);
                    tried.keys.push(row.get(12)?);
                    tried.due.push(row.get(13)?);
                }
            }
            Ok(())
        })())?;
        Ok((tried, events))
    }

    /// Stores the results of a retry.
    pub(super) fn retried(
        &self,
        epoch: i64,
        retried: &RetryResult,
        retry_ms: i64,
    ) -> Result<(), OutboxReaderError> {
        self.fenced(epoch, |tx| {
            for n in &retried.confirmed {
                tx.execute("DELETE FROM semel_outbox_parked WHERE n = ?1", [n])?;
            }
            for (n, error) in retried.failed.iter().zip(&retried.errors) {
                tx.execute("UPDATE semel_outbox_parked SET error = ?2 WHERE n = ?1", params![n, error])?;
            }
            let later = format!(
                "UPDATE semel_outbox_parked_key SET tries = tries + 1, due_at = CASE WHEN NOT ?2 THEN
                     {NOW} + min(?3 << min(tries + 1, 20), max(?3, 60000)) END
                 WHERE key = ?1 AND due_at IS ?4"
            );
            for ((key, for_good), due) in retried.later.iter().zip(&retried.for_good).zip(&retried.due) {
                tx.execute(&later, params![key, for_good, retry_ms, due])?;
            }
            for key in &retried.on {
                let on =
                    format!("UPDATE semel_outbox_parked_key SET tries = 0, due_at = {NOW} WHERE key = ?1");
                tx.execute(&on, [key])?;
                let end = "DELETE FROM semel_outbox_parked_key WHERE key = ?1
                           AND NOT EXISTS (SELECT 1 FROM semel_outbox_parked WHERE parked_key = ?1)";
                tx.execute(end, [key])?;
            }
            Ok(true)
        })
    }

    pub(super) fn release(&self, epoch: i64) -> Result<(), OutboxReaderError> {
        let free = "UPDATE semel_outbox_cursor SET owner = NULL, lease_until = 0 WHERE epoch = ?1";
        self.explained(self.connection.execute(free, [epoch])).map(drop)
    }

    /// Retention: deletes old published events in bounded batches, so that no writer waits for long.
    pub(super) fn prune(&self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        let delete = format!(
            "DELETE FROM semel_outbox WHERE seq IN (
                 SELECT seq FROM semel_outbox
                 WHERE seq <= (SELECT after_seq FROM semel_outbox_cursor) AND made_at < {NOW} - ?1
                 ORDER BY seq LIMIT ?2)"
        );
        let older_ms = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
        let mut pruned = Pruned::default();
        for _ in 0..CHUNKS_MAX {
            let gone = self.explained(self.connection.execute(&delete, params![older_ms, CHUNK_ROWS]))?;
            pruned.rows += gone as u64;
            if (gone as u64) < CHUNK_ROWS.unsigned_abs() {
                break;
            }
        }
        Ok(pruned)
    }

    pub(super) fn lag(&self, epoch: Option<i64>) -> Result<Lag, OutboxReaderError> {
        let query = format!(
            "SELECT count(*), {NOW} - min(made_at),
                    (SELECT count(*) FROM (SELECT 1 FROM semel_outbox_parked LIMIT ?1))
             FROM (SELECT made_at FROM semel_outbox
                   WHERE seq > (SELECT after_seq FROM semel_outbox_cursor) LIMIT ?1)"
        );
        let lag = self.connection.query_row(&query, [COUNT_MAX], |row| {
            let oldest: Option<i64> = row.get(1)?;
            Ok(Lag {
                events: row.get::<_, i64>(0)?.unsigned_abs(),
                oldest: oldest.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs())),
                parked: row.get::<_, i64>(2)?.unsigned_abs(),
                partitions: u32::from(epoch.is_some()),
                epoch: epoch.map(i64::unsigned_abs),
                bytes: None,
            })
        });
        self.explained(lag)
    }

    pub(super) fn rebase(path: &Path, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let rebased = "UPDATE semel_outbox_cursor SET epoch = epoch + 1, owner = NULL, lease_until = 0,
             lineage = (SELECT lineage FROM semel_outbox_meta), until_seq = NULL,
             after_seq = CASE WHEN ?1 THEN (SELECT coalesce(max(seq), 0) FROM semel_outbox) ELSE 0 END";
        let done =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).and_then(|connection| {
                connection.busy_timeout(BUSY_TIMEOUT)?;
                connection.execute(rebased, [rebase == Rebase::FromNow])
            });
        done.map(drop).map_err(|error| explain(path, &error))
    }
}

impl OutboxRow for Row<'_> {
    type Error = rusqlite::Error;

    fn text(&self, at: usize) -> rusqlite::Result<Option<&[u8]>> {
        match self.get_ref(at)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => Ok(Some(bytes)),
            other => Err(rusqlite::Error::InvalidColumnType(at, String::new(), other.data_type())),
        }
    }

    fn bytes(&self, at: usize) -> rusqlite::Result<Option<Vec<u8>>> {
        self.get(at)
    }

    fn int(&self, at: usize) -> rusqlite::Result<i64> {
        self.get(at)
    }

    fn unreadable(why: String) -> rusqlite::Error {
        rusqlite::Error::FromSqlConversionFailure(0, Type::Null, why.into())
    }
}

pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> OutboxReaderError {
    use rusqlite::ErrorCode;
    let path = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, format!("{path} is locked by another process; will retry"))
        }
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Full, format!("the disk of {path} is full; free some space"))
        }
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::Misconfigured, format!("{path} cannot be opened; check the path of the outbox file"))
        }
        Some(ErrorCode::ReadOnly) => {
            (ErrorKind::Misconfigured, format!("cannot write to {path}; give this user write access"))
        }
        Some(ErrorCode::SystemIoFailure) => {
            (ErrorKind::Unavailable, format!("I/O error on {path}; check its disk"))
        }
        _ if error.to_string().contains("no such table") => (
            ErrorKind::Misconfigured,
            format!(
                "{path} has no outbox tables; create them with `semel migrate --outbox URL` or `semel::outbox::schema`"
            ),
        ),
        _ => (ErrorKind::Corrupt, format!("cannot read the outbox in {path}; inspect it with sqlite3")),
    };
    // A failed statement is rolled back; a failed commit may have been applied.
    let fate = if kind == ErrorKind::Misconfigured { Fate::NotApplied } else { Fate::InDoubt };
    StoreError::new(kind, fate, message).with_source(error.to_string()).into()
}
