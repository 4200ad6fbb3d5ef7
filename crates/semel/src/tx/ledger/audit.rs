//! Balances, and the audit whether everything sums up.

use super::sql::BALANCE;
use super::{AccountId, LedgerError};
use crate::tx::driver::{DriverError, DriverErrorKind, OpenTx, Row, Sql, Tx};

/// Every imbalance of the ledger, one row each; no rows when all is well. At most 100. People may run it too.
///
/// `kind` is `posting` (its entries do not sum up to zero, or it has none), `currencies` (a posting in more than one),
/// `orphan` (entries without a posting or an account), `running` (an account's running total is not the sum of its
/// entries), `floor` (an account is below its floor), or `currency` (all entries of a currency do not sum up to zero).
pub const IMBALANCES: Sql = Sql {
    postgres: include_str!("imbalances.postgres.sql"),
    mysql: include_str!("imbalances.mysql.sql"),
    sqlite: include_str!("imbalances.sqlite.sql"),
};

/// One thing that does not sum up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Imbalance {
    /// `posting`, `currencies`, `orphan`, `running`, `floor` or `currency`.
    pub kind: String,
    /// The posting (in hex), account or currency it is about.
    pub about: String,
}

/// The balance of an account: the sum of its entries.
pub async fn balance<X: Tx>(tx: &mut X, account: &AccountId) -> Result<i64, LedgerError> {
    let found = OpenTx::new(tx)?.run(&BALANCE, vec![account.as_str().into()]).await?;
    let row = found.first().ok_or_else(|| LedgerError::NoAccount(account.clone()))?;
    i64::try_from(sum(row)?).map_err(|_| LedgerError::Overflow)
}

/// Everything that does not sum up; empty when all is well. Reads the whole ledger: for an audit, not for a request.
pub async fn check<X: Tx>(tx: &mut X) -> Result<Vec<Imbalance>, LedgerError> {
    let found = OpenTx::new(tx)?.run(&IMBALANCES, Vec::new()).await?;
    let read = |row: &Row| Ok(Imbalance { kind: row.text(0)?.to_owned(), about: row.text(1)?.to_owned() });
    found.rows.iter().map(read).collect()
}

fn sum(row: &Row) -> Result<i128, DriverError> {
    if let Ok(text) = row.text(1) {
        let wrong = |error| DriverError::of(DriverErrorKind::Unreadable, error);
        return text.parse::<i128>().map_err(wrong);
    }
    Ok((i128::from(row.int(1)?) << 32) + i128::from(row.int(2)?))
}
