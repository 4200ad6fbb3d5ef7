//! Writers that commit out of order, roll back and hang, and write down how each commit ended.
//!
//! Each key has a counter in a table of its own. A writer that appends an event counts it up in the same transaction,
//! so the lock on the counter makes the order that has to be kept, and the event says its place in it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::blocking;
use semel::outbox::{Event, append_tx};
use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Executor, Row};
use uuid::Uuid;

use crate::relay_chaos::judge::{Counted, Ledger};

pub const KEYS: usize = 1_000;
pub const WRITERS: usize = 16;

#[derive(Clone)]
pub enum Database {
    Postgres(PgPool),
    Mysql(MySqlPool),
    Sqlite(PathBuf),
}

/// The writers at work.
pub struct Load {
    over: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// How a transaction ended, as far as its writer knows.
enum End {
    Committed,
    RolledBack,
    InDoubt,
}

impl Load {
    pub fn start(database: &Database, topic: &str) -> Self {
        let (over, ledger) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Ledger::default())));
        // What is left to chance needs many; where a test says what happens, enough to be in the middle of something.
        let rest = if std::env::var_os("SEMEL_PROVE").is_some() { 10..40 } else { 60..140 };
        let writers = (0..WRITERS).map(|writer| {
            let (over, ledger) = (over.clone(), ledger.clone());
            let (database, topic, rest) = (database.clone(), topic.to_owned(), rest.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut appended = Vec::new();
                    let end = write(&database, &topic, writer, &mut appended).await;
                    let troubled = matches!(end, End::InDoubt);
                    ledger.lock().unwrap().note(end, appended);
                    let rest = if troubled { 50 } else { fastrand::u64(rest.clone()) };
                    tokio::time::sleep(Duration::from_millis(rest)).await;
                }
            })
        });
        let tasks = writers.collect();
        Self { over, ledger, tasks }
    }

    pub fn committed(&self) -> usize {
        self.ledger.lock().unwrap().committed.len()
    }

    /// Waits until so many more events are committed.
    pub async fn more(&self, events: usize) {
        let wanted = self.committed() + events;
        let waited = async {
            while self.committed() < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(crate::relay_chaos::SOON, waited).await.expect("the writers get on");
    }

    /// Stops the writers and hands over what they know.
    pub async fn stop(self) -> Ledger {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.ledger.lock().unwrap().clone()
    }
}

impl Ledger {
    fn note(&mut self, end: End, appended: Vec<Counted>) {
        match end {
            End::Committed => self.committed.extend(appended),
            End::RolledBack => self.rolled_back.extend(appended),
            End::InDoubt => self.in_doubt.extend(appended),
        }
    }
}

/// Few of them are in much demand, so that locks are handed over; in order, so that no writers wait in a circle.
fn keys() -> Vec<usize> {
    let one = || fastrand::usize(0..if fastrand::bool() { 20 } else { KEYS });
    let mut keys: Vec<usize> = (0..fastrand::usize(1..4)).map(|_| one()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

async fn write(database: &Database, topic: &str, writer: usize, appended: &mut Vec<Counted>) -> End {
    match database {
        Database::Postgres(pool) => postgres(pool, topic, writer, appended).await.unwrap_or(End::RolledBack),
        Database::Mysql(pool) => mysql(pool, topic, writer, appended).await.unwrap_or(End::RolledBack),
        Database::Sqlite(path) => {
            let (path, topic) = (path.clone(), topic.to_owned());
            let written = tokio::task::spawn_blocking(move || {
                let mut appended = Vec::new();
                let end = sqlite(&path, &topic, &mut appended).unwrap_or(End::RolledBack);
                (end, appended)
            });
            let (end, events) = written.await.unwrap();
            appended.extend(events);
            end
        }
    }
}

/// Between the last append and the end.
async fn hang(writer: usize) {
    match fastrand::u32(0..40) {
        // The first of them now and then for as long as others need for a hundred transactions.
        0..4 if writer == 0 => tokio::time::sleep(Duration::from_millis(1_500)).await,
        0 => tokio::time::sleep(Duration::from_millis(fastrand::u64(100..500))).await,
        1..12 => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..15))).await,
        _ => {}
    }
}

fn event(topic: &str, counted: &Counted) -> Event {
    let event = Event::new(topic, "counted", counted.n.to_string()).unwrap().key(&counted.key).unwrap();
    event.with_id(Uuid::parse_str(&counted.id).unwrap())
}

