//! How a plan is drawn, and how it is made smaller.

use fastrand::Rng;
use semel::Effect;

use super::plan::{
    Act, Does, Effects, End, Fault, LookupPlan, Plan, Request, Settings, StoreFault, WIRE_MS_MAX,
    WhenInFlight, Work,
};
use crate::minimise::shorter;

/// A day and more: beyond the longest lease there is.
const FAR_MS: i64 = 400 * 24 * 60 * 60 * 1_000;

/// Draws a plan.
pub(super) fn draw(rng: &mut Rng) -> Plan {
    let (mut plan, cuts) = draw_one(rng);
    if plan.settings.safe_for_ms.is_some() {
        if rng.u32(0..4) > 0 {
            plan.acts.extend(key_grows_old(rng, &plan.settings));
            plan.acts.sort_by_key(|act| act.at_ms);
        }
        plan.bound_wires();
    }
    let least_ms = plan.settle_ms_min();
    if let Some(lookup) = plan.settings.lookup.as_mut() {
        lookup.settle_ms = lookup.settle_ms.max(least_ms + rng.u64(0..500));
        let wire_ms_max = lookup.settle_ms - least_ms;
        if cuts {
            let most_ms = if plan.settings.safe_for_ms.is_some() { WIRE_MS_MAX } else { wire_ms_max };
            plan.acts.extend(cut_off(rng, &plan.settings, wire_ms_max.min(most_ms)));
            plan.acts.sort_by_key(|act| act.at_ms);
        }
    }
    plan
}

/// Which kinds of trouble a history has: a swarm of different mixtures finds more than one that has all of it.
struct Mixture {
    calm: bool,
    crashes: bool,
    stalls: bool,
    jumps: bool,
    outages: bool,
    cuts: bool,
    long_work: bool,
    faults: u32,
    rough_work: bool,
}

fn draw_one(rng: &mut Rng) -> (Plan, bool) {
    let calm = rng.u32(0..6) == 0;
    let mix = Mixture {
        calm,
        crashes: !calm && rng.bool(),
        stalls: !calm && rng.bool(),
        jumps: !calm && rng.u32(0..3) == 0,
        outages: !calm && rng.u32(0..3) == 0,
        cuts: !calm && rng.u32(0..3) == 0,
        long_work: rng.u32(0..3) == 0,
        faults: if calm { 0 } else { *rng.choice(&[0, 2, 6, 15, 30]).unwrap_or(&0) },
        rough_work: !calm && rng.bool(),
    };
    let settings = settings(rng, calm);
    let mut acts = Vec::new();
    let mut at_ms = 0;
    let calls = rng.usize(3..40);
    let pace_ms = *rng.choice(&[100, 500, 1_500, 5_000]).unwrap_or(&500);
    for _ in 0..calls {
        at_ms += rng.u64(0..pace_ms);
        let process = rng.usize(0..settings.processes);
        let does = match rng.u32(0..100) {
            0..6 if mix.crashes => Does::Crash { process },
            6..9 => Does::Restart { process },
            9..16 if mix.stalls => Does::Stall { process, ms: rng.u64(10..3 * settings.lease_ms) },
            16..22 if mix.jumps => Does::Jump { ms: jump_ms(rng, &settings) },
            22..26 if mix.outages => {
                Does::Down { ms: rng.u64(200..3 * settings.lease_ms + 2_000), hangs: rng.bool() }
            }
            26..34 if mix.cuts => {
                let least_ms = if rng.bool() { 200 } else { settings.lease_ms };
                Does::Cut {
                    process,
                    ms: least_ms + rng.u64(0..3 * settings.lease_ms + 5_000),
                    hangs: rng.bool(),
                }
            }
            34..42 => Does::Decide { pick: rng.usize(0..8) },
            _ => call(rng, &settings, process, &mix),
        };
        acts.push(Act { at_ms, does });
    }
    let faults = (0..mix.faults).map(|_| fault(rng)).collect();
    let rough_ms = if calm { 0 } else { rng.u64(0..2 * settings.lease_ms + 5_000) };
    (Plan { settings, acts, faults, rough_ms }, mix.cuts)
}

