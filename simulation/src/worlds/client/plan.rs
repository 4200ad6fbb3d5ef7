//! What a seed decides: settings, intents with the fate of each request, and what happens to the machines.

use serde::{Deserialize, Serialize};

use crate::minimise::shorter;

/// Everything a seed decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Of both sides.
    pub settings: Settings,
    /// What the application wants done.
    pub intents: Vec<Intent>,
    /// What happens to the machines.
    pub events: Vec<Event>,
    /// From then on nothing fails any more.
    pub calm_at_ms: u64,
}

/// The settings of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The service honours the key itself: running again is safe.
    pub keyed: bool,
    /// What a retry gets while the first is under way.
    pub in_flight: InFlight,
    /// The first request too is answered with 202 when it takes longer than this.
    pub respond_async_after_ms: Option<u64>,
    /// What a 500 of the service means.
    pub on_5xx: On5xx,
    /// Uncertain intents are looked up, and "not found" is believed after this long.
    pub lookup_settle_ms: Option<u64>,
    /// Keys are UUIDv7s, and the server refuses those that are too old or too new.
    pub time_ordered: bool,
    /// Which dialect the server speaks: 0 classic, 1 ietf, 2 stripe.
    pub profile: u8,
    /// How long outcomes are remembered. Both sides are given the same.
    pub retention_ms: u64,
    /// Of the server's claims.
    pub lease_ms: u64,
    /// The server takes one call at a time.
    pub one_call_at_a_time: bool,
    /// The server keeps at most this much of an answer.
    pub response_bytes_max: usize,
    /// The server notices that a client has closed its connection.
    pub notices_hang_ups: bool,
    /// The client reads this much of an answer before it counts as arrived.
    pub answer_bytes_max: usize,
    /// Client processes that share the journal.
    pub processes: usize,
    /// Attempts of one call.
    pub attempts_max: u32,
    /// Time of one call.
    pub time_max_ms: u64,
    /// Time of one attempt.
    pub attempt_timeout_ms: u64,
    /// The longest wait between two attempts.
    pub backoff_max_ms: u64,
    /// Of the journal's claims.
    pub journal_lease_ms: u64,
    /// What one commit of the journal takes on a good disk.
    pub disk_takes_ms: u64,
    /// How often a process resumes what is open.
    pub resume_every_ms: u64,
}

/// What a retry gets while the first is under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum InFlight {
    /// 409.
    Reject,
    /// The answer if it comes in time, else 409.
    Wait(u64),
    /// 202.
    Accept,
}

/// What a 500 of the service means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum On5xx {
    /// Nothing happened.
    Retry,
    /// A person shall look.
    Hold,
    /// It is the answer.
    Replay,
}

/// One thing the application wants done once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// Sent by the durable client; else by the one without a journal.
    pub durable: bool,
    /// Calls of the application with its key, in the order of their times.
    pub calls: Vec<Call>,
    /// What the network does to each of its requests; those beyond arrive.
    pub deliveries: Vec<Delivery>,
    /// What the service does in each of its runs; those beyond succeed.
    pub runs: Vec<Run>,
}

/// A call of the application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// When.
    pub at_ms: u64,
    /// In which process.
    pub process: usize,
    /// With another body under the same key: a bug of the application.
    pub other_request: bool,
    /// The caller stops waiting after this long.
    pub leaves_after_ms: Option<u64>,
}

/// What the network does to one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Delivery {
    /// It arrives, and so does the answer.
    Arrives {
        /// On the way there.
        there_ms: u64,
        /// On the way back.
        back_ms: u64,
    },
    /// There is no connection.
    Refused,
    /// The connection breaks before the server has read it.
    RequestLost,
    /// Neither the server nor the client hears anything.
    RequestSwallowed,
    /// It arrives, and the connection breaks before the answer.
    AnswerLost,
    /// It arrives, and the client hears nothing.
    AnswerSwallowed,
    /// It arrives, and the connection breaks in the middle of the answer.
    BreaksOff,
    /// It arrives twice, the second time this much later.
    ArrivesTwice {
        /// How much later.
        later_ms: u64,
    },
    /// A proxy on the way answers by itself.
    Proxy {
        /// With this status.
        status: u16,
        /// And this `Retry-After`, in seconds.
        retry_after: Option<u64>,
        /// The request reaches the server all the same.
        passes: bool,
    },
}

