//! The states of a saga, and the one function that decides every change of its row.
//!
//! ```text
//!   start ──▶ running ◀─────────────▶ waiting        (a sleep, a signal, a retry later: no worker has it)
//!                │  │ ▲
//!                │  │ └── retry, resolve ── parked    (somebody has to find out, or to decide)
//!                │  └──── end ───────────▶ completed
//!                │ refused, deadline, cancelled: before the pivot only
//!                ▼
//!             undoing ◀── retry, resolve ── parked
//!                └─────── end ───────────▶ undone
//! ```
//!
//! The fence is the epoch: it rises with every takeover and when undoing begins, and whatever carries an older one
//! changes nothing.

use crate::intent::policy::StoreTime;

/// The state of a saga.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// A worker runs it, or the next one that is free does.
    Running,
    /// It goes on at `due_at`, or when a signal comes.
    Waiting,
    /// Its steps are being undone.
    Undoing,
    /// It cannot go on by itself. The reason says why.
    Parked,
    /// It ended with its result.
    Completed,
    /// It ended, and everything that happened was undone.
    Undone,
    /// A person ended it as it was.
    Abandoned,
}

impl Status {
    /// All of them, for tables.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Waiting,
        Self::Undoing,
        Self::Parked,
        Self::Completed,
        Self::Undone,
        Self::Abandoned,
    ];

    /// Its name in metrics, on the command line and in the docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Undoing => "undoing",
            Self::Parked => "parked",
            Self::Completed => "completed",
            Self::Undone => "undone",
            Self::Abandoned => "abandoned",
        }
    }

    /// The status of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Nothing happens to it any more.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Undone | Self::Abandoned)
    }
}

/// Why a saga cannot go on by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParkReason {
    /// It is not known whether a step happened.
    UnknownResult,
    /// The participant's key may no longer protect a step whose result is unknown.
    GuardExpired,
    /// The saga's code asks for other steps than its journal has.
    Changed,
    /// A step of the saga is not declared, or the definition has no handler to undo it.
    NoHandler,
    /// An undo was refused, or failed too often.
    UndoStuck,
    /// A step after the pivot was refused, or failed too often.
    ForwardStuck,
    /// The saga's code panicked.
    Panicked,
    /// The journal has too many entries, or one of them is too large.
    TooLarge,
    /// The journal refuses what the saga has to write: it is too large, or tables are missing.
    JournalRefused,
}

impl ParkReason {
    /// All of them, for tables.
    pub const ALL: [Self; 9] = [
        Self::UnknownResult,
        Self::GuardExpired,
        Self::Changed,
        Self::NoHandler,
        Self::UndoStuck,
        Self::ForwardStuck,
        Self::Panicked,
        Self::TooLarge,
        Self::JournalRefused,
    ];

    /// Its name in metrics, on the command line and in the docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownResult => "unknown_result",
            Self::GuardExpired => "guard_expired",
            Self::Changed => "changed",
            Self::NoHandler => "no_handler",
            Self::UndoStuck => "undo_stuck",
            Self::ForwardStuck => "forward_stuck",
            Self::Panicked => "panicked",
            Self::TooLarge => "too_large",
            Self::JournalRefused => "journal_refused",
        }
    }
}

/// Why a saga is undone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UndoCause {
    /// A step was refused, or the saga's code refused by itself.
    Refused,
    /// Its deadline passed.
    Deadline,
    /// Somebody cancelled it.
    Cancelled,
}

impl UndoCause {
    /// All of them, for tables.
    pub const ALL: [Self; 3] = [Self::Refused, Self::Deadline, Self::Cancelled];

    /// Its name in metrics, on the command line and in the docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A worker: one process for as long as its lease runs. Its number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId(pub u64);

/// The part of a saga's row that [`step`] decides by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SagaRow {
    /// As stored.
    pub status: Status,
    /// Why it is parked.
    pub reason: Option<ParkReason>,
    /// Why it is undone; `None` while it goes forward.
    pub undo: Option<UndoCause>,
    /// The fence.
    pub epoch: u64,
    /// The worker that has it.
    pub worker: Option<WorkerId>,
    /// When a free worker takes it; `None` with no worker: not by itself.
    pub due_at: Option<StoreTime>,
    /// When it is undone if it has not passed its pivot.
    pub deadline: Option<StoreTime>,
    /// How many signals came. A worker that lets go of the saga says how many it knew.
    pub signals: u32,
    /// Somebody asked to cancel it.
    pub cancelled: bool,
    /// When an ended saga is forgotten; `None`: never.
    pub expires_at: Option<StoreTime>,
}

