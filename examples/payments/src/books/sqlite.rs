//! On SQLite, over `rusqlite`, in a file of the service's own.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};
use semel::Intent;
use semel::http::ClaimHandle;
use semel::tx::driver::Dialect;
use semel::tx::ledger::{self, AccountId, LedgerError};
use semel::tx::{self, TxError};

use super::{Booked, Books};
use crate::Failed;
use crate::api::{self, CURRENCY, Order, Payment, RefundOrder, Refused};

const TABLES: &str = include_str!("sqlite.sql");
/// Another process may be writing.
const BUSY: Duration = Duration::from_secs(5);

/// The books in a SQLite file. SQLite has one writer, so one connection is enough.
#[derive(Clone, Debug)]
pub struct SqliteBooks(Arc<Mutex<Connection>>);

impl SqliteBooks {
    /// The books in this file; it and its tables, and those of semel, are made if they are not there.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // In WAL mode anything less may lose a payment that was answered.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        tx::sqlite::migrate(&connection)?;
        connection.execute_batch(ledger::schema(Dialect::Sqlite))?;
        connection.execute_batch(TABLES)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// On a thread that may wait for the disk. It goes on when whoever asked has gone away.
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
    async fn pay(&self, claim: &ClaimHandle, order: Order) -> Booked {
        let claim = claim.clone();
        let paid = self.on_thread(move |books| {
            let intent = claim.intent();
            let tx = begin(books)?;
            let answer = claim.once_now(&tx, |tx| {
                let payment = order.payment(intent)?;
                book(tx, intent, &payment)?;
                api::created(&payment)
            });
            let answer = answer.map_err(Stopped)?;
            tx.commit().map_err(Refused::from)?;
            Ok(answer)
        });
        paid.await.map_err(|Stopped(error)| error)
    }

    async fn refund(&self, claim: &ClaimHandle, payment: &str, order: RefundOrder) -> Booked {
        let (claim, payment) = (claim.clone(), payment.to_owned());
        let refunded = self.on_thread(move |books| {
            let intent = claim.intent();
            let merchant = intent.scope().as_str();
            let tx = begin(books)?;
            let answer = claim.once_now(&tx, |tx| {
                let refund = order.refund(&payment)?;
                let of = find(tx, BY_ID, merchant, &payment)?.ok_or(Refused::NotFound)?;
                let posting = api::posting(intent, &of.customer, -refund.amount)?;
                api::moved(ledger::post_now(tx, &posting)?)?;
                let take =
                    "UPDATE payment SET refunded = refunded + ?1 WHERE id = ?2 AND refunded + ?1 <= amount";
                if tx.execute(take, (refund.amount, &payment))? == 0 {
                    return Err(Refused::TooMuch);
                }
                tx.execute(
                    "INSERT INTO refund (id, payment, amount) VALUES (?1, ?2, ?3)",
                    (&refund.id, &payment, refund.amount),
                )?;
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
            match ledger::balance_now(&tx, &account) {
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

/// The payment and its posting. The ledger judges first: there is no payment without money that moves.
fn book(tx: &Connection, intent: &Intent, payment: &Payment) -> Result<(), Refused> {
    let merchant = intent.scope().as_str();
    for account in api::accounts(merchant, &payment.customer)? {
        ledger::open_now(tx, &account)?;
    }
    let posting = api::posting(intent, &payment.customer, payment.amount)?;
    api::moved(ledger::post_now(tx, &posting)?)?;
    tx.execute(
        "INSERT INTO payment (id, merchant, key, customer, amount) VALUES (?1, ?2, ?3, ?4, ?5)",
        (&payment.id, merchant, &payment.key, &payment.customer, payment.amount),
    )?;
    Ok(())
}

/// As the writer from the beginning: nobody gets in between.
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
