//! Options of a MySQL store, and how they are written in its URL.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::error::misconfigured;
use super::server::CLOCK;
use super::session::Dial;
use super::{MysqlStore, StoreError};
use crate::fault::Hook;
use crate::store::coalesce::Bounds;

/// Requests in one batch at most: a transaction takes its epochs 1,024 at a time.
const BATCH_MAX: usize = 1_000;

/// Options of the driver that a URL may have: TLS and the socket.
const DRIVERS: &[&str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];

/// Bounds of a [`MysqlStore`], and how to open it. The defaults suit a service.
///
/// ```no_run
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel::store::mysql::MysqlStore;
///
/// let store = MysqlStore::options().connections(8).open("mysql://semel@db.internal/semel").await?;
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
///
/// The same options in a URL: `mysql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE&…`.
///
/// | option | means |
/// |---|---|
/// | `connections` | as [`connections`](Self::connections) |
/// | `batch` | as [`batch_max`](Self::batch_max) |
/// | `connect-timeout-ms` | as [`connect_timeout`](Self::connect_timeout) |
/// | `statement-timeout-ms` | as [`statement_timeout`](Self::statement_timeout) |
/// | `socket` | path of the server's socket, instead of host and port |
/// | `ssl-mode`, `ssl-ca`, `ssl-cert`, `ssl-key` | TLS, as the `mysql` tool names it; needs the feature `mysql-tls` |
///
/// Unknown options are refused, so that a misspelt bound is noticed.
#[derive(Clone)]
pub struct MysqlOptions {
    pub(super) create: bool,
    pub(super) bounds: Bounds,
    connect_timeout: Duration,
    statement_timeout: Duration,
    pub(super) clock: String,
    rewrite: Hook<fn(String) -> String>,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        Self {
            create: true,
            bounds: Bounds {
                connections: 4,
                batch_max: 256,
                queue_max: 4_096,
                queue_wait: Duration::from_secs(1),
            },
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            clock: CLOCK.to_owned(),
            rewrite: Hook::default(),
        }
    }
}

impl MysqlOptions {
    /// Whether missing tables are created. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Connections that carry requests. Default: 4. Waiting requests are sent in batches, so more connections rarely
    /// help. Up to two more are opened for reads and sweeps.
    pub fn connections(mut self, connections: usize) -> Self {
        self.bounds.connections = connections.clamp(1, 1_000);
        self
    }

    /// How many requests share one commit at most. Default: 256; the limit is 1,000.
    pub fn batch_max(mut self, requests: usize) -> Self {
        self.bounds.batch_max = requests.clamp(1, BATCH_MAX);
        self
    }

    /// How many requests may wait for a connection. Default: 4,096. One that finds the queue full waits for
    /// [`queue_wait`](Self::queue_wait) and is then refused as busy.
    pub fn queue_max(mut self, requests: usize) -> Self {
        self.bounds.queue_max = requests.max(1);
        self
    }

    /// How long a request waits for room in a full queue. Default: one second.
    pub fn queue_wait(mut self, wait: Duration) -> Self {
        self.bounds.queue_wait = wait;
        self
    }

