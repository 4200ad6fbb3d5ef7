//! A provider's own reference for the result, recorded uniquely beside the intent.
//!
//! A key makes *our* request unique; `ch_7` is the *result*, and one result must not be booked under two intents: a
//! webhook that arrives under another name, a lookup that finds the neighbour's charge, a person who resolves the wrong
//! one. Record the reference in the transaction that books the result:
//!
//! ```text
//!  begin ─▶ once_tx(intent, …) ─▶ reference::record(tx, &intent, "stripe", "ch_7") ─▶ ledger::post(…) ─▶ commit
//! ```

use crate::intent::identity::{Intent, IntentId};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Sql, Tx, Value};

/// Longest name of a provider, in bytes.
pub const PROVIDER_BYTES_MAX: usize = 100;
/// Longest reference, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 255;

/// 1 provider, 2 reference, 3 intent.
const RECORD: Sql = Sql {
    postgres: "INSERT INTO semel_reference (provider, reference, intent) VALUES ($1, $2, $3) \
               ON CONFLICT (provider, reference) DO NOTHING RETURNING 1",
    mysql: "INSERT INTO semel_reference (provider, reference, intent) VALUES (?, ?, ?) \
            ON DUPLICATE KEY UPDATE provider = provider",
    sqlite: "INSERT INTO semel_reference (provider, reference, intent) VALUES (?1, ?2, ?3) \
             ON CONFLICT (provider, reference) DO NOTHING RETURNING 1",
};

/// 1 provider, 2 reference.
const FIND: Sql = Sql {
    postgres: "SELECT intent FROM semel_reference WHERE provider = $1 AND reference = $2",
    mysql: "SELECT intent FROM semel_reference WHERE provider = ? AND reference = ? LOCK IN SHARE MODE",
    sqlite: "SELECT intent FROM semel_reference WHERE provider = ?1 AND reference = ?2",
};

/// The table, for that dialect. Run it once, with your migrations.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => include_str!("postgres.sql"),
        Dialect::Mysql => include_str!("mysql.sql"),
        Dialect::Sqlite => include_str!("sqlite.sql"),
    }
}

/// Why a reference was not recorded. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The same result is booked under another intent. The message names neither the result nor that intent: the
    /// caller need not be their owner.
    #[error(
        "this result of {provider} is already booked under another intent; book it once, or find out \
         which intent it belongs to"
    )]
    Taken {
        /// The provider of the result.
        provider: String,
    },
    /// See [`PROVIDER_BYTES_MAX`].
    #[error("a provider's name has 1 to {PROVIDER_BYTES_MAX} printable ASCII characters")]
    Provider,
    /// See [`REFERENCE_BYTES_MAX`].
    #[error("a reference has 1 to {REFERENCE_BYTES_MAX} bytes of text without control characters")]
    Reference,
    /// An error of the database.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Records the provider's reference for the result of the intent. Recording the same again changes nothing; one
/// intent may have several.
///
/// If another transaction is about to record the same reference, this one waits for it.
pub async fn record<X: Tx>(
    tx: &mut X,
    intent: &Intent,
    provider: &str,
    reference: &str,
) -> Result<(), ReferenceError> {
    named(provider, reference)?;
    let (tx, intent) = (&mut OpenTx::new(tx)?, intent.id());
    let values = vec![provider.into(), reference.into(), Value::from(&intent.as_bytes()[..])];
    let written = tx.run(&RECORD, values).await?;
    if tx.dialect() != Dialect::Mysql && !written.rows.is_empty() {
        return Ok(());
    }
    match found(tx, provider, reference).await? {
        Some(there) if there == intent => Ok(()),
        Some(_) => Err(ReferenceError::Taken { provider: provider.to_owned() }),
        None => {
            let message = "another transaction recorded the same reference meanwhile; roll back and run the \
                           whole transaction again";
            Err(DriverError::new(DriverErrorKind::Serialization, message).into())
        }
    }
}

/// The intent a provider's result is booked under: the question of a webhook.
pub async fn find<X: Tx>(
    tx: &mut X,
    provider: &str,
    reference: &str,
) -> Result<Option<IntentId>, ReferenceError> {
    named(provider, reference)?;
    found(&mut OpenTx::new(tx)?, provider, reference).await
}

fn named(provider: &str, reference: &str) -> Result<(), ReferenceError> {
    let graphic = provider.bytes().all(|byte| byte.is_ascii_graphic());
    if !(1..=PROVIDER_BYTES_MAX).contains(&provider.len()) || !graphic {
        return Err(ReferenceError::Provider);
    }
    if !(1..=REFERENCE_BYTES_MAX).contains(&reference.len()) || reference.chars().any(char::is_control) {
        return Err(ReferenceError::Reference);
    }
    Ok(())
}

async fn found(
    tx: &mut OpenTx<'_, impl Tx>,
    provider: &str,
    reference: &str,
) -> Result<Option<IntentId>, ReferenceError> {
    let rows = tx.run(&FIND, vec![provider.into(), reference.into()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let id: [u8; 32] = row.bytes(0)?[..].try_into().map_err(|_| {
        DriverError::new(
            DriverErrorKind::Unreadable,
            "an intent id in semel_reference does not have 32 bytes",
        )
    })?;
    Ok(Some(IntentId::from_bytes(id)))
}
