//! Outcomes on their way into the cache: beside the requests, bounded, and never older than what is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};

use super::{Shared, entry};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::observe::CacheFill;
use crate::store::{Lineage, Record, Store};

/// Outcomes that wait; one more is not kept in the cache.
pub(super) const WAITING_MAX: usize = 1_024;
/// Outcomes put there at the same time.
const TOGETHER: usize = 32;
/// How long after it was read an outcome may still be put there. Old news is worth little, and the longer it is on
/// its way the likelier somebody has withdrawn it.
const ON_THE_WAY_MAX: Duration = Duration::from_secs(5);

/// What was committed.
pub(super) struct Fill {
    pub(super) what: What,
    /// The authority's when it was asked. Once it has another one, this says nothing about its data.
    pub(super) lineage: Lineage,
    pub(super) since: Instant,
}

pub(super) enum What {
    /// Finished just now; the authority has the record.
    Finished(IntentId),
    /// Replayed by the authority, whose clock was this when it was asked.
    Replayed(Arc<Record>, StoreTime),
}

pub(super) async fn run<S: Store>(shared: Arc<Shared<S>>, mut waiting: mpsc::Receiver<Fill>) {
    let places = Arc::new(Semaphore::new(TOGETHER));
    while let Some(fill) = waiting.recv().await {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let result = one(&shared, fill).await;
            shared.metrics.fill(result);
            drop(place);
        });
    }
}

async fn one<S: Store>(shared: &Shared<S>, fill: Fill) -> CacheFill {
    if fill.since.elapsed() > ON_THE_WAY_MAX {
        return CacheFill::Dropped;
    }
    let (record, read_at) = match fill.what {
        What::Replayed(record, now) => (record, now),
        What::Finished(id) => {
            // The earliest it can be there: what is read now is believed no longer than it should be.
            let Some(now) = shared.clock.at(Instant::now()) else { return CacheFill::Error };
            match shared.authority.get(id).await {
                Ok(Some(record)) => (Arc::new(record), now.earliest),
                Ok(None) => return CacheFill::Dropped,
                Err(_) => return CacheFill::Error,
            }
        }
    };
    if !entry::is_kept(&record) || shared.lineage.last() != fill.lineage {
        return CacheFill::Dropped;
    }
    // Redis takes it out of its memory by its own clock; whether it counts is said by the authority's (see `clock`).
    let left_ms = record.head.expires_at.map_or(u64::MAX, |at| at.since_ms(read_at));
    let name = entry::name(fill.lineage, &record.intent.id());
    let bytes = entry::finished(&name, &record, read_at);
    match shared.put(&name, &bytes, left_ms.min(shared.max_age_ms)).await {
        Ok(true) => CacheFill::Stored,
        Ok(false) => CacheFill::Overtaken,
        Err(_) => CacheFill::Error,
    }
}
