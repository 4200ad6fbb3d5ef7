//! From the outbox in PostgreSQL to Kafka: how fast a backlog goes, how late an event comes, what appending costs, and
//! what a relay needs.
//!
//! The floors are what the two ends do by themselves: `pg_recvlogical` reading the same table to nowhere, and a bare
//! producer with the same settings and the same records. A relay does both, so it cannot be faster than the slower one.

mod broker;
mod counter;
mod debezium;
mod drain;
mod floor;
mod latency;
mod place;
mod resident;

use testkit::services::{Service, find};
use tokio::runtime::Runtime;

use self::broker::Broker;
use self::place::Place;
use crate::Failed;
use crate::table::Table;

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) parts: &'a [String],
    /// Of the backlog.
    pub(crate) events: u64,
    /// Scales how long the rest takes.
    pub(crate) size: usize,
}

pub(crate) fn measure(runtime: &Runtime, wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    let (Some(postgres), Some(kafka)) = (find(Service::Postgres), find(Service::Kafka)) else {
        return Err("PostgreSQL and Kafka have to run: cargo xtask services up --only postgres,kafka".into());
    };
    runtime.block_on(async {
        let (place, broker) = (Place::make(&postgres).await?, Broker::open(&kafka)?);
        let measured = parts(&place, &broker, wanted, table).await;
        // Also after a failure: a slot that stays keeps all WAL.
        let removed = place.remove().await;
        broker.remove_all().await?;
        measured.and(removed)
    })
}

async fn parts(place: &Place, broker: &Broker, wanted: &Wanted<'_>, table: &mut Table) -> Result<(), Failed> {
    let is_wanted = |part: &str| wanted.parts.iter().any(|wanted| wanted == part);
    let backlog = ["drain", "memory", "debezium"].into_iter().any(is_wanted);
    // Before there is a log of a million events to go through.
    if is_wanted("latency") {
        eprintln!("latency …");
        latency::measure(place, broker, wanted.size, table).await?;
    }
    if is_wanted("append") {
        eprintln!("append …");
        crate::tx::measure_append(place.server(), wanted.size, table).await?;
        counter::measure(wanted.size, table).await?;
    }
    if backlog {
        eprintln!("a backlog of {} events …", wanted.events);
        place.fill(wanted.events).await?;
    }
    if is_wanted("debezium") {
        eprintln!("debezium …");
        debezium::measure(place, broker, wanted.events, table).await?;
    }
    if is_wanted("drain") {
        eprintln!("drain …");
        drain::measure(place, broker, wanted.events, table).await?;
    }
    if is_wanted("memory") {
        eprintln!("memory …");
        resident::measure(place, broker, wanted.events, table).await?;
    }
    Ok(())
}
