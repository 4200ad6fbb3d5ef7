//! Parked events that are due: tried again, in the order of their keys.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::types::ToSql;

use super::Outbox;
use super::group::Group;
use super::link::{Link, get};
use super::read::{bound, columns};
use crate::relay::source::{Pending, Settled, SourceError};

/// Most parked events of one key in a batch.
const OF_KEY_MAX: i64 = 100;

/// Parked events on their way again.
pub(super) struct Retry {
    pub(super) ns: Vec<i64>,
    /// The key of each.
    keys: Vec<String>,
    /// Keys of which nothing is left: somebody skipped it.
    empty: Vec<String>,
    /// The lanes they are of.
    lanes: Group,
}

impl Link {
    /// What is due of our lanes.
    pub(super) async fn due(&self, outbox: &Outbox) -> Result<Option<(Retry, Vec<Pending>)>, SourceError> {
        let owned: Vec<(i16, i64)> = self
            .groups
            .iter()
            .flat_map(|group| group.lanes.iter().copied().zip(group.epochs.iter().copied()))
            .collect();
        let lanes: Vec<i16> = owned.iter().map(|(lane, _)| *lane).collect();
        let values: [&(dyn ToSql + Sync); 3] = [&lanes, &OF_KEY_MAX, &bound(outbox.options.bounds.bytes_max)];
        let rows = self.query(&outbox.statements.due, &values).await?;
        let Some(first) = self.groups.first().filter(|_| !rows.is_empty()) else { return Ok(None) };
        let (mut retry, mut events) = (
            Retry {
                ns: Vec::new(),
                keys: Vec::new(),
                empty: Vec::new(),
                lanes: Group { lanes: Vec::new(), epochs: Vec::new(), low: first.low.clone(), window: None },
            },
            Vec::new(),
        );
        for row in &rows {
            let lane: i16 = get(row, 14)?;
            if let Some((_, epoch)) = owned.iter().find(|(owned, _)| *owned == lane)
                && !retry.lanes.lanes.contains(&lane)
            {
                retry.lanes.lanes.push(lane);
                retry.lanes.epochs.push(*epoch);
            }
            let (n, key): (i64, String) = (get(row, 0)?, get(row, 13)?);
            if n == 0 {
                retry.empty.push(key);
                continue;
            }
            events.push(Pending { event: Arc::new(columns(row)?.event()), held: false });
            retry.ns.push(n);
            retry.keys.push(key);
        }
        Ok(Some((retry, events)))
    }

    /// What became of them.
    pub(super) async fn retried(
        &self,
        outbox: &Outbox,
        retry: &Retry,
        settled: &[Settled],
    ) -> Result<(), SourceError> {
        let (mut confirmed, mut failed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        // Of a key that is parked again: whether for good.
        let mut again: HashMap<&str, bool> = HashMap::new();
        for ((n, key), settled) in retry.ns.iter().zip(&retry.keys).zip(settled) {
            match settled {
                Settled::Confirmed => confirmed.push(*n),
                Settled::Parked { error, for_good, .. } => {
                    failed.push(*n);
                    errors.push(error.as_str());
                    again.insert(key, *for_good);
                }
                Settled::Held => {}
            }
        }
        let mut on: Vec<&str> = retry.keys.iter().chain(&retry.empty).map(String::as_str).collect();
        on.sort_unstable();
        on.dedup();
        on.retain(|key| !again.contains_key(key));
        let (later, for_good): (Vec<&str>, Vec<bool>) = again.into_iter().unzip();
        let pause_ms = outbox.options.retry_ms();
        let values: [&(dyn ToSql + Sync); 7] =
            [&confirmed, &failed, &errors, &later, &for_good, &on, &pause_ms];
        self.fenced(&outbox.statements.retried, &retry.lanes, &values).await
    }
}
