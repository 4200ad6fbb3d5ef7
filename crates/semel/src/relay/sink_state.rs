//! What an exactly-once relay knows about its sink, and about batches that it had to interrupt. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use super::outbox_reader::{Batch, Position, SinkCheckpoint};
use super::transaction_split::GivenUp;
use crate::outbox::Event;
use crate::sink::SinkError;

/// Most unfinished batches. Usually two: the checkpoint's batch comes between. Others belong to lost leases.
const UNFINISHED_MAX: usize = 8;

/// What the relay knows about the sink.
pub(super) struct SinkState {
    /// The sink's checkpoint, which only this relay can change. `None`: it has to be read from the sink.
    pub(super) known: Option<Option<SinkCheckpoint>>,
    /// The checkpoint when it was last known.
    before: Option<SinkCheckpoint>,
    /// Most events of the next transaction.
    pub(super) events_max: usize,
    /// Since the last backoff, the sink has committed a transaction (maybe an empty one), as its answer or its
    /// checkpoint showed. So the next backoff is short.
    pub(super) works: bool,
    /// A take-over of the sink was not answered and may still be running.
    pub(super) taking_over: bool,
    /// Batches that were interrupted because the checkpoint had to be read. Newest last.
    pub(super) unfinished: Vec<Unfinished>,
}

/// The results that a batch had before it was interrupted.
pub(super) struct Unfinished {
    position: Position,
    pub(super) given_up: Vec<GivenUp>,
    pub(super) doubt: Option<Doubt>,
}

/// A transaction of one event that ended in doubt. Taking over the sink again resolves the doubt. If the event was not
/// published, that counts as a failure, so a destination that never answers is found like one that refuses.
pub(super) struct Doubt {
    /// Index in the batch.
    pub(super) at: usize,
    event: Arc<Event>,
    /// How often in a row.
    pub(super) times: u32,
    pub(super) error: SinkError,
}

impl Default for SinkState {
    fn default() -> Self {
        let (known, before, events_max, unfinished) = (None, None, usize::MAX, Vec::new());
        Self { known, before, events_max, works: false, taking_over: false, unfinished }
    }
}

impl SinkState {
    /// The checkpoint has to be read from the sink.
    pub(super) fn forget(&mut self) {
        if let Some(known) = self.known.take() {
            self.before = known;
        }
    }

    /// The checkpoint was read. If it moved, a transaction in doubt was committed, or another relay worked meanwhile:
    /// that is progress like any other, so the backoff starts anew. Otherwise a sink that loses its confirms would be
    /// retried ever more slowly.
    pub(super) fn found(&mut self, checkpoint: Option<SinkCheckpoint>) {
        self.works |= checkpoint != self.before;
        self.known = Some(checkpoint);
    }

    /// The sink committed a transaction with this checkpoint.
    pub(super) fn committed(&mut self, checkpoint: SinkCheckpoint) {
        (self.known, self.works) = (Some(Some(checkpoint)), true);
    }

    /// It is in doubt whether a transaction of these events was committed.
    pub(super) fn in_doubt(&mut self, batch: &Batch, sending: &[usize], error: SinkError) {
        // It may have been too large for the timeout.
        if !sending.is_empty() {
            self.events_max = (sending.len() / 2).max(1);
        }
        let [at] = *sending else { return };
        let Some(event) = batch.events.get(at).map(|pending| Arc::clone(&pending.event)) else { return };
        let doubt = &mut self.unfinished(&batch.position).doubt;
        let before = doubt.as_ref().filter(|doubt| doubt.at == at).map_or(0, |doubt| doubt.times);
        *doubt = Some(Doubt { at, event, times: before.saturating_add(1), error });
    }

    /// What is known about an interrupted batch.
    pub(super) fn unfinished(&mut self, position: &Position) -> &mut Unfinished {
        let at = match self.unfinished.iter().position(|one| one.position == *position) {
            Some(at) => at,
            None => {
                if self.unfinished.len() >= UNFINISHED_MAX {
                    self.unfinished.remove(0);
                }
                let position = position.clone();
                self.unfinished.push(Unfinished { position, given_up: Vec::new(), doubt: None });
                self.unfinished.len() - 1
            }
        };
        &mut self.unfinished[at]
    }

    /// Forgets what is known about these events, also from other batches. Otherwise an old doubt would decide about an
    /// event that was parked and is due again, without sending it.
    pub(super) fn settled(&mut self, batch: &Batch) {
        self.unfinished.retain(|one| one.position != batch.position);
        // Two events on different topics may share an id.
        let name = |event: &Event| (event.id(), event.topic().to_owned());
        let events: HashSet<_> = batch.events.iter().map(|pending| name(&pending.event)).collect();
        for one in &mut self.unfinished {
            one.given_up.retain(|given_up| !events.contains(&name(given_up.event())));
            one.doubt.take_if(|doubt| events.contains(&name(&doubt.event)));
        }
    }
}
