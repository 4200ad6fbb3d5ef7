//! Laws of concurrency: many callers at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Harness;
use super::context::{Trial, completed, decision, finish, name};
use crate::intent::identity::{Epoch, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention};
use crate::intent::state::Ruling;
use crate::store::{Claim, Claimed, Decided, Finish, Finished, Store};

const TASKS: usize = 64;
/// Pause between polls of a claim in flight, and how many polls at most.
const POLL_PAUSE: Duration = Duration::from_millis(2);
const POLLS_MAX: usize = 10_000;

/// Of 64 concurrent claimants exactly one runs; the others get "in flight".
///
/// Otherwise a client that retries in parallel is charged in parallel. A cache lookup is not a claim.
pub async fn of_many_claimants_one_runs<H: Harness>(harness: &H) {
    let trial = Trial::of("of_many_claimants_one_runs", harness).await;
    for round in 0..8 {
        let key = format!("round-{round}");
        let answers = together(&trial, key, Effect::Opaque).await;
        trial.equal(count(&answers, "run"), 1, "how many run");
        trial.equal(count(&answers, "in flight"), TASKS - 1, "how many got in flight");
    }
}

/// Of 64 concurrent takeovers of a lapsed claim exactly one runs.
///
/// Otherwise the crash of one worker starts all that were waiting.
pub async fn of_many_takeovers_one_runs<H: Harness>(harness: &H) {
    let trial = Trial::of("of_many_takeovers_one_runs", harness).await;
    let dead = trial.lapsed(harness, &Claim { effect: Effect::Keyed, ..trial.claim("one") }).await;
    let answers = together(&trial, "one".to_owned(), Effect::Keyed).await;
    trial.equal(count(&answers, "run"), 1, "how many run");
    trial.equal(count(&answers, "in flight"), TASKS - 1, "how many got in flight");
    let higher = answers.iter().all(|it| !matches!(it, Claimed::Run(ticket) if ticket.epoch <= dead.epoch));
    trial.check(higher, "the takeover has no higher epoch");
}

/// The same owner's claim sent many times at once is one claim: all get the same ticket.
///
/// Otherwise a transport that repeats a request locks the caller out of its own claim.
pub async fn a_claim_repeated_at_once_is_one_claim<H: Harness>(harness: &H) {
    let trial = Trial::of("a_claim_repeated_at_once_is_one_claim", harness).await;
    let claim = trial.claim("one");
    let tickets = trial
        .together(TASKS, |trial, _| {
            let claim = claim.clone();
            async move { trial.run(&claim).await }
        })
        .await;
    trial.check(tickets.iter().all(|ticket| *ticket == tickets[0]), "two tickets for one claim");
    trial.equal(trial.record(&claim).await.attempts, 1, "the number of attempts");
}

/// 64 tasks over 1,000 keys, each key claimed three times: every key runs once, under a unique epoch, and all others
/// get that run's outcome.
///
/// Otherwise the store keeps its guarantees only without load.
// Slow: three thousand claims, each synced to disk.
pub async fn each_of_many_keys_runs_once<H: Harness>(harness: &H) {
    const KEYS: usize = 1_000;
    let trial = Trial::of("each_of_many_keys_runs_once", harness).await;
    let mut requests: Vec<usize> = (0..KEYS).flat_map(|key| [key; 3]).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut requests);
    let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
    let results = trial
        .together(TASKS, |trial, _| {
            let (requests, next) = (requests.clone(), next.clone());
            async move {
                let mut results = Vec::new();
                while let Some(key) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    results.push((*key, once(&trial, *key).await));
                }
                results
            }
        })
        .await;
    let mut first: HashMap<usize, Outcome> = HashMap::new();
    let mut epochs: HashSet<Epoch> = HashSet::new();
    let mut replays = Vec::new();
    for (key, (epoch, outcome)) in results.into_iter().flatten() {
        match epoch {
            Some(epoch) => {
                trial.check(epochs.insert(epoch), format_args!("{epoch:?} was issued twice"));
                trial.check(first.insert(key, outcome).is_none(), format_args!("key {key} ran twice"));
            }
            None => replays.push((key, outcome)),
        }
    }
    trial.equal(first.len(), KEYS, "how many keys ran");
    trial.equal(replays.len(), 2 * KEYS, "how many were replayed");
    let foreign = replays.iter().find(|(key, outcome)| first.get(key) != Some(outcome));
    trial.check(foreign.is_none(), format_args!("another outcome than the run's: {foreign:?}"));
}

