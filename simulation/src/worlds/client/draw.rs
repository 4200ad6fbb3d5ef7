//! Drawing a plan: the settings, and which kinds of faults there are at all, come from the seed.

use fastrand::Rng;

use super::plan::{Call, Delivery, Ends, Event, InFlight, Intent, On5xx, Plan, Run, Settings, What};

/// The server's bound in most histories.
pub(super) const RESPONSE_BYTES_MAX: usize = 1 << 10;

/// The client's bound in most histories.
pub(super) const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The longest a run takes.
pub(super) const RUN_TAKES_MAX_MS: u64 = 20_000;

/// The longest any request is on its way. Shorter than the margin before the end of retention in which nothing is sent.
pub(super) const ON_ITS_WAY_MAX_MS: u64 = 3_000;

/// The shortest retention. A tenth of it is the margin.
const RETENTION_MIN_MS: u64 = 60_000;

/// Ten years: a clock that is set to nonsense.
const NONSENSE_MS: i64 = 10 * 365 * 24 * 3_600 * 1_000;

/// Which kinds of faults a history has.
struct Kinds {
    network: bool,
    proxies: bool,
    service: bool,
    kills: bool,
    stalls: bool,
    server: bool,
    clock: bool,
    disk: bool,
}

pub(super) fn draw(rng: &mut Rng) -> Plan {
    let kinds = Kinds {
        network: rng.u8(0..4) > 0,
        proxies: rng.bool(),
        service: rng.bool(),
        kills: rng.bool(),
        stalls: rng.bool(),
        server: rng.bool(),
        clock: rng.bool(),
        disk: rng.u8(0..3) == 0,
    };
    let settings = settings(rng);
    let calm_at_ms = rng.u64(settings.retention_ms / 4..3 * settings.retention_ms);
    let intents: Vec<Intent> =
        (0..rng.usize(1..=6)).map(|_| intent(rng, &kinds, &settings, calm_at_ms)).collect();
    let mut events = Vec::new();
    for _ in 0..rng.usize(0..=5) {
        // Most of them in the middle of a call: while it is written down, or while it is sent.
        let call = &intents[rng.usize(0..intents.len())].calls[0];
        let at_ms = match rng.u8(0..3) {
            0 => rng.u64(0..calm_at_ms),
            1 => call.at_ms + rng.u64(0..4_000),
            _ => call.at_ms + rng.u64(0..=settings.disk_takes_ms),
        };
        events.extend(what(rng, &kinds, &settings, call.process).map(|what| Event { at_ms, what }));
    }
    events.sort_by_key(|event| event.at_ms);
    Plan { settings, intents, events, calm_at_ms }
}

fn settings(rng: &mut Rng) -> Settings {
    let retention_ms = [RETENTION_MIN_MS, 120_000, 600_000][rng.usize(0..3)];
    let keyed = rng.u8(0..4) == 0;
    let in_flight = match rng.u8(0..3) {
        0 => InFlight::Reject,
        1 => InFlight::Wait(rng.u64(100..10_000)),
        _ => InFlight::Accept,
    };
    Settings {
        keyed,
        in_flight,
        respond_async_after_ms: (rng.u8(0..4) == 0).then(|| rng.u64(50..5_000)),
        on_5xx: [On5xx::Retry, On5xx::Hold, On5xx::Replay][rng.usize(0..3)],
        lookup_settle_ms: rng.bool().then(|| rng.u64(1_000..10_000)),
        time_ordered: rng.u8(0..4) == 0,
        profile: rng.u8(0..3),
        retention_ms,
        lease_ms: rng.u64(2_000..20_000),
        one_call_at_a_time: rng.u8(0..6) == 0,
        response_bytes_max: if rng.u8(0..6) == 0 { 8 } else { RESPONSE_BYTES_MAX },
        notices_hang_ups: rng.bool(),
        answer_bytes_max: if rng.u8(0..6) == 0 { 8 } else { ANSWER_BYTES_MAX },
        processes: rng.usize(1..=2),
        attempts_max: rng.u32(1..=8),
        time_max_ms: rng.u64(2_000..60_000),
        attempt_timeout_ms: rng.u64(500..10_000),
        backoff_max_ms: rng.u64(200..5_000),
        journal_lease_ms: rng.u64(500..20_000),
        disk_takes_ms: if rng.bool() { 0 } else { rng.u64(1..50) },
        resume_every_ms: rng.u64(2_000..15_000),
    }
}

fn intent(rng: &mut Rng, kinds: &Kinds, settings: &Settings, calm_at_ms: u64) -> Intent {
    let durable = rng.u8(0..4) > 0;
    let first_ms = rng.u64(0..calm_at_ms * 3 / 4);
    let mut calls = vec![call(rng, settings, first_ms, false)];
    if rng.u8(0..4) == 0 {
        let other_request = rng.u8(0..3) == 0;
        let at_ms = first_ms + rng.u64(0..10_000);
        calls.push(call(rng, settings, at_ms, other_request));
    }
    let deliveries = match kinds.network {
        true => (0..rng.usize(0..6)).map(|_| delivery(rng, kinds)).collect(),
        false => Vec::new(),
    };
    let runs = (0..rng.usize(0..3)).map(|_| run(rng, kinds)).collect();
    Intent { durable, calls, deliveries, runs }
}

