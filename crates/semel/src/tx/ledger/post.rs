//! Opening accounts and posting.

use std::collections::BTreeMap;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::sql::{ACCOUNTS, ACCOUNTS_NOW, ENTRIES, ENTRY, LOCK, OPEN, POST, POSTED, RUN_ON};
use super::{Account, AccountId, Currency, LedgerError, Posting, PostingId, PostingReceipt};
use crate::intent::identity::Owner;
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Sql, Tx, Value};

/// Opens an account. Opening the same account again changes nothing; a different one of that name is refused.
pub async fn open<X: Tx>(tx: &mut X, account: &Account) -> Result<(), LedgerError> {
    let tx = &mut OpenTx::new(tx)?;
    let Account { id, currency, floor } = account;
    tx.run(&OPEN, vec![id.as_str().into(), currency.as_str().into(), Value::Int(*floor)]).await?;
    match read(tx, &[id]).await?.remove(id) {
        Some(found) if found.currency == *currency && found.floor == *floor => Ok(()),
        Some(_) => Err(LedgerError::AccountDiffers(id.clone())),
        None => Err(out_of_sight()),
    }
}

/// Posts once. Posting the same again writes nothing and returns the first receipt.
///
/// All checks come before the first write: after an error (other than the database's own) the transaction may go on.
pub async fn post<X: Tx>(tx: &mut X, posting: &Posting) -> Result<PostingReceipt, LedgerError> {
    let tx = &mut OpenTx::new(tx)?;
    let changes = balanced(posting)?;
    let digest = digest(posting);
    let running = match checked(tx, &changes).await {
        Ok(running) => running,
        // A duplicate may be refused because the first posting spent the money. What is in the table counts.
        Err(error @ LedgerError::Driver(_)) => return Err(error),
        Err(error) => return there(tx, posting.id, &digest, None).await?.ok_or(error),
    };
    let token = Bytes::copy_from_slice(Owner::random().as_bytes());
    let operation = || Value::from(&posting.id.as_bytes()[..]);
    tx.run(&POST, vec![operation(), Value::from(&digest[..]), token.clone().into()]).await?;
    // The token tells which of two postings of one name is in the table, whatever a driver counts as changed.
    let receipt = match there(tx, posting.id, &digest, Some(&token)).await? {
        Some(receipt) if receipt.already => return Ok(receipt),
        Some(receipt) => receipt,
        None => return Err(out_of_sight()),
    };
    let values = |(line, (account, amount)): (usize, &(AccountId, i64))| {
        [operation(), Value::from(line as i64), account.as_str().into(), Value::from(*amount)]
    };
    let lines: Vec<_> = posting.lines.iter().enumerate().map(values).collect();
    for pair in lines.chunks(2) {
        let sql = if pair.len() == 2 { &ENTRIES } else { &ENTRY };
        tx.run(sql, pair.iter().flatten().cloned().collect()).await?;
    }
    for (account, total) in running {
        tx.run(&RUN_ON, vec![Value::from(total), account.as_str().into()]).await?;
    }
    Ok(receipt)
}

/// The row exists, but not in this transaction's snapshot.
fn out_of_sight() -> LedgerError {
    let message =
        "another transaction wrote the same row meanwhile; roll back and run the whole transaction again";
    DriverError::new(DriverErrorKind::Serialization, message).into()
}

struct Found {
    currency: Currency,
    floor: Option<i64>,
}

/// Reads the accounts, two at a time.
async fn read(
    tx: &mut OpenTx<'_, impl Tx>,
    ids: &[&AccountId],
) -> Result<BTreeMap<AccountId, Found>, LedgerError> {
    let mut found = BTreeMap::new();
    read_with(tx, &ACCOUNTS, ids, &mut found).await?;
    if found.len() < ids.len() && tx.dialect() == Dialect::Mysql {
        let missing: Vec<_> = ids.iter().copied().filter(|id| !found.contains_key(*id)).collect();
        read_with(tx, &ACCOUNTS_NOW, &missing, &mut found).await?;
    }
    Ok(found)
}

