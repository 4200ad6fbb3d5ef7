//! How a store is opened.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::error::misconfigured;
use super::server::CLOCK;
use super::session::Dial;
use super::{MysqlStore, StoreError};
use crate::store::coalesce::Bounds;

/// Requests in one batch at most: a transaction takes its epochs 1,024 at a time.
const BATCH_MAX: usize = 1_000;

/// What a URL may say about TLS and the way to the server; the driver's own.
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
/// A URL may say the same: `mysql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE&…`.
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
/// Others are refused: a misspelt bound is not a bound.
#[derive(Clone)]
pub struct MysqlOptions {
    pub(super) create: bool,
    connections: usize,
    batch_max: usize,
    queue_max: usize,
    queue_wait: Duration,
    connect_timeout: Duration,
    statement_timeout: Duration,
    pub(super) clock: String,
    rewrite: Option<fn(String) -> String>,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        Self {
            create: true,
            connections: 4,
            batch_max: 256,
            queue_max: 4_096,
            queue_wait: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            clock: CLOCK.to_owned(),
            rewrite: None,
        }
    }
}

impl MysqlOptions {
    /// Whether tables that are not there are made. Yes unless told otherwise.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Connections that carry requests: 4 unless told otherwise. Requests that wait for one travel together,
    /// so more of them rarely help. Up to two more are opened for reading.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, 1_000);
        self
    }

    /// How many requests share one commit at most: 256 unless told otherwise, 1,000 at most.
    pub fn batch_max(mut self, requests: usize) -> Self {
        self.batch_max = requests.clamp(1, BATCH_MAX);
        self
    }

    /// How many requests may wait for a connection: 4,096 unless told otherwise. One that finds the queue
    /// full waits for [`queue_wait`](Self::queue_wait) and is then refused as busy.
    pub fn queue_max(mut self, requests: usize) -> Self {
        self.queue_max = requests.max(1);
        self
    }

    /// How long a request waits for a place in a full queue: a second unless told otherwise.
    pub fn queue_wait(mut self, wait: Duration) -> Self {
        self.queue_wait = wait;
        self
    }

    /// How long connecting may take: five seconds unless told otherwise.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer: ten seconds unless told otherwise. What was asked is in doubt
    /// after that. Keep leases longer than this.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Judges leases and expiry by what an SQL expression gives: virtual time, for tests.
    #[doc(hidden)]
    pub fn clock_sql(mut self, expression: impl Into<String>) -> Self {
        self.clock = expression.into();
        self
    }

    /// Sends other statements than the store's own: planted bugs, for tests.
    #[doc(hidden)]
    pub fn rewriting(mut self, rewrite: fn(String) -> String) -> Self {
        self.rewrite = Some(rewrite);
        self
    }

    /// Connects, looks at the server, and makes the tables if need be.
    pub async fn open(self, url: &str) -> Result<MysqlStore, StoreError> {
        MysqlStore::open_with(self, url).await
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            lanes: self.connections,
            batch_max: self.batch_max,
            queue_max: self.queue_max,
            queue_wait: self.queue_wait,
        }
    }

    pub(super) fn queue(&self) -> (usize, Duration) {
        (self.queue_max, self.queue_wait)
    }

    /// Takes what the URL says over what was said before, and tells the server's name without a password.
    pub(crate) fn with_url(mut self, url: &str) -> Result<(Self, Dial, String), StoreError> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
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
        let name = without_password(place);
        let has_database = name.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if has_database.is_none_or(|(_, database)| database.is_empty() || database.contains('/')) {
            return Err(misconfigured(format!("{name} names no database; write mysql://USER@HOST/DATABASE")));
        }
        let connect = MySqlConnectOptions::from_str(url).map_err(|error| {
            // The driver's words may repeat the URL, and with it the password.
            let _ = error;
            misconfigured(format!("{name} is not a MySQL URL; write mysql://USER@HOST:PORT/DATABASE"))
        })?;
        // UTC, where no hour comes twice; statements are not logged, they hold keys.
        let connect = connect
            .charset("utf8mb4")
            .timezone(Some("+00:00".to_owned()))
            .statement_cache_capacity(0)
            .disable_statement_logging();
        let dial = Dial {
            connect,
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            rewrite: self.rewrite,
        };
        Ok((self, dial, name))
    }
}

/// `preferred` goes without where it has to; the rest of them must not.
fn needs_tls(mode: &str) -> bool {
    !matches!(mode.to_ascii_lowercase().as_str(), "disabled" | "preferred")
}

fn without_password(place: &str) -> String {
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}", user.split(':').next().unwrap_or("")),
        None => place.to_owned(),
    }
}

impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlOptions")
            .field("create", &self.create)
            .field("connections", &self.connections)
            .field("batch_max", &self.batch_max)
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
        assert_eq!((options.connections, options.batch_max), (9, BATCH_MAX));
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
