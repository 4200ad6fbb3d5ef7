//! What a seed decides.

use serde::{Deserialize, Serialize};

/// A whole history, as data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What holds for all.
    pub settings: Settings,
    /// The sagas.
    pub sagas: Vec<SagaPlan>,
    /// The trouble.
    pub faults: Vec<Fault>,
}

/// What holds for all sagas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Processes.
    pub workers: usize,
    /// A worker's lease.
    pub lease_ms: u64,
    /// The processes' clocks are slow: in the journal their leases are over after a third of the time.
    #[serde(default)]
    pub slow_clocks: bool,
    /// A step's timeout.
    pub timeout_ms: u64,
    /// How long after the timeout a call may arrive.
    pub settle_ms: u64,
    /// How long a request to the journal takes.
    pub journal_ms: u64,
    /// One in so many answers of the journal is lost; 0: none.
    #[serde(default)]
    pub loses_one_in: u32,
    /// How often the journal is asked for what is due.
    pub poll_ms: u64,
    /// Sagas at work at once in one process.
    pub running_max: usize,
    /// Max attempts of a step.
    pub attempts_max: u32,
    /// Calls of one kind of step at once in a process.
    #[serde(default)]
    pub concurrent_max: Option<u32>,
}

/// One saga.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SagaPlan {
    /// When its client asks for it.
    pub begins_ms: u64,
    /// Its deadline.
    pub deadline_ms: Option<u64>,
    /// Steps before the pivot.
    pub before: Vec<StepPlan>,
    /// The first two of them run beside each other.
    pub parallel: bool,
    /// What it waits for after them.
    pub pause: Option<Pause>,
    /// The pivot.
    pub pivot: Option<StepPlan>,
    /// Steps after the pivot.
    pub after: Vec<StepPlan>,
    /// When a signal is sent to it.
    pub signal_ms: Option<u64>,
    /// When somebody cancels it.
    pub cancel_ms: Option<u64>,
}

/// A wait in a saga's code.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Pause {
    /// A sleep.
    Sleep(u64),
    /// A signal, with a timeout: without the signal the code refuses.
    Signal(u64),
}

/// One step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StepPlan {
    /// In the journal's transaction.
    #[serde(default)]
    pub atomic: bool,
    /// The participant honours the key.
    pub keyed: bool,
    /// Somebody can say what happened.
    pub lookup: bool,
    /// How long the participant remembers the key.
    pub safe_for_ms: Option<u64>,
    /// It leaves something that has to be undone.
    pub undo: bool,
    /// What the participant does, call by call; then it takes.
    pub does: Vec<Does>,
    /// The same of the undo.
    pub undoes: Vec<Does>,
}

/// What a participant does with a call, after so many ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Does {
    /// It happens.
    Take(u64),
    /// Refused, without effect.
    Refuse(u64),
    /// No effect this time.
    Fail(u64),
    /// It does not arrive, and the caller does not know.
    LoseCall(u64),
    /// It happens, and the caller does not know.
    LoseAnswer(u64),
    /// It arrives after the caller has given up: so many ms after the timeout, within the settle delay.
    Late(u64),
    /// It never arrives, and the caller waits.
    Hang,
}

/// Trouble.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// When.
    pub at_ms: u64,
    /// For how long.
    pub for_ms: u64,
    /// Whose.
    pub worker: usize,
    /// What.
    pub kind: FaultKind,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The process is killed, and started again afterwards.
    Kill,
    /// The process stands still.
    Stall,
    /// Requests to the journal are refused.
    JournalDown,
    /// Requests are carried out, and their answers are lost.
    AnswersLost,
    /// Requests hang.
    JournalHangs,
    /// The process is cut off; what it sent arrives when the trouble is over, whatever became of it.
    CutOff,
    /// The process drains, and is started again afterwards.
    Drain,
}

impl Fault {
    /// When it is over.
    pub fn end_ms(&self) -> u64 {
        self.at_ms + self.for_ms
    }
}

impl Settings {
    /// The lease that a process asks for: the longest call has to fit in twice.
    pub fn workers_lease_ms(&self) -> u64 {
        self.lease_ms.max((self.timeout_ms + LEASE_MARGIN_MS) * 2)
    }

    /// The lease that it has in the journal.
    pub fn journals_lease_ms(&self) -> u64 {
        if self.slow_clocks { self.workers_lease_ms() / 3 } else { self.workers_lease_ms() }
    }
}

/// What must be left of a lease after a call's timeout.
pub(super) const LEASE_MARGIN_MS: u64 = 200;

impl SagaPlan {
    /// All its steps with their names.
    pub fn steps(&self) -> Vec<(&'static str, &StepPlan)> {
        let before = BEFORE.iter().copied().zip(&self.before);
        let pivot = self.pivot.iter().map(|pivot| (PIVOT, pivot));
        before.chain(pivot).chain(AFTER.iter().copied().zip(&self.after)).collect()
    }
}

/// Names of steps before the pivot.
pub(super) const BEFORE: [&str; 4] = ["b0", "b1", "b2", "b3"];
/// The pivot's name.
pub(super) const PIVOT: &str = "pivot";
/// Names of steps after it.
pub(super) const AFTER: [&str; 2] = ["a0", "a1"];
