//! On SQLite, over `rusqlite`, in a file of the service's own.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};
use semel::http::ClaimHandle;
use semel::outbox::{self, Duplicates};
use semel::tx::driver::Dialect;
use semel::tx::ledger::{self, AccountId, LedgerError};
use semel::tx::{self, Started, TxError, reference};
use semel::{Intent, blocking};

use super::{Booked, Books};
use crate::Failed;
use crate::api::{self, CURRENCY, Order, Payment, RefundOrder, Refused};
use crate::card;
use crate::events::{self, Trace};
use crate::provider::{Charged, Provider};

const TABLES: &str = include_str!("sqlite.sql");
const NO_OUTBOX: &str =
    "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'semel_outbox')";
/// Another process may be writing.
const BUSY: Duration = Duration::from_secs(5);

/// The books in a SQLite file. SQLite has one writer, so one connection is enough.
#[derive(Clone, Debug)]
pub struct SqliteBooks(Arc<Mutex<Connection>>);

impl SqliteBooks {
    /// The books in this file; it and its tables, and those of semel, are created if they are missing.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // In WAL mode anything less may lose a payment that was answered.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        tx::sqlite::migrate(&connection)?;
        connection.execute_batch(ledger::schema(Dialect::Sqlite))?;
        connection.execute_batch(reference::schema(Dialect::Sqlite))?;
        connection.execute_batch(TABLES)?;
        // Two services that start at once would both create it.
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if tx.query_row(NO_OUTBOX, [], |row| row.get(0))? {
            tx.execute_batch(outbox::schema(Dialect::Sqlite))?;
        }
        tx.commit()?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// On a thread that may wait for the disk. It goes on even if the caller has gone away.
    async fn on_thread<T, E>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Refused> + Send + 'static,
    {
        let books = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            work(&mut books.lock().unwrap_or_else(PoisonError::into_inner))
        });
        done.await.unwrap_or_else(|error| Err(Refused::Database(error.to_string()).into()))
    }
}

impl Books for SqliteBooks {
    async fn pay(&self, claim: &ClaimHandle, trace: Trace, order: Order) -> Booked {
        let claim = claim.clone();
        let paid = self.on_thread(move |books| {
            let intent = claim.intent();
            let tx = begin(books)?;
            let answer = blocking::http::once_tx(&claim, &tx, |tx| {
                let payment = order.payment(intent)?;
                book(tx, intent, &trace, &payment)?;
                api::created(&payment)
            });
            let answer = answer.map_err(Stopped)?;
            tx.commit().map_err(Refused::from)?;
            Ok(answer)
        });
        paid.await.map_err(|Stopped(error)| error)
    }

    async fn pay_by_card(
        &self,
        claim: &ClaimHandle,
        trace: Trace,
        order: Order,
        provider: &Provider,
    ) -> Booked {
        let (phases, ours) = (card::phases(claim)?, claim.clone());
        let reserved = self.on_thread(move |books| {
            let tx = begin(books)?;
            let mut run = match blocking::start_tx(&phases, &tx).map_err(|error| Stopped(error.or_work()))? {
                Started::Run(run) => run,
                Started::Replay(answer) => return Ok(Err(ours.response(answer))),
            };
            let reserved = blocking::phase_tx(&mut run, &tx, card::RESERVE, |tx| {
                let payment = order.payment(ours.intent())?;
                reserve(tx, ours.intent(), &payment)?;
                Ok(payment)
            });
            let payment = reserved.map_err(Stopped)?.value;
            tx.commit().map_err(Refused::from)?;
            Ok(Ok((run, payment)))
        });
        let (mut run, payment) = match reserved.await.map_err(|Stopped(error)| error)? {
            Ok(reserved) => reserved,
            Err(replayed) => return Ok(replayed),
        };

        // No transaction is open here: others may write.
        let charged = card::charge(provider, card::key(&run), payment.amount).await?;

        let claim = claim.clone();
        let booked = self.on_thread(move |books| {
            let tx = begin(books)?;
            let booked = blocking::phase_tx(&mut run, &tx, card::BOOK, |tx| {
                tx.execute("DELETE FROM reserved WHERE payment = ?1", [&payment.id])?;
                if let Charged::Paid(charge) = &charged {
                    blocking::reference::record(tx, claim.intent(), card::PROVIDER, charge)?;
                    book(tx, claim.intent(), &trace, &payment)?;
                }
                Ok(claim.remembered(card::answer(&charged, &payment)?))
            });
            let booked = booked.map_err(Stopped)?;
            tx.commit().map_err(Refused::from)?;
            Ok(claim.response(booked.value))
        });
        booked.await.map_err(|Stopped(error)| error)
    }

