//! Options of a PostgreSQL store, and how they are written in its URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::PostgresStore;
use crate::fault::Hook;
use crate::store::coalesce::Bounds;
use crate::store::{ErrorKind, Fate, StoreError};

/// Connections that carry batches, by default and at most.
const CONNECTIONS: usize = 4;
const CONNECTIONS_MAX: usize = 64;
/// Longest timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// How TLS is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Tls {
    /// Never encrypted.
    Disable,
    /// Encrypted if both the server and this build support it.
    Prefer,
    /// Encrypted. The server's certificate is verified only if `sslrootcert` is given.
    Require,
    /// Encrypted, with a certificate for the host's name from a trusted authority.
    VerifyFull,
}

/// Bounds of a [`PostgresStore`], and how to open it. The defaults suit a service.
///
/// ```
/// use semel::store::postgres::PostgresStore;
///
/// let options = PostgresStore::options("postgres://semel@db/payments?schema=semel&lanes=2")?.connections(3);
/// // Unknown options are refused, and a password is never shown.
/// assert!(PostgresStore::options("postgres://semel@db/payments?lane=2").is_err());
/// # Ok::<(), semel::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct PostgresOptions {
    pub(super) config: Config,
    pub(super) create: bool,
    pub(super) bounds: Bounds,
    pub(super) schema: Option<String>,
    pub(super) prepared: Option<bool>,
    pub(super) connect_timeout: Duration,
    pub(crate) statement_timeout: Duration,
    pub(super) tls: Tls,
    pub(super) root_cert: Option<PathBuf>,
    pub(super) edit: Hook<fn(&str) -> String>,
}

