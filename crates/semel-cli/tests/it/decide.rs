//! `semel resolve` and `semel release`, and how the guard applies them.

use semel::intent::fingerprint::Recipe;
use semel::{Answer, Body, Execution, GuardError, Intent, Outcome, Verdict};
use serde_json::json;

use crate::world::{
    World, block_on, completed, guarded, in_progress, lapsed, not_applied, refused, uncertain,
};

/// The next call with the same key and the same request.
fn call(world: &World, intent: &Intent) -> Result<Answer, GuardError> {
    block_on(async {
        let store = world.store().await;
        let fingerprint = Recipe::default().bytes(b"request");
        let work = |_| async { Execution::completed(Outcome::new(200, "ran")) };
        let answer = guarded(&store, intent).run(intent.clone(), fingerprint, work).await;
        store.close().await;
        answer
    })
}

#[test]
fn applied_is_replayed_with_the_outcome_that_was_given() {
    let world = World::new();
    let intent = uncertain();
    assert!(matches!(call(&world, &intent), Err(GuardError::Uncertain { .. })));
    let id = intent.id().to_string();
    let text = world
        .semel(&[
            "resolve",
            &id[..12],
            "--applied",
            "--code",
            "201",
            "--body",
            "{\"id\":9}",
            "--header",
            "Content-Type: application/json",
            "--by",
            "ana",
            "--why",
            "charge ch_9 is in the dashboard",
        ])
        .out();
    assert!(text.starts_with(&format!("{id} is completed now: callers get this outcome until 2")), "{text}");
    let answer = call(&world, &intent).unwrap();
    assert!(answer.replayed);
    let expected = Outcome::new(201, "{\"id\":9}").header("content-type", "application/json");
    assert_eq!((answer.outcome, answer.verdict), (expected, Verdict::Completed));

    let shown = world.semel(&["show", &id]).out();
    assert!(shown.contains("\ndecision   applied by ana, "), "{shown}");
    assert!(shown.contains(": charge ch_9 is in the dashboard\n"), "{shown}");
    let shown = world.semel(&["show", &id, "--json"]).json();
    assert_eq!(shown["decision"]["ruling"], "applied");
    assert_eq!(shown["decision"]["by"], "ana");

    // A second decision is refused.
    let again = world.semel(&["resolve", &id, "--not-applied", "--by", "bob", "--why", "?"]);
    assert!(again.failed(1).starts_with("refused: it is already completed; to have the work done again"));
}

#[test]
fn not_applied_runs_again() {
    let world = World::new();
    let intent = lapsed();
    let id = intent.id().to_string();
    let text = world.semel(&["resolve", &id, "--not-applied", "--by", "ana", "--why", "no charge"]).out();
    assert_eq!(text, format!("{id} is failed_retryable now: the next call with this key runs it\n"));
    let answer = call(&world, &intent).unwrap();
    assert!(!answer.replayed);
    assert_eq!(answer.outcome.body_bytes().unwrap(), "ran");
    // The person who released it stays on record.
    let shown = world.semel(&["show", &id, "--json"]).json();
    assert_eq!((&shown["state"], &shown["attempts"]), (&json!("completed"), &json!(2)));
    assert_eq!(shown["decision"]["ruling"], "not_applied");
}

#[test]
fn a_failure_and_an_outcome_that_is_not_kept() {
    let world = World::new();
    let (one, two) = (uncertain(), lapsed());
    let id = one.id().to_string();
    let declined =
        ["resolve", &id, "--failed", "--code", "402", "--body", "declined", "--by", "a", "--why", "b"];
    assert_eq!(world.semel(&[&declined[..], &["--json"]].concat()).json()["state"], "failed_final");
    let answer = call(&world, &one).unwrap();
    assert_eq!((answer.verdict, answer.outcome), (Verdict::FailedFinal, Outcome::new(402, "declined")));

    let id = two.id().to_string();
    world.semel(&["resolve", &id, "--applied", "--retention", "forever", "--by", "a", "--why", "b"]).out();
    let answer = call(&world, &two).unwrap();
    assert_eq!((answer.replayed, answer.outcome.body), (true, Body::NotKept));
    assert!(world.semel(&["show", &id]).out().contains("\nexpires    never\n"));
}

