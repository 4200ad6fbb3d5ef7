//! Prefetch: reads the next chunk while the current one is published.
//!
//! Reading is the database's work and publishing the broker's: one after the other, each would be idle half of the
//! time. A prefetched chunk is neither recorded nor sent before everything ahead of it is acked.
//!
//! **It cannot be stale.** Two snapshots define a window, so its events never change. What may change is whether an
//! event is held behind a parked one, and only the owner of its partition (column `lane`) changes that: whenever it
//! does, it drops the prefetched chunk. The chunk is used only for the same partitions under the same epochs at the
//! same cursor.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::leased_session::LeasedSession;
use super::partition_group::PartitionGroup;
use super::read::{Chunk, read};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::store::postgres::connect::Path;

/// A chunk being read. Dropping it aborts the read.
pub(in crate::relay) struct Prefetch {
    of: PartitionGroup,
    task: JoinHandle<Result<Chunk, OutboxReaderError>>,
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prefetch {
    /// Whether the connection is still busy with it.
    pub(in crate::relay) fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    fn is_of(&self, group: &PartitionGroup) -> bool {
        let cursor = |group: &PartitionGroup| (group.low.clone(), group.window.clone());
        (&self.of.partitions, &self.of.epochs, cursor(&self.of))
            == (&group.partitions, &group.epochs, cursor(group))
    }
}

impl LeasedSession {
    /// Starts to prefetch the chunk after the recorded one. Not with several groups, which take turns and would discard
    /// each other's chunk. Not behind a pooler, where a read may be a transaction of several statements that nothing
    /// may interrupt.
    pub(in crate::relay) fn start_prefetch(&mut self) {
        self.prefetch = None;
        let [group] = &self.groups[..] else { return };
        if self.session.path != Path::Direct {
            return;
        }
        let mut of = group.clone();
        let Some(window) = &mut of.window else { return };
        let Some(until) = window.recorded.take() else { return };
        window.after = until;
        let (outbox, session, group) = (Arc::clone(&self.outbox), Arc::clone(&self.session), of.clone());
        let task = tokio::spawn(async move { read(&session, &outbox, &group).await });
        self.prefetch = Some(Prefetch { of, task });
    }

    /// The recorded chunk of a group, or else the next one of its window.
    pub(in crate::relay) async fn chunk_of(&mut self, at: usize) -> Result<Chunk, OutboxReaderError> {
        let Some(group) = self.groups.get(at).cloned() else { return Ok(Chunk::default()) };
        let prefetch = self.prefetch.take_if(|prefetch| prefetch.is_of(&group));
        let (outbox, session) = (Arc::clone(&self.outbox), Arc::clone(&self.session));
        self.renew_while(async {
            if let Some(mut prefetch) = prefetch
                && let Ok(chunk) = (&mut prefetch.task).await
            {
                return chunk;
            }
            read(&session, &outbox, &group).await
        })
        .await
    }
}