impl PostgresOptions {
    /// Parses a URL. See [the module](super) for its options.
    pub(crate) fn from_url(url: &str) -> Result<Self, StoreError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let config: Config = address.parse().map_err(|error: tokio_postgres::Error| {
            wrong(format!("{} is not a PostgreSQL URL: {error}", without_password(address)))
        })?;
        let mut options = Self {
            config,
            create: true,
            bounds: Bounds {
                connections: CONNECTIONS,
                batch_max: 256,
                queue_max: 1_024,
                queue_wait: Duration::from_secs(1),
            },
            schema: None,
            prepared: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            tls: Tls::Prefer,
            root_cert: None,
            edit: Hook::default(),
        };
        options.config.application_name("semel");
        let mut rest = String::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !options.set(name, &decoded(value)?)? {
                rest = format!("{rest}{}{pair}", if rest.is_empty() { '?' } else { '&' });
            }
        }
        if !rest.is_empty() {
            options.take_rest(address, &rest)?;
        }
        options.config.connect_timeout(options.connect_timeout);
        options.config.ssl_mode(match options.tls {
            Tls::Disable => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::VerifyFull => SslMode::Require,
        });
        Ok(options)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Passes the remaining options to the driver, which refuses unknown ones.
    fn take_rest(&mut self, address: &str, rest: &str) -> Result<(), StoreError> {
        let parsed: Result<Config, _> = format!("{address}{rest}").parse();
        let config = parsed.map_err(|error: tokio_postgres::Error| {
            wrong(format!("{rest} in the URL of a PostgreSQL store: {}; {KNOWN}", in_words(&error)))
        })?;
        let name = config.get_application_name().unwrap_or("semel").to_owned();
        self.config = config;
        self.config.application_name(name);
        Ok(())
    }

    /// Sets one of our options; `false` if it is not ours.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, StoreError> {
        let bad = |what: &str| wrong(format!("?{name}={value}: {what}"));
        match name {
            "lanes" => {
                let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
                self.bounds.connections = count.ok_or_else(|| bad("write a number from 1 to 64"))?;
            }
            "connect_timeout" => self.connect_timeout = duration(value).ok_or_else(|| bad(DURATION))?,
            "statement_timeout" => self.statement_timeout = duration(value).ok_or_else(|| bad(DURATION))?,
            "schema" => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                if value.is_empty() || value.len() > 63 || !value.bytes().all(plain) {
                    return Err(bad("a schema's name has up to 63 letters, digits and _"));
                }
                self.schema = Some(value.to_owned());
            }
            "prepared" => self.prepared = Some(yes_or_no(value).ok_or_else(|| bad("write true or false"))?),
            "pgbouncer" => self.prepared = Some(!yes_or_no(value).ok_or_else(|| bad("write true or false"))?),
            "sslmode" => {
                self.tls = match value {
                    "disable" => Tls::Disable,
                    "prefer" => Tls::Prefer,
                    "require" => Tls::Require,
                    "verify-full" => Tls::VerifyFull,
                    _ => return Err(bad("write disable, prefer, require or verify-full")),
                }
            }
            "sslrootcert" => self.root_cert = Some(value.into()),
            "options" => return Err(bad("semel sets its own; see ?schema= and ?statement_timeout=")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether missing tables are created. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Connections that carry batches of claims and outcomes, 1 to 64; in the URL `lanes`. Default: 4. More than a
    /// few make batches smaller, not the store faster. Up to two more connections are opened for reads and sweeps.
    pub fn connections(mut self, connections: usize) -> Self {
        self.bounds.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// Most requests in one batch.
    pub fn batch_max(mut self, requests: usize) -> Self {
        self.bounds.batch_max = requests.max(1);
        self
    }

    /// Most requests that wait for a connection. Beyond that callers wait up to a second, and are then refused as
    /// [`Busy`](ErrorKind::Busy).
    pub fn queue_max(mut self, requests: usize) -> Self {
        self.bounds.queue_max = requests.max(1);
        self
    }

    /// Timeout of one statement. Keep leases much longer than this.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout.clamp(Duration::from_millis(1), TIMEOUT_MAX);
        self
    }

    /// Changes the statements of claims, outcomes and renewals: planted bugs, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn edit_sql(mut self, edit: fn(&str) -> String) -> Self {
        self.edit = edit.into();
        self
    }

    /// Opens the store.
    pub async fn open(self) -> Result<PostgresStore, StoreError> {
        PostgresStore::open_with(self).await
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("hosts", &self.config.get_hosts())
            .field("dbname", &self.config.get_dbname())
            .field("schema", &self.schema)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

const DURATION: &str = "write a duration such as 500ms or 5s, at most 600s";

const KNOWN: &str = "known are lanes, schema, connect_timeout, statement_timeout, prepared, sslmode, \
    sslrootcert, application_name, target_session_attrs, tcp_user_timeout, keepalives, keepalives_idle, \
    keepalives_interval, keepalives_retries, channel_binding, hostaddr, load_balance_hosts";

fn duration(text: &str) -> Option<Duration> {
    let duration = if let Some(ms) = text.strip_suffix("ms") {
        Duration::from_millis(ms.parse().ok()?)
    } else {
        Duration::from_secs(text.strip_suffix('s').unwrap_or(text).parse().ok()?)
    };
    (!duration.is_zero() && duration <= TIMEOUT_MAX).then_some(duration)
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn decoded(text: &str) -> Result<String, StoreError> {
    let bad = || wrong(format!("{text:?} in the URL of a PostgreSQL store is not escaped properly"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first == b'%' {
            let digits = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(bad)?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
            rest = &more[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

fn in_words(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn without_password(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) => format!("postgres://…@{host}"),
        None => address.to_owned(),
    }
}

pub(super) fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_it_may_and_nothing_else() {
        let read = |url: &str| PostgresOptions::from_url(url);
        let options = read(
            "postgres://u:p%40w@db:5433/d?lanes=7&schema=semel&connect_timeout=250ms&statement_timeout=3\
             &pgbouncer=true&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&target_session_attrs=read-write",
        )
        .unwrap();
        assert_eq!(options.bounds.connections, 7);
        assert_eq!(options.schema.as_deref(), Some("semel"));
        assert_eq!(options.connect_timeout, Duration::from_millis(250));
        assert_eq!(options.statement_timeout, Duration::from_secs(3));
        assert_eq!(options.prepared, Some(false));
        assert_eq!(options.tls, Tls::VerifyFull);
        assert_eq!(options.root_cert, Some("/etc/ca.pem".into()));
        assert_eq!(options.config.get_password(), Some(&b"p@w"[..]));
        assert_eq!(options.config.get_application_name(), Some("semel"));
        assert_eq!(options.config.get_ssl_mode(), SslMode::Require);

        for bad in [
            "?lanes=0",
            "?lanes=65",
            "?lanes=x",
            "?schema=a;b",
            "?schema=",
            "?connect_timeout=0",
            "?sslmode=no",
            "?connect_timeout=601s",
            "?prepared=maybe",
            "?options=-c%20x",
            "?pool=3",
            "?lane=3",
            "?schema=%4",
        ] {
            let error = read(&format!("postgres://u:secret@db/d{bad}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{bad}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let error = read("postgres://u:secret@db:port/d").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(!format!("{:?}", read("postgres://u:secret@db/d").unwrap()).contains("secret"));
    }
}
