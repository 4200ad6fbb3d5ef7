//! One caller: how long a saga takes it, beside its commits one after the other.

use std::time::Duration;

use super::floor::{COMMITS, Floor};
use super::load::Load;
use super::place::Place;
use super::shop::{self, Kind};
use crate::Failed;
use crate::table::Table;
use crate::times::Times;

/// Rounds of floor and subject by turns: the disk's mood is the same for both.
const ROUNDS: usize = 10;

pub(super) async fn measure(place: &Place, size: usize, table: &mut Table) -> Result<(), Failed> {
    let (sagas, registered) = shop::start(place.journal().await?, Kind::Remote)?;
    let mut floor = Floor::open(place).await?;
    let (mut commits, mut whole) = (Times::default(), Times::default());
    for round in 0..ROUNDS {
        for _ in 0..10 * size {
            let begin = std::time::Instant::now();
            floor.batch(1).await?;
            commits.push(begin.elapsed());
        }
        let load = Load { kind: Kind::Remote, callers: 1, sagas: 10 * size, round };
        whole.extend(load.run_on(place, &sagas, &registered).await?.times);
    }
    sagas.drain(Duration::from_secs(10)).await;
    let name = place.name();
    let (floor_us, us) = (commits.percentile_us(0.5), whole.percentile_us(0.5));
    let what = format!("{name}: the {} commits of a three-step saga one after the other, p50", COMMITS.len());
    table.row(&what, floor_us / 1_000.0, "ms", "the floor");
    // Its start is a commit of its own, before its code is run: one more than the floor has.
    let p99 = whole.percentile_us(0.99) / 1_000.0;
    let note =
        format!("{:.2} × the floor, with {} commits; p99 {p99:.2} ms", us / floor_us, COMMITS.len() + 1);
    table.row(&format!("{name}: a three-step saga, one caller, p50"), us / 1_000.0, "ms", note);
    Ok(())
}