    async fn refund(&self, claim: &ClaimHandle, trace: Trace, payment: &str, order: RefundOrder) -> Booked {
        let (claim, payment) = (claim.clone(), payment.to_owned());
        let refunded = self.on_thread(move |books| {
            let intent = claim.intent();
            let merchant = intent.scope().as_str();
            let tx = begin(books)?;
            let answer = blocking::http::once_tx(&claim, &tx, |tx| {
                let refund = order.refund(&payment)?;
                let of = find(tx, BY_ID, merchant, &payment)?.ok_or(Refused::NotFound)?;
                let posting = api::posting(intent, &of.customer, -refund.amount)?;
                api::moved(blocking::ledger::post(tx, &posting)?)?;
                let take =
                    "UPDATE payment SET refunded = refunded + ?1 WHERE id = ?2 AND refunded + ?1 <= amount";
                if tx.execute(take, (refund.amount, &payment))? == 0 {
                    return Err(Refused::TooMuch);
                }
                tx.execute(
                    "INSERT INTO refund (id, payment, amount) VALUES (?1, ?2, ?3)",
                    (&refund.id, &payment, refund.amount),
                )?;
                let refund_events = events::refunded(intent, &trace, &refund)?;
                blocking::append_all_tx(tx, &refund_events, Duplicates::Refuse)?;
                api::created(&refund)
            });
            let answer = answer.map_err(Stopped)?;
            tx.commit().map_err(Refused::from)?;
            Ok(answer)
        });
        refunded.await.map_err(|Stopped(error)| error)
    }

    async fn payment(&self, merchant: &str, id: &str) -> Result<Option<Payment>, Refused> {
        let (merchant, id) = (merchant.to_owned(), id.to_owned());
        self.on_thread(move |books| find(books, BY_ID, &merchant, &id)).await
    }

    async fn payment_by_key(&self, merchant: &str, key: &str) -> Result<Option<Payment>, Refused> {
        let (merchant, key) = (merchant.to_owned(), key.to_owned());
        self.on_thread(move |books| find(books, BY_KEY, &merchant, &key)).await
    }

    async fn balance(&self, merchant: &str, account: &str) -> Result<Option<i64>, Refused> {
        let account = AccountId::new(&api::account(merchant, account))?;
        let asked = self.on_thread(move |books| {
            let tx = books.transaction()?;
            match blocking::ledger::balance(&tx, &account) {
                Ok(balance) => Ok(Some(balance)),
                Err(LedgerError::NoAccount(_)) => Ok(None),
                Err(error) => Err(Refused::from(error)),
            }
        });
        asked.await
    }
}

/// What ends a transaction that is not committed.
struct Stopped(TxError<Refused>);

impl From<Refused> for Stopped {
    fn from(refused: Refused) -> Self {
        Self(TxError::Work(refused))
    }
}

/// Books the payment, its posting and its events. The ledger decides first: no payment without money that moves.
fn book(tx: &Connection, intent: &Intent, trace: &Trace, payment: &Payment) -> Result<(), Refused> {
    let merchant = intent.scope().as_str();
    for account in api::accounts(merchant, &payment.customer)? {
        blocking::ledger::open(tx, &account)?;
    }
    let posting = api::posting(intent, &payment.customer, payment.amount)?;
    api::moved(blocking::ledger::post(tx, &posting)?)?;
    tx.execute(
        "INSERT INTO payment (id, merchant, key, customer, amount) VALUES (?1, ?2, ?3, ?4, ?5)",
        (&payment.id, merchant, &payment.key, &payment.customer, payment.amount),
    )?;
    blocking::append_all_tx(tx, &events::paid(intent, trace, payment)?, Duplicates::Refuse)?;
    Ok(())
}

/// Records what is about to be charged, unless it was paid for longer ago than answers are kept.
fn reserve(tx: &Connection, intent: &Intent, payment: &Payment) -> Result<(), Refused> {
    let merchant = intent.scope().as_str();
    if find(tx, BY_KEY, merchant, &payment.key)?.is_some() {
        return Err(Refused::Booked);
    }
    tx.execute(
        "INSERT INTO reserved (payment, merchant, key, amount) VALUES (?1, ?2, ?3, ?4)",
        (&payment.id, merchant, &payment.key, payment.amount),
    )?;
    Ok(())
}

/// Begins as the writer: no other writer can get in between.
fn begin(books: &mut Connection) -> Result<rusqlite::Transaction<'_>, Refused> {
    Ok(books.transaction_with_behavior(TransactionBehavior::Immediate)?)
}

const BY_ID: &str = "SELECT id, key, customer, amount, refunded FROM payment WHERE merchant = ?1 AND id = ?2";
const BY_KEY: &str =
    "SELECT id, key, customer, amount, refunded FROM payment WHERE merchant = ?1 AND key = ?2";

fn find(books: &Connection, select: &str, merchant: &str, value: &str) -> Result<Option<Payment>, Refused> {
    Ok(books.prepare_cached(select)?.query_row((merchant, value), read).optional()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Payment> {
    Ok(Payment {
        id: row.get(0)?,
        key: row.get(1)?,
        customer: row.get(2)?,
        amount: row.get(3)?,
        refunded: row.get(4)?,
        currency: CURRENCY.to_owned(),
    })
}
