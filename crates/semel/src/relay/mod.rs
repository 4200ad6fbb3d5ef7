//! The relay publishes events from the outbox to a sink. It loses none, and keeps the order of each key.
//!
//! ```text
//!  outbox ── a batch, recorded ──▶ rounds ──▶ sink ── each confirmed, or parked ──▶ outbox: ack, under its epoch
//! ```
//!
//! What may go wrong, and what happens then:
//!
//! - **The relay dies.** The batch in flight is recorded and is sent again: the same events in the same order with the
//!   same ids.
//! - **The broker is down.** The relay retries the batch with backoff. While nothing gets through, either the broker or
//!   these events may be to blame. After a while the relay parks their keys, tries other events, and retries the parked
//!   keys by itself.
//! - **An event cannot be published** (a poison message). Its key is [parked](Parked), with a copy of the event and of
//!   those behind it; other keys continue. What succeeded since it failed decides whether it is to blame, never how
//!   many failed.
//! - **Readers must see each event once.** With a sink that stores a checkpoint beside the events,
//!   [`run_exactly_once`](Relay::run_exactly_once) compares it after every crash and doubt.
//! - **The broker may lose events.** The relay probes the sink when it starts, and logs each violation of the sink's
//!   guarantee as an error.
//! - **Two relays.** A lease grants outbox partitions. A relay that lost a lease cannot move the cursor: the epoch
//!   changed.
//! - **Another database has the same address.** Its [lineage](OutboxLineage) differs, so the relay stops and skips
//!   nothing.
//!
//! | module | what it does |
//! |---|---|
//! | `run` | the loop: batch, publish, ack; poll interval, backoff, retention, release |
//! | `publish` | what the loop asks of a strategy; attempts at a batch, drain, renewal of the lease |
//! | `rounds` | the strategy for every sink, at least once: calls until each event is confirmed or parked |
//! | `transactions`, `sink_state` | the strategy for a sink that commits a checkpoint in one transaction with the events, exactly once; what it knows about the sink |
//! | `batch_progress` | which events of a batch may be sent now; what the sink's results mean: max attempts, parking |
//! | `blame` | what is to blame when events fail: a poison message, or the sink |
//! | `transaction_split` | splits a batch into transactions, bisected until the poison message is found |
//! | `checkpoint` | encodes the sink's checkpoint |
//! | `sink_probe` | checks that the sink's configuration can keep its guarantee |
//! | `outbox_reader` | the interface to an outbox: lease, batch, cursor, ack |
//! | `poll`, `cdc` | read the outbox from its table, or from PostgreSQL's log |
//! | `postgres` | the outbox tables in PostgreSQL, for both: lease, windows, parked events, retention |
//! | `lease`, `parking` | what a relay knows of its lease; what is stored of events that are not confirmed |
//! | `row`, `table_checks` | from a row to an event; why tables are refused |
//! | `listing` | lists the outbox for people |
//! | `options`, `reader_options` | limits |
//! | `observer`, `metrics` | samples of the lag, spans; metrics and health |

mod batch_progress;
mod blame;
#[cfg(feature = "postgres")]
pub mod cdc;
mod checkpoint;
mod lease;
mod listing;
mod metrics;
mod observer;
mod options;
mod outbox_reader;
#[cfg(not(feature = "fault-injection"))]
#[allow(unreachable_pub)]
mod parking;
// Pure, and shared with the simulated outbox.
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub mod parking;
pub mod poll;
#[cfg(feature = "postgres")]
mod postgres;
mod publish;
mod reader_options;
mod rounds;
mod row;
mod run;
mod sink_probe;
mod sink_state;
mod table_checks;
mod transaction_split;
mod transactions;

pub use listing::{EventDetail, EventFilter, EventStatus, EventSummary, LOOKED_EVENTS_MAX, MissingPrivilege};
pub use metrics::RelayMetrics;
pub use options::{ATTEMPTS_MAX, Poison, RelayOptions};
pub use outbox_reader::{
    Batch, BatchCursor, Lag, LeftOut, OutboxLineage, OutboxReader, OutboxReaderError, Parked, Pending,
    Position, Pruned, Rebase, Settled, SinkCheckpoint,
};
pub use run::{Relay, RelayError, RelayStats, RelayStopHandle, Wake};
