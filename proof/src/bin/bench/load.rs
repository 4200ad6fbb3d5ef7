//! Claims and finishes from many callers, each waiting for its own.

use std::sync::Arc;
use std::time::Instant;

use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};
use tokio::runtime::Runtime;

use crate::Failed;
use crate::times::Times;

/// What one load came to.
pub(crate) struct Loaded {
    pub(crate) pairs_per_s: f64,
    pub(crate) claims: Times,
    pub(crate) finishes: Times,
}

/// A body of 200 bytes: a typical small JSON answer.
pub(crate) fn outcome() -> Outcome {
    Outcome::new(201, "x".repeat(200))
}

pub(crate) fn fingerprint() -> Fingerprint {
    Recipe::default().bytes(b"request")
}

pub(crate) fn intent(name: &str) -> Result<Intent, Failed> {
    Ok(Intent::new(Scope::tenant("acme")?, Operation::new("payment.create")?, Key::new(name)?))
}

pub(crate) async fn pair(
    store: &impl Store,
    intent: Intent,
    times: Option<(&mut Times, &mut Times)>,
) -> Result<(), Failed> {
    let owner = Owner::random();
    let fingerprint = fingerprint();
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    let claim = Claim { intent, fingerprint, owner, effect: Effect::Opaque, lease_ms: 30_000, window };
    let begin = Instant::now();
    let Claimed::Run(ticket) = store.claim(claim).await? else {
        return Err("a fresh intent did not run".into());
    };
    let claimed = Instant::now();
    let finish = Finish { verdict: Verdict::Completed, outcome: Some(outcome()), retention: Retention::DAY };
    store.finish(ticket, finish).await?;
    if let Some((claims, finishes)) = times {
        claims.push(claimed - begin);
        finishes.push(claimed.elapsed());
    }
    Ok(())
}

/// `callers` tasks, each making `each` pairs one after the other.
pub(crate) fn run<S: Store>(
    runtime: &Runtime,
    store: &Arc<S>,
    callers: usize,
    each: usize,
    name: &str,
) -> Result<Loaded, Failed> {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (store, name) = (Arc::clone(store), name.to_owned());
            runtime.spawn(async move {
                let (mut claims, mut finishes) = (Times::default(), Times::default());
                for n in 0..each {
                    let intent = intent(&format!("{name}-{caller}-{n}"))?;
                    pair(&*store, intent, Some((&mut claims, &mut finishes))).await?;
                }
                Ok::<_, Failed>((claims, finishes))
            })
        })
        .collect();
    let (mut claims, mut finishes) = (Times::default(), Times::default());
    for task in tasks {
        let (theirs, also) = runtime.block_on(task)??;
        claims.extend(theirs);
        finishes.extend(also);
    }
    let pairs_per_s = (callers * each) as f64 / begin.elapsed().as_secs_f64();
    Ok(Loaded { pairs_per_s, claims, finishes })
}
