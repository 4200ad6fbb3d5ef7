//! What consuming costs: messages that have their effect once, beside those that have it as often as they come.

#[cfg(feature = "relay")]
mod eos;
mod inbox;
mod place;
mod remembered;

use testkit::services::{Service, find};
use tokio::runtime::Runtime;

use self::place::Place;
use crate::Failed;
use crate::table::Table;

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) parts: &'a [String],
    /// How many ids are remembered where many are.
    pub(crate) ids: u64,
    /// Scales how long the rest takes.
    pub(crate) size: usize,
}

pub(crate) fn measure(runtime: &Runtime, wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    for part in wanted.parts {
        eprintln!("{part} …");
        match part.as_str() {
            "eos" => runtime.block_on(exactly_once(wanted, table))?,
            _ => runtime.block_on(with_inbox(wanted, table))?,
        }
    }
    Ok(())
}

async fn with_inbox(wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    let Some(postgres) = find(Service::Postgres) else {
        return Err("PostgreSQL has to run: cargo xtask services up --only postgres".into());
    };
    let place = Place::make(&postgres).await?;
    let measured = async {
        inbox::measure(&place, wanted.size, table).await?;
        remembered::measure(&place, wanted.size, wanted.ids, table).await
    };
    let measured = measured.await;
    measured.and(place.remove().await)
}

#[cfg(feature = "relay")]
async fn exactly_once(wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    let Some(kafka) = find(Service::Kafka) else {
        return Err("Kafka has to run: cargo xtask services up --only kafka".into());
    };
    eos::measure(&kafka, wanted.size, table).await
}

#[cfg(not(feature = "relay"))]
async fn exactly_once(wanted: &Wanted<'_>, _: &mut Table) -> Result<(), Failed> {
    Err(format!("built without the feature `relay` (size {})", wanted.size).into())
}
