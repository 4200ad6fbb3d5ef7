//! `replay`: stored journals against today's code.

use std::path::Path;

use semel::saga::test::{ReplayReport, ReplayedAs, replay};
use semel::saga::{Definition, Loaded, Saga, SagaEnd, SagaResult, SagasBuilder};
use semel::{Key, Scope};

use super::depot::{Depot, Mistake, charge, hold, mail, order};
use super::shop::journal;

/// What a worker of yesterday's code wrote.
async fn yesterday(refused: bool) -> Loaded {
    let depot = Depot::with(if refused { Mistake::RefusesAndTakes } else { Mistake::None });
    let mut sagas = SagasBuilder::new(journal(), depot);
    let orders = sagas.register(order).unwrap();
    let sagas = sagas.start();
    let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new("order-1001").unwrap());
    let number = sagas.submit(&orders, &acme, &key, &3).await.unwrap();
    let end = sagas.end(&orders, number).await.unwrap();
    assert_eq!(matches!(end, SagaEnd::Undone { .. }), refused);
    sagas.journal().load(number).await.unwrap().unwrap()
}

fn stored(loaded: &[(&str, &Loaded)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, loaded) in loaded {
        std::fs::write(folder.path().join(name), loaded.export().unwrap()).unwrap();
    }
    folder
}

