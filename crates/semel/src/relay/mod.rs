//! The relay: from the outbox to the sink, nothing lost, nothing overtaken within a key.
//!
//! ```text
//!  source ── a batch, written down ──▶ waves ──▶ sink ── each confirmed, or parked ──▶ source: done, under its epoch
//! ```
//!
//! What may go wrong, and what happens then:
//!
//! - **The relay dies.** What it was sending is written down and is sent again, the same events in the same order with
//!   the same ids.
//! - **The broker is down.** The batch waits, with growing pauses. As long as nothing gets through it is not known whether
//!   the broker fails or these events do: after a while their keys are set aside, so that others are tried, and come back
//!   by themselves.
//! - **An event cannot be published.** Its key is [parked](Parked) with a copy of it and of what comes after; the other
//!   keys go on. Whether the event is to blame is decided by what succeeded since it failed, never by how many failed.
//! - **It must be seen once.** With a sink that keeps the position beside the events,
//!   [`run_exactly_once`](Relay::run_exactly_once) compares it after every crash and doubt.
//! - **The broker may forget.** The sink is asked when the relay starts, and what stands in the way of its promise is
//!   logged as an error.
//! - **Two relays.** Lanes are owned by lease, and whoever lost one cannot move its cursor: the epoch is another.
//! - **Another database answers to the name.** The [lineage](OutboxLineage) differs, and the relay stops instead of skipping.
//!
//! | module | what it decides |
//! |---|---|
//! | `run` | the loop that publishes at least once: batch, rounds, done; backoff |
//! | `exactly_once` | the loop for a sink that keeps a checkpoint in one transaction with the events |
//! | `batch_progress` | which events of a batch may go now, and what the sink's results mean: max attempts, parking |
//! | `blame` | who is to blame when events fail: poison, or the sink |
//! | `transaction_split` | a batch in transactions, halved until the poison event is found |
//! | `checkpoint` | the checkpoint: how far a sink has come, as the bytes it keeps |
//! | `sink_probe` | whether the sink's configuration keeps what it promises |
//! | `outbox_reader` | the seam to an outbox: lease, batch, cursor, ack |
//! | `poll`, `cdc` | the outbox read from its table, and from PostgreSQL's log |
//! | `listing` | what a person sees of the outbox |
//! | `options`, `metrics`, `health` | bounds; what is counted; whether it gets anywhere |

mod batch_progress;
mod blame;
#[cfg(feature = "postgres")]
pub mod cdc;
mod checkpoint;
mod exactly_once;
pub(crate) mod health;
mod listing;
mod metrics;
mod options;
mod outbox_reader;
pub mod poll;
mod run;
mod sink_probe;
mod transaction_split;

pub use listing::{EventDetail, EventFilter, EventStatus, EventSummary, LOOKED_EVENTS_MAX, MissingPrivilege};
pub use metrics::RelayMetrics;
pub use options::{Poison, RelayOptions};
pub use outbox_reader::{
    Batch, Lag, LeftOut, OutboxLineage, OutboxReader, OutboxReaderError, Parked, Pending, Position, Pruned,
    Rebase, Settled, SinkCheckpoint,
};
pub use run::{Relay, RelayError, RelayStats, RelayStopHandle, Wake};
