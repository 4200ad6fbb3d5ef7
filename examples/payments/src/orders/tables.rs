//! The orders and the notices to customers. Neither table has a unique constraint: what happened twice would show there.

use std::path::Path;

use semel::Intent;
use semel::saga::{StepError, StepResult, StepTx};

use super::{Purchase, Receipt};
use crate::{Failed, place};

const POSTGRES: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        id bigserial PRIMARY KEY, merchant text NOT NULL, key text NOT NULL, sku text NOT NULL, cents bigint NOT NULL,
        cancelled boolean NOT NULL DEFAULT false
    );
    CREATE TABLE IF NOT EXISTS notice (id bigserial PRIMARY KEY, shop_order bigint NOT NULL, text text NOT NULL);";
const SQLITE: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        id INTEGER PRIMARY KEY, merchant TEXT NOT NULL, key TEXT NOT NULL, sku TEXT NOT NULL, cents INTEGER NOT NULL,
        cancelled INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE IF NOT EXISTS notice (id INTEGER PRIMARY KEY, shop_order INTEGER NOT NULL, text TEXT NOT NULL) STRICT;";

/// The tables of orders, of sagas and of the outbox: created where they are missing.
pub async fn migrate(url: &str) -> Result<(), Failed> {
    semel::saga::sql::migrate(url).await?;
    semel::outbox::migrate(url).await?;
    if let Some(path) = url.strip_prefix("sqlite:") {
        let db = rusqlite::Connection::open(Path::new(path.strip_prefix("//").unwrap_or(path)))?;
        db.busy_timeout(std::time::Duration::from_secs(5))?;
        return Ok(db.execute_batch(SQLITE)?);
    }
    let mut tx = place::pool(url).await?.begin().await?;
    // Two services that start at once would both create them.
    sqlx::query("SELECT pg_advisory_xact_lock(7075)").execute(&mut *tx).await?;
    sqlx::raw_sql(POSTGRES).execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

/// Returns the order's number.
pub(super) async fn create(tx: &mut StepTx<'_>, intent: &Intent, purchase: &Purchase) -> StepResult<i64> {
    let (merchant, key) = (intent.scope().as_str(), intent.key().as_str());
    let Purchase { sku, cents } = purchase;
    if let Some(tx) = tx.postgres() {
        let insert =
            "INSERT INTO shop_order (merchant, key, sku, cents) VALUES ($1, $2, $3, $4) RETURNING id";
        return Ok(tx.query_one(insert, &[&merchant, &key, sku, cents]).await?.try_get(0)?);
    }
    let insert = "INSERT INTO shop_order (merchant, key, sku, cents) VALUES (?1, ?2, ?3, ?4)";
    let db = sqlite(tx)?;
    db.execute(insert, (merchant, key, sku, cents))?;
    Ok(db.last_insert_rowid())
}

pub(super) async fn cancel(tx: &mut StepTx<'_>, order: i64) -> StepResult<()> {
    if let Some(tx) = tx.postgres() {
        tx.execute("UPDATE shop_order SET cancelled = true WHERE id = $1", &[&order]).await?;
        return Ok(());
    }
    sqlite(tx)?.execute("UPDATE shop_order SET cancelled = 1 WHERE id = ?1", [order])?;
    Ok(())
}

pub(super) async fn notify(tx: &mut StepTx<'_>, receipt: &Receipt) -> StepResult<()> {
    let text = format!("Thank you. Your order {} is paid, by charge {}.", receipt.order, receipt.charge);
    if let Some(tx) = tx.postgres() {
        tx.execute("INSERT INTO notice (shop_order, text) VALUES ($1, $2)", &[&receipt.order, &text]).await?;
        return Ok(());
    }
    sqlite(tx)?.execute("INSERT INTO notice (shop_order, text) VALUES (?1, ?2)", (receipt.order, text))?;
    Ok(())
}

fn sqlite<'t>(tx: &'t mut StepTx<'_>) -> StepResult<&'t rusqlite::Connection> {
    tx.sqlite().ok_or_else(|| StepError::refused("orders are kept in PostgreSQL or SQLite only"))
}
