//! Options of a Redis store, and how they are written in its URL.

use std::fmt;
use std::time::Duration;

use super::script::Edit;
use super::{RedisStore, data_loss_marker};
use crate::fault::Hook;
use crate::store::{ErrorKind, Fate, StoreError};

/// Requests in flight; one more waits, and is refused when it has waited too long.
const REQUESTS_MAX: usize = 4_096;
/// Longest prefix of keys.
const PREFIX_BYTES_MAX: usize = 32;
/// Most connections to one server.
const CONNECTIONS_MAX: usize = 64;

/// Address and bounds of a Redis store. Parsed from a URL:
///
/// | in the URL | what |
/// |---|---|
/// | `redis://USER:PASSWORD@HOST:PORT/DB` | one server, or a proxy for it |
/// | `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | a cluster, with some of its nodes |
/// | `rediss://…`, `rediss+cluster://…` | the same over TLS; needs the feature `redis-tls` |
/// | `?ca=PATH` | with TLS: the certificate authorities to trust, in PEM, instead of the system's |
/// | `?prefix=s` | prefix of all keys; another prefix is another store |
/// | `?timeout=2000` | timeout of one request in ms, connecting included |
/// | `?connections=2` | connections to the server (a cluster has one to each node) |
/// | `?replicas=1` | a write is acknowledged when this many replicas have it too (not in a cluster) |
/// | `?force=eviction` | opens the store although the server evicts keys when it is full |
/// | `?max_age=300` | only for a cache in front of a SQL store: seconds an entry is trusted |
/// | `?create=yes` | creates the store if there is none: only for data that may be lost, see [the module](super) |
#[derive(Clone)]
pub struct RedisOptions {
    pub(super) nodes: Vec<String>,
    pub(super) cluster: bool,
    pub(super) prefix: String,
    pub(in crate::store) timeout: Duration,
    pub(super) connections: usize,
    pub(super) requests_max: usize,
    pub(super) replicas: u32,
    pub(super) force_eviction: bool,
    pub(super) create: bool,
    pub(in crate::store) max_age: Option<Duration>,
    /// Certificate authorities in PEM, instead of the system's.
    #[cfg_attr(not(feature = "redis-tls"), allow(dead_code))]
    pub(super) ca: Option<Vec<u8>>,
    pub(super) edit: Hook<Edit>,
}

