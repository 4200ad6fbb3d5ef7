//! A consumer whose effects, marks and dead letters are in one database, whichever it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::blocking;
use semel::inbox::consumer::{Consumer, ConsumerOptions, Handler, HandlerError, Message};
use semel::inbox::dead_letter::DeadLetterStore;
use semel::inbox::{self, Inbox};
use semel::source::memory::MemoryQueue;
use semel::tx::driver::Dialect;
use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use tempfile::TempDir;
use testkit::services::Service;

use crate::outbox::world::{Mysql, Postgres};

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(120);

enum Server {
    Postgres(Postgres),
    Mysql(Mysql),
    Sqlite(TempDir),
}

#[derive(Clone)]
enum Pool {
    Postgres(PgPool),
    Mysql(MySqlPool),
    Sqlite(PathBuf),
}

/// A database with an inbox and a table of effects.
pub struct Place {
    server: Server,
    pool: Pool,
    pub url: String,
}

impl Place {
    pub async fn postgres() -> Option<Self> {
        let tables = inbox::schema(Dialect::Postgres);
        let world = Postgres::with(&format!(
            "{tables} CREATE TABLE effect (n bigserial PRIMARY KEY, text text NOT NULL);"
        ))
        .await?;
        let pool = Pool::Postgres(world.pool(4).await);
        Some(Self { url: world.url(), pool, server: Server::Postgres(world) })
    }

    pub async fn mariadb() -> Option<Self> {
        Self::speaking_mysql(Service::Mariadb).await
    }

    pub async fn mysql() -> Option<Self> {
        Self::speaking_mysql(Service::Mysql).await
    }

    async fn speaking_mysql(server: Service) -> Option<Self> {
        let tables = inbox::schema(Dialect::Mysql);
        let effect = "CREATE TABLE effect (n bigint AUTO_INCREMENT PRIMARY KEY, text varchar(200) NOT NULL);";
        let world = Mysql::with(server, &format!("{tables} {effect}")).await?;
        let pool = Pool::Mysql(world.pool.clone());
        Some(Self { url: world.url(), pool, server: Server::Mysql(world) })
    }

    pub async fn sqlite() -> Option<Self> {
        let directory = testkit::scratch::directory();
        let path = directory.path().join("app.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(inbox::schema(Dialect::Sqlite)).unwrap();
        db.execute_batch("CREATE TABLE effect (n INTEGER PRIMARY KEY, text TEXT NOT NULL)").unwrap();
        let url = format!("sqlite:{}", path.display());
        Some(Self { url, pool: Pool::Sqlite(path), server: Server::Sqlite(directory) })
    }

    pub async fn tables(&self) -> DeadLetterStore {
        DeadLetterStore::open(&self.url).await.unwrap()
    }

    /// A handler that fails where this says so.
    pub fn handler(&self, trouble: impl Fn(&str) -> Option<HandlerError> + Send + Sync + 'static) -> Effects {
        Effects { pool: self.pool.clone(), marks: true, trouble: Arc::new(trouble) }
    }

    /// Runs statements.
    pub async fn run(&self, sql: &'static str) {
        match &self.pool {
            Pool::Postgres(pool) => drop(sqlx::raw_sql(sql).execute(pool).await.unwrap()),
            Pool::Mysql(pool) => drop(sqlx::raw_sql(sql).execute(pool).await.unwrap()),
            Pool::Sqlite(path) => open(path).execute_batch(sql).unwrap(),
        }
    }

    /// What happened, in its order.
    pub async fn effects(&self) -> Vec<String> {
        let sql = "SELECT text FROM effect ORDER BY n";
        match &self.pool {
            Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            Pool::Mysql(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            Pool::Sqlite(path) => {
                let db = open(path);
                let mut rows = db.prepare(sql).unwrap();
                rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
            }
        }
    }

    /// How many rows a query counts.
    pub async fn number(&self, sql: &'static str) -> i64 {
        match &self.pool {
            Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            Pool::Mysql(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            Pool::Sqlite(path) => open(path).query_row(sql, [], |row| row.get(0)).unwrap(),
        }
    }

    pub async fn end(self) {
        match self.server {
            Server::Postgres(world) => {
                if let Pool::Postgres(pool) = self.pool {
                    pool.close().await;
                }
                world.end().await;
            }
            Server::Mysql(world) => world.end().await,
            Server::Sqlite(directory) => directory.close().unwrap(),
        }
    }
}

fn open(path: &PathBuf) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(SOON).unwrap();
    db
}

type FailureOf = dyn Fn(&str) -> Option<HandlerError> + Send + Sync;

/// Writes the payload of each message as a row, in the transaction of its mark.
#[derive(Clone)]
pub struct Effects {
    pool: Pool,
    marks: bool,
    trouble: Arc<FailureOf>,
}

impl Effects {
    /// What the table has to catch: no marks.
    pub fn without_marks(mut self) -> Self {
        self.marks = false;
        self
    }
}

fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.payload()).into_owned()
}

