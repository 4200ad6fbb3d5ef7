//! MySQL and MariaDB: what is left of the transaction after a lock was waited for and not had.

use super::claim::no_row;
use super::driver::{DriverError, DriverErrorKind, Sql};
use super::script::Port;

const NOT_HAD: Sql = Sql { postgres: "", mysql: include_str!("sql/not_had_mysql.sql"), sqlite: "" };

/// Why a lock was not had, where the transaction can go on.
pub(super) enum NotHad {
    /// Somebody else has it.
    Held,
    /// The transaction may not write.
    ReadOnly,
}

/// After a packet that was to take a lock: puts the caller's bound back, and finds out whether the transaction is
/// still there.
pub(super) async fn not_had(port: &Port, error: DriverError) -> Result<NotHad, DriverError> {
    if error.kind() == DriverErrorKind::Lost {
        return Err(error);
    }
    let asked = port.run(&NOT_HAD, Vec::new()).await;
    match error.kind() {
        DriverErrorKind::Busy => {
            let asked = asked?;
            if asked.first().ok_or_else(no_row)?.int(0)? == 0 {
                return Ok(NotHad::Held);
            }
            let message = format!(
                "another transaction holds the intent, and this server runs with innodb_rollback_on_timeout: it \
                 has rolled the whole transaction back, and whatever is sent on this connection now is committed \
                 by itself; roll back here too and run the whole transaction again, or start the server without \
                 innodb_rollback_on_timeout ({error})"
            );
            Err(DriverError::new(DriverErrorKind::Serialization, message))
        }
        DriverErrorKind::ReadOnly => asked.map(|_| NotHad::ReadOnly),
        _ => Err(error),
    }
}