#[test]
fn a_body_from_a_file_keeps_its_bytes() {
    let world = World::new();
    let file = world.file("answer.bin");
    std::fs::write(&file, [0, 159, 146, 150]).unwrap();
    let id = uncertain().id().to_string();
    let body = format!("@{}", file.display());
    world.semel(&["resolve", &id, "--applied", "--body", &body, "--by", "a", "--why", "b"]).out();
    assert_eq!(call(&world, &uncertain()).unwrap().outcome, Outcome::new(200, vec![0, 159, 146, 150]));
    let shown = world.semel(&["show", &id]).out();
    assert!(shown.contains("200, body of 4 bytes (too long or not text; --body writes it)"), "{shown}");
}

#[test]
fn a_live_owner_cannot_be_decided_over() {
    let world = World::new();
    let id = in_progress().id().to_string();
    let line = world.semel(&["resolve", &id, "--not-applied", "--by", "a", "--why", "b"]).failed(1);
    assert!(line.starts_with("refused: its owner's lease is valid until 20"), "{line}");
    assert!(line.contains(" (12h") && line.ends_with("); wait, then check again"), "{line}");
}

#[test]
fn a_decision_about_something_else_than_was_seen_is_stale() {
    let world = World::new();
    let id = uncertain().id().to_string();
    let epoch = world.semel(&["show", &id, "--json"]).json()["epoch"].as_u64().unwrap();
    let decide = |epoch: u64| {
        let epoch = epoch.to_string();
        world.semel(&["resolve", &id, "--not-applied", "--by", "a", "--why", "b", "--epoch", &epoch])
    };
    let changed = "the intent has changed meanwhile; check it with `semel show` before you decide";
    assert_eq!(decide(epoch + 1).failed(1), changed);
    decide(epoch).out();
    assert_eq!(decide(epoch).failed(1), changed);
}

#[test]
fn a_released_outcome_runs_again_and_a_completed_one_only_after_yes() {
    let world = World::new();
    let id = completed().id().to_string();
    let release = ["release", &id, "--by", "ana", "--why", "refunded by hand"];
    let line = world.semel(&release).failed(1);
    assert!(line.ends_with("would do it again; add --yes if that is intended"), "{line}");
    assert!(call(&world, &completed()).unwrap().replayed);
    let text = world.semel(&[&release[..], &["--yes"]].concat()).out();
    assert_eq!(text, format!("{id} is failed_retryable now: the next call with this key runs it\n"));
    assert!(!call(&world, &completed()).unwrap().replayed);

    let id = refused().id().to_string();
    let released = world.semel(&["release", &id, "--by", "ana", "--why", "new card", "--json"]).json();
    assert_eq!(
        (&released["state"], &released["decision"]["ruling"]),
        (&json!("failed_retryable"), &json!("released"))
    );

    for (intent, why) in [
        (not_applied(), "nothing to release: the same key may run again already"),
        (lapsed(), "refused: it has no outcome to withdraw; record what happened with `semel resolve`"),
    ] {
        let id = intent.id().to_string();
        assert_eq!(world.semel(&["release", &id, "--by", "a", "--why", "b"]).failed(1), why);
    }
}

#[test]
fn who_and_why_are_required() {
    let world = World::new();
    let id = uncertain().id().to_string();
    for args in [
        &["resolve", &id, "--not-applied", "--why", "b"][..],
        &["resolve", &id, "--not-applied", "--by", "a"],
        &["resolve", &id, "--not-applied", "--by", " ", "--why", "b"],
        &["resolve", &id, "--by", "a", "--why", "b"],
        &["resolve", &id, "--applied", "--not-applied", "--by", "a", "--why", "b"],
        &["resolve", &id, "--not-applied", "--code", "200", "--by", "a", "--why", "b"],
        &["release", &id, "--by", "a"],
    ] {
        world.semel(args).failed(2);
    }
    assert_eq!(world.semel(&["show", &id, "--json"]).json()["state"], "uncertain");
}
