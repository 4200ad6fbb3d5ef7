//! A connection: how it is opened and checked, and how statements are sent on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row, Statement};

use super::error::{PostgresError, refused};
use super::options::PostgresOptions;
use super::probe::Probe;
use super::statement::Sql;
use super::tls::Connector;
use crate::timeout::bounded;

/// Time beyond the server's statement timeout before ours ends the wait: the server's error says more than ours.
const GRACE: Duration = Duration::from_secs(2);

/// The first statement of each transaction behind a pooler whose sessions do not wait for the disk.
const RAISE: &str = "SET LOCAL synchronous_commit = on";

/// How long a session may wait in a transaction for its next statement, in milliseconds.
pub(crate) const IDLE_MS: u32 = 60_000;

/// How long closing a connection in order may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Any socket, plain or encrypted.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Whether a pooler sits between us and the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// No pooler in transaction mode: a session is ours as long as the connection lives.
    Direct,
    /// A pooler in transaction mode: every transaction may get another session. Settings and prepared statements do not
    /// last.
    Pooled,
}

/// Opens connections.
pub(crate) struct Connections {
    pub(crate) options: PostgresOptions,
    connector: Connector,
    /// 0 not known, 1 direct, 2 pooled.
    path: AtomicU8,
}

impl Connections {
    pub(crate) fn new(options: PostgresOptions) -> Result<Self, PostgresError> {
        let connector = Connector::new(&options)?;
        Ok(Self { options, connector, path: AtomicU8::new(0) })
    }

    /// Whether TLS is configured, and this build has it.
    pub(crate) fn can_secure(&self) -> bool {
        self.connector.can_secure()
    }

    /// Encrypts a connection that the driver has not made.
    pub(crate) async fn secure(&self, host: &str, socket: TcpStream) -> Result<Box<dyn Duplex>, String> {
        self.connector.secure(host, socket).await
    }

    /// A connection to a server that accepts writes, and the server's settings.
    pub(crate) async fn session(&self) -> Result<(Session, Probe), PostgresError> {
        let timeout = self.options.connect_timeout;
        let late = || {
            PostgresError::TimedOut(format!(
                "PostgreSQL did not answer within {timeout:?}; check that it runs"
            ))
        };
        bounded(timeout, self.set_up(), late).await
    }

    /// Connects and checks the server. Other callers may wait for this, so all of it is under the timeout.
    async fn set_up(&self) -> Result<(Session, Probe), PostgresError> {
        let (mut session, probe) = self.any_session().await?;
        if probe.in_recovery || probe.read_only {
            return Err(PostgresError::ReadOnly);
        }
        if probe.synchronous_commit == "off" {
            match session.path {
                Path::Direct => session.client.batch_execute("SET synchronous_commit = on").await?,
                // Behind a pooler a setting lasts as long as a transaction.
                Path::Pooled => session.raises = true,
            }
        }
        Ok((session, probe))
    }

    async fn any_session(&self) -> Result<(Session, Probe), PostgresError> {
        let mut session = self.connect().await?;
        let probe = Probe::ask(&session.client).await?;
        // If the settings we asked for are missing, a pooler dropped them.
        if !probe.settings_arrived {
            session.path = Path::Pooled;
            self.path.store(2, Ordering::Relaxed);
        }
        session.prepares = self.options.prepared.unwrap_or(session.path == Path::Direct);
        if session.path == Path::Pooled {
            self.check_pooled(&probe)?;
        }
        Ok((session, probe))
    }

