//! What a seed decides: settings, actions and store faults, all as data.

use std::time::Duration;

use semel::{Effect, Retention};
use serde::{Deserialize, Serialize};

/// One history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How the operations are set up.
    pub settings: Settings,
    /// What happens, in the order of time.
    pub acts: Vec<Act>,
    /// What goes wrong between the processes and the store.
    pub faults: Vec<StoreFault>,
    /// How long after the last act requests may still fail.
    pub rough_ms: u64,
}

/// How the operations are set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Processes at the same store.
    pub processes: usize,
    /// Keys in use.
    pub keys: usize,
    /// What protects the effects of these keys.
    pub effects: Effects,
    /// The lease.
    pub lease_ms: u64,
    /// What a duplicate gets while the first call is under way.
    pub in_flight: WhenInFlight,
    /// How uncertain intents are looked up.
    pub lookup: Option<LookupPlan>,
    /// The work runs unguarded while the store is down.
    pub open: bool,
    /// Keys are UUIDv7, and a retry after retention is refused.
    pub time_ordered: bool,
    /// How long outcomes are kept.
    pub retention_ms: u64,
    /// How long the work may take.
    pub timeout_ms: Option<u64>,
    /// How long the downstream remembers a key, from the first call on; the operation says the same. It needs a bound on
    /// the work.
    #[serde(default)]
    pub safe_for_ms: Option<u64>,
    /// How often each process looks for uncertain intents.
    pub reconcile_every_ms: Option<u64>,
    /// How often each process sweeps.
    pub sweep_every_ms: Option<u64>,
    /// The store takes no larger outcome.
    pub outcome_bytes_max: Option<usize>,
    /// A request takes this long to the store, and its answer as long back.
    pub latency_ms: u64,
}

/// What protects the effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effects {
    /// All keys are opaque.
    Opaque,
    /// All keys are keyed.
    Keyed,
    /// Even keys are opaque, odd ones keyed.
    Both,
}

/// What a duplicate gets while the first call is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenInFlight {
    /// "In flight", at once.
    Reject,
    /// The outcome, if it comes within this time.
    Wait {
        /// In ms.
        ms: u64,
    },
    /// As an edge that answers 202: every caller leaves after this time and asks for the status later.
    Accept {
        /// In ms.
        after_ms: u64,
    },
}

/// How uncertain intents are looked up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LookupPlan {
    /// How long one lookup takes.
    pub takes_ms: u64,
    /// It reads first and answers after `takes_ms`; else it reads at the end.
    pub reads_first: bool,
    /// How long after an intent became uncertain "not found" is believed.
    pub settle_ms: u64,
    /// The first so many lookups find out nothing.
    pub unknown_first: u32,
    /// What it finds is large.
    #[serde(default)]
    pub large: bool,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Act {
    /// When, since the history began.
    pub at_ms: u64,
    /// What.
    pub does: Does,
}

/// What happens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Does {
    /// A caller asks a process to run the intent of a key.
    Call {
        /// The process.
        process: usize,
        /// The key.
        key: usize,
        /// Another request under the same key: a mistake of the client.
        other_request: bool,
        /// What the work does if it runs.
        work: Work,
        /// The caller leaves after this long.
        leaves_ms: Option<u64>,
    },
    /// A process is killed, and started again at once.
    Crash {
        /// The process.
        process: usize,
    },
    /// A process is drained, ended, and started again at once.
    Restart {
        /// The process.
        process: usize,
    },
    /// A process stands still.
    Stall {
        /// The process.
        process: usize,
        /// For how long.
        ms: u64,
    },
    /// The store's clock jumps.
    Jump {
        /// By how much; negative is back.
        ms: i64,
    },
    /// The store cannot be reached.
    Down {
        /// For how long.
        ms: u64,
        /// Requests hang instead of being refused.
        hangs: bool,
    },
    /// One process cannot reach the store.
    Cut {
        /// The process.
        process: usize,
        /// For how long.
        ms: u64,
        /// Its requests hang instead of being refused.
        hangs: bool,
    },
    /// A person looks at an uncertain intent and decides it, if the truth can be found out.
    Decide {
        /// Which of the uncertain ones.
        pick: usize,
    },
}

