//! The memory store against a plain map behind one lock.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use semel::IntentId;
use semel::store::memory::MemoryStore;
use tokio::runtime::Runtime;

use crate::Failed;
use crate::load;
use crate::table::Table;

pub(crate) fn measure(runtime: &Runtime, size: usize, table: &mut Table) -> Result<(), Failed> {
    let pairs = 40_000 * size;
    let intents: Vec<_> = (0..pairs).map(|n| load::intent(&format!("m-{n}"))).collect::<Result<_, _>>()?;

    // The floor: remember an outcome under an id, with no states, no fence and no clock.
    let map: Mutex<HashMap<IntentId, semel::Outcome>> = Mutex::default();
    let begin = Instant::now();
    for intent in &intents {
        let Ok(mut map) = map.lock() else { continue };
        map.insert(black_box(intent.id()), load::outcome());
    }
    let floor_ns = begin.elapsed().as_nanos() as f64 / pairs as f64;

    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = MemoryStore::new().records_max(usize::MAX);
    let begin = Instant::now();
    one.block_on(async {
        for intent in &intents {
            load::pair(&store, intent.clone(), None).await?;
        }
        Ok::<_, Failed>(())
    })?;
    let pair_ns = begin.elapsed().as_nanos() as f64 / pairs as f64;
    table.row(
        "memory: claim + finish, one thread",
        pair_ns,
        "ns",
        format!("{:.1} × one insert into a locked map", pair_ns / floor_ns),
    );

    let rate = |threads: usize| -> Result<f64, Failed> {
        let store = Arc::new(MemoryStore::new().records_max(usize::MAX));
        let each = pairs / threads;
        let chunks: Vec<Vec<_>> = intents.chunks(each).take(threads).map(<[_]>::to_vec).collect();
        let begin = Instant::now();
        let tasks: Vec<_> = chunks
            .into_iter()
            .map(|chunk| {
                let store = Arc::clone(&store);
                runtime.spawn(async move {
                    for intent in chunk {
                        load::pair(&*store, intent, None).await?;
                    }
                    Ok::<_, Failed>(())
                })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task)??;
        }
        Ok((each * threads) as f64 / begin.elapsed().as_secs_f64())
    };
    let (alone, both) = (rate(1)?, rate(2)?);
    table.row(
        "memory: pairs/s, two tasks",
        both,
        "/s",
        format!("{:.2} × one task ({alone:.0}/s)", both / alone),
    );
    Ok(())
}
