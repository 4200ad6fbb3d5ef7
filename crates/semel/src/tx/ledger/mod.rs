//! A double-entry ledger in the caller's transaction: what was moved, from where to where, once.
//!
//! ```text
//!  posting (one operation, once)  ──▶  entries: customer:7 −4200 EUR, revenue +4200 EUR   (their sum is 0)
//!  balance of an account          ◀──  the sum of its entries
//! ```
//!
//! - **Once.** A posting is identified by its intent (and a step of it). Posting it again changes nothing and returns
//!   the same receipt; the same name with other lines is refused.
//! - **Whole.** Everything is checked before anything is written, so an error leaves the caller's transaction as it
//!   was; lines sum up to zero, in one currency, in integer minor units (cents), and nothing overflows silently.
//! - **Balances are derived** from entries, which are only ever added. [`check`](fn@check) and [`IMBALANCES`] check
//!   that everything sums up.
//! - **Floors.** An account may have a lowest balance. Only such a row is locked and keeps a running total: summing
//!   up an account's entries for every posting would take ever longer, while accounts without a floor (the revenue
//!   that every payment touches) are never locked and never a bottleneck. Locks are taken in the order of account
//!   ids, so two postings never deadlock; two postings *in one transaction* can, and then the database ends one of
//!   them with [`Serialization`](super::driver::DriverErrorKind::Serialization). At READ COMMITTED the lock makes the
//!   running total the latest one; at REPEATABLE READ and above a total that was changed since the snapshot is an
//!   error of that same kind, never an old number.
//!
//! Exchange between currencies is two postings, through an account of each currency.
//!
//! | module | what it decides |
//! |---|---|
//! | `post` | opens accounts and posts |
//! | `audit` | balances, and whether everything sums up |
//! | `name` | names of accounts and currencies |
//! | `sql` | the statements in every dialect |

mod audit;
mod name;
mod post;
mod sql;

use std::fmt;

use super::driver::{Dialect, DriverError};
use crate::intent::identity::{Intent, IntentId};

pub use audit::{IMBALANCES, Imbalance, balance, check};
pub use name::{AccountId, Currency};
pub use post::{open, post};

/// Most lines of one posting.
pub const LINES_MAX: usize = 100;

/// The tables, for that dialect. Run it once, with your migrations.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => include_str!("postgres.sql"),
        Dialect::Mysql => include_str!("mysql.sql"),
        Dialect::Sqlite => include_str!("sqlite.sql"),
    }
}

/// An account to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    pub(super) id: AccountId,
    pub(super) currency: Currency,
    pub(super) floor: Option<i64>,
}

impl Account {
    /// An account that may have any balance.
    pub fn new(id: &str, currency: &str) -> Result<Self, LedgerError> {
        Ok(Self { id: AccountId::new(id)?, currency: Currency::new(currency)?, floor: None })
    }

    /// The lowest balance it may have, in minor units: 0 for one that may not be overdrawn, −50000 for one with that
    /// much credit. It is part of the account for good.
    pub fn floor(mut self, floor: i64) -> Result<Self, LedgerError> {
        if floor > 0 {
            return Err(LedgerError::Floor);
        }
        self.floor = Some(floor);
        Ok(self)
    }
}

/// What is to be moved, once.
///
/// ```
/// use semel::tx::ledger::Posting;
/// use semel::{Intent, Key, Operation, Scope};
///
/// let intent = Intent::new(
///     Scope::tenant("acme").unwrap(), Operation::new("payment.create").unwrap(), Key::new("order-1").unwrap(),
/// );
/// let posting = Posting::of(&intent).line("customer:7", -4200)?.line("revenue", 4000)?.line("tax", 200)?;
/// # Ok::<(), semel::tx::ledger::LedgerError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posting {
    id: PostingId,
    lines: Vec<(AccountId, i64)>,
}

/// The identity of a posting: an intent, or a step of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PostingId(pub(super) IntentId);

impl PostingId {
    /// The bytes the tables store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Display for PostingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Posting {
    /// The posting of an intent that has only one.
    pub fn of(intent: &Intent) -> Self {
        Self { id: PostingId(intent.id()), lines: Vec::new() }
    }

    /// One of several postings of an intent, with a name of its own.
    pub fn step(intent: &Intent, step: &str) -> Self {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        hash.update(b"semel.posting.1");
        hash.update(intent.id().as_bytes());
        hash.update(step);
        Self { id: PostingId(IntentId::from_bytes(hash.finalize().into())), lines: Vec::new() }
    }

    /// Adds a line: minor units that the account gets, or loses when negative.
    pub fn line(mut self, account: &str, amount: i64) -> Result<Self, LedgerError> {
        if amount == 0 {
            return Err(LedgerError::Zero);
        }
        if self.lines.len() == LINES_MAX {
            return Err(LedgerError::TooManyLines);
        }
        self.lines.push((AccountId::new(account)?, amount));
        Ok(self)
    }

    /// Its name.
    pub fn id(&self) -> PostingId {
        self.id
    }
}

/// The receipt of a posting that is in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PostingReceipt {
    /// Its name.
    pub id: PostingId,
    /// When it was posted, in ms since 1970 by the database's clock.
    pub posted_at_ms: i64,
    /// It was there before; nothing was written.
    pub already: bool,
}

/// Why nothing was posted. Nothing was written, and the caller's transaction is as it was, except where the database
/// itself failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Invalid account name.
    #[error("invalid account name {0:?}: use 1 to 200 printable ASCII characters without spaces")]
    AccountName(String),
    /// Invalid currency code.
    #[error("invalid currency {0:?}: use 3 to 12 capital letters and digits, such as EUR")]
    CurrencyName(String),
    /// The floor is above 0: a new account starts at 0 and would be below it at once.
    #[error("a floor must be 0 or less: a new account starts at 0")]
    Floor,
    /// A line of 0.
    #[error("a line of 0 moves nothing")]
    Zero,
    /// See [`LINES_MAX`].
    #[error("a posting has at most {LINES_MAX} lines")]
    TooManyLines,
    /// One line cannot balance.
    #[error("a posting needs at least two lines")]
    TooFewLines,
    /// The lines do not sum up to zero.
    #[error("the lines sum up to {sum} instead of 0: money would appear or vanish")]
    Unbalanced {
        /// What they sum up to.
        sum: i128,
    },
    /// More than 64 bits of minor units.
    #[error("a balance would exceed 64 bits of minor units")]
    Overflow,
    /// The account was never opened.
    #[error("account {0} does not exist; open it first")]
    NoAccount(AccountId),
    /// The account exists with another currency or floor.
    #[error("account {0} exists already, with another currency or floor")]
    AccountDiffers(AccountId),
    /// The accounts have different currencies.
    #[error("{one} is in {one_in} and {other} in {other_in}; exchange is two postings, one in each currency")]
    MixedCurrencies {
        /// One account.
        one: AccountId,
        /// Its currency.
        one_in: Currency,
        /// Another account.
        other: AccountId,
        /// Its currency.
        other_in: Currency,
    },
    /// The account would fall below its floor.
    #[error("{account} would fall below its floor")]
    Insufficient {
        /// The account.
        account: AccountId,
    },
    /// The same operation was posted with other lines.
    #[error("this operation was posted before with other lines; a new posting needs a name of its own")]
    Mismatch,
    /// An error of the database.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