/// Something that happens to a saga. All carry the epoch they are about; another one changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowEvent {
    /// Its worker writes entries.
    Append {
        /// The worker's epoch.
        epoch: u64,
        /// Whether the worker undoes.
        undoing: bool,
        /// With it the pivot begins: not once somebody asked to cancel it.
        heeds_cancel: bool,
    },
    /// Its worker lets go of it until something happens.
    Suspend {
        /// The worker's epoch.
        epoch: u64,
        /// `None`: it waits. Otherwise it is parked.
        park: Option<ParkReason>,
        /// When it goes on.
        due_at: Option<StoreTime>,
        /// How many signals the worker knew.
        signals: u32,
    },
    /// Its worker begins to undo.
    BeginUndo {
        /// The worker.
        worker: WorkerId,
        /// Its epoch.
        epoch: u64,
        /// Why.
        cause: UndoCause,
    },
    /// Its worker ends it: completed, or undone.
    End {
        /// The worker's epoch.
        epoch: u64,
        /// It goes forward, and no pivot was begun: if somebody asked to cancel it, it is undone.
        heeds_cancel: bool,
        /// How long it is kept, in ms; `None` is for ever.
        retention_ms: Option<u64>,
    },
    /// A worker takes it.
    Take {
        /// The worker.
        worker: WorkerId,
        /// The worker that has it is gone: its lease ended, and that is recorded.
        orphaned: bool,
    },
    /// A signal came.
    Signal,
    /// Somebody wants it undone.
    Cancel,
    /// A person decided about a parked saga. What they found out is an entry.
    Decide {
        /// The epoch of what they saw.
        epoch: u64,
    },
    /// A person has a parked saga undone.
    Compensate {
        /// The epoch of what they saw.
        epoch: u64,
    },
    /// A person ends a parked saga as it is.
    Abandon {
        /// The epoch of what they saw.
        epoch: u64,
        /// How long it is kept, in ms; `None` is for ever.
        retention_ms: Option<u64>,
    },
}

/// The answer to an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowAnswer {
    /// It is so now.
    Done,
    /// It was so before: the answer was lost, and it was asked again.
    Already,
    /// Signals came that the worker did not know, or it was cancelled: it still has the saga, and goes on.
    Signalled,
    /// The epoch is over, or the worker no longer has the saga: stop.
    Lost,
    /// Not in this state.
    Refused,
}

/// What one event does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowChange {
    /// What the caller gets.
    pub answer: RowAnswer,
    /// What is stored now; `None`: nothing changes.
    pub row: Option<SagaRow>,
    /// Whether the entries that came with the event are written.
    pub writes_entries: bool,
}

/// The type of [`step`]. Tests put a function with a planted bug in its place.
pub type RowDecider = fn(&SagaRow, &RowEvent, StoreTime) -> RowChange;

impl RowChange {
    fn nothing(answer: RowAnswer) -> Self {
        Self { answer, row: None, writes_entries: false }
    }

    fn put(row: SagaRow) -> Self {
        Self { answer: RowAnswer::Done, row: Some(row), writes_entries: true }
    }
}

impl SagaRow {
    /// A saga that begins now.
    pub fn started(worker: Option<WorkerId>, now: StoreTime, deadline_ms: Option<u64>) -> Self {
        Self {
            status: Status::Running,
            reason: None,
            undo: None,
            epoch: 1,
            worker,
            due_at: worker.is_none().then_some(now),
            deadline: deadline_ms.map(|ms| now.plus_ms(ms)),
            signals: 0,
            cancelled: false,
            expires_at: None,
        }
    }

    /// Whether a free worker takes it now.
    pub fn is_due(&self, now: StoreTime) -> bool {
        !self.status.is_ended() && self.worker.is_none() && self.due_at.is_some_and(|at| at <= now)
    }

    /// What its status is while a worker has it, or may take it.
    fn active(&self) -> Status {
        if self.undo.is_some() { Status::Undoing } else { Status::Running }
    }

    /// Its worker has it in this epoch.
    fn is_of(&self, epoch: u64) -> bool {
        !self.status.is_ended() && self.worker.is_some() && self.epoch == epoch
    }

    /// No worker has it: the next free one takes it.
    fn wake(&mut self, now: StoreTime) {
        if self.worker.is_none() {
            self.due_at = Some(self.due_at.map_or(now, |due| due.min(now)));
        }
    }
}

