//! Errors of a replication connection, and what to do about them.

use std::time::Duration;

use super::pgoutput::Malformed;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::store::{ErrorKind, Fate, StoreError};

#[derive(Debug)]
pub(super) enum CdcError {
    /// The network failed.
    Io(std::io::Error),
    /// An error of the server, with its SQLSTATE.
    Server { state: String, message: String },
    /// Bytes that do not follow the protocol.
    Malformed(String),
    /// The server did not answer in time.
    TimedOut(Duration),
    /// A configuration or table that we do not accept.
    Refused(String),
}

impl From<std::io::Error> for CdcError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Malformed> for CdcError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.0.to_owned())
    }
}

impl CdcError {
    fn state(&self) -> &str {
        match self {
            Self::Server { state, .. } => state,
            _ => "",
        }
    }

    /// Another connection uses the slot: that of the leader, or a leftover of one.
    pub(super) fn is_slot_in_use(&self) -> bool {
        self.state() == "55006"
    }

    /// The slot, its log or its publication does not exist any more. Retrying does not help.
    pub(super) fn is_slot_lost(&self) -> bool {
        match self {
            Self::Server { state, message } => {
                state == "42704" || (state == "55000" && !message.contains("wal_level"))
            }
            _ => false,
        }
    }

    fn explain(&self) -> StoreError {
        let (kind, message) = match self {
            Self::Io(error) => (
                ErrorKind::Unavailable,
                format!("the replication connection broke: {error}; check that PostgreSQL is running"),
            ),
            Self::TimedOut(timeout) => (
                ErrorKind::Unavailable,
                format!(
                    "PostgreSQL did not answer within {timeout:?} on the replication connection; check its load"
                ),
            ),
            Self::Malformed(why) => (
                ErrorKind::Corrupt,
                format!(
                    "received malformed data from the slot: {why}; check for a proxy between the relay and PostgreSQL"
                ),
            ),
            Self::Refused(why) => (ErrorKind::Misconfigured, why.clone()),
            // Temporary: the slot is recreated, if that is allowed.
            Self::Server { message, .. } if self.is_slot_lost() => {
                (ErrorKind::Unavailable, format!("the replication slot is lost: {message}"))
            }
            Self::Server { state, message } => {
                let (kind, what_to_do) = match state.as_str() {
                    "28000" | "28P01" => (
                        ErrorKind::Misconfigured,
                        "allow the user to connect in pg_hba.conf, and to replicate (ALTER ROLE … REPLICATION)",
                    ),
                    "42501" => (
                        ErrorKind::Misconfigured,
                        "grant the privilege, or have an administrator create slot and publication",
                    ),
                    "53300" => {
                        (ErrorKind::Unavailable, "raise max_wal_senders or max_connections, or free some")
                    }
                    "53400" => {
                        (ErrorKind::Misconfigured, "raise max_replication_slots, or drop an unused slot")
                    }
                    "25006" => (ErrorKind::Unavailable, "add the primary to the URL"),
                    "55000" => (ErrorKind::Misconfigured, "set wal_level = logical, and restart the server"),
                    "42710" | "42602" => (ErrorKind::Misconfigured, "check slot and publication"),
                    _ => (ErrorKind::Unavailable, "see the server's log"),
                };
                (kind, format!("PostgreSQL refuses replication: {state} {message}; {what_to_do}"))
            }
        };
        StoreError::new(kind, Fate::NotApplied, message)
    }
}

impl From<CdcError> for OutboxReaderError {
    fn from(error: CdcError) -> Self {
        error.explain().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_errors_are_distinguished_from_transient_ones() {
        let server =
            |state: &str, message: &str| CdcError::Server { state: state.into(), message: message.into() };
        assert!(server("42704", "replication slot \"x\" does not exist").is_slot_lost());
        assert!(server("55000", "can no longer get changes from replication slot \"x\"").is_slot_lost());
        assert!(!server("55000", "logical decoding requires wal_level >= logical").is_slot_lost());
        assert!(server("55006", "replication slot \"x\" is active for PID 7").is_slot_in_use());
        assert!(!server("57P01", "terminating connection").is_slot_lost());
        let error = CdcError::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(!error.is_slot_lost() && OutboxReaderError::from(error).may_retry());
        assert!(
            !OutboxReaderError::from(server("28000", "must be superuser or replication role")).may_retry()
        );
    }
}
