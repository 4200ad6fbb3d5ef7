//! The laws of journals, in memory and in a SQLite file; servers are in `proof`.

use std::sync::Arc;

use semel::StoreTime;
use semel::conformance::journal::LAWS;
use semel::saga::memory::MemoryJournal;
use semel::saga::sql::{self, SqlJournal};
use semel::saga::{Journal, RowAnswer, RowChange, RowDecider, RowEvent, SagaRow, step};

#[tokio::test]
async fn in_memory_every_law_holds() {
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    for (_, law) in LAWS {
        law(&journal).await;
    }
}

#[tokio::test]
async fn in_sqlite_every_law_holds() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("app.db").display());
    sql::migrate(&url).await.unwrap();
    let journal: Arc<dyn Journal> = Arc::new(SqlJournal::open(&url).await.unwrap());
    for (name, law) in LAWS {
        println!("{name}");
        law(&journal).await;
    }
}

fn takes_without_an_epoch(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    let mut change = step(row, event, now);
    if let (RowEvent::Take { .. }, Some(after)) = (event, &mut change.row) {
        after.epoch = row.epoch;
    }
    change
}

fn appends_always(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    match event {
        RowEvent::Append { .. } => RowChange { answer: RowAnswer::Done, row: None, writes_entries: true },
        _ => step(row, event, now),
    }
}

fn undoes_in_the_same_epoch(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    let mut change = step(row, event, now);
    if let (RowEvent::BeginUndo { .. }, Some(after)) = (event, &mut change.row) {
        after.epoch = row.epoch;
    }
    change
}

fn misses_signals(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    match *event {
        RowEvent::Suspend { epoch, park, due_at, .. } => {
            step(row, &RowEvent::Suspend { epoch, park, due_at, signals: row.signals }, now)
        }
        _ => step(row, event, now),
    }
}

/// Runs one law, and says whether it noticed something.
fn notices(law: &str, journal: impl AsyncFnOnce() -> Arc<dyn Journal>) -> bool {
    let (_, run) = LAWS.iter().find(|(name, _)| *name == law).expect("a law of this name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = runtime.block_on(journal());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(run(&journal)))).is_err()
}

/// A batch that goes wrong is caught by the law that is about it.
#[test]
fn a_batch_that_breaks_a_law_is_caught() {
    type Plant = fn(SqlJournal) -> SqlJournal;
    let planted: [(Plant, &str); 4] = [
        (|journal| journal.deciding_with(appends_always), "a_lost_change_takes_no_other_with_it"),
        (|journal| journal.deciding_with(appends_always), "an_old_epoch_changes_nothing"),
        (|journal| journal.failing_together(), "a_change_that_fails_takes_no_other_with_it"),
        (|journal| journal.answering_by_position(), "sagas_started_together_keep_their_numbers"),
    ];
    for (plant, law) in planted {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("app.db").display());
        let journal = async || {
            sql::migrate(&url).await.unwrap();
            let journal: Arc<dyn Journal> = Arc::new(plant(SqlJournal::open(&url).await.unwrap()));
            journal
        };
        assert!(notices(law, journal), "{law} did not notice");
    }
}

/// Each planted bug is caught by the law that is about it.
#[test]
fn a_journal_that_breaks_a_law_is_caught() {
    let planted: [(RowDecider, &str); 4] = [
        (takes_without_an_epoch, "an_old_epoch_changes_nothing"),
        (appends_always, "an_atomic_step_of_an_old_epoch_does_not_run"),
        (undoes_in_the_same_epoch, "undoing_fences_what_went_forward"),
        (misses_signals, "no_signal_is_missed"),
    ];
    for (decide, law) in planted {
        let journal = async || {
            let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new().deciding_with(decide));
            journal
        };
        assert!(notices(law, journal), "{law} did not notice");
    }
}