/// What the work of one call does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Work {
    /// How long it works before it sends its call downstream.
    pub before_ms: u64,
    /// How long that call is on the wire. It arrives even if the work is dropped meanwhile.
    pub wire_ms: u64,
    /// How long it works after the answer.
    pub after_ms: u64,
    /// How it ends.
    pub end: End,
    /// Its outcome is large.
    pub large: bool,
}

impl Work {
    /// At once, and it succeeds.
    pub const PLAIN: Self = Self { before_ms: 0, wire_ms: 0, after_ms: 0, end: End::Completed, large: false };

    /// How long it takes at most.
    pub fn takes(&self) -> Duration {
        Duration::from_millis(self.before_ms + self.wire_ms + self.after_ms)
    }
}

/// How the work of one call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Done.
    Completed,
    /// The downstream refused it for good.
    FailedFinal,
    /// It failed before anything was sent.
    NotApplied,
    /// The call broke: the work does not know whether it arrived.
    Broken {
        /// It was sent, and will arrive.
        sent: bool,
    },
    /// The work panicked.
    Panic {
        /// Its call was sent before, and will arrive.
        sent: bool,
    },
    /// The work asks for a person.
    Hold {
        /// Its call was sent before, and will arrive.
        sent: bool,
    },
}

/// A kind of request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Request {
    /// The clock is read.
    Now,
    /// A claim.
    Claim,
    /// A renewal.
    Renew,
    /// A finish.
    Finish,
    /// A record is read.
    Get,
    /// Records are listed.
    List,
    /// A decision.
    Decide,
    /// A sweep.
    Sweep,
}

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StoreFault {
    /// Of this kind.
    pub request: Request,
    /// The how many-th of that kind in the history, from 0.
    pub number: u32,
    /// What goes wrong.
    pub fault: Fault,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// It is refused, and known not to have been carried out.
    Refused,
    /// It is lost, and the asker cannot tell.
    Lost,
    /// It is carried out, but its answer is lost.
    AnswerLost,
    /// It is carried out after this long, even if the asker has given up.
    Late {
        /// In ms.
        ms: u64,
    },
    /// It is carried out at once, and answered after this long.
    AnswerLate {
        /// In ms.
        ms: u64,
    },
    /// It hangs and is never carried out.
    Hangs,
    /// It is carried out and never answered.
    AnswerHangs,
    /// A claim whose commit takes this long: the record cannot be seen, and every other claim of the key is answered
    /// "in flight", without an owner.
    Hidden {
        /// In ms.
        ms: u64,
    },
}

impl Settings {
    /// What protects the effect of a key.
    pub fn effect(&self, key: usize) -> Effect {
        match self.effects {
            Effects::Opaque => Effect::Opaque,
            Effects::Keyed => Effect::Keyed,
            Effects::Both if key.is_multiple_of(2) => Effect::Opaque,
            Effects::Both => Effect::Keyed,
        }
    }

    /// Whether an intent may be looked up that is not protected for ever: then the settle delay has to cover all that may
    /// still be on its way.
    pub fn looks_up_opaque(&self) -> bool {
        self.lookup.is_some() && (self.effects != Effects::Keyed || self.safe_for_ms.is_some())
    }

    /// How long outcomes are kept.
    pub fn retention(&self) -> Retention {
        Retention::Ms(self.retention_ms)
    }
}

