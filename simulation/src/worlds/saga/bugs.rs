//! Planted bugs: mistakes a person could make. Those of the row's decisions are here; search for `stage.has` for others.

use semel::StoreTime;
use semel::saga::{RowChange, RowDecider, RowEvent, SagaRow, Status, step};

/// All bugs that can be planted.
pub(super) const NAMES: &[&str] = &[
    "a signal is missed",
    "sleepers are forgotten",
    "lapsed workers keep their sagas",
    "parked sagas run again by themselves",
    "lost answers are not looked for",
    "a takeover reads an old journal",
    "the key differs by attempt",
    "an opaque step is declared keyed",
    "a lookup is believed at once",
    "an undo does not fence the forward key",
    "a cancelled saga ends as it is",
    "an atomic step does not look for its own result",
    "a kind of step has no limit",
];

/// The function the journal decides with.
pub(super) fn decider(planted: impl Fn(&str) -> bool) -> RowDecider {
    let with: [(&str, RowDecider); 5] = [
        ("a signal is missed", signal_is_missed),
        ("sleepers are forgotten", sleepers_are_forgotten),
        ("lapsed workers keep their sagas", lapsed_workers_keep_their_sagas),
        ("parked sagas run again by themselves", parked_run_again),
        ("a cancelled saga ends as it is", cancelled_ends),
    ];
    with.into_iter().find(|(name, _)| planted(name)).map_or(step, |(_, decider)| decider)
}

/// The worker lets go although a signal came in between.
fn signal_is_missed(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    match *event {
        RowEvent::Suspend { epoch, park, due_at, .. } => {
            let event = RowEvent::Suspend { epoch, park, due_at, signals: row.signals };
            step(row, &event, now)
        }
        _ => step(row, event, now),
    }
}

fn sleepers_are_forgotten(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    let mut change = step(row, event, now);
    if let (RowEvent::Suspend { .. }, Some(after)) = (event, &mut change.row) {
        after.due_at = None;
    }
    change
}

fn lapsed_workers_keep_their_sagas(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    match *event {
        RowEvent::Take { worker, .. } => step(row, &RowEvent::Take { worker, orphaned: false }, now),
        _ => step(row, event, now),
    }
}

/// As if a parked saga were one that failed: due again after a while.
fn parked_run_again(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    let mut change = step(row, event, now);
    if let (RowEvent::Suspend { .. }, Some(after)) = (event, &mut change.row)
        && after.status == Status::Parked
    {
        (after.status, after.reason, after.due_at) = (Status::Waiting, None, Some(now.plus_ms(1_000)));
    }
    change
}

/// Cancelling ends the saga at once, whatever happened.
fn cancelled_ends(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    let mut change = step(row, event, now);
    if let (RowEvent::Cancel, Some(after)) = (event, &mut change.row) {
        (after.status, after.worker, after.due_at) = (Status::Undone, None, None);
    }
    change
}
