//! A load, a fault in the middle of it, everybody asked again, and the judgement.

use std::path::Path;
use std::time::Duration;

use proof::load::{Doubt, Judgement, Party, Settings, Traffic, What, ask_all, judge};
use semel::store::AnyStore;
use tempfile::TempDir;

/// Intents of one load at most.
pub(crate) const INTENTS_MAX: usize = 900;
/// Calls before the fault, and after it.
const CALLS_AROUND: usize = 300;
/// Nothing takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    dir: TempDir,
    pub(crate) party: Party,
    settings: Settings,
    seed: u64,
}

impl Scene {
    pub(crate) fn new(store: AnyStore) -> Self {
        Self::with(store, Settings::default())
    }

    pub(crate) fn with(store: AnyStore, settings: Settings) -> Self {
        let dir = TempDir::new().expect("a directory");
        let party = Party::new(store, dir.path(), settings).expect("a party");
        Self { dir, party, settings, seed: testkit::seed::seed() }
    }

    /// Another process's guard on another store, with the same downstream.
    pub(crate) fn with_dir(store: AnyStore, settings: Settings, dir: &Path) -> Party {
        Party::new(store, dir, settings).expect("a party")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Traffic, with `fault` in its middle. Afterwards the servers have to be whole, and everybody asks again
    /// until answered or held; then the judge looks.
    pub(crate) async fn under(self, name: &str, doubt: Doubt, fault: impl AsyncFnMut()) -> Judgement {
        let intents = self.traffic(fault).await;
        self.settled(name, intents, doubt).await
    }

    /// Only the traffic and its fault; returns how many intents there are.
    pub(crate) async fn traffic(&self, mut fault: impl AsyncFnMut()) -> usize {
        let traffic = Traffic::start(&self.party, INTENTS_MAX, self.seed);
        more_calls(&traffic).await;
        for _ in 0..rounds() {
            fault().await;
            more_calls(&traffic).await;
        }
        soon(traffic.stop()).await.expect("everybody comes back")
    }

    /// The answer a caller gets that asks again while the store does not answer in time.
    pub(crate) async fn answer_of(party: &Party, number: usize) -> What {
        for _ in 0..20 {
            let what = party.call(number).await.expect("the call ends");
            if what != What::Unavailable {
                return what;
            }
        }
        What::Unavailable
    }

    pub(crate) async fn settled(&self, name: &str, intents: usize, doubt: Doubt) -> Judgement {
        let mut drained = self.everybody_asks(&self.party, name, intents).await;
        // A caller that got "held" may have asked just before the owner of that claim gave it back: once more.
        let later = Self::with_dir(self.party.store().clone(), self.settings, self.dir());
        drained &= self.everybody_asks(&later, name, intents).await;
        let mut judgement = judge(&self.party, intents, doubt).await.expect("the judge can look");
        println!("{name}: {judgement}\nfigures: {} calls, {} effects", judgement.calls, judgement.effects);
        if !drained {
            judgement.objections.push("outcomes are still not recorded".to_owned());
        }
        judgement
    }

    /// Whether nothing was left undone; `party` takes no calls afterwards.
    async fn everybody_asks(&self, party: &Party, name: &str, intents: usize) -> bool {
        ask_all(party, intents, self.seed).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        party.drain(PATIENCE).await
    }
}

async fn more_calls(traffic: &Traffic) {
    let enough = traffic.calls() + CALLS_AROUND;
    soon(async {
        while traffic.calls() < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn rounds() -> usize {
    std::env::var("SEMEL_FAULT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes much too long")
}

/// Work on a server that blocks its thread.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
