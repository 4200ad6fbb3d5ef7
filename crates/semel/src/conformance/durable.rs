//! Laws of durability: what was acknowledged survives a restart. Stores that are not durable skip them.

use super::Harness;
use super::context::{Trial, completed, decision, finish};
use super::retention::sweep_all;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::Effect;
use crate::intent::state::{Ruling, State};
use crate::store::{Claim, Decide, Decided, Finished};

/// A claim in progress is in progress after reopening, and its owner may finish it.
///
/// Otherwise a restart of the store lets others run what is already running.
pub async fn reopening_keeps_a_claim<H: Harness>(harness: &H) {
    let trial = Trial::of("reopening_keeps_a_claim", harness).await;
    let claim = Claim { effect: Effect::Keyed, ..trial.claim("one") };
    let ticket = trial.run(&claim).await;
    let lapsing = trial.claim("lapsed");
    trial.lapsed(harness, &lapsing).await;
    let before = trial.record(&claim).await;
    let Some(trial) = trial.reopened(harness).await else { return };
    trial.unchanged(&claim, &before, "reopening").await;
    trial.meet(&trial.claim("one"), "in flight").await;
    trial.equal(trial.run(&claim).await, ticket, "the owner's ticket");
    trial.equal(trial.finish(ticket, completed("after")).await, Finished::Recorded, "the outcome");
    trial.meet(&trial.claim("lapsed"), "uncertain").await;
}

/// A finished outcome is replayed byte for byte after reopening.
///
/// Otherwise finished work runs again after a restart.
pub async fn reopening_keeps_an_outcome<H: Harness>(harness: &H) {
    let trial = Trial::of("reopening_keeps_an_outcome", harness).await;
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
    let outcome = Outcome::new(201, bytes).header("x-bytes", vec![0xff, 0, 0xfe]).header("x-empty", "");
    let claim = trial.claim("done");
    trial.done(&claim, finish(Verdict::Completed, Some(outcome.clone()))).await;
    let unsure = trial.claim("unsure");
    let ticket = trial.done(&unsure, finish(Verdict::Uncertain, None)).await;
    let before = trial.record(&claim).await;
    let Some(trial) = trial.reopened(harness).await else { return };
    trial.unchanged(&claim, &before, "reopening").await;
    let met = trial.meet(&trial.claim("done"), "replay").await;
    trial.check(met.record.outcome == Some(outcome), "another outcome is replayed");
    trial.equal(trial.state(&unsure).await, State::Uncertain, "the uncertain one");
    trial.equal(trial.finish(ticket, completed("known")).await, Finished::Recorded, "its certain outcome");
}

/// A decision and its note survive reopening.
///
/// Otherwise it cannot be shown later who decided.
pub async fn reopening_keeps_a_decision<H: Harness>(harness: &H) {
    let trial = Trial::of("reopening_keeps_a_decision", harness).await;
    let claim = trial.claim("one");
    let ticket = trial.done(&claim, finish(Verdict::Uncertain, None)).await;
    let noted = Decide {
        by: "Zoë <zoe@example.com>".to_owned(),
        why: "ledger: 'none'; see \"case\" 7\nnot applied".to_owned(),
        ..decision(ticket.epoch, Ruling::NotApplied)
    };
    let answer = trial.decide(&claim, noted).await;
    trial.check(matches!(answer, Decided::Recorded), format_args!("it was answered {answer:?}"));
    let before = trial.record(&claim).await;
    let Some(trial) = trial.reopened(harness).await else { return };
    trial.unchanged(&claim, &before, "reopening").await;
    trial.equal(trial.finish(ticket, completed("late")).await, Finished::Stale, "the last owner's outcome");
    trial.run(&trial.claim("one")).await;
}

/// Epochs keep rising after reopening, even if every record was swept before.
///
/// Otherwise a zombie that outlived the restart holds the ticket of the current owner.
pub async fn epochs_rise_over_reopening<H: Harness>(harness: &H) {
    let trial = Trial::of("epochs_rise_over_reopening", harness).await;
    let claim = trial.claim("one");
    let zombie = trial.expired(harness, &claim).await;
    sweep_all(&trial).await;
    let Some(trial) = trial.reopened(harness).await else { return };
    let ticket = trial.run(&claim).await;
    trial.check(ticket.epoch > zombie.epoch, format_args!("{:?} after {:?}", ticket.epoch, zombie.epoch));
    trial.equal(trial.finish(zombie, completed("zombie")).await, Finished::Stale, "the zombie's outcome");
}
