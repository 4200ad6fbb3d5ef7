//! Everything that runs in the caller's transaction, for `rusqlite`: ordinary functions, no runtime.
//!
//! Each function is the synchronous form of the async function with the same name; methods become functions whose first
//! argument is the receiver. They run in the transaction that the caller has opened on the connection.
//!
//! | function | for |
//! |---|---|
//! | [`once_tx`], [`run_tx`] | [`once_tx`](crate::tx::once_tx()), [`Once::run_tx`] |
//! | [`undo_once_tx`], [`run_undo_tx`] | [`undo_once_tx`](crate::tx::undo_once_tx()), [`UndoOnce::run_tx`] |
//! | [`start_tx`], [`phase_tx`] | [`Phases::start_tx`], [`PhaseRun::phase_tx`] |
//! | [`apply_tx`] | [`CommandOnce::apply_tx`] |
//! | [`append_tx`], [`append_all_tx`] | [`outbox`] |
//! | [`handle_tx`], [`mark_all_tx`], [`end_tx`], [`prune_tx`] | [`Inbox`], [`Marked`] |
//! | [`ledger`], [`mod@reference`], [`upsert`] | the modules of these names in [`tx`](crate::tx) |
//! | `http` | `ClaimHandle::once_tx` (feature `http`) |

use std::future::Future;

use futures_util::FutureExt;
use rusqlite::Connection;
use serde::Serialize;

use crate::inbox::{Handled, Identity, Inbox, Marked};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::Intent;
use crate::outbox::{self, AppendError, Appended, Duplicates, Event};
use crate::tx::{
    Applied, CommandError, CommandOnce, Once, PhaseRun, Phases, Remember, Started, Transition, TxError,
    TxReply, UndoOnce, UndoneAs,
};

#[cfg(feature = "http")]
pub mod http;
pub mod ledger;
pub mod reference;
pub mod upsert;

/// The value of a future that never waits for anything: rusqlite is done when it returns, a pause blocks the thread, and
/// the caller's work is an ordinary function.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let Some(value) = future.now_or_never() else {
        unreachable!("a future over rusqlite waited for something else than the database")
    };
    value
}

