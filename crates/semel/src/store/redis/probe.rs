//! Checks the server settings that durability depends on, instead of assuming them.

use redis::{Cmd, Value};

use super::connection::{Connections, Node};
use crate::store::{ErrorKind, Fate, StoreError};

/// The oldest version whose commands are used (`SET … PXAT`).
const VERSION_MIN: (u32, u32) = (6, 2);

/// A server's settings; `None` if it does not show them (managed services forbid `CONFIG`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedisSettings {
    /// The version of Redis, or the one that Valkey says it is compatible with.
    pub version: Option<String>,
    /// What is evicted when memory is full.
    pub maxmemory_policy: Option<String>,
    /// Whether writes are logged.
    pub appendonly: Option<String>,
    /// When the log is flushed to disk.
    pub appendfsync: Option<String>,
}

impl RedisSettings {
    /// An acknowledged write is on disk.
    pub fn is_durable(&self) -> bool {
        self.appendonly.as_deref() == Some("yes") && self.appendfsync.as_deref() == Some("always")
    }
}

pub(super) async fn ask(connections: &Connections) -> Result<Vec<RedisSettings>, StoreError> {
    let mut all = Vec::new();
    for node in connections.nodes().await? {
        all.push(RedisSettings {
            version: version(connections, &node).await,
            maxmemory_policy: setting(connections, &node, "maxmemory-policy").await,
            appendonly: setting(connections, &node, "appendonly").await,
            appendfsync: setting(connections, &node, "appendfsync").await,
        });
    }
    Ok(all)
}

/// Refuses a server that evicts records, and logs settings that weaken the promises.
pub(super) fn check(all: &[RedisSettings], force_eviction: bool) -> Result<(), StoreError> {
    let refuse = |message: String| Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message));
    for settings in all {
        if let Some(version) = &settings.version
            && number(version) < VERSION_MIN
        {
            return refuse(format!(
                "Redis {version} is too old; semel needs {}.{}",
                VERSION_MIN.0, VERSION_MIN.1
            ));
        }
        match settings.maxmemory_policy.as_deref() {
            Some(policy) if policy != "noeviction" && !force_eviction => {
                return refuse(format!(
                    "this Redis evicts {} when it is full (maxmemory-policy {policy}), and evicted intents run again; \
                     set maxmemory-policy to noeviction, or accept the risk with ?force=eviction",
                    evicted(policy)
                ));
            }
            Some(policy) if policy != "noeviction" => {
                tracing::warn!(
                    policy,
                    "this Redis evicts {} when it is full; opened anyway because of ?force=eviction",
                    evicted(policy)
                );
            }
            Some(_) => {}
            None => tracing::warn!(
                "could not read maxmemory-policy of this Redis; make sure that it is noeviction"
            ),
        }
        if !settings.is_durable() {
            tracing::warn!(
                appendonly = settings.appendonly.as_deref().unwrap_or("unknown"),
                appendfsync = settings.appendfsync.as_deref().unwrap_or("unknown"),
                "this Redis may lose the last claims and outcomes in a crash; set appendonly to yes and \
                 appendfsync to always"
            );
        }
    }
    Ok(())
}

fn evicted(policy: &str) -> &'static str {
    match policy.starts_with("volatile-") {
        // Finished records have an expiry, unless they are kept for ever.
        true => "finished outcomes before their retention is over",
        false => "any key, even claims in flight,",
    }
}

fn number(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

async fn version(connections: &Connections, node: &Node) -> Option<String> {
    let mut ask = Cmd::new();
    ask.arg("INFO").arg("server");
    let text = match connections.call_on(node, ask).await.ok()? {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        _ => return None,
    };
    text.lines().find_map(|line| line.strip_prefix("redis_version:")).map(|version| version.trim().to_owned())
}

async fn setting(connections: &Connections, node: &Node, name: &str) -> Option<String> {
    let mut ask = Cmd::new();
    ask.arg("CONFIG").arg("GET").arg(name);
    let pairs: Vec<String> = redis::from_redis_value(connections.call_on(node, ask).await.ok()?).ok()?;
    pairs.into_iter().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_forgets_on_its_own_is_refused() {
        let of = |policy: &str, version: &str| {
            vec![RedisSettings {
                maxmemory_policy: Some(policy.to_owned()),
                version: Some(version.to_owned()),
                ..RedisSettings::default()
            }]
        };
        assert!(check(&of("noeviction", "7.0.15"), false).is_ok());
        for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lru", "volatile-random"] {
            let error = check(&of(policy, "7.2.4"), false).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Misconfigured && error.to_string().contains(policy),
                "{error}"
            );
            assert!(check(&of(policy, "6.2.0"), true).is_ok());
        }
        assert!(check(&of("noeviction", "6.0.16"), false).is_err());
        assert!(check(&[RedisSettings::default()], false).is_ok(), "unknown is not refused");
    }
}