/// What the service does in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// How long it takes. The effect, if there is one, is in the middle.
    pub takes_ms: u64,
    /// What it comes to.
    pub ends: Ends,
}

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ends {
    /// Charged: 201.
    Charged,
    /// Charged, and answered with a 202 of the service's own.
    ChargedWith202,
    /// Charged, and answered with a 500 that says so in `Idempotency-Effect`.
    ChargedWith500,
    /// Declined for good: 402.
    Declined,
    /// A conflict of the service's own: 409.
    Conflict,
    /// Failed, and nothing happened: 500.
    Failed,
    /// Not now, and nothing happened: 503 with `Retry-After`.
    Busy,
    /// The token ran out: 401.
    Unauthorised,
    /// Too many requests: 429 with `Retry-After`.
    Throttled,
    /// 502 of something behind the service; it happened or it did not.
    BadGateway {
        /// Whether it happened.
        charged: bool,
    },
    /// No answer at all; it happened or it did not.
    Breaks {
        /// Whether it happened.
        charged: bool,
    },
    /// Charged, and the answer breaks off half way.
    BreaksOff,
    /// Charged and marked as applied, and then the answer is lost.
    AnswerLost {
        /// It breaks off half way, with the mark in its head. Otherwise there is none.
        half: bool,
    },
}

/// What happens to a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at_ms: u64,
    /// What.
    pub what: What,
}

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// A client process is killed, and started again this much later.
    KillClient {
        /// Which.
        process: usize,
        /// How much later.
        down_ms: u64,
    },
    /// A client process stands still.
    StallClient {
        /// Which.
        process: usize,
        /// For how long.
        for_ms: u64,
    },
    /// The server is killed.
    KillServer {
        /// And started again this much later.
        down_ms: u64,
    },
    /// The server drains, ends and is started again.
    DrainServer {
        /// How long it drains.
        limit_ms: u64,
    },
    /// The wall clock of the clients' machine jumps.
    ClockJumps {
        /// By this much, in either direction.
        by_ms: i64,
    },
    /// The wall clock of the clients' machine is set right.
    ClockIsSetRight,
    /// The clients' disk is slow.
    DiskSlow {
        /// For how long.
        for_ms: u64,
        /// What one commit takes.
        takes_ms: u64,
    },
    /// The clients' disk fails.
    DiskFails {
        /// For how long.
        for_ms: u64,
        /// The commits may have been written all the same.
        in_doubt: bool,
    },
    /// Nothing can be connected to.
    NetworkDown {
        /// For how long.
        for_ms: u64,
    },
}

impl Plan {
    /// Smaller plans, the boldest cuts first.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                plans.push(plan);
            }
        };
        for events in shorter(&self.events) {
            push(&|plan| plan.events.clone_from(&events));
        }
        for intents in shorter(&self.intents).into_iter().filter(|intents| !intents.is_empty()) {
            push(&|plan| plan.intents.clone_from(&intents));
        }
        for (at, intent) in self.intents.iter().enumerate() {
            for calls in shorter(&intent.calls).into_iter().filter(|calls| !calls.is_empty()) {
                push(&|plan| plan.intents[at].calls.clone_from(&calls));
            }
            for deliveries in shorter(&intent.deliveries) {
                push(&|plan| plan.intents[at].deliveries.clone_from(&deliveries));
            }
            for runs in shorter(&intent.runs) {
                push(&|plan| plan.intents[at].runs.clone_from(&runs));
            }
            for call in 0..intent.calls.len() {
                push(&|plan| plan.intents[at].calls[call].leaves_after_ms = None);
                push(&|plan| plan.intents[at].calls[call].process = 0);
            }
            for run in 0..intent.runs.len() {
                push(&|plan| plan.intents[at].runs[run].ends = Ends::Charged);
                push(&|plan| plan.intents[at].runs[run].takes_ms = 10);
            }
        }
        push(&|plan| plan.settings.processes = 1);
        push(&|plan| plan.settings.keyed = false);
        push(&|plan| plan.settings.in_flight = InFlight::Reject);
        push(&|plan| plan.settings.respond_async_after_ms = None);
        push(&|plan| plan.settings.on_5xx = On5xx::Retry);
        push(&|plan| plan.settings.lookup_settle_ms = None);
        push(&|plan| plan.settings.time_ordered = false);
        push(&|plan| plan.settings.profile = 0);
        push(&|plan| plan.settings.one_call_at_a_time = false);
        push(&|plan| plan.settings.notices_hang_ups = false);
        push(&|plan| plan.settings.response_bytes_max = super::draw::RESPONSE_BYTES_MAX);
        push(&|plan| plan.settings.answer_bytes_max = super::draw::ANSWER_BYTES_MAX);
        push(&|plan| plan.settings.disk_takes_ms = 0);
        push(&|plan| plan.calm_at_ms /= 2);
        plans
    }
}
