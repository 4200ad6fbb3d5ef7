//! Translates Redis' errors into store errors, with what is known of the request.

use redis::{RedisError, ServerErrorKind, Value};

use crate::store::{ErrorKind, Fate, StoreError};

/// A request that failed.
pub(super) enum Failed {
    /// Nothing was sent: there was no connection.
    NotSent(RedisError),
    /// It was sent, or may have been.
    Sent(RedisError),
    /// The same to a cluster, where the driver retries by itself: an earlier try may have been carried out.
    SentToCluster(RedisError),
    /// It was carried out; it is not known whether replicas have what it wrote.
    Unconfirmed(RedisError),
    /// An error of semel's own.
    Ours(StoreError),
}

impl Failed {
    pub(super) fn is_no_script(&self) -> bool {
        let (Self::Sent(error) | Self::SentToCluster(error)) = self else { return false };
        error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
    }

    /// The connection cannot be trusted any more, or leads to the wrong server since a failover.
    pub(super) fn spoils_connection(&self) -> bool {
        match self {
            Self::Sent(error) | Self::Unconfirmed(error) => {
                error.is_io_error()
                    || error.is_timeout()
                    || error.is_unrecoverable_error()
                    || error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly)
            }
            // What one node answers does not make its connection unusable.
            Self::SentToCluster(error) => {
                error.is_io_error()
                    || error.is_timeout()
                    || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
                    || error.kind() == redis::ErrorKind::Server(ServerErrorKind::Moved)
            }
            Self::NotSent(_) | Self::Ours(_) => false,
        }
    }

    pub(super) fn explain(self) -> StoreError {
        let (error, sent) = match self {
            Self::NotSent(error) => (error, false),
            Self::Sent(error) => (error, true),
            Self::SentToCluster(error) if is_retried_by_driver(&error) => {
                let message = "a node of the Redis Cluster is down, or its slots are being moved; retry";
                return StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message).with_source(error);
            }
            Self::SentToCluster(error) => (error, true),
            Self::Unconfirmed(error) => {
                let message = "Redis did not confirm that its replicas have the write; retry";
                return StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message).with_source(error);
            }
            Self::Ours(error) => return error,
        };
        let (kind, fate, message) = classify(&error, sent);
        StoreError::new(kind, fate, message).with_source(error)
    }
}

/// Whether the driver retries after such an error on a cluster, so that the error is about the last try only.
fn is_retried_by_driver(error: &RedisError) -> bool {
    use ServerErrorKind as Server;
    match error.kind() {
        redis::ErrorKind::Server(kind) => matches!(
            kind,
            Server::Moved
                | Server::Ask
                | Server::TryAgain
                | Server::ClusterDown
                | Server::MasterDown
                | Server::ReadOnly
                | Server::BusyLoading
        ),
        redis::ErrorKind::ClusterConnectionNotFound => true,
        _ => false,
    }
}

fn classify(error: &RedisError, sent: bool) -> (ErrorKind, Fate, &'static str) {
    use ServerErrorKind as Server;
    use redis::ErrorKind as Of;
    let no = Fate::NotApplied;
    match error.kind() {
        Of::Server(Server::BusyLoading) => {
            (ErrorKind::Unavailable, no, "Redis is loading its data after a start; retry")
        }
        Of::Server(Server::ReadOnly | Server::MasterDown) => (
            ErrorKind::Unavailable,
            no,
            "this Redis is a replica, perhaps after a failover; retry, or name the primary",
        ),
        Of::Server(Server::ClusterDown | Server::TryAgain) => {
            (ErrorKind::Unavailable, no, "the Redis Cluster is moving slots or has lost some; retry")
        }
        Of::Server(Server::Moved | Server::Ask | Server::CrossSlot) => {
            (ErrorKind::Misconfigured, no, "this Redis is a cluster; write redis+cluster://HOST,HOST")
        }
        Of::Server(Server::NoPerm) | Of::AuthenticationFailed => {
            (ErrorKind::Misconfigured, no, "Redis denies access; check user, password and ACL")
        }
        Of::Server(_) | Of::Extension => classify_code(error),
        Of::InvalidClientConfig | Of::RESP3NotSupported => {
            (ErrorKind::Misconfigured, no, "the Redis URL is not valid")
        }
        Of::ClusterConnectionNotFound => (
            ErrorKind::Unavailable,
            no,
            "no node of the Redis Cluster can be reached; check that it runs, then retry",
        ),
        _ if !sent => (ErrorKind::Unavailable, no, "Redis cannot be reached; check that it runs, then retry"),
        _ if error.is_timeout() => {
            (ErrorKind::Unavailable, Fate::InDoubt, "Redis did not answer in time; retry")
        }
        _ => (ErrorKind::Unavailable, Fate::InDoubt, "the connection to Redis broke; retry"),
    }
}

