//! The claim/lease/finish protocol in virtual time: the real guard on the real memory store, with many
//! workers that crash and stall, callers that leave, a store that fails, and a person who decides.
//!
//! One seed is one history, the same every time. The judge knows only what the effect itself wrote down.

use std::sync::Arc;
use std::time::Duration;

use semel::intent::fingerprint::Recipe;
use semel::intent::state::{Head, Ruling, Step};
use semel::store::memory::MemoryStore;
use semel::store::{Decide, Filter, Store};
use semel::{Outcome, Retention, State, StoreTime, Verdict};
use tokio::time::Instant;

mod judge;
mod process;
mod work;
mod worker;

use judge::{History, Judge};
pub use judge::{Report, Violation};
use worker::{Fleet, World};

/// The function the store decides with; a mutated one is how the simulation is seen to fail.
pub type Decider = fn(Option<&Head>, &semel::intent::state::Event, StoreTime) -> Step;

/// How long one history takes at most, in virtual time.
const HORIZON: Duration = Duration::from_secs(60);

/// Runs the history of one seed and judges it.
pub fn run(seed: u64) -> Result<Report, Violation> {
    run_deciding_with(seed, semel::intent::state::step)
}

/// As [`run`], with a store that decides differently.
pub fn run_deciding_with(seed: u64, step: Decider) -> Result<Report, Violation> {
    // The guard's own jitter comes from this thread's generator: part of the seed, or nothing replays.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| Violation { seed, what: format!("no runtime: {error}") })?;
    runtime.block_on(history(seed, step))
}

async fn history(seed: u64, step: Decider) -> Result<Report, Violation> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let clock = move || StoreTime(1_000_000 + start.elapsed().as_millis() as u64);
    let store = MemoryStore::with_clock(clock).deciding_with(step);
    // Every fourth history is calm: nothing but duplicates and callers that leave. Then nothing may be in doubt.
    let calm = seed.is_multiple_of(4);
    let world = Arc::new(World {
        seed,
        calm,
        store: store.clone(),
        history: History::default(),
        recipe: Recipe::default(),
    });
    let mut fleet = Fleet::new(&world, &mut rng);

    let calls = rng.usize(20..80);
    for _ in 0..calls {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..1_500))).await;
        match rng.u32(0..100) {
            0..6 if !calm => fleet.crash_one(&mut rng),
            6..12 if !calm => fleet.stall_one(&mut rng),
            12..20 => decide_something(&world, &mut rng).await,
            20..24 => {
                let _ = store.sweep(rng.usize(1..10)).await;
            }
            _ => fleet.call_one(&mut rng),
        }
    }
    // Everybody wakes up, everything that can end ends.
    fleet.wake_all();
    let calls = tokio::time::timeout(HORIZON * 10, fleet.settle()).await;
    if calls.is_err() {
        return Err(Violation { seed, what: "a call never returned".to_owned() });
    }
    Judge::new(&world).judge().await
}

/// A person looks at one uncertain intent, finds out the truth, and says so.
async fn decide_something(world: &World, rng: &mut fastrand::Rng) {
    let filter = Filter { states: vec![State::Uncertain], limit: 100, ..Filter::default() };
    let Ok(page) = world.store.list(filter).await else { return };
    let Some(record) = rng.choice(&page.records) else { return };
    let key = record.intent.key().as_str();
    let effect = world.history.effect_of(key);
    let (ruling, outcome) = match effect {
        Some(body) => (Ruling::Applied(Verdict::Completed), Some(Outcome::new(200, body))),
        // Whoever may still do it is not dead yet: an honest person says nothing.
        None if world.history.is_running(key) => return,
        None => (Ruling::NotApplied, None),
    };
    let (by, why) = ("operator".to_owned(), "looked at the ledger".to_owned());
    let decide = Decide { seen: record.head.epoch, ruling, outcome, retention: Retention::DAY, by, why };
    let _ = world.store.decide(record.intent.id(), decide).await;
    world.history.decided();
}
