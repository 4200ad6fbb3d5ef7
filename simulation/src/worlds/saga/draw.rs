//! Draws a plan: most histories have some kinds of trouble, and not all of them.

use super::plan::{Does, Fault, FaultKind, Pause, Plan, SagaPlan, Settings, StepPlan};

/// Trouble begins within this time.
const TROUBLE_MS: u64 = 20_000;

pub(super) fn draw(rng: &mut fastrand::Rng) -> Plan {
    let settings = settings(rng);
    // Some histories are calm but for one kind of participant.
    let trouble = rng.u32(0..5);
    let count = rng.usize(1..=4);
    let sagas = (0..count).map(|_| saga(rng, &settings, trouble > 0)).collect();
    let faults = if trouble > 1 { faults(rng, &settings) } else { Vec::new() };
    Plan { settings, sagas, faults }
}

fn pick(rng: &mut fastrand::Rng, of: &[u64]) -> u64 {
    of[rng.usize(0..of.len())]
}

fn settings(rng: &mut fastrand::Rng) -> Settings {
    Settings {
        workers: rng.usize(1..=3),
        lease_ms: pick(rng, &[4_000, 10_000, 30_000]),
        slow_clocks: rng.u32(0..4) == 0,
        timeout_ms: pick(rng, &[500, 1_000, 3_000]),
        settle_ms: pick(rng, &[500, 2_000, 5_000]),
        journal_ms: pick(rng, &[0, 1, 5, 50]),
        loses_one_in: if rng.u32(0..4) == 0 { rng.u32(3..12) } else { 0 },
        poll_ms: pick(rng, &[200, 1_000]),
        running_max: pick(rng, &[1, 2, 100]) as usize,
        attempts_max: rng.u32(2..=6),
        concurrent_max: (rng.u32(0..3) == 0).then(|| rng.u32(1..=2)),
    }
}

fn saga(rng: &mut fastrand::Rng, settings: &Settings, trouble: bool) -> SagaPlan {
    let before = (0..rng.usize(0..=4)).map(|_| step(rng, settings, trouble, true)).collect::<Vec<_>>();
    let has_pivot = rng.u32(0..4) > 0;
    let pivot = has_pivot.then(|| step(rng, settings, trouble, false));
    let after = if has_pivot { rng.usize(0..=2) } else { 0 };
    let pause = match rng.u32(0..6) {
        0 => Some(Pause::Sleep(rng.u64(1..15_000))),
        1 => Some(Pause::Signal(rng.u64(1_000..20_000))),
        _ => None,
    };
    let at = |rng: &mut fastrand::Rng, one_in: u32| (rng.u32(0..one_in) == 0).then(|| rng.u64(0..TROUBLE_MS));
    let begins_ms = rng.u64(0..5_000);
    let signal_ms = match pause {
        // While it is on its way to wait.
        Some(Pause::Signal(_)) if rng.bool() => Some(begins_ms + rng.u64(0..400)),
        Some(Pause::Signal(_)) => at(rng, 2),
        _ => at(rng, 20),
    };
    SagaPlan {
        begins_ms,
        deadline_ms: (rng.u32(0..5) == 0).then(|| rng.u64(500..20_000)),
        parallel: before.len() >= 2 && rng.u32(0..3) == 0,
        before,
        pivot,
        after: (0..after).map(|_| step(rng, settings, trouble, false)).collect(),
        signal_ms,
        pause,
        cancel_ms: at(rng, 8),
    }
}

fn step(rng: &mut fastrand::Rng, settings: &Settings, trouble: bool, before: bool) -> StepPlan {
    let atomic = rng.u32(0..4) == 0;
    let keyed = atomic || rng.u32(0..3) > 0;
    let undo = before && rng.u32(0..4) > 0;
    let lookup = rng.bool();
    // Where the key and the undo's fence protect, a call may arrive as late as it likes. A lookup has to know how late.
    let late_ms = if keyed && undo && !lookup { settings.settle_ms * 4 } else { settings.settle_ms };
    let script = |rng: &mut fastrand::Rng, refuses: bool| -> Vec<Does> {
        if !trouble || rng.bool() {
            return Vec::new();
        }
        let late_ms = if refuses { late_ms } else { settings.settle_ms };
        (0..rng.usize(1..=3)).map(|_| does(rng, settings, late_ms, refuses)).collect()
    };
    StepPlan {
        atomic,
        keyed,
        lookup,
        safe_for_ms: (keyed && !atomic && rng.u32(0..5) == 0).then(|| rng.u64(15_000..60_000)),
        undo,
        does: script(rng, true),
        undoes: script(rng, false),
    }
}

fn does(rng: &mut fastrand::Rng, settings: &Settings, late_ms: u64, refuses: bool) -> Does {
    let ms = match rng.u32(0..4) {
        0 => rng.u64(0..settings.timeout_ms),
        _ => rng.u64(0..50),
    };
    match rng.u32(0..12) {
        0 | 1 if refuses => Does::Refuse(ms),
        0..=2 => Does::Fail(ms),
        3..=4 => Does::LoseCall(ms),
        5..=6 => Does::LoseAnswer(ms),
        7..=8 => Does::Late(rng.u64(0..late_ms)),
        9 => Does::Hang,
        _ => Does::Take(ms),
    }
}

fn faults(rng: &mut fastrand::Rng, settings: &Settings) -> Vec<Fault> {
    let kinds = [
        FaultKind::Kill,
        FaultKind::Kill,
        FaultKind::Stall,
        FaultKind::JournalDown,
        FaultKind::AnswersLost,
        FaultKind::JournalHangs,
        FaultKind::CutOff,
        FaultKind::CutOff,
        FaultKind::Drain,
    ];
    let one = |rng: &mut fastrand::Rng| {
        let kind = kinds[rng.usize(0..kinds.len())];
        let long = settings.lease_ms..settings.lease_ms * 2;
        let for_ms = match rng.u32(0..3) {
            // About as long as the journal's lease: what is late arrives while the next worker is at work.
            _ if kind == FaultKind::CutOff => {
                let lease_ms = settings.journals_lease_ms();
                rng.u64(lease_ms * 7 / 10..lease_ms * 14 / 10)
            }
            0 => rng.u64(1..200),
            1 => rng.u64(200..settings.lease_ms),
            _ => rng.u64(long),
        };
        Fault { at_ms: rng.u64(0..TROUBLE_MS), for_ms, worker: rng.usize(0..settings.workers), kind }
    };
    (0..rng.usize(1..=5)).map(|_| one(rng)).collect()
}