/// Error codes the driver does not know. Older servers put the code of a script's error into its text.
fn classify_code(error: &RedisError) -> (ErrorKind, Fate, &'static str) {
    let no = Fate::NotApplied;
    let text = error.to_string();
    let says = |code: &str| {
        error.code() == Some(code) || text.split(|c: char| !c.is_ascii_uppercase()).any(|word| word == code)
    };
    // A script is refused at its first write or not at all, so it never stops half way.
    if says("OOM") {
        let message = "Redis is full (maxmemory); give it more memory, or let outcomes expire sooner";
        return (ErrorKind::Full, no, message);
    }
    if says("MISCONF") || says("NOREPLICAS") {
        return (
            ErrorKind::Unavailable,
            no,
            "Redis refuses writes because of its disk or its replicas; check its log",
        );
    }
    if says("READONLY") || says("LOADING") || says("MASTERDOWN") || says("CLUSTERDOWN") || says("BUSY") {
        return (ErrorKind::Unavailable, no, "Redis refuses writes at the moment; retry");
    }
    if says("NOAUTH") || says("WRONGPASS") || says("NOPERM") {
        return (ErrorKind::Misconfigured, no, "Redis denies access; check user, password and ACL");
    }
    (
        ErrorKind::Corrupt,
        Fate::InDoubt,
        "Redis could not run a script; check whether another program uses the same keys",
    )
}

/// An answer that no script of semel's gives. It may contain stored data, so it is described and not repeated.
pub(super) fn unexpected(value: &Value) -> StoreError {
    let (kind, len) = described(value);
    let message = format!(
        "Redis gave an unexpected answer: {kind} of length {len}; check whether a proxy or another program interferes"
    );
    StoreError::new(ErrorKind::Corrupt, Fate::InDoubt, message)
}

fn described(value: &Value) -> (&'static str, usize) {
    match value {
        Value::Nil => ("nothing", 0),
        Value::Int(_) => ("a number", 1),
        Value::BulkString(bytes) => ("bytes", bytes.len()),
        Value::SimpleString(text) => ("a line", text.len()),
        Value::VerbatimString { text, .. } => ("text", text.len()),
        Value::Okay => ("OK", 0),
        Value::Array(parts) => ("an array", parts.len()),
        Value::Set(parts) => ("a set", parts.len()),
        Value::Map(pairs) => ("a map", pairs.len()),
        Value::Double(_) => ("a double", 1),
        Value::Boolean(_) => ("a boolean", 1),
        Value::Push { data, .. } => ("a push", data.len()),
        Value::ServerError(_) => ("an error", 1),
        _ => ("something unknown", 0),
    }
}

/// A bucket has no marker.
pub(super) fn lost(marker: &[u8]) -> StoreError {
    let marker = String::from_utf8_lossy(marker);
    let message = format!(
        "Redis has lost data (flushed, or started empty): the marker {marker} is missing, and what already ran \
         could run again; investigate, then decide with `semel redis accept-loss`"
    );
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_answer_is_described_and_not_repeated() {
        let secret = || Value::BulkString(b"Jane Doe".to_vec());
        let push = Value::Map(vec![(secret(), secret())]);
        let line = Value::SimpleString("Jane Doe".to_owned());
        for (value, said) in [
            (secret(), "bytes of length 8"),
            (Value::Array(vec![secret(), secret()]), "an array of length 2"),
            (push, "a map of length 1"),
            (line, "a line of length 8"),
            (Value::Int(4111), "a number of length 1"),
        ] {
            let error = unexpected(&value);
            let text = format!("{error} {error:?}");
            assert!(text.contains(said), "{text}");
            assert!(!text.contains("Jane") && !text.contains("74, 97") && !text.contains("4111"), "{text}");
        }
    }
}
