//! Every status and event, as a table.

use super::*;

const NOW: StoreTime = StoreTime(1_000);
const ME: WorkerId = WorkerId(7);
const OTHER: WorkerId = WorkerId(8);

fn running() -> SagaRow {
    SagaRow { epoch: 3, ..SagaRow::started(Some(ME), NOW, None) }
}

fn undoing() -> SagaRow {
    SagaRow { status: Status::Undoing, undo: Some(UndoCause::Refused), ..running() }
}

fn waiting() -> SagaRow {
    SagaRow { status: Status::Waiting, worker: None, due_at: Some(StoreTime(2_000)), ..running() }
}

fn parked() -> SagaRow {
    let reason = Some(ParkReason::UnknownResult);
    SagaRow { status: Status::Parked, reason, worker: None, due_at: None, ..running() }
}

fn completed() -> SagaRow {
    SagaRow { status: Status::Completed, worker: None, expires_at: Some(StoreTime(9_000)), ..running() }
}

fn rows() -> [(&'static str, SagaRow); 7] {
    [
        ("running", running()),
        ("cancelled", SagaRow { cancelled: true, signals: 1, ..running() }),
        ("undoing", undoing()),
        ("waiting", waiting()),
        ("parked", parked()),
        ("completed", completed()),
        ("stale", SagaRow { epoch: 4, ..running() }),
    ]
}

fn events() -> [(&'static str, RowEvent); 14] {
    let (epoch, retention_ms) = (3, Some(100));
    [
        ("append", RowEvent::Append { epoch, undoing: false, heeds_cancel: false }),
        ("begin the pivot", RowEvent::Append { epoch, undoing: false, heeds_cancel: true }),
        ("append to undo", RowEvent::Append { epoch, undoing: true, heeds_cancel: false }),
        ("wait", RowEvent::Suspend { epoch, park: None, due_at: Some(StoreTime(1_500)), signals: 0 }),
        (
            "park",
            RowEvent::Suspend { epoch, park: Some(ParkReason::UnknownResult), due_at: None, signals: 0 },
        ),
        ("begin to undo", RowEvent::BeginUndo { worker: ME, epoch, cause: UndoCause::Refused }),
        ("end", RowEvent::End { epoch, heeds_cancel: false, retention_ms }),
        ("end before a pivot", RowEvent::End { epoch, heeds_cancel: true, retention_ms }),
        ("take", RowEvent::Take { worker: OTHER, orphaned: false }),
        ("take from one that ended", RowEvent::Take { worker: OTHER, orphaned: true }),
        ("signal", RowEvent::Signal),
        ("decide", RowEvent::Decide { epoch }),
        ("compensate", RowEvent::Compensate { epoch }),
        ("abandon", RowEvent::Abandon { epoch, retention_ms }),
    ]
}

/// What is answered, and the status afterwards where the row changes.
#[test]
fn every_status_and_event() {
    let table = "
        append:                   running=Done,- cancelled=Done,- undoing=Lost waiting=Lost parked=Lost completed=Lost stale=Lost
        begin the pivot:          running=Done,- cancelled=Refused undoing=Lost waiting=Lost parked=Lost completed=Lost stale=Lost
        append to undo:           running=Lost cancelled=Lost undoing=Done,- waiting=Lost parked=Lost completed=Lost stale=Lost
        wait:                     running=Done,waiting cancelled=Signalled,- undoing=Done,undoing waiting=Already parked=Already completed=Lost stale=Lost
        park:                     running=Done,parked cancelled=Signalled,- undoing=Done,parked waiting=Already parked=Already completed=Lost stale=Lost
        begin to undo:            running=Done,undoing cancelled=Done,undoing undoing=Lost waiting=Lost parked=Lost completed=Lost stale=Lost
        end:                      running=Done,completed cancelled=Done,completed undoing=Done,undone waiting=Lost parked=Lost completed=Already stale=Lost
        end before a pivot:       running=Done,completed cancelled=Signalled,- undoing=Done,undone waiting=Lost parked=Lost completed=Already stale=Lost
        take:                     running=Refused cancelled=Refused undoing=Refused waiting=Refused parked=Refused completed=Refused stale=Refused
        take from one that ended: running=Done,running cancelled=Done,running undoing=Done,undoing waiting=Refused parked=Refused completed=Refused stale=Done,running
        signal:                   running=Done,running cancelled=Done,running undoing=Done,undoing waiting=Done,waiting parked=Done,parked completed=Refused stale=Done,running
        decide:                   running=Refused cancelled=Refused undoing=Refused waiting=Refused parked=Done,waiting completed=Refused stale=Lost
        compensate:               running=Refused cancelled=Refused undoing=Refused waiting=Refused parked=Done,undoing completed=Refused stale=Lost
        abandon:                  running=Refused cancelled=Refused undoing=Refused waiting=Refused parked=Done,abandoned completed=Refused stale=Lost
    ";
    let mut found = String::from("\n");
    for (name, event) in events() {
        let cells = rows().map(|(row, before)| {
            let change = step(&before, &event, NOW);
            let after = match (change.row, change.writes_entries) {
                (Some(row), true) => format!(",{}", row.status.as_str()),
                (None, true) => ",-".to_owned(),
                (None, false) => String::new(),
                (Some(_), false) => ",no entries".to_owned(),
            };
            format!("{row}={:?}{after}", change.answer)
        });
        found += &format!("        {:<25} {}\n", format!("{name}:"), cells.join(" "));
    }
    assert_eq!(found.trim_end(), table.trim_end());
}

#[test]
fn what_ended_never_changes() {
    for status in Status::ALL.into_iter().filter(|status| status.is_ended()) {
        let row = SagaRow { status, undo: None, ..completed() };
        for (name, event) in events() {
            assert_eq!(step(&row, &event, NOW).row, None, "{} {name}", status.as_str());
        }
    }
}

#[test]
fn the_epoch_never_falls_and_rises_with_each_change_of_hands() {
    for (row_name, before) in rows() {
        for (name, event) in events() {
            let Some(after) = step(&before, &event, NOW).row else { continue };
            let hands = matches!(
                event,
                RowEvent::Take { .. }
                    | RowEvent::BeginUndo { .. }
                    | RowEvent::Decide { .. }
                    | RowEvent::Compensate { .. }
                    | RowEvent::Abandon { .. }
            );
            assert_eq!(after.epoch, before.epoch + u64::from(hands), "{row_name} {name}");
        }
    }
}

#[test]
fn what_is_due_is_taken_and_what_is_not_waits() {
    let take = RowEvent::Take { worker: OTHER, orphaned: false };
    for (now, answer) in [(1_999, RowAnswer::Refused), (2_000, RowAnswer::Done)] {
        assert_eq!(step(&waiting(), &take, StoreTime(now)).answer, answer);
    }
    let taken = step(&waiting(), &take, StoreTime(2_000)).row.unwrap();
    assert_eq!((taken.status, taken.worker, taken.due_at), (Status::Running, Some(OTHER), None));
    // One that is undone stays so, and a parked one whose lookup is due goes on.
    let undo = SagaRow { status: Status::Parked, due_at: Some(NOW), worker: None, ..undoing() };
    let taken = step(&undo, &take, NOW).row.unwrap();
    assert_eq!((taken.status, taken.undo), (Status::Undoing, Some(UndoCause::Refused)));
}

#[test]
fn a_signal_wakes_and_is_never_missed() {
    let woken = step(&waiting(), &RowEvent::Signal, NOW).row.unwrap();
    assert_eq!((woken.due_at, woken.signals), (Some(NOW), 1));
    // Its worker is just letting go of it, and knew none.
    let signalled = step(&running(), &RowEvent::Signal, NOW).row.unwrap();
    let suspend = RowEvent::Suspend { epoch: 3, park: None, due_at: None, signals: 0 };
    let change = step(&signalled, &suspend, NOW);
    assert_eq!((change.answer, change.row), (RowAnswer::Signalled, None));
    assert!(change.writes_entries, "what was done meanwhile is not lost");
}

#[test]
fn cancelling_is_a_signal_that_is_remembered() {
    let cancelled = step(&waiting(), &RowEvent::Cancel, NOW).row.unwrap();
    assert!(cancelled.cancelled && cancelled.signals == 1 && cancelled.due_at == Some(NOW));
    assert_eq!(step(&cancelled, &RowEvent::Cancel, NOW).answer, RowAnswer::Already);
    assert_eq!(step(&undoing(), &RowEvent::Cancel, NOW).answer, RowAnswer::Refused);
    assert_eq!(step(&completed(), &RowEvent::Cancel, NOW).answer, RowAnswer::Refused);
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let begin = RowEvent::BeginUndo { worker: ME, epoch: 3, cause: UndoCause::Refused };
    let begun = step(&running(), &begin, NOW).row.unwrap();
    assert_eq!(step(&begun, &begin, NOW).answer, RowAnswer::Already);
    // Another worker took it meanwhile.
    let taken = SagaRow { worker: Some(OTHER), ..begun };
    assert_eq!(step(&taken, &begin, NOW).answer, RowAnswer::Lost);
    let end = RowEvent::End { epoch: 3, heeds_cancel: true, retention_ms: None };
    let ended = step(&running(), &end, NOW).row.unwrap();
    assert_eq!((ended.expires_at, step(&ended, &end, NOW).answer), (None, RowAnswer::Already));
}