fn next(key: &str, n: i64) -> Counted {
    Counted { id: Uuid::now_v7().to_string(), key: key.to_owned(), n: n.unsigned_abs() }
}

async fn postgres(pool: &PgPool, topic: &str, writer: usize, appended: &mut Vec<Counted>) -> Option<End> {
    let mut tx = pool.begin().await.ok()?;
    if fastrand::bool() {
        // Older than the holder of the lock before it.
        tx.execute("SELECT pg_current_xact_id()").await.ok()?;
    }
    for key in keys() {
        let add = format!("UPDATE counter SET n = n + 1 WHERE k = 'k{key}' RETURNING n");
        let n: i64 = tx.fetch_one(AssertSqlSafe(add)).await.ok()?.get(0);
        let mut one = next(&format!("k{key}"), n);
        if fastrand::bool() {
            append_tx(&mut tx, &event(topic, &one)).await.ok()?;
        } else {
            // As another language does it: the id is the server's.
            let insert = format!(
                "INSERT INTO semel_outbox (topic, type, key, payload) \
                 VALUES ('{topic}', 'counted', '{}', '{n}') RETURNING id::text",
                one.key
            );
            one.id = tx.fetch_one(AssertSqlSafe(insert)).await.ok()?.get(0);
        }
        appended.push(one);
    }
    hang(writer).await;
    if fastrand::u32(0..5) == 0 {
        return tx.rollback().await.ok().map(|()| End::RolledBack);
    }
    Some(tx.commit().await.map_or(End::InDoubt, |()| End::Committed))
}

async fn mysql(pool: &MySqlPool, topic: &str, writer: usize, appended: &mut Vec<Counted>) -> Option<End> {
    let mut tx = pool.begin().await.ok()?;
    for key in keys() {
        let add = format!("UPDATE counter SET n = n + 1 WHERE k = 'k{key}'");
        tx.execute(AssertSqlSafe(add)).await.ok()?;
        let look = format!("SELECT n FROM counter WHERE k = 'k{key}'");
        let n: i64 = tx.fetch_one(AssertSqlSafe(look)).await.ok()?.get(0);
        let one = next(&format!("k{key}"), n);
        if fastrand::bool() {
            append_tx(&mut tx, &event(topic, &one)).await.ok()?;
        } else {
            let insert = format!(
                "INSERT INTO semel_outbox (id, topic, type, `key`, payload) \
                 VALUES ('{}', '{topic}', 'counted', '{}', '{n}')",
                one.id, one.key
            );
            tx.execute(AssertSqlSafe(insert)).await.ok()?;
        }
        appended.push(one);
    }
    hang(writer).await;
    if fastrand::u32(0..5) == 0 {
        return tx.rollback().await.ok().map(|()| End::RolledBack);
    }
    Some(tx.commit().await.map_or(End::InDoubt, |()| End::Committed))
}

/// There is one writer at a time: none hangs for long.
fn sqlite(path: &PathBuf, topic: &str, appended: &mut Vec<Counted>) -> rusqlite::Result<End> {
    let mut connection = connect(path)?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for key in keys() {
        let key = format!("k{key}");
        let add = "UPDATE counter SET n = n + 1 WHERE k = ?1 RETURNING n";
        let n: i64 = tx.query_row(add, [&key], |row| row.get(0))?;
        let mut one = next(&key, n);
        if fastrand::bool() {
            blocking::append_tx(&tx, &event(topic, &one)).expect("the event is appended");
        } else {
            let insert = "INSERT INTO semel_outbox (topic, type, key, payload)
                          VALUES (?1, 'counted', ?2, CAST(?3 AS BLOB)) RETURNING id";
            one.id = tx.query_row(insert, [topic, &key, &n.to_string()], |row| row.get(0))?;
        }
        appended.push(one);
    }
    if fastrand::u32(0..20) == 0 {
        std::thread::sleep(Duration::from_millis(fastrand::u64(5..50)));
    }
    if fastrand::u32(0..5) == 0 {
        tx.rollback()?;
        return Ok(End::RolledBack);
    }
    Ok(tx.commit().map_or(End::InDoubt, |()| End::Committed))
}

pub fn connect(path: &PathBuf) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    Ok(connection)
}
