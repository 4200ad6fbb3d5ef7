//! What an atomic step may not do on SQLite, where transactions share a commit and a thread: end the transaction, attach
//! another file, change settings, or wait.

use bytes::Bytes;
use futures_util::FutureExt;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::database::AnyTx;
use crate::saga::journal::AtomicWork;
use crate::saga::step::{StepError, StepResult};
use crate::saga::step_tx::{StepTx, StepTxKind};

pub(in crate::saga) fn run(tx: &mut AnyTx<'_>, work: &dyn AtomicWork) -> StepResult<Bytes> {
    watch(tx, true)?;
    let ran = work.run(&mut StepTx(StepTxKind::Sql(tx.reborrow()))).now_or_never();
    watch(tx, false)?;
    ran.unwrap_or_else(|| {
        Err(StepError::refused(
            "an atomic step on SQLite waited for something other than the database; call others in a step of their own",
        ))
    })
}

fn watch(tx: &mut AnyTx<'_>, on: bool) -> StepResult<()> {
    match tx.reborrow() {
        AnyTx::Sqlite(connection) => connection
            .authorizer(on.then_some(authorize))
            .map_err(|error| StepError::not_applied(format!("the step could not be watched: {error}"))),
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        _ => Err(StepError::not_applied("this is no SQLite connection")),
    }
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Pragma { .. } => Authorization::Deny,
        _ => Authorization::Allow,
    }
}