fn settings(rng: &mut Rng, calm: bool) -> Settings {
    let lease_ms = *rng.choice(&[500, 1_000, 2_000, 5_000, 10_000, 30_000]).unwrap_or(&2_000);
    let lookup = rng.bool().then(|| LookupPlan {
        takes_ms: *rng.choice(&[0, 20, 300, 2_000]).unwrap_or(&0),
        reads_first: rng.bool(),
        settle_ms: *rng.choice(&[100, 500, 1_000, 3_000, 10_000]).unwrap_or(&1_000),
        unknown_first: if rng.u32(0..4) == 0 { rng.u32(1..4) } else { 0 },
        large: rng.u32(0..4) == 0,
    });
    let effects = *rng.choice(&[Effects::Opaque, Effects::Keyed, Effects::Both]).unwrap_or(&Effects::Both);
    let time_ordered = rng.u32(0..4) == 0;
    let timeout_ms = (!calm && rng.u32(0..6) == 0).then(|| rng.u64(200..4_000));
    // Where keys are forgotten, the work is bounded; a key is remembered for a few attempts.
    let safe_for_ms =
        (!calm && effects != Effects::Opaque && rng.u32(0..3) == 0).then(|| rng.u64(12_000..25_000));
    let timeout_ms = timeout_ms.or_else(|| safe_for_ms.map(|_| rng.u64(200..4_000)));
    Settings {
        processes: rng.usize(1..5),
        keys: rng.usize(1..7),
        effects,
        lease_ms,
        in_flight: match rng.u32(0..5) {
            0 | 1 => WhenInFlight::Reject,
            2 | 3 => WhenInFlight::Wait { ms: *rng.choice(&[500, 5_000, 20_000]).unwrap_or(&5_000) },
            _ => WhenInFlight::Accept { after_ms: rng.u64(10..2_000) },
        },
        lookup,
        open: rng.u32(0..5) == 0,
        time_ordered,
        retention_ms: match rng.u32(0..3) {
            0 => rng.u64(2_000..15_000),
            _ => 24 * 60 * 60 * 1_000,
        },
        timeout_ms,
        safe_for_ms,
        reconcile_every_ms: rng.bool().then(|| rng.u64(500..5_000)),
        sweep_every_ms: rng.bool().then(|| rng.u64(500..5_000)),
        outcome_bytes_max: (rng.u32(0..4) == 0).then_some(1_000),
        latency_ms: *rng.choice(&[0, 1, 20]).unwrap_or(&0),
    }
}

fn jump_ms(rng: &mut Rng, settings: &Settings) -> i64 {
    let far = rng.u32(0..3) == 0;
    let ahead = match settings.lookup {
        Some(lookup) if settings.looks_up_opaque() => rng.i64(1..lookup.settle_ms as i64 / 3 + 2),
        _ if far => FAR_MS,
        _ => rng.i64(1..4 * settings.lease_ms as i64),
    };
    if rng.bool() {
        ahead
    } else if far {
        -FAR_MS
    } else {
        -rng.i64(1..4 * settings.lease_ms as i64)
    }
}

fn call(rng: &mut Rng, settings: &Settings, process: usize, mix: &Mixture) -> Does {
    let long = if mix.long_work { 4 } else { 1 };
    let pause = |rng: &mut Rng| match rng.u32(0..9) {
        0 => 0,
        // Mostly short, sometimes far beyond the lease.
        n if n <= long => rng.u64(0..3 * settings.lease_ms),
        _ => rng.u64(0..400),
    };
    let wire_max = match settings.lookup {
        Some(lookup) if settings.looks_up_opaque() => lookup.settle_ms / 2,
        _ => 2_000,
    };
    let sent = rng.bool();
    let end = match rng.u32(0..100) {
        0..8 => End::FailedFinal,
        8..18 => End::NotApplied,
        18..30 if mix.rough_work => End::Broken { sent },
        30..36 if mix.rough_work => End::Panic { sent },
        36..40 if mix.rough_work => End::Hold { sent },
        _ => End::Completed,
    };
    let work = Work {
        before_ms: pause(rng),
        wire_ms: rng.u64(0..wire_max.max(1)) / if rng.bool() { 1 } else { 10 },
        after_ms: pause(rng),
        end,
        large: settings.outcome_bytes_max.is_some() && rng.bool(),
    };
    Does::Call {
        process,
        key: rng.usize(0..settings.keys),
        other_request: rng.u32(0..20) == 0,
        work,
        leaves_ms: (rng.u32(0..if mix.calm { 8 } else { 5 }) == 0).then(|| rng.u64(0..3_000)),
    }
}