async fn read_with(
    tx: &mut OpenTx<'_, impl Tx>,
    sql: &Sql,
    ids: &[&AccountId],
    found: &mut BTreeMap<AccountId, Found>,
) -> Result<(), LedgerError> {
    for pair in ids.chunks(2) {
        let (one, other) = (pair[0], pair[pair.len() - 1]);
        for row in tx.run(sql, vec![one.as_str().into(), other.as_str().into()]).await?.rows {
            let account = Found { currency: Currency::new(row.text(1)?)?, floor: row.int_or_null(2)? };
            found.insert(AccountId::new(row.text(0)?)?, account);
        }
    }
    Ok(())
}

/// The change of each account, in the order of their ids.
fn balanced(posting: &Posting) -> Result<BTreeMap<&AccountId, i64>, LedgerError> {
    if posting.lines.len() < 2 {
        return Err(LedgerError::TooFewLines);
    }
    let sum: i128 = posting.lines.iter().map(|(_, amount)| i128::from(*amount)).sum();
    if sum != 0 {
        return Err(LedgerError::Unbalanced { sum });
    }
    let mut changes = BTreeMap::new();
    for (account, amount) in &posting.lines {
        let change: &mut i64 = changes.entry(account).or_default();
        *change = change.checked_add(*amount).ok_or(LedgerError::Overflow)?;
    }
    Ok(changes)
}

/// Makes all checks, and takes the locks that keep them true. Returns the new running totals.
async fn checked<'a>(
    tx: &mut OpenTx<'_, impl Tx>,
    changes: &BTreeMap<&'a AccountId, i64>,
) -> Result<Vec<(&'a AccountId, i64)>, LedgerError> {
    let ids: Vec<&AccountId> = changes.keys().copied().collect();
    let accounts = read(tx, &ids).await?;
    let (mut first, mut running) = (None, Vec::new());
    // By id, so that no two postings wait for each other.
    for &id in &ids {
        let account = accounts.get(id).ok_or_else(|| LedgerError::NoAccount(id.clone()))?;
        let (one, one_in) = *first.get_or_insert((id, &account.currency));
        if *one_in != account.currency {
            return Err(LedgerError::MixedCurrencies {
                one: one.clone(),
                one_in: one_in.clone(),
                other: id.clone(),
                other_in: account.currency.clone(),
            });
        }
    }
    for (&id, &change) in changes {
        let Some(floor) = accounts.get(id).and_then(|account| account.floor) else { continue };
        let locked = tx.run(&LOCK, vec![id.as_str().into()]).await?;
        let total = locked.first().ok_or_else(|| LedgerError::NoAccount(id.clone()))?.int(0)?;
        let total = total.checked_add(change).ok_or(LedgerError::Overflow)?;
        // A deposit is never refused, even when the floor was crossed by hand.
        if total < floor && change < 0 {
            return Err(LedgerError::Insufficient { account: id.clone() });
        }
        running.push((id, total));
    }
    Ok(running)
}

/// The posting of that name, if there is one; an error if its lines differ.
async fn there(
    tx: &mut OpenTx<'_, impl Tx>,
    id: PostingId,
    digest: &[u8; 32],
    token: Option<&Bytes>,
) -> Result<Option<PostingReceipt>, LedgerError> {
    let found = tx.run(&POSTED, vec![Value::from(&id.as_bytes()[..])]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    if row.bytes(0)?[..] != digest[..] {
        return Err(LedgerError::Mismatch);
    }
    let already = token != Some(&row.bytes(1)?);
    Ok(Some(PostingReceipt { id, posted_at_ms: row.int(2)?, already }))
}

/// Over the lines in any order: they are a sum.
fn digest(posting: &Posting) -> [u8; 32] {
    let mut lines: Vec<_> = posting.lines.iter().collect();
    lines.sort();
    let mut hash = Sha256::new();
    hash.update(b"semel.lines.1");
    for (account, amount) in lines {
        hash.update((account.as_str().len() as u64).to_be_bytes());
        hash.update(account.as_str());
        hash.update(amount.to_be_bytes());
    }
    hash.finalize().into()
}
