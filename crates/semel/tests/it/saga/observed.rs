//! What sagas tell operators: figures, and spans that name the saga and never its raw key.

use std::time::Duration;

use semel::observe::names;
use semel::saga::{
    DecidedBy, Definition, Journal, Registered, SagaAdmin, SagaError, SagaMetrics, Sagas, SagasBuilder,
    StepId,
};
use semel::{Key, Retention, Scope};

use super::shop::{Does, Shop, completed, definition, journal, options, order};
use crate::captured_log::CapturedLog;

struct Observed {
    sagas: Sagas<Shop>,
    order: Registered<String, String>,
    metrics: SagaMetrics,
}

impl Observed {
    fn new(journal: &semel::saga::memory::MemoryJournal, shop: &Shop, version: Option<u32>) -> Self {
        let metrics = SagaMetrics::new();
        let mut builder =
            SagasBuilder::new(journal.clone(), shop.clone()).options(options()).observed_by(&metrics);
        let of = match version {
            None => definition(true),
            Some(version) => Definition::new("order", version, order),
        };
        let order = builder.register(of).unwrap();
        Self { sagas: builder.start(), order, metrics }
    }

    async fn once(&self, key: &str) -> Result<semel::saga::SagaEnd<String>, SagaError> {
        let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap());
        self.sagas.once(&self.order, &acme, &key, &"book".to_owned()).await
    }

    #[track_caller]
    fn has(&self, lines: &[&str]) {
        let text = self.metrics.render();
        for line in lines {
            assert!(text.lines().any(|have| have == *line), "{line}\nis not in\n{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_sagas_and_steps_is_counted() {
    let (journal, shop) = (journal(), Shop::default());
    let one = Observed::new(&journal, &shop, None);
    one.has(&[r#"semel_saga_ended_total{saga="order",status="undone"} 0"#]);
    // Completed; the same key again finds it.
    assert_eq!(one.once("a").await.unwrap(), completed());
    assert_eq!(one.once("a").await.unwrap(), completed());
    one.has(&[
        r#"semel_saga_started_total{saga="order"} 1"#,
        r#"semel_saga_ended_total{saga="order",status="completed"} 1"#,
        r#"semel_saga_steps_total{saga="order",step="charge",op="pivot",result="done"} 1"#,
        r#"semel_duplicates_suppressed_total{rail="workflow"} 1"#,
        "semel_saga_at_work 0",
    ]);
    // Refused, so undone; the undo fails once.
    shop.script("truck", [Does::Refuses]);
    shop.script("release", [Does::Fails]);
    one.once("b").await.unwrap();
    one.has(&[
        r#"semel_saga_ended_total{saga="order",status="undone"} 1"#,
        r#"semel_saga_steps_total{saga="order",step="truck",op="forward",result="refused"} 1"#,
        r#"semel_saga_steps_total{saga="order",step="hold",op="undo",result="failed"} 1"#,
        r#"semel_saga_steps_total{saga="order",step="hold",op="undo",result="done"} 1"#,
    ]);
    // Unknown: looked up, and found.
    shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    assert_eq!(one.once("c").await.unwrap(), completed());
    one.has(&[
        r#"semel_saga_steps_total{saga="order",step="charge",op="pivot",result="unknown"} 1"#,
        r#"semel_saga_steps_total{saga="order",step="charge",op="lookup",result="applied"} 1"#,
    ]);
    // Parked: the mail fails for good.
    shop.script("mail", std::iter::repeat_n(Does::Refuses, 1));
    let Err(SagaError::Parked { number, .. }) = one.once("d").await else { panic!("it is parked") };
    tokio::time::sleep(Duration::from_secs(60)).await;
    one.has(&[
        r#"semel_saga_parked_total{saga="order",reason="forward_stuck"} 1"#,
        r#"semel_saga_open{status="parked"} 1"#,
        r#"semel_saga_open{status="running"} 0"#,
        "semel_saga_no_definition 0.0",
    ]);
    let text = one.metrics.render();
    let oldest =
        text.lines().find_map(|line| line.strip_prefix("semel_saga_parked_oldest_seconds ")).unwrap();
    assert!((59.0..70.0).contains(&oldest.parse::<f64>().unwrap()), "{oldest}");
    // A person ends it.
    let admin = SagaAdmin::new(journal.clone()).observed_by(&one.metrics);
    let epoch = journal.look(number).await.unwrap().unwrap().row.epoch;
    admin.abandon(number, epoch, Retention::Forever, &DecidedBy::new("ann", "by hand")).await.unwrap();
    one.has(&[r#"semel_saga_ended_total{saga="order",status="abandoned"} 1"#]);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_counted_and_steps_that_were_done_are_not_called_again() {
    let (journal, shop) = (journal(), Shop::default());
    let one = Observed::new(&journal, &shop, None);
    shop.script("truck", [Does::Hangs]);
    let lost = tokio::spawn(async move {
        let _ = one.once("k").await;
        one
    });
    while shop.calls("truck") == 0 {
        tokio::task::yield_now().await;
    }
    // Its worker is ended in the journal, as if its lease were over.
    let number = journal.list(Default::default()).await.unwrap()[0].number;
    let worker = journal.look(number).await.unwrap().unwrap().row.worker.unwrap();
    journal.leave(worker).await.unwrap();
    let other = Observed::new(&journal, &shop, None);
    assert_eq!(other.once("k").await.unwrap(), completed());
    other.has(&[
        r#"semel_saga_takeovers_total{saga="order"} 1"#,
        // The hold was done before; and `once` found the saga.
        r#"semel_duplicates_suppressed_total{rail="workflow"} 2"#,
        r#"semel_saga_ended_total{saga="order",status="completed"} 1"#,
        "semel_saga_leases_lost_total 0",
    ]);
    let one = tokio::time::timeout(Duration::from_secs(60), lost).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    one.has(&[
        "semel_saga_leases_lost_total 1",
        r#"semel_saga_takeovers_total{saga="order"} 0"#,
        r#"semel_saga_ended_total{saga="order",status="completed"} 0"#,
    ]);
    assert_eq!(shop.calls("hold"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_may_be_forgotten_is_counted() {
    let (journal, shop) = (journal(), Shop::default());
    let one = Observed::new(&journal, &shop, None);
    shop.script("hold", std::iter::repeat_n(Does::LosesTheCall, 100));
    // Its attempts are used up while the key is safe; a person has it tried again when it is not.
    let Err(SagaError::Parked { number, .. }) = one.once("k").await else { panic!("it is parked") };
    let calls = shop.calls("hold");
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    let epoch = journal.look(number).await.unwrap().unwrap().row.epoch;
    let admin = SagaAdmin::new(journal.clone());
    admin.retry(number, epoch, &DecidedBy::new("ann", "again")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(shop.calls("hold"), calls, "not called any more");
    one.has(&[
        r#"semel_saga_parked_total{saga="order",reason="guard_expired"} 1"#,
        r#"semel_saga_guard_expired_total{saga="order",step="hold"} 1"#,
    ]);
}

/// Its worker is gone, and the one that is left has an older version.
#[tokio::test(start_paused = true)]
async fn sagas_that_no_worker_can_run_are_counted() {
    let (journal, shop) = (journal(), Shop::default());
    let newer = Observed::new(&journal, &shop, Some(2));
    // The definition declares nothing: parked at once, and then tried again without a worker that knows it.
    let Err(SagaError::Parked { number, .. }) = newer.once("k").await else { panic!("it is parked") };
    newer.sagas.drain(Duration::from_secs(1)).await;
    let epoch = journal.look(number).await.unwrap().unwrap().row.epoch;
    let admin = SagaAdmin::new(journal.clone());
    admin.retry(number, epoch, &DecidedBy::new("ann", "again")).await.unwrap();
    let older = Observed::new(&journal, &shop, None);
    tokio::time::sleep(Duration::from_secs(20)).await;
    older.has(&["semel_saga_no_definition 0.0"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    older.has(&["semel_saga_no_definition 1.0", "semel_saga_overdue 1.0"]);
    let newer = Observed::new(&journal, &shop, Some(2));
    tokio::time::sleep(Duration::from_secs(60)).await;
    newer.has(&["semel_saga_no_definition 0.0", "semel_saga_overdue 0.0"]);
}

/// A refused saga with a lost answer, under a key that is a secret.
async fn scenario() -> Key {
    let (journal, shop) = (journal(), Shop::default());
    let one = Observed::new(&journal, &shop, None);
    shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    shop.script("mail", [Does::Refuses]);
    let Err(SagaError::Parked { .. }) = one.once("very-secret-order").await else { panic!("it is parked") };
    shop.script("truck", [Does::Refuses]);
    one.once("very-secret-other").await.unwrap();
    Key::new("very-secret-order").unwrap()
}

#[tokio::test(start_paused = true)]
async fn spans_and_logs_say_what_happens_and_never_show_the_key() {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    // Other tests use the same spans without a subscriber: everything is used once, then asked for again.
    scenario().await;
    tracing::callsite::rebuild_interest_cache();
    log.take();
    let secret = scenario().await;
    let text = log.take();
    let hash = format!("idempotency.key_hash=\"{}\"", secret.short_hash());
    let charge = StepId { name: "charge".to_owned(), nth: 0 };
    for wanted in [
        names::SPAN_SAGA_RUN,
        names::SPAN_SAGA_STEP,
        &hash,
        "saga=\"order\"",
        &format!("step={charge} op=\"pivot\" attempt=1"),
        &format!("step={charge} op=\"lookup\" attempt=0"),
        "step=hold#0 op=\"undo\" attempt=1",
        "outcome=\"applied\"",
        "outcome=\"refused\"",
        "outcome=\"parked\"",
        "outcome=\"undo\"",
        "the saga is parked",
        "what the saga did is undone",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    assert!(!text.contains("secret"), "{text}");
}