/// Runs `work` in the transaction open on `tx` unless the intent was committed before; then replays its outcome. The
/// same as [`tx::once_tx`](crate::tx::once_tx()), for a synchronous driver.
///
/// ```
/// use rusqlite::{Connection, TransactionBehavior};
/// use semel::intent::fingerprint::Recipe;
/// use semel::{Intent, Key, Operation, Scope, blocking, tx::sqlite};
///
/// fn pay(db: &mut Connection, key: &str, cents: i64) -> Result<i64, Box<dyn std::error::Error>> {
///     let intent =
///         Intent::new(Scope::tenant("acme")?, Operation::new("payment.create")?, Key::new(key)?);
///     let asked = Recipe::default().value(&("EUR", cents))?;
///
///     let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let payment = blocking::once_tx(&tx, &intent, asked, |tx| {
///         tx.execute("INSERT INTO payment (cents) VALUES (?1)", [cents])?;
///         Ok::<_, rusqlite::Error>(tx.last_insert_rowid())
///     })?;
///     tx.commit()?;
///     Ok(payment.value)
/// }
///
/// let mut db = Connection::open_in_memory()?;
/// db.execute_batch("CREATE TABLE payment (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")?;
/// sqlite::migrate(&db)?;
/// assert_eq!(pay(&mut db, "order-1001", 4200)?, 1);
/// assert_eq!(pay(&mut db, "order-1001", 4200)?, 1);
/// assert_eq!(db.query_row("SELECT count(*) FROM payment", [], |row| row.get::<_, i64>(0))?, 1);
/// assert!(pay(&mut db, "order-1001", 9900).is_err(), "the same key for another amount");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// SQLite has one writer. In an immediate transaction that is the caller, and this call does not wait. In a deferred
/// one this call becomes the writer first, and waits for another one: as long as the connection's busy timeout says,
/// then up to [`Once::wait`]; after that [`TxError::Busy`]. A deferred transaction that has read something before,
/// and was overtaken by a writer since, cannot become one: [`TxError::Retry`].
pub fn once_tx<T: Remember, E>(
    tx: &Connection,
    intent: &Intent,
    fingerprint: Fingerprint,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<TxReply<T>, TxError<E>> {
    run_tx(Once::new(intent, fingerprint), tx, work)
}

/// [`Once::run_tx`]: [`once_tx`] with settings.
pub fn run_tx<T: Remember, E>(
    once: Once,
    mut tx: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<TxReply<T>, TxError<E>> {
    ready(once.run_tx(&mut tx, async |tx| work(tx)))
}

/// Undoes the step `forward` in the transaction open on `tx`, once, and refuses it for ever. The same as
/// [`tx::undo_once_tx`](crate::tx::undo_once_tx()), for a synchronous driver.
///
/// ```
/// use rusqlite::Connection;
/// use semel::intent::fingerprint::Recipe;
/// use semel::tx::{TxError, UndoneAs, sqlite};
/// use semel::{Intent, Key, Operation, Scope, blocking};
///
/// let mut db = Connection::open_in_memory()?;
/// db.execute_batch("CREATE TABLE hold (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)")?;
/// sqlite::migrate(&db)?;
/// let intent = |operation: &str, key: &str| {
///     Ok::<_, Box<dyn std::error::Error>>(Intent::new(Scope::tenant("acme")?, Operation::new(operation)?, Key::new(key)?))
/// };
/// let (hold, release) = (intent("stock.hold", "k1")?, intent("stock.release", "k1-undo")?);
///
/// // The undo overtakes its step, which comes later and is refused.
/// let tx = db.transaction()?;
/// let undone = blocking::undo_once_tx(&tx, &hold, &release, |tx, id: i64| {
///     tx.execute("DELETE FROM hold WHERE id = ?1", [id]).map(drop)
/// })?;
/// tx.commit()?;
/// assert_eq!(undone.value, UndoneAs::NeverHappened);
///
/// let tx = db.transaction()?;
/// let late = blocking::once_tx(&tx, &hold, Recipe::default().value(&"book")?, |tx| {
///     tx.execute("INSERT INTO hold (sku) VALUES ('book')", [])?;
///     Ok::<_, rusqlite::Error>(tx.last_insert_rowid())
/// });
/// assert!(matches!(late, Err(TxError::Refused(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn undo_once_tx<T: Remember, E>(
    tx: &Connection,
    forward: &Intent,
    undo: &Intent,
    work: impl FnOnce(&Connection, T) -> Result<(), E>,
) -> Result<TxReply<UndoneAs>, TxError<E>> {
    run_undo_tx(UndoOnce::new(forward, undo), tx, work)
}

/// [`UndoOnce::run_tx`]: [`undo_once_tx`] with settings.
pub fn run_undo_tx<T: Remember, E>(
    undo: UndoOnce,
    mut tx: &Connection,
    work: impl FnOnce(&Connection, T) -> Result<(), E>,
) -> Result<TxReply<UndoneAs>, TxError<E>> {
    ready(undo.run_tx(&mut tx, async |tx, value| work(tx, value)))
}

/// [`Phases::start_tx`].
pub fn start_tx<T: Remember>(phases: &Phases, mut tx: &Connection) -> Result<Started<T>, TxError> {
    ready(phases.start_tx(&mut tx))
}

/// [`PhaseRun::phase_tx`].
pub fn phase_tx<T: Remember, E>(
    run: &mut PhaseRun,
    mut tx: &Connection,
    phase: &str,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<TxReply<T>, TxError<E>> {
    ready(run.phase_tx(&mut tx, phase, async |tx| work(tx)))
}

/// [`CommandOnce::apply_tx`].
pub fn apply_tx<P: Serialize, T: Remember, C, E>(
    once: CommandOnce<'_, P>,
    mut tx: &Connection,
    work: impl FnOnce(&Connection) -> Result<Transition<T, C>, E>,
) -> Result<Applied<T, C>, CommandError<C, E>> {
    ready(once.apply_tx(&mut tx, async |tx| work(tx)))
}

/// [`outbox::append_tx`].
pub fn append_tx(mut tx: &Connection, event: &Event) -> Result<(), AppendError> {
    ready(outbox::append_tx(&mut tx, event))
}

/// [`outbox::append_all_tx`].
pub fn append_all_tx(
    mut tx: &Connection,
    events: &[Event],
    duplicates: Duplicates,
) -> Result<Vec<Appended>, AppendError> {
    ready(outbox::append_all_tx(&mut tx, events, duplicates))
}

/// [`Inbox::handle_tx`].
pub fn handle_tx<T: Remember, E>(
    inbox: &Inbox,
    mut tx: &Connection,
    message: &impl AsRef<Identity>,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<Handled<T>, TxError<E>> {
    ready(inbox.handle_tx(&mut tx, message, async |tx| work(tx)))
}

/// [`Inbox::mark_all_tx`].
pub fn mark_all_tx(
    inbox: &Inbox,
    mut tx: &Connection,
    messages: &[impl AsRef<Identity>],
) -> Result<Marked, TxError> {
    ready(inbox.mark_all_tx(&mut tx, messages))
}

/// [`Marked::end_tx`].
pub fn end_tx(marked: Marked, mut tx: &Connection) -> Result<(), TxError> {
    ready(marked.end_tx(&mut tx))
}

/// [`Inbox::prune_tx`].
pub fn prune_tx(inbox: &Inbox, mut tx: &Connection) -> Result<u64, TxError> {
    ready(inbox.prune_tx(&mut tx))
}
