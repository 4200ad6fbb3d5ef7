//! [`tx::ledger`](crate::tx::ledger). Best in a transaction that was begun IMMEDIATE.

use rusqlite::Connection;

use super::ready;
use crate::tx::ledger::{self, Account, AccountId, Imbalance, LedgerError, Posting, PostingReceipt};

/// [`ledger::open`].
pub fn open(mut tx: &Connection, account: &Account) -> Result<(), LedgerError> {
    ready(ledger::open(&mut tx, account))
}

/// [`ledger::post`].
pub fn post(mut tx: &Connection, posting: &Posting) -> Result<PostingReceipt, LedgerError> {
    ready(ledger::post(&mut tx, posting))
}

/// [`ledger::balance`].
pub fn balance(mut tx: &Connection, account: &AccountId) -> Result<i64, LedgerError> {
    ready(ledger::balance(&mut tx, account))
}

/// [`ledger::check`](fn@ledger::check).
pub fn check(mut tx: &Connection) -> Result<Vec<Imbalance>, LedgerError> {
    ready(ledger::check(&mut tx))
}