impl RedisOptions {
    /// Parses a URL; does not connect.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let shown = without_password(url);
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, hosts) = address
            .split_once("://")
            .ok_or_else(|| wrong(format!("{shown:?} names no server; write redis://HOST")))?;
        let (tls, cluster) = match scheme {
            "redis" => ("redis", false),
            "rediss" => ("rediss", false),
            "redis+cluster" => ("redis", true),
            "rediss+cluster" => ("rediss", true),
            _ => return Err(wrong(format!("{scheme:?} is not a Redis scheme; write redis://HOST"))),
        };
        let nodes = match cluster {
            false => vec![format!("{tls}://{hosts}")],
            true => {
                // The user is given once, and used for every node.
                let (user, hosts) = match hosts.rsplit_once('@') {
                    Some((user, hosts)) => (format!("{user}@"), hosts),
                    None => (String::new(), hosts),
                };
                let hosts = hosts.trim_end_matches('/').split(',').filter(|host| !host.is_empty());
                hosts.map(|host| format!("{tls}://{user}{host}")).collect()
            }
        };
        if nodes.is_empty() || hosts.is_empty() {
            return Err(wrong(format!("{shown:?} names no server; write redis://HOST")));
        }
        let mut options = Self {
            nodes,
            cluster,
            prefix: "s".to_owned(),
            timeout: Duration::from_secs(2),
            connections: 2,
            requests_max: REQUESTS_MAX,
            replicas: 0,
            force_eviction: false,
            create: false,
            max_age: None,
            ca: None,
            edit: Hook::default(),
        };
        let mut ca = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.strip_prefix("ca=") {
                Some(path) => ca = Some(path),
                None => options.set(pair)?,
            }
        }
        if tls == "rediss" {
            options.ca = super::tls::check(scheme, ca)?;
        } else if ca.is_some() {
            return Err(wrong("ca= in the Redis URL needs TLS; write rediss:// or rediss+cluster://".into()));
        }
        Ok(options)
    }

    fn set(&mut self, pair: &str) -> Result<(), StoreError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number = |max: u64| match value.parse::<u64>() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(wrong(format!("{name}={value} in the Redis URL is not a number from 1 to {max}"))),
        };
        match (name, value) {
            ("prefix", prefix) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
                if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
                    return Err(wrong(format!(
                        "{prefix:?} is not a valid key prefix; use at most {PREFIX_BYTES_MAX} letters, digits, _ . : -"
                    )));
                }
                self.prefix = prefix.to_owned();
            }
            ("timeout", _) => self.timeout = Duration::from_millis(number(60_000)?),
            ("connections", _) => self.connections = number(CONNECTIONS_MAX as u64)? as usize,
            ("replicas", _) if self.cluster => {
                return Err(wrong("replicas= is not for a cluster; set min-replicas-to-write there".into()));
            }
            ("replicas", _) => self.replicas = number(16)? as u32,
            ("max_age", _) => self.max_age = Some(Duration::from_secs(number(24 * 60 * 60)?)),
            ("force", "eviction") => self.force_eviction = true,
            ("create", "yes") => self.create = true,
            ("create", "no") => self.create = false,
            _ => {
                return Err(wrong(format!(
                    "the Redis URL has an unknown option {pair:?}; known are prefix=, timeout=, connections=, \
                     replicas=, force=eviction, create=yes, max_age=, ca="
                )));
            }
        }
        Ok(())
    }

    /// Prefix of all keys. Another prefix on the same server is another store.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, StoreError> {
        self.set(&format!("prefix={prefix}"))?;
        Ok(self)
    }

    /// Timeout of one request, connecting included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Changes the scripts before they are loaded: tests plant bugs that the conformance suite must find, and set a
    /// clock of their own.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn editing(mut self, edit: impl Fn(&str, String) -> String + Send + Sync + 'static) -> Self {
        let edit: Edit = std::sync::Arc::new(edit);
        self.edit = edit.into();
        self
    }

    /// Opens the store. It has to exist, unless the URL says `create=yes`; see [`create`](Self::create).
    pub async fn open(self) -> Result<RedisStore, StoreError> {
        RedisStore::open_with(self).await
    }

    /// Creates the store if there is none, and opens it. `semel migrate` does this once, by hand: a service that did
    /// it at every start would treat a server that has lost its data as a new one.
    pub async fn create(mut self) -> Result<RedisStore, StoreError> {
        self.create = true;
        RedisStore::open_with(self).await
    }

    /// Reads the store's markers: which buckets have lost their data.
    pub async fn memory(self) -> Result<data_loss_marker::Memory, StoreError> {
        data_loss_marker::memory_of(self).await
    }

    /// Accepts a data loss: every bucket gets a marker of a new generation. Intents that were lost may run again from
    /// then on, so a person decides this, after an inspection.
    pub async fn accept_loss(self) -> Result<data_loss_marker::Memory, StoreError> {
        data_loss_marker::accept_loss(self).await
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|node| without_password(node)).collect();
        f.debug_struct("RedisOptions")
            .field("nodes", &nodes)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{}:…@{host}", user.split(':').next().unwrap_or("")),
        None => url.to_owned(),
    }
}

pub(super) fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_or_refused() {
        let one = RedisOptions::new("redis://u:p@h:1/3?prefix=pay&timeout=100&replicas=1").unwrap();
        assert_eq!(one.nodes, ["redis://u:p@h:1/3"]);
        assert_eq!((one.prefix.as_str(), one.replicas, one.cluster), ("pay", 1, false));
        let many = RedisOptions::new("redis+cluster://u:p@a:1,b:2?create=yes").unwrap();
        assert_eq!(many.nodes, ["redis://u:p@a:1", "redis://u:p@b:2"]);
        assert!(many.cluster && many.create);
        for bad in [
            "redis://",
            "redis:h",
            "redis+cluster://",
            "redis://h?prefix={x}",
            "redis://h?prefx=x",
            "redis://h?timeout=0",
            "redis://h?force=all",
            "redis+cluster://h?replicas=1",
            "redis://h?ca=/etc/ca.pem",
            "rediss://h?ca=/does/not/exist",
        ] {
            let error = RedisOptions::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{bad}");
        }
    }

    #[test]
    #[cfg(not(feature = "redis-tls"))]
    fn a_build_without_tls_does_not_go_without_it_where_it_is_asked_for() {
        for url in ["rediss://h", "rediss+cluster://a,b"] {
            let error = RedisOptions::new(url).unwrap_err();
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Misconfigured, Fate::NotApplied));
            assert!(
                error.to_string().contains("redis-tls") && error.to_string().contains("stunnel"),
                "{error}"
            );
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let text = format!("{:?}", RedisOptions::new("redis://u:secret@h").unwrap());
        assert!(!text.contains("secret") && text.contains("u:…@h"), "{text}");
    }
}
