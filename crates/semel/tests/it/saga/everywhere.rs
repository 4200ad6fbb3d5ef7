//! `everywhere`: a saga that is right passes in every history, and each mistake of its author is found, by name.

use std::time::Duration;

use semel::saga::test::{Everywhere, HistoryEnd, HistoryViolation, SagaRule, everywhere};
use semel::saga::{At, Definition, ParkReason, Saga, SagaResult, StepError, StepResult, StepTx};

use super::depot::{Depot, Mistake, choice, order};

fn with(mistake: Mistake) -> Everywhere<Depot> {
    everywhere(order, 3, move || Depot::with(mistake)).leaves(|depot| depot.left())
}

fn found(mistake: Mistake) -> Box<HistoryViolation> {
    match with(mistake).run() {
        Err(violation) => violation,
        Ok(report) => panic!("{mistake:?} was not found: {report}"),
    }
}

#[test]
fn a_saga_without_mistakes_passes_in_every_history() {
    let report = with(Mistake::None)
        .judge(|depot, end| {
            let ledger = depot.ledger();
            assert!(ledger.charges.len() <= 1, "charged {} times", ledger.charges.len());
            match end {
                HistoryEnd::Completed if ledger.mails.len() != 1 => Err("no mail".to_owned()),
                HistoryEnd::Undone if !ledger.holds.is_empty() => Err("a hold is left".to_owned()),
                _ => Ok(()),
            }
        })
        .assert();
    println!("figures: {report}");
    assert_eq!(report.calls, 4, "hold, hold, charge, mail");
    assert!(report.histories > 80, "{report}");
    assert!(report.completed > 30 && report.undone > 20, "{report}");
    assert_eq!(report.left_out, 0);
    assert_eq!(with(Mistake::None).assert(), with(Mistake::None).assert(), "each run is the same");
}

#[test]
fn each_mistake_is_found_by_name() {
    use SagaRule as Rule;
    for (mistake, rules) in [
        (Mistake::UndoIsNotIdempotent, &[Rule::UndoMayBeRepeated][..]),
        (Mistake::UndoFailsForNone, &[Rule::UndoOfPerhapsWorks]),
        (Mistake::UndoDoesNotFenceTheStep, &[Rule::AllOrUndone]),
        (Mistake::UndoNeverWorks, &[Rule::UndoWorks, Rule::UndoOfPerhapsWorks]),
        (Mistake::KeyIsIgnored, &[Rule::KeyedStepHonoursItsKey]),
        (Mistake::AnswersAnew, &[Rule::KeyedStepHonoursItsKey]),
        (Mistake::LookupNeverFinds, &[Rule::LookupTellsTheTruth]),
        (Mistake::LookupAlwaysFinds, &[Rule::LookupTellsTheTruth]),
        (Mistake::LookupFindsOnce, &[Rule::LookupTellsTheTruth]),
        (Mistake::RefusesAndTakes, &[Rule::RefusedLeavesNothing]),
        (Mistake::RandomInput, &[Rule::SameStepsEachTime]),
        (Mistake::RandomStep, &[Rule::SameStepsEachTime]),
        (Mistake::Clock, &[Rule::SameStepsEachTime]),
        (Mistake::RandomResult, &[Rule::SameStepsEachTime]),
        (Mistake::EffectOutsideOfSteps, &[Rule::OnlySteps]),
        (Mistake::WaitsByItself, &[Rule::OnlySteps]),
        (Mistake::Panics, &[Rule::CodeDoesNotPanic]),
    ] {
        let violation = found(mistake);
        assert!(rules.contains(&violation.rule), "{mistake:?}: {violation}");
    }
}