    async fn connect(&self) -> Result<Session, PostgresError> {
        if self.path.load(Ordering::Relaxed) != 2 && self.options.prepared != Some(false) {
            let mut config = self.options.config.clone();
            config.options(self.settings());
            match self.open(&config).await {
                Ok(session) => return Ok(session),
                // PgBouncer: "unsupported startup parameter: options".
                Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                    self.path.store(2, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.open(&self.options.config).await?)
    }

    async fn open(&self, config: &Config) -> Result<Session, tokio_postgres::Error> {
        let (client, task) = self.connector.connect(config).await?;
        Ok(Session {
            client,
            path: Path::Direct,
            prepares: true,
            raises: false,
            timeout: self.options.statement_timeout + GRACE,
            spent: AtomicBool::new(false),
            prepared: Mutex::default(),
            task: Task(Some(task)),
        })
    }

    /// The settings of our sessions.
    fn settings(&self) -> String {
        let statement_ms = self.options.statement_timeout.as_millis();
        let mut settings = format!(
            // Our statements are written for READ COMMITTED, whatever the database's default is.
            "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off \
             -c statement_timeout={statement_ms} -c lock_timeout={statement_ms} \
             -c idle_in_transaction_session_timeout={IDLE_MS} \
             -c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
             -c semel.direct=yes"
        );
        if let Some(schema) = &self.options.schema {
            settings.push_str(&format!(" -c search_path={schema}"));
        }
        settings
    }

    /// Behind a pooler the settings come from the role or the database, and have to fit.
    fn check_pooled(&self, probe: &Probe) -> Result<(), PostgresError> {
        if probe.isolation != "read committed" {
            return Err(refused(format!(
                "sessions behind this pooler begin transactions as {:?}, and semel cannot change that; run ALTER \
                 ROLE … SET default_transaction_isolation = 'read committed'",
                probe.isolation
            )));
        }
        match &self.options.schema {
            Some(schema) if probe.schema.as_deref() != Some(schema) => Err(refused(format!(
                "behind a pooler ?schema={schema} cannot be set for a session; run ALTER ROLE … SET search_path = \
                 {schema}, or connect to the server directly"
            ))),
            _ => Ok(()),
        }
    }
}

/// The task that does a connection's I/O. It ends with the session: by itself once the connection is closed in order,
/// otherwise it is aborted after a timeout, because a statement that no caller waits for is not worth a socket.
struct Task(Option<JoinHandle<()>>);

impl Drop for Task {
    fn drop(&mut self) {
        let Some(mut task) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return task.abort() };
        runtime.spawn(async move {
            if tokio::time::timeout(CLOSE_TIMEOUT, &mut task).await.is_err() {
                task.abort();
            }
        });
    }
}

/// An open connection.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) path: Path,
    prepares: bool,
    /// Each statement has a transaction of its own that waits for the disk.
    raises: bool,
    timeout: Duration,
    /// Still open, but unusable: a statement on it never ended.
    spent: AtomicBool,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    task: Task,
}

impl Session {
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.spent.load(Ordering::Relaxed)
    }

    /// The statement a transaction written by hand has to begin with, if any.
    pub(crate) fn raise(&self) -> Option<&'static str> {
        self.raises.then_some(RAISE)
    }

    /// Closes the connection in order, so that the server frees it at once.
    pub(crate) async fn close(self) {
        let Self { client, mut task, .. } = self;
        drop(client);
        // Taken out, because a task that has ended must not be awaited again.
        if let Some(mut task) = task.0.take()
            && tokio::time::timeout(CLOSE_TIMEOUT, &mut task).await.is_err()
        {
            task.abort();
        }
    }

    /// Executes one statement, in one round trip, with a timeout.
    pub(crate) async fn query(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, PostgresError> {
        if self.raises {
            return self.query_under(RAISE, sql, values).await;
        }
        self.bounded(self.send(sql, values)).await
    }

    /// As [`query`](Self::query), in a transaction of its own that begins with `settings`, still in one round trip.
    /// Behind a pooler there is no other way: a setting lasts as long as a transaction. Never prepared: that would be
    /// a round trip before the statement, and the transaction would have ended by then.
    pub(crate) async fn query_under(
        &self,
        settings: &str,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, PostgresError> {
        let begin = format!("BEGIN; {settings}");
        self.bounded(async {
            // Each is sent when it is first polled, so they are sent together and in this order.
            let (begun, rows, ended) = tokio::join!(
                biased;
                self.client.batch_execute(&begin),
                self.send_whole(sql, values),
                self.client.batch_execute("COMMIT"),
            );
            begun?;
            let rows = rows?;
            ended?;
            Ok(rows)
        })
        .await
    }

    /// Executes a text of statements, with a timeout.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), PostgresError> {
        self.bounded(async { Ok(self.client.batch_execute(text).await?) }).await
    }

    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, PostgresError>>,
    ) -> Result<T, PostgresError> {
        let late = || {
            let message =
                format!("PostgreSQL did not answer within {:?}; check its load and locks", self.timeout);
            PostgresError::TimedOut(message)
        };
        let answered = bounded(self.timeout, work, late).await;
        if answered.as_ref().is_err_and(PostgresError::loses_connection) {
            self.spent.store(true, Ordering::Relaxed);
        }
        answered
    }

    async fn send_whole(&self, sql: &Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, PostgresError> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            values.iter().copied().zip(sql.types.iter().cloned()).collect();
        Ok(self.client.query_typed(sql.text, &typed).await?)
    }

    async fn send(&self, sql: &Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, PostgresError> {
        if !self.prepares {
            return self.send_whole(sql, values).await;
        }
        let known = self.lock().get(sql.text).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let made =
                    self.client.prepare_typed(sql.text, sql.types).await.map_err(PostgresError::Before)?;
                self.lock().entry(sql.text).or_insert(made).clone()
            }
        };
        Ok(self.client.query(&statement, values).await?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