/// Runs and finishes, or waits for the outcome. Returns an epoch if this caller ran.
async fn once<S: Store>(trial: &Trial<S>, key: usize) -> (Option<Epoch>, Outcome) {
    let claim = trial.claim(&format!("key-{key}"));
    for _ in 0..POLLS_MAX {
        match trial.ask(&claim).await {
            Claimed::Run(ticket) => {
                // Unique to this run.
                let outcome = Outcome::new(200, claim.owner.as_bytes().to_vec());
                let done = finish(Verdict::Completed, Some(outcome.clone()));
                trial.equal(trial.finish(ticket, done).await, Finished::Recorded, "the owner's outcome");
                return (Some(ticket.epoch), outcome);
            }
            Claimed::InFlight(_) => tokio::time::sleep(POLL_PAUSE).await,
            Claimed::Replay(met) => match met.record.outcome.clone() {
                Some(outcome) => return (None, outcome),
                None => trial.fail("a replay without its outcome"),
            },
            other => trial.fail(format_args!("key {key} was answered {}", name(&other))),
        }
    }
    trial.fail("a claim stays in flight although its owner has finished")
}

/// Of many concurrent finishes of one claim exactly one is recorded.
///
/// Otherwise a finish whose answer was lost cannot be repeated.
pub async fn of_many_finishes_one_is_recorded<H: Harness>(harness: &H) {
    let trial = Trial::of("of_many_finishes_one_is_recorded", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.run(&claim).await;
    let answers = trial
        .together(TASKS, |trial, number| async move {
            let outcome = Outcome::new(200, number.to_string());
            (number, trial.finish(ticket, finish(Verdict::Completed, Some(outcome))).await)
        })
        .await;
    let recorded: Vec<_> = answers.iter().filter(|(_, answer)| *answer == Finished::Recorded).collect();
    trial.equal(recorded.len(), 1, "how many were recorded");
    let already = answers.iter().filter(|(_, answer)| *answer == Finished::Already).count();
    trial.equal(already, TASKS - 1, "how many were answered already");
    let kept = trial.record(&claim).await.outcome;
    trial.equal(kept, Some(Outcome::new(200, recorded[0].0.to_string())), "the outcome kept");
}

/// Of many concurrent decisions about one record exactly one is recorded.
///
/// Otherwise "applied" and "not applied" are both reported as recorded.
pub async fn of_many_decisions_one_is_recorded<H: Harness>(harness: &H) {
    let trial = Trial::of("of_many_decisions_one_is_recorded", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
    let answers = trial
        .together(TASKS, |trial, number| {
            let (claim, applied) = (claim.clone(), Ruling::Applied(Verdict::Completed));
            let ruling = if number % 2 == 0 { applied } else { Ruling::NotApplied };
            async move { trial.decide(&claim, decision(ticket.epoch, ruling)).await }
        })
        .await;
    let recorded = answers.iter().filter(|answer| matches!(answer, Decided::Recorded)).count();
    trial.equal(recorded, 1, "how many were recorded");
    let stale = answers.iter().filter(|answer| matches!(answer, Decided::Stale)).count();
    trial.equal(stale, TASKS - 1, "how many were answered stale");
}

/// A sweep during claims deletes only expired records: no live claim is lost, no outcome within its retention, and a
/// key that is claimed again at that moment belongs to the new owner.
///
/// Otherwise effects run twice during a sweep.
// Slow: many claims, each synced to disk.
pub async fn sweeping_while_claims_go_on_loses_nothing<H: Harness>(harness: &H) {
    const ROUNDS: usize = 12;
    const SWEEPERS: usize = 8;
    let trial = Trial::of("sweeping_while_claims_go_on_loses_nothing", harness).await;
    let busy = Arc::new(AtomicUsize::new(TASKS - SWEEPERS));
    trial
        .together(TASKS, |trial, task| {
            let busy = busy.clone();
            async move {
                if task < SWEEPERS {
                    while busy.load(Ordering::Acquire) > 0 {
                        trial.sweep(5).await;
                        tokio::task::yield_now().await;
                    }
                    return;
                }
                let mut highest = Epoch(0);
                for round in 0..ROUNDS {
                    // The same key every round: it expires at once, so the sweepers race with the next round.
                    let ticket = trial.run(&trial.claim(&format!("gone-{task}"))).await;
                    trial.check(ticket.epoch > highest, "an epoch did not rise over a sweep");
                    highest = ticket.epoch;
                    let gone = Finish { retention: Retention::Ms(0), ..completed("gone") };
                    trial.equal(
                        trial.finish(ticket, gone).await,
                        Finished::Recorded,
                        "a live claim's outcome",
                    );
                    trial.done(&trial.claim(&format!("kept-{task}-{round}")), completed("kept")).await;
                }
                busy.fetch_sub(1, Ordering::Release);
            }
        })
        .await;
    for task in SWEEPERS..TASKS {
        for round in 0..ROUNDS {
            trial.meet(&trial.claim(&format!("kept-{task}-{round}")), "replay").await;
        }
    }
}

/// All tasks claim one key at once.
async fn together<S: Store>(trial: &Trial<S>, key: String, effect: Effect) -> Vec<Claimed> {
    let claim = Claim { effect, ..trial.claim(&key) };
    trial
        .together(TASKS, |trial, _| {
            let claim = Claim { owner: Owner::random(), ..claim.clone() };
            async move { trial.ask(&claim).await }
        })
        .await
}

fn count(answers: &[Claimed], wanted: &str) -> usize {
    answers.iter().filter(|answer| name(answer) == wanted).count()
}
