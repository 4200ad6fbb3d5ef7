//! How a store in Redis is opened, and what its URL may say.

use std::fmt;
use std::time::Duration;

use super::script::Edit;
use super::{RedisStore, data_loss_marker};
use crate::store::{ErrorKind, Fate, StoreError};

/// Requests under way at once; one more waits, and is refused when it has waited too long.
const REQUESTS_MAX: usize = 4_096;
/// Longest prefix of keys.
const PREFIX_BYTES_MAX: usize = 32;
/// Most connections to one server.
const CONNECTIONS_MAX: usize = 64;

/// Where a store in Redis is, and its bounds. Made from a URL, which may say all of it:
///
/// | in the URL | what |
/// |---|---|
/// | `redis://USER:PASSWORD@HOST:PORT/DB` | one server, or whatever answers for it |
/// | `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | a cluster, by some of its nodes |
/// | `rediss://…`, `rediss+cluster://…` | the same over TLS; needs the feature `redis-tls` |
/// | `?ca=PATH` | with TLS: the authorities to believe, in PEM, instead of the system's |
/// | `?prefix=s` | what keys begin with; another prefix is another store |
/// | `?timeout=2000` | ms that one request may take, connecting included |
/// | `?connections=2` | connections to the server (a cluster has one to each node) |
/// | `?replicas=1` | a write is acknowledged when so many replicas have it too (not in a cluster) |
/// | `?force=eviction` | opens although the server evicts keys when it is full |
/// | `?max_age=300` | only of a cache in front of a SQL store: seconds that an entry is believed |
/// | `?create=yes` | makes the store if there is none: for data that may be lost, see [`marker`](super) |
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
    /// Authorities in PEM, instead of the system's.
    #[cfg_attr(not(feature = "redis-tls"), allow(dead_code))]
    pub(super) ca: Option<Vec<u8>>,
    pub(super) edit: Option<Edit>,
}

impl RedisOptions {
    /// Reads a URL; nobody is asked.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let shown = shown(url);
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, hosts) = place
            .split_once("://")
            .ok_or_else(|| wrong(format!("{shown:?} names no server; write redis://HOST")))?;
        let (tls, cluster) = match scheme {
            "redis" => ("redis", false),
            "rediss" => ("rediss", false),
            "redis+cluster" => ("redis", true),
            "rediss+cluster" => ("rediss", true),
            _ => return Err(wrong(format!("{scheme:?} is no scheme of Redis; write redis://HOST"))),
        };
        let nodes = match cluster {
            false => vec![format!("{tls}://{hosts}")],
            true => {
                // Who we are is said once, and holds for every node.
                let (who, hosts) = match hosts.rsplit_once('@') {
                    Some((who, hosts)) => (format!("{who}@"), hosts),
                    None => (String::new(), hosts),
                };
                let hosts = hosts.trim_end_matches('/').split(',').filter(|host| !host.is_empty());
                hosts.map(|host| format!("{tls}://{who}{host}")).collect()
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
            edit: None,
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
            return Err(wrong(
                "ca= in the URL of Redis is for rediss://, which encrypts; this does not".into(),
            ));
        }
        Ok(options)
    }

    fn set(&mut self, pair: &str) -> Result<(), StoreError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number = |max: u64| match value.parse::<u64>() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(wrong(format!("{name}={value} in the URL of Redis is not a number in 1..={max}"))),
        };
        match (name, value) {
            ("prefix", prefix) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
                if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
                    return Err(wrong(format!(
                        "{prefix:?} is no prefix of keys: at most {PREFIX_BYTES_MAX} letters, digits, _ . : -"
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
                    "the URL of Redis says {pair:?}; known are prefix=, timeout=, connections=, replicas=, \
                     force=eviction, create=yes, max_age=, ca="
                )));
            }
        }
        Ok(())
    }

    /// What keys begin with. Another prefix in the same server is another store.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, StoreError> {
        self.set(&format!("prefix={prefix}"))?;
        Ok(self)
    }

    /// How long one request may take, connecting included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Changes the scripts before they are loaded: the suite of laws has to be seen to fail, and a test has a
    /// clock of its own.
    #[doc(hidden)]
    pub fn editing(mut self, edit: impl Fn(&str, String) -> String + Send + Sync + 'static) -> Self {
        self.edit = Some(std::sync::Arc::new(edit));
        self
    }

    /// Opens the store. It has to be there, unless the URL says `create=yes`; see [`create`](Self::create).
    pub async fn open(self) -> Result<RedisStore, StoreError> {
        RedisStore::open_with(self).await
    }

    /// Makes the store, if there is none, and opens it. This is what `semel migrate` does, once, by hand: a
    /// service that did it at every start would take a server that has lost its memory for a new one.
    pub async fn create(mut self) -> Result<RedisStore, StoreError> {
        self.create = true;
        RedisStore::open_with(self).await
    }

    /// Looks at the store's markers: which buckets have lost their memory.
    pub async fn memory(self) -> Result<data_loss_marker::Memory, StoreError> {
        data_loss_marker::memory_of(self).await
    }

    /// Goes on without what was lost: every bucket gets a marker of a new generation. What was forgotten may run
    /// again from then on, so a person decides this, after having looked.
    pub async fn accept_loss(self) -> Result<data_loss_marker::Memory, StoreError> {
        data_loss_marker::accept_loss(self).await
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|node| shown(node)).collect();
        f.debug_struct("RedisOptions")
            .field("nodes", &nodes)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A URL without its password.
pub(super) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    match rest.rsplit_once('@') {
        Some((who, host)) => format!("{scheme}://{}:…@{host}", who.split(':').next().unwrap_or("")),
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