macro_rules! in_pool {
    ($self:ident, $pool:ident, $messages:ident, $insert:literal) => {{
        let mut tx = $pool.begin().await.map_err(HandlerError::transient)?;
        let inbox = Inbox::new("mail").unwrap();
        let known = if $self.marks { $messages } else { &[] };
        let marked = inbox.mark_all_tx(&mut tx, known).await?;
        for (at, message) in $messages.iter().enumerate() {
            if $self.marks && !marked.is_fresh(at) {
                continue;
            }
            sqlx::query($insert)
                .bind(text(message))
                .execute(&mut *tx)
                .await
                .map_err(HandlerError::transient)?;
            if let Some(failed) = ($self.trouble)(&text(message)) {
                return Err(failed);
            }
        }
        marked.end_tx(&mut tx).await?;
        tx.commit().await.map_err(HandlerError::transient)
    }};
}

impl Handler for Effects {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        match &self.pool {
            Pool::Postgres(pool) => in_pool!(self, pool, messages, "INSERT INTO effect (text) VALUES ($1)"),
            Pool::Mysql(pool) => in_pool!(self, pool, messages, "INSERT INTO effect (text) VALUES (?)"),
            Pool::Sqlite(path) => {
                let mut db = open(path);
                let tx = db
                    .transaction_with_behavior(TransactionBehavior::Immediate)
                    .map_err(HandlerError::transient)?;
                let known = if self.marks { messages } else { &[] };
                let marked = blocking::mark_all_tx(&Inbox::new("mail").unwrap(), &tx, known)?;
                for (at, message) in messages.iter().enumerate() {
                    if self.marks && !marked.is_fresh(at) {
                        continue;
                    }
                    tx.execute("INSERT INTO effect (text) VALUES (?1)", [text(message)])
                        .map_err(HandlerError::transient)?;
                    if let Some(failed) = (self.trouble)(&text(message)) {
                        return Err(failed);
                    }
                }
                blocking::end_tx(marked, &tx)?;
                tx.commit().map_err(HandlerError::transient)
            }
        }
    }
}

pub fn options() -> ConsumerOptions {
    let (first, longest) = (Duration::from_millis(1), Duration::from_millis(10));
    ConsumerOptions::default()
        .backoff(first, longest)
        .attempts_max(3)
        .dead_letter_poll_interval(Duration::from_millis(5))
}

pub fn push(queue: &MemoryQueue, key: &str, text: &str) {
    queue.push(Some(key), &[("semel-id", text), ("x-note", "a"), ("x-note", "b")], text.to_owned());
}

/// Runs a consumer of the queue, with its letters in these tables, until that holds.
pub async fn until(
    queue: &MemoryQueue,
    tables: &DeadLetterStore,
    handler: Effects,
    options: ConsumerOptions,
    holds: impl AsyncFn() -> bool,
) {
    let consumer = Consumer::new("mail", queue.source(), handler, options);
    let consumer = consumer.forgets(tables.clone()).dead_letters(tables.clone());
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    let held = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, held).await.expect("it never comes to hold");
    stop.stop();
    tokio::time::timeout(SOON, run).await.expect("it never stops").unwrap().unwrap();
}
