//! Rebase: accepts these tables after the lineage has changed.

use tokio_postgres::types::ToSql;

use super::leased_session::{get, system};
use super::statement::Statements;
use super::unreadable;
use crate::fault::Hook;
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError, Rebase};
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;
use crate::store::postgres::statement::Sql;

/// Accepts the tables at this URL as the right ones from now on. Running relays are fenced.
pub(in crate::relay) async fn rebase(url: &str, rebase: Rebase) -> Result<(), OutboxReaderError> {
    static STORE: Sql = Sql { text: "SELECT lineage::text FROM semel_outbox_meta", types: &[] };
    let postgres = PostgresOptions::from_url(url)?;
    let connections = Connections::new(postgres).map_err(|error| error.not_applied())?;
    let statements = Statements::new(&Hook::default());
    let (session, _) = connections.session().await.map_err(|error| error.not_applied())?;
    let rows = session.query(&STORE, &[]).await.map_err(|error| error.not_applied())?;
    let row = rows.first().ok_or_else(|| unreadable("semel_outbox_meta is empty"))?;
    let lineage = OutboxLineage::new(get(row, 0)?, system(&session).await).to_string();
    let values: [&(dyn ToSql + Sync); 2] = [&lineage, &(rebase == Rebase::FromNow)];
    session.query(&statements.rebase, &values).await.map_err(|error| error.explain())?;
    session.close().await;
    Ok(())
}
