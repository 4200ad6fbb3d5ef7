//! The layer on the memory store against the same handler without it.

use crate::Failed;
use crate::process::Process;
use crate::table::Table;
use crate::wrk::{self, Load, Rate};

const CONNECTIONS: usize = 64;
const ROUNDS: usize = 3;

pub(crate) fn measure(seconds: usize, table: &mut Table) -> Result<(), Failed> {
    let (_bare, bare) = Process::serve("bare")?;
    let (_layer, layer) = Process::serve("layer")?;
    // Alternating rounds: whatever else the machine does, it does to all of them.
    let (mut floor, mut first, mut replay) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // With a key as well: what differs is what is done with it.
        floor.push(wrk::run(&bare, Load::Fresh, CONNECTIONS, seconds)?);
        first.push(wrk::run(&layer, Load::Fresh, CONNECTIONS, seconds)?);
        replay.push(wrk::run(&layer, Load::Repeated, CONNECTIONS, seconds)?);
    }
    let floor = best(floor);
    row(table, "layer: bare axum handler, 64 connections", &floor, "the floor".to_owned());
    for (name, rates) in [("first calls", first), ("replays", replay)] {
        let rate = best(rates);
        let note = format!(
            "{:.2} × bare; p50 {:+.0} µs, p99 {:+.0} µs",
            rate.per_s / floor.per_s,
            rate.p50_us - floor.p50_us,
            rate.p99_us - floor.p99_us
        );
        row(table, &format!("layer: {name}, memory store"), &rate, note);
    }
    Ok(())
}

pub(crate) fn best(rates: Vec<Rate>) -> Rate {
    let worst = Rate { per_s: 0.0, p50_us: 0.0, p99_us: 0.0 };
    rates.into_iter().fold(worst, |best, rate| if rate.per_s > best.per_s { rate } else { best })
}

pub(crate) fn row(table: &mut Table, name: &str, rate: &Rate, note: String) {
    let times = format!("p50 {:.0} µs, p99 {:.0} µs", rate.p50_us, rate.p99_us);
    table.row(name, rate.per_s, "/s", if note.is_empty() { times } else { format!("{times}; {note}") });
}
