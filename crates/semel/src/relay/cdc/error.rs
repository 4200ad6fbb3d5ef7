//! What can go wrong on a replication connection, and what to do then.

use std::time::Duration;

use super::pgoutput::Nonsense;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::store::{ErrorKind, Fate, StoreError};

#[derive(Debug)]
pub(super) enum CdcError {
    /// The network.
    Io(std::io::Error),
    /// What the server says.
    Server { state: String, message: String },
    /// What makes no sense.
    Nonsense(String),
    /// It did not answer.
    Late(Duration),
    /// We do not want this.
    Refused(String),
}

impl From<std::io::Error> for CdcError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Nonsense> for CdcError {
    fn from(error: Nonsense) -> Self {
        Self::Nonsense(error.0.to_owned())
    }
}

impl CdcError {
    fn state(&self) -> &str {
        match self {
            Self::Server { state, .. } => state,
            _ => "",
        }
    }

    /// Another connection has the slot: the relay that is active, or what is left of one.
    pub(super) fn is_taken(&self) -> bool {
        self.state() == "55006"
    }

    /// The slot is not there, its log is gone, or what it was to be read by is. It will not come back by itself.
    pub(super) fn is_lost(&self) -> bool {
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
                format!("the replication connection broke: {error}; check that PostgreSQL runs"),
            ),
            Self::Late(patience) => (
                ErrorKind::Unavailable,
                format!("PostgreSQL did not answer within {patience:?} on the replication connection"),
            ),
            Self::Nonsense(why) => (
                ErrorKind::Corrupt,
                format!(
                    "what came from the slot makes no sense: {why}; is something between us and the server?"
                ),
            ),
            Self::Refused(why) => (ErrorKind::Misconfigured, why.clone()),
            // Not for good: it is made anew, where that is allowed.
            Self::Server { message, .. } if self.is_lost() => {
                (ErrorKind::Unavailable, format!("the slot is of no use any more: {message}"))
            }
            Self::Server { state, message } => {
                let (kind, what_to_do) = match state.as_str() {
                    "28000" | "28P01" => (
                        ErrorKind::Misconfigured,
                        "let the user in, with REPLICATION (ALTER ROLE … REPLICATION), also by pg_hba.conf",
                    ),
                    "42501" => (
                        ErrorKind::Misconfigured,
                        "grant it, or have an administrator make slot and publication",
                    ),
                    "53300" => {
                        (ErrorKind::Unavailable, "raise max_wal_senders or max_connections, or free some")
                    }
                    "53400" => {
                        (ErrorKind::Misconfigured, "raise max_replication_slots, or drop one nobody uses")
                    }
                    "25006" => (ErrorKind::Unavailable, "name the primary in the URL, too"),
                    "55000" => (ErrorKind::Misconfigured, "set wal_level = logical, and restart the server"),
                    "42710" | "42602" => (ErrorKind::Misconfigured, "check slot and publication"),
                    _ => (ErrorKind::Unavailable, "look into its log"),
                };
                (kind, format!("PostgreSQL refuses replication: {state} {message}; {what_to_do}"))
            }
        };
        StoreError::new(kind, Fate::NotApplied, message)
    }
}

impl From<CdcError> for OutboxReaderError {
    fn from(broken: CdcError) -> Self {
        broken.explain().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_will_not_come_back_is_told_from_what_will() {
        let said =
            |state: &str, message: &str| CdcError::Server { state: state.into(), message: message.into() };
        assert!(said("42704", "replication slot \"x\" does not exist").is_lost());
        assert!(said("55000", "can no longer get changes from replication slot \"x\"").is_lost());
        assert!(!said("55000", "logical decoding requires wal_level >= logical").is_lost());
        assert!(said("55006", "replication slot \"x\" is active for PID 7").is_taken());
        assert!(!said("57P01", "terminating connection").is_lost());
        let broken = CdcError::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(!broken.is_lost() && OutboxReaderError::from(broken).may_retry());
        assert!(!OutboxReaderError::from(said("28000", "must be superuser or replication role")).may_retry());
    }
}
