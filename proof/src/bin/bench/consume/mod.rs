//! What consuming costs: messages that have their effect once, beside those that have it as often as they come.

#[cfg(feature = "relay")]
mod eos;

use tokio::runtime::Runtime;

use crate::Failed;
use crate::table::Table;

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) parts: &'a [String],
    /// Scales how long it takes.
    pub(crate) size: usize,
}

pub(crate) fn measure(runtime: &Runtime, wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    for part in wanted.parts {
        eprintln!("{part} …");
        runtime.block_on(exactly_once(wanted, table))?;
    }
    Ok(())
}

#[cfg(feature = "relay")]
async fn exactly_once(wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    use testkit::services::{Service, find};
    let Some(kafka) = find(Service::Kafka) else {
        return Err("Kafka has to run: cargo xtask services up --only kafka".into());
    };
    eos::measure(&kafka, wanted.size, table).await
}

#[cfg(not(feature = "relay"))]
async fn exactly_once(wanted: &Wanted<'_>, _: &mut Table) -> Result<(), Failed> {
    Err(format!("built without the feature `relay` (size {})", wanted.size).into())
}
