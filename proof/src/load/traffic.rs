//! Who calls, when, and for which intent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use testkit::seed::rng_for;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Failed;
use super::answers::What;
use super::party::Party;

/// Callers at once.
const TASKS: usize = 64;
/// A new intent this often.
const BIRTH: Duration = Duration::from_millis(5);
/// Calls go mostly to intents as young as this, so that duplicates meet.
const YOUNG: usize = 24;
/// In the end every intent is asked for by so many callers.
const ASKED_BY: usize = 3;
/// Everybody has an answer after this long, or never.
const PATIENCE: Duration = Duration::from_secs(90);

/// Calls from 64 tasks, until stopped.
pub struct Traffic {
    tasks: JoinSet<Result<(), Failed>>,
    stop: Arc<AtomicBool>,
    born: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Traffic {
    /// Starts to call. At most `intents` different ones.
    pub fn start(party: &Party, intents: usize, seed: u64) -> Self {
        let (stop, started) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let (born, calls) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (party, stop, born, calls) = (party.clone(), stop.clone(), born.clone(), calls.clone());
            let mut rng = rng_for(seed, task as u64);
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let age = started.elapsed().as_millis() / BIRTH.as_millis();
                    let alive = usize::try_from(age).unwrap_or(intents).clamp(1, intents);
                    born.fetch_max(alive, Ordering::SeqCst);
                    let oldest = if rng.u8(0..8) == 0 { 0 } else { alive.saturating_sub(YOUNG) };
                    party.call(rng.usize(oldest..alive)).await?;
                    calls.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(rng.u64(0..30))).await;
                }
                Ok(())
            });
        }
        Self { tasks, stop, born, calls }
    }

    /// Calls answered so far, whatever with.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Lets everybody come back from their last call; returns how many intents there are.
    pub async fn stop(mut self) -> Result<usize, Failed> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.born.load(Ordering::SeqCst))
    }
}

/// Everybody asks for every intent until answered or held.
pub async fn ask_all(party: &Party, intents: usize, seed: u64) -> Result<(), Failed> {
    let mut order: Vec<usize> = (0..intents * ASKED_BY).map(|at| at % intents.max(1)).collect();
    rng_for(seed, TASKS as u64).shuffle(&mut order);
    let (order, next, until) = (Arc::new(order), Arc::new(AtomicUsize::new(0)), Instant::now() + PATIENCE);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (party, order, next) = (party.clone(), order.clone(), next.clone());
        tasks.spawn(async move {
            while let Some(number) = order.get(next.fetch_add(1, Ordering::SeqCst)) {
                ask_again(&party, *number, until).await?;
            }
            Ok::<(), Failed>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Asks until answered or held. Who is neither at the end has shown that something is stuck.
pub async fn ask_again(party: &Party, number: usize, until: Instant) -> Result<(), Failed> {
    loop {
        let what = party.call(number).await?;
        match what {
            What::Done(_) | What::Unstored(_) | What::Replayed(_) | What::Held | What::Wrong(_) => {
                return Ok(());
            }
            _ if Instant::now() >= until => return Err(format!("intent {number} is still {what:?}").into()),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