impl Plan {
    fn jumps(&self) -> impl Iterator<Item = i64> + '_ {
        self.acts.iter().filter_map(|act| match act.does {
            Does::Jump { ms } => Some(ms),
            _ => None,
        })
    }

    /// By how much the store's clock jumps ahead in all.
    pub fn ahead_ms(&self) -> u64 {
        self.jumps().filter(|ms| *ms > 0).map(i64::unsigned_abs).sum()
    }

    /// By how much the store's clock jumps back in all.
    pub fn back_ms(&self) -> u64 {
        self.jumps().filter(|ms| *ms < 0).map(i64::unsigned_abs).sum()
    }

    /// As [`back_ms`](Self::back_ms), without jumps beyond the longest lease.
    pub fn near_back_ms(&self) -> u64 {
        self.jumps().filter(|ms| *ms < 0).map(i64::unsigned_abs).filter(|ms| *ms < LEASE_MS_MAX).sum()
    }

    /// How long the downstream remembers a key. It counts true time: where the store's clock may be set back, it has to be
    /// as much longer than the operation says.
    pub fn remembers(&self) -> Option<Duration> {
        self.settings.safe_for_ms.map(|ms| Duration::from_millis(ms + self.back_ms()))
    }

    /// How long processes stand still in all.
    pub fn stalled_ms(&self) -> u64 {
        let stalls = self.acts.iter().filter_map(|act| match act.does {
            Does::Stall { ms, .. } => Some(ms),
            _ => None,
        });
        stalls.sum()
    }

    fn works(&self) -> impl Iterator<Item = Work> + '_ {
        self.acts.iter().filter_map(|act| match act.does {
            Does::Call { work, .. } => Some(work),
            _ => None,
        })
    }

    /// No call downstream is on the wire for longer than the margin of guard expiry covers.
    pub(super) fn bound_wires(&mut self) {
        for act in &mut self.acts {
            if let Does::Call { work, .. } = &mut act.does {
                work.wire_ms = work.wire_ms.min(WIRE_MS_MAX);
            }
        }
    }

    /// The longest any call downstream is on the wire.
    pub fn wire_ms(&self) -> u64 {
        self.works().map(|work| work.wire_ms).max().unwrap_or(0)
    }

    /// The longest any work takes.
    pub fn work_ms(&self) -> u64 {
        self.works().map(|work| work.takes().as_millis() as u64).max().unwrap_or(0)
    }

    /// The longest any request or answer is under way.
    pub fn late_ms(&self) -> u64 {
        let late = self.faults.iter().filter_map(|fault| match fault.fault {
            Fault::Late { ms } | Fault::AnswerLate { ms } | Fault::Hidden { ms } => Some(ms),
            _ => None,
        });
        late.max().unwrap_or(0)
    }

    /// Nothing goes wrong but duplicates and callers that leave.
    pub fn is_calm(&self) -> bool {
        let rough = |act: &Act| match act.does {
            Does::Call { work, .. } => {
                matches!(work.end, End::Broken { .. } | End::Panic { .. } | End::Hold { .. })
            }
            Does::Crash { .. } | Does::Stall { .. } | Does::Jump { .. } => true,
            Does::Down { .. } | Does::Cut { .. } => true,
            Does::Restart { .. } | Does::Decide { .. } => false,
        };
        self.faults.is_empty() && !self.acts.iter().any(rough) && self.settings.timeout_ms.is_none()
    }

    /// The shortest settle delay semel's documentation allows: it covers what may still be under way when a claim is
    /// lost (a call on the wire, a clock that jumps ahead).
    pub fn settle_ms_min(&self) -> u64 {
        if !self.settings.looks_up_opaque() {
            return 0;
        }
        self.wire_ms() + self.ahead_ms() + 2 * self.settings.latency_ms + MARGIN_MS
    }

    /// Whether the settings are ones semel's documentation allows.
    pub fn is_allowed(&self) -> bool {
        self.settings.lookup.is_none_or(|lookup| lookup.settle_ms >= self.settle_ms_min())
            && (self.settings.safe_for_ms.is_none()
                || (self.settings.timeout_ms.is_some() && self.wire_ms() <= WIRE_MS_MAX))
    }
}

/// The margin of guard expiry covers calls that are on the wire for this long.
pub(super) const WIRE_MS_MAX: u64 = 4_800;

/// The longest lease there is.
const LEASE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// Timers and the store's clock count whole milliseconds.
const MARGIN_MS: u64 = 10;
