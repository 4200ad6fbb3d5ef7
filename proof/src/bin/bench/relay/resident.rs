//! The most memory a relay in a process of its own takes while it works through a backlog.

use std::process::Command;
use std::time::{Duration, Instant};

use testkit::child::Child;

use super::broker::Broker;
use super::place::Place;
use crate::Failed;
use crate::table::Table;
use crate::usage::high_water;

const DRAIN_SECONDS_MAX: u64 = 600;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn measure(
    place: &Place,
    broker: &Broker,
    events: u64,
    table: &mut Table,
) -> Result<(), Failed> {
    place.rewind().await?;
    let bytes = peak(place, broker, events, "poll").await?;
    let note = format!("with a backlog of {events} events");
    table.row("memory: peak of a polling relay", bytes as f64 / 1_048_576.0, "MiB", note.as_str());
    place.refill(events).await?;
    let bytes = peak(place, broker, events, "cdc").await?;
    table.row("memory: peak of a CDC relay", bytes as f64 / 1_048_576.0, "MiB", note);
    Ok(())
}

async fn peak(place: &Place, broker: &Broker, events: u64, mode: &str) -> Result<u64, Failed> {
    broker.fresh_topic().await?;
    let mut command = Command::new(std::env::current_exe()?);
    let to = format!("kafka://{}", broker.bootstrap());
    command.args([
        "relay-process",
        "--from",
        &place.url(),
        "--to",
        &to,
        "--mode",
        mode,
        "--slot",
        &place.log_slot(),
    ]);
    let mut relay = Child::spawn(command, None)?;
    relay.next_line(PATIENCE)?;
    let until = Instant::now() + Duration::from_secs(DRAIN_SECONDS_MAX);
    while broker.records()? < events {
        if Instant::now() > until {
            return Err(format!("the backlog is not drained after {DRAIN_SECONDS_MAX} s").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let peak = high_water(relay.id())?;
    relay.terminate()?;
    relay.wait(PATIENCE)?;
    Ok(peak)
}