#[test]
fn a_violation_names_the_step_the_inputs_and_the_history() {
    let violation = found(Mistake::RandomInput);
    let text = violation.to_string();
    assert!(violation.what.contains("charge#0") && violation.what.contains("the journal has"), "{text}");
    assert!(violation.what.contains("the code asks for"), "{text}");

    let violation = found(Mistake::UndoIsNotIdempotent);
    let text = violation.to_string();
    assert!(violation.what.contains("undo of hold#1"), "{text}");
    assert!(text.contains("what was done:") && text.contains("its journal:"), "{text}");
    assert!(text.contains(&format!(".only({:?})", violation.history)), "{text}");
    // That history alone, again: the same.
    let again = with(Mistake::UndoIsNotIdempotent).only(violation.history.clone()).run().unwrap_err();
    assert_eq!(again, violation);
    assert_eq!(
        with(Mistake::None).only(violation.history.clone()).assert().histories,
        1,
        "{}",
        violation.history
    );
    let none = with(Mistake::None).only("crash at the weekend").run().unwrap_err();
    assert_eq!(none.rule, SagaRule::HistoryExists);
}

#[test]
fn a_lookup_is_disturbed_after_what_made_it_necessary() {
    for lost in ["answer", "request"] {
        for fault in ["crash before lookup of", "crash after lookup of", "answer lost: lookup of"] {
            let history = format!("{lost} lost: charge#0; {fault} charge#0");
            let report = with(Mistake::None).only(history.as_str()).assert();
            assert_eq!((report.histories, report.not_reached), (1, 0), "{history}: {report}");
        }
    }
    let violation = found(Mistake::LookupFindsOnce);
    assert!(violation.history.starts_with("answer lost: charge#0; "), "{violation}");
}

#[test]
fn the_undo_of_the_second_choice_is_disturbed() {
    let with = |mistake| everywhere(choice, 3, move || Depot::with(mistake)).leaves(|depot| depot.left());
    let report = with(Mistake::None).assert();
    println!("figures: {report}");
    assert!(report.undone > 30, "{report}");
    let second = Mistake::UndoOfTheSecondChoiceIsNotIdempotent;
    let violation = with(second).run().unwrap_err();
    assert_eq!(violation.rule, SagaRule::UndoMayBeRepeated, "{violation}");
    let first = "refused: hold#0; refused: charge#0; ";
    assert!(violation.history.starts_with(first), "{violation}");
    assert!(violation.what.contains("undo of hold_elsewhere#0"), "{violation}");
    assert_eq!(with(second).only(violation.history.clone()).run().unwrap_err(), violation);
    // The steps of the second way as well.
    let history = "refused: hold#0; request late, the next one refused: hold_elsewhere#0";
    assert_eq!(with(Mistake::None).only(history).assert().undone, 1);
    // Each way that a refusal opens opens another one: the bound is kept, also for a history that there is not.
    #[semel::saga(name = "stubborn")]
    async fn stubborn(s: Saga<Depot>, amount: u32) -> SagaResult<u32> {
        loop {
            if let Ok(held) = s.run(super::depot::hold, amount).await {
                return Ok(held);
            }
        }
    }
    let saga = || everywhere(stubborn, 3, || Depot::with(Mistake::None)).histories_max(100);
    let report = saga().assert();
    assert!(report.histories == 100 && report.left_out > 0, "{report}");
    assert_eq!(saga().only("never").run().unwrap_err().rule, SagaRule::HistoryExists);
}

#[test]
fn a_users_judge_counts_and_the_bound_is_kept() {
    let judged = everywhere(order, 3, || Depot::with(Mistake::None))
        .judge(|_, end| match end {
            HistoryEnd::Parked(ParkReason::ForwardStuck) => Err("somebody has to get up at night".to_owned()),
            _ => Ok(()),
        })
        .run()
        .unwrap_err();
    assert_eq!(judged.rule, SagaRule::YourJudge);
    assert!(judged.history.contains("mail#0"), "{judged}");

    let panics = everywhere(order, 3, || Depot::with(Mistake::None))
        .judge(|depot, _| {
            assert!(depot.ledger().mails.is_empty(), "mails");
            Ok(())
        })
        .run()
        .unwrap_err();
    assert_eq!((panics.rule, panics.history.as_str()), (SagaRule::YourJudge, "undisturbed"));

    let report = with(Mistake::None).histories_max(10).assert();
    assert_eq!(report.histories, 10);
    assert!(report.left_out > 40, "{report}");
}

