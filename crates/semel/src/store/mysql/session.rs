//! One connection: how it is set up, and how statements are sent on it.

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Either, Executor, MySqlConnection};

use super::error::MysqlError;
use crate::fault::Hook;
use crate::timeout::bounded;

/// A connection that was idle for longer than this is pinged before it is used: a request sent on a dead connection
/// would be in doubt without need.
const TRUSTED: Duration = Duration::from_millis(250);

/// How to connect. `rewrite` changes what is sent.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(super) connect: MySqlConnectOptions,
    pub(super) connect_timeout: Duration,
    pub(super) statement_timeout: Duration,
    /// After how long the server closes a session that sends nothing. `None`: as it is configured.
    pub(super) idle_timeout: Option<Duration>,
    pub(super) rewrite: Hook<fn(String) -> String>,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options hold a password.
        f.debug_struct("Dial").field("connect_timeout", &self.connect_timeout).finish_non_exhaustive()
    }
}

/// The result of one statement of a packet.
#[derive(Default)]
pub(crate) struct Brought {
    pub(crate) rows: Vec<MySqlRow>,
    /// Rows that matched, changed or not.
    pub(crate) matched: u64,
}

/// A packet that failed, and how many of its statements were executed before.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: MysqlError,
    pub(super) done: usize,
}

impl From<MysqlError> for Failed {
    fn from(error: MysqlError) -> Self {
        Self { error, done: 0 }
    }
}

pub(crate) struct Session {
    connection: MySqlConnection,
    dial: Dial,
    used: Instant,
    open: bool,
}

impl Dial {
    /// The server ends sessions that send nothing for so long, and their transactions with them.
    pub(crate) fn idle_timeout(self, timeout: Duration) -> Self {
        Self { idle_timeout: Some(timeout), ..self }
    }

    /// Connects, within the timeout.
    pub(crate) async fn open(&self) -> Result<Session, MysqlError> {
        let opening = async {
            let connection = self.connect.connect().await?;
            let mut session = Session { connection, dial: self.clone(), used: Instant::now(), open: true };
            session.set_up().await?;
            Ok(session)
        };
        let late = || MysqlError::Silent(self.connect_timeout.as_millis());
        bounded(self.connect_timeout, opening, late).await
    }
}

impl Session {
    async fn set_up(&mut self) -> Result<(), MysqlError> {
        // The server's configuration must not change what statements mean: errors instead of truncated values, no zero
        // dates. READ COMMITTED: each statement sees the last commit, and no gaps are locked. Nothing here waits for a
        // lock on purpose: a request that meets one is retried. One second is MySQL's minimum. MariaDB accepts 0, but
        // then a counter that is busy for a moment fails (1467), and so does a commit after SKIP LOCKED (1180).
        let set = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
                   innodb_lock_wait_timeout = 1, autocommit = 1; \
                   SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        let idle = self
            .dial
            .idle_timeout
            .map(|timeout| format!("; SET SESSION wait_timeout = {}", timeout.as_secs().max(1)));
        self.run(set.to_owned() + idle.as_deref().unwrap_or_default())
            .await
            .map(drop)
            .map_err(|failed| failed.error)
    }

    /// Lets statements take so long from now on; how long they could before.
    pub(crate) fn limit(&mut self, limit: Duration) -> Duration {
        std::mem::replace(&mut self.dial.statement_timeout, limit)
    }

    /// Whether anything can still be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The connection itself, for a transaction of the driver's own.
    pub(crate) fn connection(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }

    /// Pings a connection that was idle, and replaces it if it is dead.
    pub(crate) async fn ready(&mut self) -> Result<(), MysqlError> {
        if self.open && self.used.elapsed() < TRUSTED {
            return Ok(());
        }
        let alive = self.open
            && matches!(
                tokio::time::timeout(self.dial.statement_timeout, self.connection.ping()).await,
                Ok(Ok(()))
            );
        if alive {
            self.used = Instant::now();
            return Ok(());
        }
        self.open = false;
        *self = self.dial.open().await?;
        Ok(())
    }

    /// Sends statements in one packet and returns their results. An error ends the packet; a transaction it had begun
    /// is still open then.
    pub(crate) async fn run(&mut self, mut sql: String) -> Result<Vec<Brought>, Failed> {
        if let Some(rewrite) = self.dial.rewrite.get() {
            sql = rewrite(sql);
        }
        let mut all = Vec::new();
        let mut one = Brought::default();
        let execute = async {
            // Without arguments the text is sent unchanged, and may be several statements.
            let mut stream = self.connection.fetch_many(AssertSqlSafe(sql));
            while let Some(item) = stream.try_next().await? {
                match item {
                    Either::Right(row) => one.rows.push(row),
                    Either::Left(done) => {
                        one.matched = done.rows_affected();
                        all.push(std::mem::take(&mut one));
                    }
                }
            }
            Ok::<_, MysqlError>(())
        };
        let limit = self.dial.statement_timeout;
        let executed = bounded(limit, execute, || MysqlError::Silent(limit.as_millis())).await;
        self.used = Instant::now();
        let Err(error) = executed else { return Ok(all) };
        self.open = !error.needs_new_connection();
        Err(Failed { error, done: all.len() })
    }

    /// Rolls back. Dropping the connection would do the same.
    pub(crate) async fn roll_back(&mut self) {
        if self.open && self.run("ROLLBACK".to_owned()).await.is_err() {
            self.open = false;
        }
    }

    /// Closes the connection in order.
    pub(crate) async fn close(self) {
        let _ = tokio::time::timeout(self.dial.connect_timeout, self.connection.close()).await;
    }
}
