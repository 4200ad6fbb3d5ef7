//! What somebody else's work may not do on SQLite, where transactions share a commit and a thread: end the transaction,
//! attach another file, or change settings.
//!
//! The authorizer is asked when a statement is prepared. It is there as long as the connection: setting it anew makes
//! SQLite prepare every statement again.

use std::cell::Cell;

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

thread_local! {
    /// Whether this thread runs somebody else's work.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Watches what is prepared on this connection from now on.
pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.authorizer(Some(authorize))
}

/// Runs work that may not touch the transaction.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    /// Also when the work panics.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            GUARDED.set(false);
        }
    }
    GUARDED.set(true);
    let _ended = Ended;
    work()
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Pragma { .. }
            if GUARDED.get() =>
        {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}
