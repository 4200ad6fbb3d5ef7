//! What consuming costs: messages that have their effect once, beside those that have it as often as they come.

#[cfg(feature = "relay")]
mod apart;
#[cfg(feature = "relay")]
mod eos;
mod inbox;
#[cfg(feature = "relay")]
mod judge;
#[cfg(feature = "relay")]
pub(crate) mod pipeline;
mod place;
mod remembered;
#[cfg(feature = "relay")]
mod scene;
#[cfg(feature = "relay")]
mod streams;

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
    /// How many messages go from Kafka to Kafka.
    pub(crate) messages: u64,
    /// Scales how long the rest takes.
    pub(crate) size: usize,
}

pub(crate) fn measure(runtime: &Runtime, wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    let is_wanted = |part: &str| wanted.parts.iter().any(|wanted| wanted == part);
    if is_wanted("inbox") {
        eprintln!("inbox …");
        runtime.block_on(with_inbox(wanted, table))?;
    }
    if is_wanted("eos") || is_wanted("streams") {
        runtime.block_on(exactly_once(wanted.messages, is_wanted("eos"), is_wanted("streams"), table))?;
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
async fn exactly_once(messages: u64, alone: bool, beside: bool, table: &mut Table) -> Result<(), Failed> {
    let Some(kafka) = find(Service::Kafka) else {
        return Err("Kafka has to run: cargo xtask services up --only kafka".into());
    };
    let scene = scene::Scene::make(&kafka, messages).await?;
    let measured = async {
        if alone {
            eprintln!("eos …");
            eos::measure(&scene, table).await?;
        }
        let streams = if beside {
            eprintln!("streams …");
            streams::Streams::find()?
        } else {
            None
        };
        apart::measure(&scene, streams.as_ref(), table).await
    };
    let measured = measured.await;
    measured.and(scene.remove(&scene.input()).await)
}

#[cfg(not(feature = "relay"))]
async fn exactly_once(messages: u64, _: bool, _: bool, _: &mut Table) -> Result<(), Failed> {
    Err(format!("built without the feature `relay` ({messages} messages)").into())
}
