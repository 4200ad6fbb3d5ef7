//! What was seen of one history: writes, calls, keys, and the first rule that was broken.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::fault::{CallFault, CallId, CallOp, Fault, Faults, WriteFault};
use super::process::Process;
use super::report::SagaRule;
use crate::intent::key::Key;
use crate::saga::entry::StepId;
use crate::saga::step::{Calling, StepResult};

/// Lines of one history that a violation prints.
const LINES_MAX: usize = 500;

/// What is left in the world, as the user says it: compared, and printed where it differs.
pub(super) trait Left: Send + Sync {
    fn is(&self, other: &dyn Left) -> bool;
    fn text(&self) -> String;
    fn as_any(&self) -> &dyn Any;
}

impl<L: PartialEq + Debug + Send + Sync + 'static> Left for L {
    fn is(&self, other: &dyn Left) -> bool {
        other.as_any().downcast_ref::<L>().is_some_and(|other| self == other)
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What is left now.
pub(super) type Look = Box<dyn Fn() -> Option<Box<dyn Left>> + Send + Sync>;

/// A call that arrives when all is over.
pub(super) type LateCall = (CallId, Box<dyn FnOnce() -> Calling<StepResult<Bytes>> + Send>);

/// A call that was made.
#[derive(Clone, Debug)]
pub(super) struct CallSeen {
    pub(super) id: CallId,
    /// It carries a key that the participant honours.
    pub(super) keyed: bool,
    pub(super) atomic: bool,
    /// Writes before it.
    pub(super) writes: u32,
    /// Of an undo: it is not known whether its step happened.
    pub(super) perhaps: bool,
}

/// What one key came to, at the participant.
#[derive(Clone, Default)]
pub(super) struct KeySeen {
    /// It took effect, with this result.
    pub(super) applied: Option<Bytes>,
    /// It may have: the participant itself did not know.
    pub(super) unclear: bool,
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) writes: u32,
    pub(super) calls: Vec<CallSeen>,
    pub(super) keys: HashMap<Key, KeySeen>,
    pub(super) broken: Option<(SagaRule, String)>,
    pub(super) lines: Vec<String>,
    in_flight: u32,
    /// Participants that ever began to work.
    entered: u32,
    refuse: HashSet<StepId>,
    late: Vec<LateCall>,
    /// Faults that happened.
    happened: u32,
}

pub(super) struct Watch {
    seen: Mutex<Seen>,
    pub(super) faults: Faults,
    process: Mutex<Process>,
    /// The worker died.
    pub(super) killed: Notify,
    /// Something was written.
    pub(super) moved: Notify,
    look: Look,
}

impl Watch {
    pub(super) fn new(faults: Faults, look: Look) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::default(),
            faults,
            process: Mutex::default(),
            killed: Notify::new(),
            moved: Notify::new(),
            look,
        })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker that runs now.
    pub(super) fn runs(&self, process: Process) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
    }

    /// The worker dies here.
    pub(super) async fn die<T>(&self) -> T {
        self.say("the worker dies");
        self.stop();
        self.killed.notify_one();
        std::future::pending().await
    }

    /// Nothing of the worker runs any more.
    pub(super) fn stop(&self) {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    pub(super) fn say(&self, line: impl Into<String>) {
        let mut seen = self.seen();
        if seen.lines.len() < LINES_MAX {
            seen.lines.push(line.into());
        }
    }

    /// The first rule that is broken counts: others may follow from it.
    pub(super) fn broke(&self, rule: SagaRule, what: impl Into<String>) {
        let what = what.into();
        self.say(format!("broken: {}: {what}", rule.as_str()));
        self.seen().broken.get_or_insert((rule, what));
    }

    /// What is left; `None`: the test does not say.
    pub(super) fn left(&self) -> Option<Box<dyn Left>> {
        (self.look)()
    }

    pub(super) fn begins_write(&self, what: &str) -> (u32, Option<WriteFault>) {
        let n = {
            let mut seen = self.seen();
            seen.writes += 1;
            seen.writes
        };
        self.say(format!("write {n}: {what}"));
        let fault = self.faults.0.iter().find_map(|fault| match fault {
            Fault::AtWrite { n: at, what } if *at == n => Some(*what),
            _ => None,
        });
        self.seen().happened += u32::from(fault.is_some());
        (n, fault)
    }

    /// A call begins: which one it is, and what is done to it.
    pub(super) fn begins_call(
        &self,
        op: CallOp,
        step: StepId,
        keyed: bool,
        atomic: bool,
        perhaps: bool,
    ) -> (CallId, Option<CallFault>) {
        let id = {
            let mut seen = self.seen();
            let before = seen.calls.iter().filter(|call| call.id.op == op && call.id.step == step).count();
            let id = CallId { op, step, nth: u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1) };
            let writes = seen.writes;
            seen.calls.push(CallSeen { id: id.clone(), keyed, atomic, writes, perhaps });
            id
        };
        let mut fault = self.faults.0.iter().find_map(|fault| match fault {
            Fault::AtCall { call, what } if *call == id => Some(*what),
            _ => None,
        });
        let mut seen = self.seen();
        seen.happened += u32::from(fault.is_some());
        if op == CallOp::Run && seen.refuse.remove(&id.step) {
            fault = Some(CallFault::Refused);
        }
        if fault.is_some_and(CallFault::then_refused) {
            seen.refuse.insert(id.step.clone());
        }
        (id, fault)
    }

    /// A participant begins to work.
    pub(super) fn enters(self: &Arc<Self>) -> InFlight {
        let mut seen = self.seen();
        seen.in_flight += 1;
        seen.entered += 1;
        let nth = (seen.in_flight == 1).then_some(seen.entered);
        InFlight { watch: Arc::clone(self), nth }
    }

    pub(super) fn comes_late(&self, call: LateCall) {
        self.seen().late.push(call);
    }

    pub(super) fn take_late(&self) -> Vec<LateCall> {
        std::mem::take(&mut self.seen().late)
    }

    /// All that was planned happened.
    pub(super) fn all_happened(&self) -> bool {
        self.seen().happened as usize >= self.faults.0.len()
    }
}

/// A participant at work; its caller may give up.
pub(super) struct InFlight {
    watch: Arc<Watch>,
    /// Its number, if it began alone.
    nth: Option<u32>,
}

impl InFlight {
    /// No other was at work since it began: what changed is its doing.
    pub(super) fn is_alone(&self) -> bool {
        self.nth == Some(self.watch.seen().entered)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.watch.seen().in_flight -= 1;
    }
}
