//! What is done to a history, and where.

use std::fmt;

use crate::saga::entry::StepId;

/// Which function of a step is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum CallOp {
    Run,
    Undo,
    LookUp,
}

/// One call of one step.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct CallId {
    pub(super) op: CallOp,
    pub(super) step: StepId,
    /// Which call of it in this history, from 1.
    pub(super) nth: u32,
}

/// A fault at one point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Fault {
    AtWrite { n: u32, what: WriteFault },
    AtCall { call: CallId, what: CallFault },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum WriteFault {
    /// The worker dies before the write.
    CrashBefore,
    CrashAfter,
    /// Somebody cancels the saga right after it.
    Cancel,
    /// The worker dies after it, and the next one comes when the deadline is over.
    Deadline,
}

impl WriteFault {
    pub(super) const ALL: [Self; 4] = [Self::CrashBefore, Self::CrashAfter, Self::Cancel, Self::Deadline];
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CallFault {
    /// The worker dies before the call.
    CrashBefore,
    CrashAfter,
    /// It is called, and the answer is lost.
    AnswerLost,
    /// It is not called, and the caller does not know.
    RequestLost,
    /// The network delivers it twice.
    Twice,
    Refused,
    NotApplied,
    /// The first attempt has its effect and its answer is lost, the second one is refused.
    AnswerLostThenRefused,
    /// The first attempt never arrives, the second one is refused.
    RequestLostThenRefused,
    /// The second attempt is refused, and the first one arrives when all is over.
    RequestLateThenRefused,
}

impl CallFault {
    /// Those of a call that carries a key.
    pub(super) const OF_A_KEY: [Self; 4] = [
        Self::Twice,
        Self::AnswerLostThenRefused,
        Self::RequestLostThenRefused,
        Self::RequestLateThenRefused,
    ];
    /// Those of any call to somebody else.
    pub(super) const OF_ANY: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::AnswerLost,
        Self::RequestLost,
        Self::Refused,
        Self::NotApplied,
    ];

    /// The attempt after it is refused.
    pub(super) fn then_refused(self) -> bool {
        use CallFault::{AnswerLostThenRefused, RequestLateThenRefused, RequestLostThenRefused};
        matches!(self, AnswerLostThenRefused | RequestLostThenRefused | RequestLateThenRefused)
    }

    /// The participant says no, so that the saga may take another way.
    pub(super) fn refuses(self) -> bool {
        self == Self::Refused || self.then_refused()
    }
}

/// The faults of one history; none: it is not disturbed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Faults(pub(super) Vec<Fault>);

impl Faults {
    pub(super) fn and(&self, fault: Fault) -> Self {
        let mut faults = self.0.clone();
        faults.push(fault);
        Self(faults)
    }

    pub(super) fn refuse_a_step(&self) -> bool {
        self.0.iter().any(|fault| matches!(fault, Fault::AtCall { what, .. } if what.refuses()))
    }

    pub(super) fn refuse_an_undo(&self) -> bool {
        let of_undo = |fault: &Fault| match fault {
            Fault::AtCall { call, what } => call.op == CallOp::Undo && what.refuses(),
            Fault::AtWrite { .. } => false,
        };
        self.0.iter().any(of_undo)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            CallOp::Run => "",
            CallOp::Undo => "undo of ",
            CallOp::LookUp => "lookup of ",
        };
        write!(f, "{op}{}", self.step)?;
        if self.nth > 1 { write!(f, ", call {}", self.nth) } else { Ok(()) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtWrite { n, what } => match what {
                WriteFault::CrashBefore => write!(f, "crash before write {n}"),
                WriteFault::CrashAfter => write!(f, "crash after write {n}"),
                WriteFault::Cancel => write!(f, "cancelled after write {n}"),
                WriteFault::Deadline => write!(f, "crash after write {n} until the deadline is over"),
            },
            Self::AtCall { call, what } => match what {
                CallFault::CrashBefore => write!(f, "crash before {call}"),
                CallFault::CrashAfter => write!(f, "crash after {call}"),
                CallFault::AnswerLost => write!(f, "answer lost: {call}"),
                CallFault::RequestLost => write!(f, "request lost: {call}"),
                CallFault::Twice => write!(f, "delivered twice: {call}"),
                CallFault::Refused => write!(f, "refused: {call}"),
                CallFault::NotApplied => write!(f, "not applied: {call}"),
                CallFault::AnswerLostThenRefused => write!(f, "answer lost, then refused: {call}"),
                CallFault::RequestLostThenRefused => write!(f, "request lost, then refused: {call}"),
                CallFault::RequestLateThenRefused => {
                    write!(f, "request late, the next one refused: {call}")
                }
            },
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("undisturbed");
        }
        for (n, fault) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            write!(f, "{comma}{fault}")?;
        }
        Ok(())
    }
}