    /// How long connecting may take. Default: five seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer. Default: ten seconds. After that the request is in doubt. Keep leases
    /// longer than this.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Uses an SQL expression as the clock for leases and expiry: virtual time, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn clock_sql(mut self, expression: impl Into<String>) -> Self {
        self.clock = expression.into();
        self
    }

    /// Changes each statement before it is sent: planted bugs, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn rewriting(mut self, rewrite: fn(String) -> String) -> Self {
        self.rewrite = rewrite.into();
        self
    }

    /// Connects, checks the server's settings, and creates the tables if allowed.
    pub async fn open(self, url: &str) -> Result<MysqlStore, StoreError> {
        MysqlStore::open_with(self, url).await
    }

    /// Applies the options of a URL over those already set; also returns the server's name without the password.
    pub(crate) fn with_url(mut self, url: &str) -> Result<(Self, Dial, String), StoreError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = || {
                value.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(|| {
                    misconfigured(format!("{name}={value} in the store URL is not a number above 0"))
                })
            };
            let ms = || number().map(|ms| Duration::from_millis(ms.into()));
            self = match name {
                "connections" => self.connections(number()? as usize),
                "batch" => self.batch_max(number()? as usize),
                "connect-timeout-ms" => self.connect_timeout(ms()?),
                "statement-timeout-ms" => self.statement_timeout(ms()?),
                "ssl-mode" if needs_tls(value) && !cfg!(feature = "mysql-tls") => {
                    return Err(misconfigured(format!(
                        "ssl-mode={value} needs TLS, which this build does not have for MySQL; build with the \
                         feature `mysql-tls`"
                    )));
                }
                _ if DRIVERS.contains(&name) => self,
                _ => {
                    return Err(misconfigured(format!(
                        "the store URL has an unknown option {name:?}; known are connections, batch, \
                         connect-timeout-ms, statement-timeout-ms, {}",
                        DRIVERS.join(", ")
                    )));
                }
            };
        }
        let name = without_password(address);
        let has_database = name.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if has_database.is_none_or(|(_, database)| database.is_empty() || database.contains('/')) {
            return Err(misconfigured(format!("{name} names no database; write mysql://USER@HOST/DATABASE")));
        }
        let connect = MySqlConnectOptions::from_str(url).map_err(|error| {
            // The driver's message may repeat the URL, and with it the password.
            let _ = error;
            misconfigured(format!("{name} is not a MySQL URL; write mysql://USER@HOST:PORT/DATABASE"))
        })?;
        // UTC, where no hour occurs twice. Statements are not logged: they contain keys.
        let connect = connect
            .charset("utf8mb4")
            .timezone(Some("+00:00".to_owned()))
            .statement_cache_capacity(0)
            .disable_statement_logging();
        let dial = Dial {
            connect,
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            idle_timeout: None,
            rewrite: self.rewrite.clone(),
        };
        Ok((self, dial, name))
    }
}

/// `preferred` falls back to plain connections; all other modes but `disabled` require TLS.
fn needs_tls(mode: &str) -> bool {
    !matches!(mode.to_ascii_lowercase().as_str(), "disabled" | "preferred")
}

fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}", user.split(':').next().unwrap_or("")),
        None => address.to_owned(),
    }
}

impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlOptions")
            .field("create", &self.create)
            .field("connections", &self.bounds.connections)
            .field("batch_max", &self.bounds.batch_max)
            .field("statement_timeout", &self.statement_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(MysqlOptions, Dial, String), String> {
        MysqlOptions::default().with_url(url).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_sets_bounds_and_hides_its_password() {
        let url = "mysql://semel:s%40crt@db:3307/once?connections=9&batch=5000&statement-timeout-ms=250";
        let (options, dial, name) = read(url).unwrap();
        assert_eq!((options.bounds.connections, options.bounds.batch_max), (9, BATCH_MAX));
        assert_eq!(dial.statement_timeout, Duration::from_millis(250));
        assert_eq!(name, "mysql://semel@db:3307/once");
        assert!(!format!("{options:?} {dial:?}").contains("crt"));
    }

    #[test]
    #[cfg(not(feature = "mysql-tls"))]
    fn a_build_without_tls_does_not_go_without_it_where_it_is_asked_for() {
        for mode in ["required", "VERIFY_CA", "verify_identity", "typo"] {
            let error =
                read(&format!("mysql://db/once?ssl-mode={mode}")).map(|(_, _, name)| name).unwrap_err();
            assert!(error.contains("mysql-tls"), "{error}");
        }
        assert!(read("mysql://db/once?ssl-mode=PREFERRED").is_ok());
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (url, why) in [
            ("mysql://db/once?conections=9", "unknown option \"conections\""),
            ("mysql://db/once?charset=latin1", "unknown option \"charset\""),
            ("mysql://db/once?connections=none", "not a number"),
            ("mysql://db/once?statement-timeout-ms=0", "not a number"),
            ("mysql://db", "names no database"),
            ("mysql://db/", "names no database"),
            ("mysql://db:port/once", "not a MySQL URL"),
        ] {
            let error = read(url).map(|(_, _, name)| name).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
