//! Cache fills: in the background, bounded, and never over a newer entry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};

use super::{Shared, entry};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::observe::CacheFill;
use crate::store::{Lineage, Record, Store};

/// Fills that may wait; one more is dropped.
pub(super) const WAITING_MAX: usize = 1_024;
/// Fills at the same time.
const TOGETHER: usize = 32;
/// How long after it was read an outcome may still be cached. The older it is, the likelier it was withdrawn
/// meanwhile.
const FILL_AGE_MAX: Duration = Duration::from_secs(5);

/// A committed outcome to cache.
pub(super) struct Fill {
    pub(super) what: What,
    /// The authority's lineage when it was asked. Under another lineage this fill is dropped.
    pub(super) lineage: Lineage,
    pub(super) since: Instant,
}

pub(super) enum What {
    /// Finished just now; the record is read from the authority.
    Finished(IntentId),
    /// Replayed by the authority, with its clock at that time.
    Replayed(Arc<Record>, StoreTime),
}

pub(super) async fn run<S: Store>(shared: Arc<Shared<S>>, mut waiting: mpsc::Receiver<Fill>) {
    let permits = Arc::new(Semaphore::new(TOGETHER));
    while let Some(fill) = waiting.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let result = one(&shared, fill).await;
            shared.metrics.fill(result);
            drop(permit);
        });
    }
}

async fn one<S: Store>(shared: &Shared<S>, fill: Fill) -> CacheFill {
    if fill.since.elapsed() > FILL_AGE_MAX {
        return CacheFill::Dropped;
    }
    let (record, read_at) = match fill.what {
        What::Replayed(record, now) => (record, now),
        What::Finished(id) => {
            // The earliest time it can be at the authority, so that the entry is not trusted for too long.
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
    // Redis expires the entry by its own clock; whether it still counts is decided by the authority's (see `clock`).
    let left_ms = record.head.expires_at.map_or(u64::MAX, |at| at.since_ms(read_at));
    let name = entry::name(fill.lineage, &record.intent.id());
    let bytes = entry::finished(&name, &record, read_at);
    match shared.put(&name, &bytes, left_ms.min(shared.max_age_ms)).await {
        Ok(true) => CacheFill::Stored,
        Ok(false) => CacheFill::Overtaken,
        Err(_) => CacheFill::Error,
    }
}
