//! MySQL and MariaDB: what is left of the transaction after a lock wait timeout.

use super::claim::no_row;
use super::driver::{DriverError, DriverErrorKind, OpenTx, Sql, Tx};

const AFTER_LOCK_FAILURE: Sql =
    Sql { postgres: "", mysql: include_str!("sql/not_had_mysql.sql"), sqlite: "" };

/// Why a lock was not taken, where the transaction can go on.
pub(super) enum LockFailure {
    /// Another transaction holds it.
    LockedElsewhere,
    /// The transaction is read-only.
    ReadOnly,
}

/// After a packet that failed to take a lock: restores the caller's timeout, and finds out whether the transaction
/// still exists.
pub(super) async fn lock_failure(
    tx: &mut OpenTx<'_, impl Tx>,
    error: DriverError,
) -> Result<LockFailure, DriverError> {
    if error.kind() == DriverErrorKind::Lost {
        return Err(error);
    }
    let asked = tx.run(&AFTER_LOCK_FAILURE, Vec::new()).await;
    match error.kind() {
        DriverErrorKind::Busy => {
            let asked = asked?;
            if asked.first().ok_or_else(no_row)?.int(0)? == 0 {
                return Ok(LockFailure::LockedElsewhere);
            }
            let message = format!(
                "another transaction holds the intent, and this server runs with innodb_rollback_on_timeout: it \
                 has rolled back the whole transaction and commits each further statement on this connection \
                 by itself; roll back here too and run the whole transaction again, or start the server without \
                 innodb_rollback_on_timeout ({error})"
            );
            Err(DriverError::new(DriverErrorKind::Serialization, message))
        }
        DriverErrorKind::ReadOnly => asked.map(|_| LockFailure::ReadOnly),
        _ => Err(error),
    }
}
