//! The same rows with the same commits, and no engine: what no engine on this journal can be faster than.

use rusqlite::Connection;
use tokio_postgres::{Client, Statement};

use super::load::{Loaded, Meter};
use super::place::Place;
use crate::Failed;
use crate::times::Times;

/// Sagas that share their commits.
pub(super) const BATCH: usize = 64;

/// The entries that one commit adds to a saga: kind, step, operation, input, result.
type Entries = &'static [(i64, &'static str, i64, Option<&'static str>, Option<&'static str>)];

const INPUT: Option<&str> = Some("\"run-0-100-10\"");
const RESULT: Option<&str> = Some("77");

/// A saga starts with its first beginning, and each result shares a commit with what comes next.
pub(super) const COMMITS: [Entries; 4] = [
    &[(0, "reserve", 0, INPUT, None)],
    &[(1, "reserve", 0, None, RESULT), (0, "truck", 0, INPUT, None)],
    &[(1, "truck", 0, None, RESULT), (0, "charge", 1, INPUT, None)],
    &[(1, "charge", 1, None, RESULT)],
];

const START_SQLITE: &str = "INSERT INTO semel_saga (id, status, epoch, worker, deadline, signals, cancelled, name, \
    version, scope, operation, key, recipe, digest, input, created_at) VALUES (?1, 0, 1, 1, 1900000000000, 0, 0, 'floor', 1, \
    't:1234567890123456', 'floor', 'run-0-100-10', 1, ?1, CAST('\"run-0-100-10\"' AS BLOB), 1800000000000)";
const ENTRY_SQLITE: &str = "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, \
    safe_until, input, body) VALUES (?1, ?2, ?3, ?4, 0, ?5, 1, 1, 1800000000000, NULL, ?6, ?7)";
const END_SQLITE: &str = "UPDATE semel_saga SET status = 4, worker = NULL, expires_at = 1900000000000, outcome = CAST('231' AS BLOB) \
    WHERE n = ?1";

const START_POSTGRES: &str = "INSERT INTO semel_saga (id, status, epoch, worker, deadline, signals, cancelled, name, \
    version, scope, operation, key, recipe, digest, input, created_at) SELECT id, 0, 1, 1, 1900000000000, 0, 0, 'floor', 1, \
    't:1234567890123456', 'floor', 'run-0-100-10', 1, id, '\"run-0-100-10\"', 1800000000000 \
    FROM unnest($1::bytea[]) id RETURNING n";
const ENTRY_POSTGRES: &str = "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, \
    safe_until, input, body) SELECT saga, $2::int, $3::bigint, $4, 0, $5::bigint, 1, 1, 1800000000000, NULL, \
    convert_to($6, 'UTF8'), convert_to($7, 'UTF8') FROM unnest($1::bigint[]) saga";
const END_POSTGRES: &str = "UPDATE semel_saga SET status = 4, worker = NULL, expires_at = 1900000000000, \
    outcome = '231' WHERE n = ANY($1::bigint[])";

pub(super) enum Floor {
    Sqlite(Connection),
    Postgres(Box<Client>, [Statement; 3]),
}

impl Floor {
    pub(super) async fn open(place: &Place) -> Result<Self, Failed> {
        Ok(match place {
            Place::Sqlite(path) => Self::Sqlite(Place::sqlite(path)?),
            Place::Postgres(schema) => {
                let client = Place::postgres(schema).await?;
                let statements = [
                    client.prepare(START_POSTGRES).await?,
                    client.prepare(ENTRY_POSTGRES).await?,
                    client.prepare(END_POSTGRES).await?,
                ];
                Self::Postgres(Box::new(client), statements)
            }
        })
    }

    /// So many sagas, in batches of this size.
    pub(super) async fn run(&mut self, place: &Place, sagas: usize, batch: usize) -> Result<Loaded, Failed> {
        let meter = Meter::begin(place)?;
        let mut ran = 0;
        while ran < sagas {
            self.batch(batch).await?;
            ran += batch;
        }
        meter.end(place, ran, Times::default())
    }

    /// This many sagas, from their start to their end.
    pub(super) async fn batch(&mut self, sagas: usize) -> Result<(), Failed> {
        let id = || std::iter::repeat_with(|| fastrand::u8(..)).take(32).collect::<Vec<u8>>();
        let ids = || std::iter::repeat_with(id).take(sagas);
        match self {
            Self::Sqlite(db) => sqlite(db, ids()),
            Self::Postgres(client, [start, entry, end]) => {
                let mut numbers: Vec<i64> = Vec::new();
                let mut seq = 0i32;
                for (at, entries) in COMMITS.iter().enumerate() {
                    let tx = client.transaction().await?;
                    if at == 0 {
                        let ids: Vec<Vec<u8>> = ids().collect();
                        numbers = tx.query(&*start, &[&ids]).await?.iter().map(|row| row.get(0)).collect();
                    }
                    for (kind, step, op, input, body) in *entries {
                        tx.execute(&*entry, &[&numbers, &seq, kind, step, op, input, body]).await?;
                        seq += 1;
                    }
                    if at + 1 == COMMITS.len() {
                        tx.execute(&*end, &[&numbers]).await?;
                    }
                    tx.commit().await?;
                }
                Ok(())
            }
        }
    }
}

fn sqlite(db: &mut Connection, ids: impl Iterator<Item = Vec<u8>>) -> Result<(), Failed> {
    let ids: Vec<Vec<u8>> = ids.collect();
    let mut numbers = Vec::new();
    let mut seq = 0;
    for (at, entries) in COMMITS.iter().enumerate() {
        let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        if at == 0 {
            let mut start = tx.prepare_cached(START_SQLITE)?;
            for id in &ids {
                start.execute([id])?;
                numbers.push(tx.last_insert_rowid());
            }
        }
        for (kind, step, op, input, body) in *entries {
            let mut entry = tx.prepare_cached(ENTRY_SQLITE)?;
            let (input, body) = (input.map(str::as_bytes), body.map(str::as_bytes));
            for number in &numbers {
                entry.execute((number, seq, kind, step, op, input, body))?;
            }
            seq += 1;
        }
        if at + 1 == COMMITS.len() {
            let mut end = tx.prepare_cached(END_SQLITE)?;
            for number in &numbers {
                end.execute([number])?;
            }
        }
        tx.commit()?;
    }
    Ok(())
}
