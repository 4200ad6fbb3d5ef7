//! Sagas of three steps: how many end in a second and what they cost, beside the same commits without an engine; how long
//! one takes a lone caller; and whether a million that wait slow the others.
//!
//! The floor writes the same rows with the same number of commits, in batches, and does nothing else.

mod floor;
mod load;
mod lone;
mod parked;
mod place;
mod shop;

use std::path::Path;

use tokio::runtime::Runtime;

use self::floor::Floor;
use self::load::{Load, Loaded};
use self::place::Place;
use self::shop::Kind;
use crate::Failed;
use crate::table::Table;

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) parts: &'a [String],
    /// How many wait beside the others.
    pub(crate) parked: u64,
    /// Scales how long everything takes.
    pub(crate) size: usize,
}

/// Callers at the same time, each waiting for its saga.
const CALLERS: usize = 256;
/// The best of so many rounds counts; floor and subject take turns.
const ROUNDS: usize = 3;

pub(crate) fn measure(
    runtime: &Runtime,
    wanted: &Wanted<'_>,
    directory: &Path,
    table: &mut Table,
) -> Result<(), Failed> {
    let is_wanted = |part: &str| wanted.parts.iter().any(|wanted| wanted == part);
    for name in ["sqlite", "postgres"] {
        let Some(place) = runtime.block_on(Place::make(name, directory, "rates"))? else {
            eprintln!("left out: PostgreSQL is not running (cargo xtask services up --only postgres)");
            continue;
        };
        let measured = runtime.block_on(async {
            if is_wanted("floor") || is_wanted(name) {
                eprintln!("{name} …");
                rates(&place, wanted.size, is_wanted(name), table).await?;
            }
            if is_wanted("lone") {
                eprintln!("{name}: a lone caller …");
                lone::measure(&place, wanted.size, table).await?;
            }
            if is_wanted("parked") {
                eprintln!("{name}: {} that wait …", wanted.parked);
                if let Some(crowded) = Place::make(name, directory, "crowded").await? {
                    let measured = parked::measure(&place, &crowded, wanted.parked, wanted.size, table).await;
                    crowded.remove().await?;
                    measured?;
                }
            }
            Ok::<_, Failed>(())
        });
        let removed = runtime.block_on(place.remove());
        measured.and(removed)?;
    }
    Ok(())
}

/// Sagas in a second, and what each costs.
async fn rates(place: &Place, size: usize, subject: bool, table: &mut Table) -> Result<(), Failed> {
    let name = place.name();
    let (mut floors, mut remote, mut atomic) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        floors.push(Floor::open(place).await?.run(place, 1_500 * size, floor::BATCH).await?);
        if subject {
            let load = |kind, sagas| Load { kind, callers: CALLERS, sagas, round };
            remote.push(load(Kind::Remote, 1_500 * size).run(place).await?);
            atomic.push(load(Kind::Atomic, 600 * size).run(place).await?);
        }
    }
    let floor = best(floors).ok_or("no round")?;
    let what = format!("{name}: three-step sagas, the same commits in batches of {}", floor::BATCH);
    table.row(&what, floor.per_s, "/s", format!("the floor, {}", floor.costs()));
    for (what, loads) in [("keyed, keyed, pivot", remote), ("atomic steps", atomic)] {
        let Some(loaded) = best(loads) else { continue };
        let what = format!("{name}: three-step sagas, {what}, {CALLERS} callers");
        let note = format!("{:.2} × the floor, {}", loaded.per_s / floor.per_s, loaded.costs());
        table.row(&what, loaded.per_s, "/s", note);
        table.row(&format!("{what}: processor time of a saga"), loaded.cpu_ms, "ms", "of this process");
        if let Some(ms) = loaded.server_ms {
            table.row(&format!("{what}: the server's processor time of a saga"), ms, "ms", "");
        }
    }
    Ok(())
}

fn best(loads: Vec<Loaded>) -> Option<Loaded> {
    loads.into_iter().max_by(|one, other| one.per_s.total_cmp(&other.per_s))
}