/// Decides. All journals do what this function says.
pub fn step(row: &SagaRow, event: &RowEvent, now: StoreTime) -> RowChange {
    match *event {
        // Undoing has an epoch of its own; that the worker says what it does is a second lock on the same door.
        RowEvent::Append { epoch, undoing, heeds_cancel }
            if row.is_of(epoch) && undoing == row.undo.is_some() =>
        {
            if heeds_cancel && row.cancelled {
                return RowChange::nothing(RowAnswer::Refused);
            }
            RowChange { answer: RowAnswer::Done, row: None, writes_entries: true }
        }
        RowEvent::Append { .. } => RowChange::nothing(RowAnswer::Lost),
        RowEvent::Suspend { epoch, park, due_at, signals } => suspend(row, epoch, park, due_at, signals),
        RowEvent::BeginUndo { worker, epoch, cause } => {
            if row.is_of(epoch) && row.undo.is_none() {
                let (status, undo, epoch) = (Status::Undoing, Some(cause), epoch + 1);
                return RowChange::put(SagaRow { status, undo, epoch, ..*row });
            }
            let is_mine = row.is_of(epoch + 1) && row.worker == Some(worker);
            let repeated = is_mine && row.undo == Some(cause);
            RowChange::nothing(if repeated { RowAnswer::Already } else { RowAnswer::Lost })
        }
        RowEvent::End { epoch, heeds_cancel, retention_ms } => {
            let status = if row.undo.is_some() { Status::Undone } else { Status::Completed };
            if row.status == status && row.epoch == epoch {
                return RowChange::nothing(RowAnswer::Already);
            }
            if !row.is_of(epoch) {
                return RowChange::nothing(RowAnswer::Lost);
            }
            if heeds_cancel && row.cancelled {
                return RowChange { answer: RowAnswer::Signalled, row: None, writes_entries: true };
            }
            RowChange::put(ended(row, status, retention_ms, now))
        }
        RowEvent::Take { worker, orphaned } => {
            let free = row.is_due(now) || (orphaned && row.worker.is_some() && !row.status.is_ended());
            if !free {
                return RowChange::nothing(RowAnswer::Refused);
            }
            let (status, epoch) = (row.active(), row.epoch + 1);
            RowChange::put(SagaRow {
                status,
                reason: None,
                epoch,
                worker: Some(worker),
                due_at: None,
                ..*row
            })
        }
        RowEvent::Signal | RowEvent::Cancel if row.status.is_ended() => {
            RowChange::nothing(RowAnswer::Refused)
        }
        RowEvent::Signal => {
            let mut row = SagaRow { signals: row.signals.saturating_add(1), ..*row };
            row.wake(now);
            RowChange::put(row)
        }
        RowEvent::Cancel if row.cancelled => RowChange::nothing(RowAnswer::Already),
        // Nothing undoes an undo.
        RowEvent::Cancel if row.undo.is_some() => RowChange::nothing(RowAnswer::Refused),
        RowEvent::Cancel => {
            // Counted as a signal: a worker that lets go at this moment must not miss it.
            let mut row = SagaRow { signals: row.signals.saturating_add(1), cancelled: true, ..*row };
            row.wake(now);
            RowChange::put(row)
        }
        RowEvent::Decide { epoch } => match row.status {
            _ if row.epoch != epoch => RowChange::nothing(RowAnswer::Lost),
            Status::Parked => {
                let status = if row.undo.is_some() { Status::Undoing } else { Status::Waiting };
                RowChange::put(SagaRow { status, reason: None, epoch: epoch + 1, due_at: Some(now), ..*row })
            }
            _ => RowChange::nothing(RowAnswer::Refused),
        },
        RowEvent::Compensate { epoch } => match row.status {
            _ if row.epoch != epoch => RowChange::nothing(RowAnswer::Lost),
            Status::Parked if row.undo.is_none() => {
                let (status, undo, epoch) = (Status::Undoing, Some(UndoCause::Cancelled), epoch + 1);
                RowChange::put(SagaRow { status, undo, epoch, reason: None, due_at: Some(now), ..*row })
            }
            _ => RowChange::nothing(RowAnswer::Refused),
        },
        RowEvent::Abandon { epoch, retention_ms } => match row.status {
            _ if row.epoch != epoch => RowChange::nothing(RowAnswer::Lost),
            Status::Parked => {
                let row = SagaRow { epoch: epoch + 1, ..*row };
                RowChange::put(ended(&row, Status::Abandoned, retention_ms, now))
            }
            _ => RowChange::nothing(RowAnswer::Refused),
        },
    }
}

fn suspend(
    row: &SagaRow,
    epoch: u64,
    park: Option<ParkReason>,
    due_at: Option<StoreTime>,
    signals: u32,
) -> RowChange {
    if !row.is_of(epoch) {
        let again = row.worker.is_none() && row.epoch == epoch && !row.status.is_ended();
        return RowChange::nothing(if again { RowAnswer::Already } else { RowAnswer::Lost });
    }
    if row.signals != signals {
        return RowChange { answer: RowAnswer::Signalled, row: None, writes_entries: true };
    }
    let forward = row.undo.is_none();
    let status = match (park, forward) {
        (Some(_), _) => Status::Parked,
        (None, true) => Status::Waiting,
        (None, false) => Status::Undoing,
    };
    RowChange::put(SagaRow { status, reason: park, worker: None, due_at, ..*row })
}

fn ended(row: &SagaRow, status: Status, retention_ms: Option<u64>, now: StoreTime) -> SagaRow {
    let expires_at = retention_ms.map(|ms| now.plus_ms(ms));
    SagaRow { status, reason: None, worker: None, due_at: None, expires_at, ..*row }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