fn on(folder: &Path, today: impl Into<Definition<Depot, u32, String>>) -> ReplayReport {
    replay(folder, Depot::with(Mistake::None)).saga(today).run().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_exported_saga_is_read_as_it_was() {
    let loaded = yesterday(false).await;
    let again = Loaded::import(loaded.export().unwrap().as_bytes()).unwrap();
    assert_eq!(again.entries, loaded.entries);
    let of = |loaded: &Loaded| {
        let record = &loaded.record;
        (
            record.intent.clone(),
            record.input.clone(),
            record.outcome.clone(),
            record.row.status,
            record.version,
        )
    };
    assert_eq!(of(&again), of(&loaded));
}

#[tokio::test(start_paused = true)]
async fn the_code_that_wrote_a_journal_asks_for_the_same() {
    let (completed, undone) = (yesterday(false).await, yesterday(true).await);
    // As it was in between: whatever a deploy meets.
    let mut parts = vec![("done.json".to_owned(), completed.clone()), ("undone.json".to_owned(), undone)];
    for entries in 0..completed.entries.len() {
        let mut part = completed.clone();
        part.entries.truncate(entries);
        part.record.row.status = semel::saga::Status::Running;
        part.record.outcome = None;
        parts.push((format!("part-{entries}.json"), part));
    }
    let named: Vec<_> = parts.iter().map(|(name, loaded)| (name.as_str(), loaded)).collect();
    let folder = stored(&named);
    let report = replay(folder.path(), Depot::with(Mistake::None)).saga(order).assert();
    assert_eq!(report.files.len(), parts.len());
}

/// Today's code in a variant, on a journal of yesterday.
async fn today<F, Fut>(code: F) -> ReplayedAs
where
    F: Fn(Saga<Depot>, u32) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = SagaResult<String>> + Send + 'static,
{
    let loaded = yesterday(false).await;
    let folder = stored(&[("order.json", &loaded)]);
    let definition = Definition::new("order", 2, code).step(hold).step(charge).step(mail);
    let mut report = on(folder.path(), definition);
    report.files.remove(0).result
}

#[tokio::test(start_paused = true)]
async fn a_step_added_since_a_version_is_no_change() {
    let result = today(|s: Saga<Depot>, amount| async move {
        s.run(hold, amount).await?;
        if s.since(2) {
            s.run(hold, 7).await?;
        }
        s.run(hold, amount + 1).await?;
        let (paid, s) = s.pivot(charge, amount * 100).await?;
        s.run(mail, paid.clone()).await;
        Ok(paid)
    });
    assert_eq!(result.await, ReplayedAs::Same);
}

fn change(result: ReplayedAs) -> semel::saga::test::ChangedStep {
    match result {
        ReplayedAs::Changed(changed) => changed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_input_is_named_with_both() {
    let changed = change(
        today(|s: Saga<Depot>, amount| async move {
            s.run(hold, amount).await?;
            s.run(hold, amount + 2).await?;
            let (paid, _) = s.pivot(charge, amount * 100).await?;
            Ok(paid)
        })
        .await,
    );
    assert_eq!(changed.step.as_deref(), Some("hold#1"));
    assert_eq!((changed.journal.as_deref(), changed.code.as_deref()), (Some("4"), Some("5")));
}

#[tokio::test(start_paused = true)]
async fn a_removed_step_and_one_that_was_added_without_a_version_are_named() {
    let removed = change(
        today(|s: Saga<Depot>, amount| async move {
            s.run(hold, amount).await?;
            let (paid, s) = s.pivot(charge, amount * 100).await?;
            s.run(mail, paid.clone()).await;
            Ok(paid)
        })
        .await,
    );
    assert_eq!(removed.step.as_deref(), Some("hold#1"), "{removed}");

    let added = change(
        today(|s: Saga<Depot>, amount| async move {
            s.run(hold, amount).await?;
            s.run(hold, amount + 1).await?;
            s.run(hold, amount + 2).await?;
            let (paid, s) = s.pivot(charge, amount * 100).await?;
            s.run(mail, paid.clone()).await;
            Ok(paid)
        })
        .await,
    );
    assert_eq!(added.step.as_deref(), Some("charge#0"), "{added}");
    assert_eq!(added.code.as_deref(), Some("hold#2 with 5"), "{added}");
}

#[tokio::test(start_paused = true)]
async fn a_renamed_step_is_named() {
    #[semel::step(keyed, leaves_nothing)]
    async fn reserve(_: semel::saga::At<'_, Depot>, amount: &u32) -> semel::saga::StepResult<u32> {
        panic!("nothing is called: {amount}")
    }
    let renamed = change(
        today(|s: Saga<Depot>, amount| async move {
            s.run(reserve, amount).await?;
            s.run(hold, amount + 1).await?;
            Ok(String::new())
        })
        .await,
    );
    assert_eq!(renamed.step.as_deref(), Some("hold#0"), "{renamed}");
    assert_eq!(renamed.code.as_deref(), Some("reserve#0 with 3"), "{renamed}");
}

#[tokio::test(start_paused = true)]
async fn an_input_that_todays_code_cannot_read_is_a_change_before_any_step_and_after() {
    let whole = yesterday(false).await;
    let mut fresh = whole.clone();
    fresh.entries.clear();
    fresh.record.row.status = semel::saga::Status::Running;
    fresh.record.outcome = None;
    let folder = stored(&[("fresh.json", &fresh), ("whole.json", &whole)]);
    let today = Definition::new("order", 1, |_: Saga<Depot>, sku: String| async move {
        Ok::<_, semel::saga::Refused>(sku)
    });
    let report = replay(folder.path(), Depot::with(Mistake::None)).saga(today).run().unwrap();
    assert_eq!(report.failed().count(), 2, "{report}");
    for file in report.files {
        let changed = change(file.result);
        assert!(changed.why.contains("the saga's input cannot be read"), "{changed}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_replayed_is_no_success() {
    let mut newer = yesterday(false).await;
    newer.record.version = 9;
    let mut other = newer.clone();
    other.record.name = "checkout".to_owned();
    let folder = stored(&[("newer.json", &newer), ("other.json", &other)]);
    std::fs::write(folder.path().join("torn.json"), "{\"semel_saga\": 1").unwrap();
    std::fs::write(folder.path().join("future.json"), "{\"semel_saga\": 2}").unwrap();
    let report = on(folder.path(), order);
    assert_eq!(report.failed().count(), 4, "{report}");
    let text = report.to_string();
    for part in
        ["no definition of order version 9", "checkout version 9", "newer semel", "not an exported saga"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = replay(empty.path(), Depot::with(Mistake::None)).saga(order).run().unwrap_err();
    assert!(error.to_string().contains("semel saga export"), "{error}");
}