/// A call whose process is cut off from the store while it works, and retries elsewhere at about the moment a lookup
/// is believed. All by chance, this is rare; it is where a claim that is lost matters most.
fn cut_off(rng: &mut Rng, settings: &Settings, wire_ms_max: u64) -> Vec<Act> {
    let (process, key) = (rng.usize(0..settings.processes), rng.usize(0..settings.keys));
    let (lease_ms, settle_ms) = (settings.lease_ms, settings.lookup.map_or(0, |lookup| lookup.settle_ms));
    let wire_ms = rng.u64(0..=wire_ms_max);
    let believed_ms = lease_ms + settle_ms;
    let before_ms = if rng.bool() {
        believed_ms - rng.u64(0..=wire_ms.min(settle_ms))
    } else {
        lease_ms + rng.u64(0..lease_ms / 3 + settle_ms)
    };
    let work = Work { before_ms, wire_ms, after_ms: 0, end: End::Completed, large: false };
    let call = |process, work| Does::Call { process, key, other_request: false, work, leaves_ms: None };
    let cut = Does::Cut { process, ms: lease_ms + believed_ms + 6_000, hangs: rng.bool() };
    let at_ms = rng.u64(0..50);
    let mut acts = vec![
        Act { at_ms, does: call(process, work) },
        Act { at_ms: at_ms + 1 + rng.u64(0..lease_ms), does: cut },
    ];
    for _ in 0..rng.u64(1..5) {
        let after_ms = believed_ms + rng.u64(0..lease_ms / 3 + wire_ms + 1);
        let elsewhere = rng.usize(0..settings.processes);
        acts.push(Act { at_ms: at_ms + after_ms, does: call(elsewhere, Work::PLAIN) });
    }
    acts
}

/// A call whose answer is lost, a retry that fails while the key is remembered, and more retries about when it is
/// forgotten. All by chance, a history is over long before that.
fn key_grows_old(rng: &mut Rng, settings: &Settings) -> Vec<Act> {
    let safe_for_ms = settings.safe_for_ms.unwrap_or(0);
    let keyed: Vec<usize> = (0..settings.keys).filter(|key| settings.effect(*key) == Effect::Keyed).collect();
    let Some(key) = rng.choice(&keyed).copied() else { return Vec::new() };
    let at_ms = rng.u64(0..500);
    let mut call = |after_ms, end| {
        let work = Work { wire_ms: rng.u64(0..200), end, ..Work::PLAIN };
        let process = rng.usize(0..settings.processes);
        let does = Does::Call { process, key, other_request: false, work, leaves_ms: None };
        Act { at_ms: at_ms + after_ms, does }
    };
    let mut acts = vec![
        call(0, End::Broken { sent: true }),
        call(safe_for_ms / 4, End::Broken { sent: false }),
        call(safe_for_ms / 3, End::NotApplied),
    ];
    acts.extend((0..6).map(|n| call(safe_for_ms * (8 + n) / 10, End::Completed)));
    acts
}

fn fault(rng: &mut Rng) -> StoreFault {
    let request = match rng.u32(0..100) {
        0..40 => Request::Claim,
        40..60 => Request::Renew,
        60..80 => Request::Finish,
        80..88 => Request::Get,
        88..94 => Request::Decide,
        94..97 => Request::List,
        97 => Request::Sweep,
        _ => Request::Now,
    };
    let fault = match rng.u32(0..9) {
        0 => Fault::Refused,
        1 => Fault::Lost,
        2 => Fault::AnswerLost,
        3 | 4 => Fault::Late { ms: late_ms(rng) },
        5 => Fault::AnswerLate { ms: late_ms(rng) },
        6 => Fault::Hangs,
        7 if request == Request::Claim => Fault::Hidden { ms: rng.u64(100..12_000) },
        _ => Fault::AnswerHangs,
    };
    // Faults come in groups: one that hangs is often followed by another.
    let numbers = if rng.bool() { 12 } else { 60 };
    StoreFault { request, number: rng.u32(0..numbers), fault }
}

fn late_ms(rng: &mut Rng) -> u64 {
    if rng.bool() { rng.u64(1..1_000) } else { rng.u64(1_000..9_000) }
}