#[tokio::test]
async fn it_runs_beside_a_runtime_and_takes_signals_and_sleeps() {
    #[semel::saga(name = "approved", steps(super::depot::mail))]
    async fn approved(s: Saga<Depot>, _: u32) -> SagaResult<String> {
        s.sleep(Duration::from_secs(3 * 24 * 3_600)).await;
        let by = s.signal::<String>("approval", Some(Duration::from_secs(3_600))).await;
        Ok(by.unwrap_or_else(|| "no answer".to_owned()))
    }
    let saga = || everywhere(approved, 1, || Depot::with(Mistake::None));
    let report = saga().signal("approval", &"ann").assert();
    assert!(report.histories > 5 && report.undone > 0, "{report}");
    saga().assert();
    let late = saga().within(Duration::from_secs(24 * 3_600)).run().unwrap_err();
    assert_eq!(late.rule, SagaRule::Ends);
}

#[semel::step(atomic, undo = cancel)]
async fn create(tx: &mut StepTx<'_>, _: At<'_, bool>, sku: &String) -> StepResult<i64> {
    let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
    db.execute("INSERT INTO orders (sku) VALUES (?1)", [sku])?;
    Ok(db.last_insert_rowid())
}

async fn cancel(tx: &mut StepTx<'_>, at: At<'_, bool>, _: &String, id: i64) -> StepResult<()> {
    let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
    let forgets = *at.app;
    let sql = if forgets { "SELECT ?1" } else { "DELETE FROM orders WHERE id = ?1" };
    db.query_row(sql, [id], |_| Ok(())).or_else(|error| match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(()),
        error => Err(error),
    })?;
    Ok(())
}

#[semel::step(opaque)]
async fn pay(_: At<'_, bool>, _: &i64) -> StepResult<()> {
    Ok(())
}

#[semel::saga(name = "rows")]
async fn rows(s: Saga<bool>, sku: String) -> SagaResult<i64> {
    let id = s.run(create, sku).await?;
    s.pivot(pay, id).await?;
    Ok(id)
}

#[test]
fn atomic_steps_have_a_database() {
    let saga = |forgets: bool| {
        everywhere(rows, "book".to_owned(), move || forgets)
            .sqlite(|db| db.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)"))
            .leaves(|world| {
                world.sqlite(|db| {
                    db.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap()
                })
            })
    };
    let report = saga(false).assert();
    assert!(report.completed > 5 && report.undone > 5, "{report}");
    assert_eq!(saga(true).run().unwrap_err().rule, SagaRule::AllOrUndone);
    // Without one the step refuses: that is no saga that passes.
    let none = everywhere(rows, "book".to_owned(), || false);
    let violation = none.run().unwrap_err();
    assert_eq!(violation.rule, SagaRule::Ends);
    assert!(violation.what.contains("no SQLite"), "{violation}");
    everywhere(rows, "book".to_owned(), || false).undisturbed(HistoryEnd::Undone).assert();
}

#[test]
fn a_definition_that_cannot_be_used_is_an_answer() {
    let twice = || Definition::<Depot, u32, String>::from(order).step(super::depot::mail);
    let violation = everywhere(twice(), 3, || Depot::with(Mistake::None)).run().unwrap_err();
    assert_eq!(violation.rule, SagaRule::StepsAreDeclared);

    async fn undeclared(s: Saga<Depot>, amount: u32) -> SagaResult<u32> {
        s.run(super::depot::hold, amount).await
    }
    let undeclared = Definition::new("undeclared", 1, undeclared);
    let violation = everywhere(undeclared, 3, || Depot::with(Mistake::None)).run().unwrap_err();
    assert_eq!(violation.rule, SagaRule::StepsAreDeclared, "{violation}");
}
