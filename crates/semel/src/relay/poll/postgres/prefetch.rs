//! The chunk after the one that is being published, read meanwhile.
//!
//! Reading is the database's work and publishing the broker's: one after the other each would wait half of the time. What
//! is read ahead is not written down and not sent before everything ahead of it is done; it is only there already.
//!
//! **It cannot be stale.** A window is what two snapshots make it, so its events never change. What may change is whether
//! an event is held behind a parked one, and only the owner of its lane changes that: whenever it does, what was read ahead
//! is thrown away. And it is of use only to the same lanes under the same epochs, at the place it was read for.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::leased_session::LeasedSession;
use super::options::Outbox;
use super::partition_group::PartitionGroup;
use super::read::{Chunk, read};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::store::postgres::connect::Path;

/// A chunk on its way. Dropped, it is given up.
pub(super) struct Prefetch {
    of: PartitionGroup,
    task: JoinHandle<Result<Chunk, OutboxReaderError>>,
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prefetch {
    /// The connection is busy with it.
    pub(super) fn is_under_way(&self) -> bool {
        !self.task.is_finished()
    }

    fn is_of(&self, group: &PartitionGroup) -> bool {
        let place = |group: &PartitionGroup| (group.low.clone(), group.window.clone());
        (&self.of.lanes, &self.of.epochs, place(&self.of)) == (&group.lanes, &group.epochs, place(group))
    }
}

impl LeasedSession {
    /// Begins to read what comes behind the chunk that a group has written down. Not where lanes are at several places,
    /// whose turns would throw away each other's; and not behind a pooler, where a read may be a transaction of several
    /// statements, and nothing else may come between them.
    pub(super) fn read_ahead(&mut self, outbox: &Arc<Outbox>) {
        self.ahead = None;
        let [group] = &self.groups[..] else { return };
        if self.session.path != Path::Direct {
            return;
        }
        let mut of = group.clone();
        let Some(window) = &mut of.window else { return };
        let Some(until) = window.recorded.take() else { return };
        window.after = until;
        let (outbox, session, group) = (Arc::clone(outbox), Arc::clone(&self.session), of.clone());
        let task = tokio::spawn(async move { read(&session, &outbox, &group).await });
        self.ahead = Some(Prefetch { of, task });
    }

    /// The chunk that is written down, or else the next one of the group's window.
    pub(super) async fn chunk(&mut self, outbox: &Outbox, at: usize) -> Result<Chunk, OutboxReaderError> {
        let Some(group) = self.groups.get(at).cloned() else { return Ok(Chunk::default()) };
        let ahead = self.ahead.take_if(|ahead| ahead.is_of(&group));
        let session = Arc::clone(&self.session);
        self.keep_while(outbox, async {
            if let Some(mut ahead) = ahead
                && let Ok(chunk) = (&mut ahead.task).await
            {
                return chunk;
            }
            read(&session, outbox, &group).await
        })
        .await
    }
}
