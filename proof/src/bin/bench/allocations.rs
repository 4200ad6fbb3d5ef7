//! What the guard adds to the store: time and allocations per call.

use std::time::Instant;

use semel::guard::Guarded;
use semel::store::memory::MemoryStore;
use semel::{Execution, Guard};

use crate::table::Table;
use crate::{ALLOCATOR, Failed, load};

async fn first_calls(pay: &Guarded<MemoryStore>, calls: usize, round: &str) -> Result<f64, Failed> {
    let print = load::fingerprint();
    let intents: Vec<_> =
        (0..calls).map(|n| load::intent(&format!("{round}-{n}"))).collect::<Result<_, _>>()?;
    let begin = Instant::now();
    for intent in intents {
        pay.run(intent, print, |_| async { Execution::completed(load::outcome()) }).await?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / calls as f64)
}

async fn replays(pay: &Guarded<MemoryStore>, calls: usize) -> Result<f64, Failed> {
    let (print, intent) = (load::fingerprint(), load::intent("g-0")?);
    let begin = Instant::now();
    for _ in 0..calls {
        pay.run(intent.clone(), print, |_| async { Execution::completed(load::outcome()) }).await?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / calls as f64)
}

async fn bare(store: &MemoryStore, calls: usize) -> Result<f64, Failed> {
    let intents: Vec<_> = (0..calls).map(|n| load::intent(&format!("b-{n}"))).collect::<Result<_, _>>()?;
    let begin = Instant::now();
    for intent in intents {
        load::pair(store, intent, None).await?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / calls as f64)
}

pub(crate) fn measure(size: usize, table: &mut Table) -> Result<(), Failed> {
    let calls = 20_000 * size;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = MemoryStore::new().records_max(usize::MAX);
        let pay = Guard::new(store.clone()).operation("payment.create")?;
        let bare_ns = bare(&store, calls).await?;
        let first_ns = first_calls(&pay, calls, "g").await?;
        let replay_ns = replays(&pay, calls).await?;
        table.row(
            "guard: first call on memory",
            first_ns,
            "ns",
            format!("{:.1} × the store's claim + finish ({bare_ns:.0} ns)", first_ns / bare_ns),
        );
        table.row("guard: replay on memory", replay_ns, "ns", "");

        let count = |before: stats_alloc::Stats| {
            let change = ALLOCATOR.stats() - before;
            change.allocations as f64
        };
        let begin = ALLOCATOR.stats();
        replays(&pay, 1_000).await?;
        let replay = count(begin) / 1_000.0;
        let intents: Vec<_> =
            (0..1_000).map(|n| load::intent(&format!("a-{n}"))).collect::<Result<_, _>>()?;
        let begin = ALLOCATOR.stats();
        for intent in intents {
            pay.run(intent, load::fingerprint(), |_| async { Execution::completed(load::outcome()) }).await?;
        }
        let first = count(begin) / 1_000.0;
        table.row("guard: allocations, first call", first, "", "the work's own two included");
        table.row("guard: allocations, replay", replay, "", "");
        Ok(())
    })
}