fn call(rng: &mut Rng, settings: &Settings, at_ms: u64, other_request: bool) -> Call {
    let leaves_after_ms = (rng.u8(0..8) == 0).then(|| rng.u64(0..5_000));
    Call { at_ms, process: rng.usize(0..settings.processes), other_request, leaves_after_ms }
}

fn delivery(rng: &mut Rng, kinds: &Kinds) -> Delivery {
    let on_its_way = |rng: &mut Rng| match rng.u8(0..3) {
        0 => 0,
        1 => rng.u64(0..100),
        _ => rng.u64(0..ON_ITS_WAY_MAX_MS),
    };
    match rng.u8(0..if kinds.proxies { 12 } else { 9 }) {
        0 | 1 => Delivery::Arrives { there_ms: on_its_way(rng), back_ms: on_its_way(rng) },
        2 => Delivery::Refused,
        3 => Delivery::RequestLost,
        4 => Delivery::RequestSwallowed,
        5 => Delivery::AnswerLost,
        6 => Delivery::AnswerSwallowed,
        7 => Delivery::BreaksOff,
        8 => Delivery::ArrivesTwice { later_ms: on_its_way(rng) },
        _ => {
            let asks = Some(rng.u64(1..5));
            // What says that nothing happened comes only where nothing was passed on: proxies that lie about that are
            // beyond any client.
            let (status, retry_after, passes) = match rng.u8(0..7) {
                0 => (401, None, false),
                1 => (429, asks, false),
                2 => (503, asks, false),
                3 => (408, None, false),
                4 => (502, None, rng.bool()),
                5 => (503, None, rng.bool()),
                _ => (504, None, rng.bool()),
            };
            Delivery::Proxy { status, retry_after, passes }
        }
    }
}

fn run(rng: &mut Rng, kinds: &Kinds) -> Run {
    let takes_ms = match rng.u8(0..3) {
        0 => rng.u64(0..50),
        1 => rng.u64(0..3_000),
        _ => rng.u64(0..RUN_TAKES_MAX_MS),
    };
    let ends = match rng.u8(0..if kinds.service { 18 } else { 5 }) {
        0..=2 => Ends::Charged,
        3 => Ends::Declined,
        4 => Ends::ChargedWith202,
        5 => Ends::ChargedWith500,
        6 => Ends::Conflict,
        7 | 8 => Ends::Failed,
        9 => Ends::Busy,
        10 => Ends::Unauthorised,
        11 => Ends::Throttled,
        12 => Ends::BadGateway { charged: rng.bool() },
        13 => Ends::Breaks { charged: rng.bool() },
        14 | 15 => Ends::BreaksOff,
        _ => Ends::AnswerLost { half: rng.bool() },
    };
    Run { takes_ms, ends }
}

fn what(rng: &mut Rng, kinds: &Kinds, settings: &Settings, process: usize) -> Option<What> {
    // Mostly short; sometimes so long that the server may have forgotten.
    let a_while = |rng: &mut Rng| match rng.u8(0..4) {
        0 => rng.u64(0..settings.retention_ms * 3 / 2),
        _ => rng.u64(0..10_000),
    };
    Some(match rng.u8(0..8) {
        0 | 1 if kinds.kills => What::KillClient { process, down_ms: a_while(rng) },
        2 if kinds.stalls => {
            let forgotten_ms = settings.retention_ms + rng.u64(0..settings.retention_ms);
            let for_ms = if rng.bool() { a_while(rng) } else { forgotten_ms };
            What::StallClient { process, for_ms }
        }
        3 if kinds.server => What::KillServer { down_ms: rng.u64(0..10_000) },
        4 if kinds.server => What::DrainServer { limit_ms: rng.u64(0..5_000) },
        5 if kinds.disk => match rng.u8(0..3) {
            0 => What::DiskFails { for_ms: rng.u64(0..20_000), in_doubt: rng.bool() },
            _ => What::DiskSlow { for_ms: rng.u64(0..20_000), takes_ms: rng.u64(1..2_000) },
        },
        6 if kinds.network => What::NetworkDown { for_ms: a_while(rng) },
        _ if kinds.clock => clock(rng, settings),
        _ => return None,
    })
}

fn clock(rng: &mut Rng, settings: &Settings) -> What {
    let retention_ms = settings.retention_ms as i64;
    match rng.u8(0..6) {
        0 => What::ClockJumps { by_ms: rng.i64(0..2 * retention_ms) },
        1 => What::ClockJumps { by_ms: -rng.i64(0..2 * retention_ms) },
        2 => What::ClockJumps { by_ms: NONSENSE_MS },
        3 => What::ClockJumps { by_ms: -NONSENSE_MS },
        _ => What::ClockIsSetRight,
    }
}