/// Smaller plans, the boldest cuts first.
pub(super) fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut next = plan.clone();
        change(&mut next);
        plans.push(next);
    };
    for acts in shorter(&plan.acts) {
        add(&|next| next.acts.clone_from(&acts));
    }
    for faults in shorter(&plan.faults) {
        add(&|next| next.faults.clone_from(&faults));
    }
    if plan.rough_ms > 0 {
        add(&|next| next.rough_ms = 0);
        add(&|next| next.rough_ms /= 2);
    }
    // An act less is a claim or so less: the faults that follow it move up.
    for at in 0..plan.acts.len() {
        for by in 1..=3 {
            add(&|next| {
                next.acts.remove(at);
                let claims = next.faults.iter_mut().filter(|fault| fault.request == Request::Claim);
                claims.for_each(|fault| fault.number = fault.number.saturating_sub(by));
            });
        }
    }
    for at in 0..plan.faults.len() {
        let number = plan.faults[at].number;
        for less in [0, number / 2, number.saturating_sub(1)].into_iter().filter(|less| *less < number) {
            add(&|next| next.faults[at].number = less);
        }
    }
    smaller_settings(&plan.settings)
        .into_iter()
        .for_each(|settings| add(&|next| next.settings = settings.clone()));
    for at in 0..plan.acts.len() {
        for does in plainer(plan.acts[at].does) {
            add(&|next| next.acts[at].does = does);
        }
        // Nothing happens between two acts: bring this and all that follow forward.
        let before = if at == 0 { 0 } else { plan.acts[at - 1].at_ms };
        let gap = plan.acts[at].at_ms - before;
        for less in [gap, gap / 2].into_iter().filter(|less| *less >= 50) {
            add(&|next| next.acts[at..].iter_mut().for_each(|act| act.at_ms -= less));
        }
    }
    plans.retain(Plan::is_allowed);
    plans
}

fn smaller_settings(settings: &Settings) -> Vec<Settings> {
    let mut all = Vec::new();
    let mut add = |differs: bool, change: fn(&mut Settings)| {
        if differs {
            let mut next = settings.clone();
            change(&mut next);
            all.push(next);
        }
    };
    add(settings.processes > 1, |next| next.processes -= 1);
    add(settings.keys > 1, |next| next.keys -= 1);
    add(settings.effects == Effects::Both, |next| next.effects = Effects::Opaque);
    add(settings.effects == Effects::Both, |next| next.effects = Effects::Keyed);
    add(settings.in_flight != WhenInFlight::Reject, |next| next.in_flight = WhenInFlight::Reject);
    add(settings.lookup.is_some(), |next| next.lookup = None);
    add(
        settings.lookup.is_some_and(|lookup| lookup.takes_ms > 0 || lookup.unknown_first > 0 || lookup.large),
        |next| {
            next.lookup = next.lookup.map(|lookup| LookupPlan {
                takes_ms: 0,
                unknown_first: 0,
                large: false,
                ..lookup
            });
        },
    );
    add(settings.open, |next| next.open = false);
    add(settings.time_ordered, |next| next.time_ordered = false);
    add(settings.retention_ms < DAY_MS, |next| next.retention_ms = DAY_MS);
    add(settings.safe_for_ms.is_some(), |next| next.safe_for_ms = None);
    add(settings.timeout_ms.is_some() && settings.safe_for_ms.is_none(), |next| next.timeout_ms = None);
    add(settings.reconcile_every_ms.is_some(), |next| next.reconcile_every_ms = None);
    add(settings.sweep_every_ms.is_some(), |next| next.sweep_every_ms = None);
    add(settings.outcome_bytes_max.is_some(), |next| next.outcome_bytes_max = None);
    add(settings.latency_ms > 0, |next| next.latency_ms = 0);
    all
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn plainer(does: Does) -> Vec<Does> {
    match does {
        Does::Call { process, key, other_request, work, leaves_ms } => {
            let mut all = Vec::new();
            let mut add = |differs: bool, other_request, work, leaves_ms, process, key| {
                if differs {
                    all.push(Does::Call { process, key, other_request, work, leaves_ms });
                }
            };
            add(leaves_ms.is_some(), other_request, work, None, process, key);
            add(other_request, false, work, leaves_ms, process, key);
            add(process > 0, other_request, work, leaves_ms, 0, key);
            add(key > 0, other_request, work, leaves_ms, process, 0);
            let zero = [
                Work { before_ms: 0, ..work },
                Work { wire_ms: 0, ..work },
                Work { after_ms: 0, ..work },
                Work { large: false, ..work },
            ];
            let differs = [work.before_ms > 0, work.wire_ms > 0, work.after_ms > 0, work.large];
            for (work, differs) in zero.into_iter().zip(differs) {
                add(differs, other_request, work, leaves_ms, process, key);
            }
            let plain = Work { end: End::Completed, ..work };
            add(work.end != End::Completed, other_request, plain, leaves_ms, process, key);
            all
        }
        Does::Crash { process } if process > 0 => vec![Does::Crash { process: 0 }],
        Does::Restart { process } if process > 0 => vec![Does::Restart { process: 0 }],
        Does::Stall { process, ms } if process > 0 => vec![Does::Stall { process: 0, ms }],
        Does::Cut { process, ms, hangs } if process > 0 => vec![Does::Cut { process: 0, ms, hangs }],
        Does::Decide { pick } if pick > 0 => vec![Does::Decide { pick: 0 }],
        _ => Vec::new(),
    }
}
