//! Draws a plan: swarm testing. Each history has some kinds of trouble, and most have not all of them.

use super::laws::OUTAGE_TRIES_MIN;
use super::plan::{Behaviour, BrokerKind, Down, Fault, KeyPlan, Mode, Plan, Settings};

/// Trouble begins within this time.
pub(super) const TROUBLE_MS: u64 = 10_000;

pub(super) fn draw(rng: &mut fastrand::Rng) -> Plan {
    let mut settings = settings(rng);
    if rng.u32(0..30) == 0 {
        let keys = stream(rng, &mut settings);
        return Plan { settings, keys, faults: Vec::new() };
    }
    if rng.u32(0..20) == 0 {
        return outage(rng, settings);
    }
    let keys = keys(rng, &settings);
    let faults = faults(rng, &settings);
    Plan { settings, keys, faults }
}

fn settings(rng: &mut fastrand::Rng) -> Settings {
    let mode = match rng.u32(0..10) {
        0 => Mode::AtMostOnce,
        1 => Mode::AtLeastOnce,
        2 => Mode::ClaimFinish,
        _ => Mode::Commit,
    };
    let pick = |rng: &mut fastrand::Rng, of: &[u64]| of[rng.usize(0..of.len())];
    let concurrency = rng.usize(1..=6);
    Settings {
        mode,
        broker: if rng.bool() { BrokerKind::Log } else { BrokerKind::Queue },
        partitions: rng.usize(1..=4),
        consumers: if rng.u32(0..3) == 0 { rng.usize(2..=3) } else { 1 },
        batch_max: pick(rng, &[1, 2, 5, 20, 100]) as usize,
        held_max: pick(rng, &[8, 16, 32, 64]) as usize,
        tries_max: rng.u32(1..=8),
        suspects_max: pick(rng, &[1, 2, 4, 8, 8]) as usize,
        concurrency,
        pause_first_ms: pick(rng, &[10, 50, 200]),
        pause_longest_ms: pick(rng, &[500, 1_000, 3_000]),
        handle_timeout_ms: pick(rng, &[300, 1_000, 3_000]),
        drain_ms: pick(rng, &[0, 500, 3_000]),
        letters_every_ms: pick(rng, &[200, 1_000, 5_000]),
        lease_ms: pick(rng, &[1_000, 3_000, 10_000]),
        handle_ms: pick(rng, &[1, 5, 20]),
        broker_ms: pick(rng, &[0, 1, 5]),
        pulse_ms: pick(rng, &[500, 1_000, 2_000]),
    }
}

fn keys(rng: &mut fastrand::Rng, settings: &Settings) -> Vec<KeyPlan> {
    let healthy = rng.usize(0..=3);
    let failing = match rng.u32(0..12) {
        0..=2 => 0,
        3..=7 => rng.usize(1..=4),
        8..=10 => rng.usize(4..=10),
        _ => rng.usize(8..=50),
    };
    let mut keys: Vec<KeyPlan> = (0..healthy).map(|_| healthy_key(rng)).collect();
    // Of one kind, or of all kinds.
    let one_kind = rng.bool().then(|| behaviour(rng, settings));
    let mut copies = 0;
    for _ in 0..failing {
        let behaviour = one_kind.unwrap_or_else(|| behaviour(rng, settings));
        let mut key = failing_key(rng, behaviour);
        if matches!(behaviour, Behaviour::Hangs | Behaviour::Slow(_)) {
            key.messages = key.messages.min(2);
        }
        copies += key.messages as usize * (1 + usize::from(key.twice));
        // A consumer reads past a bounded number of failing messages.
        if copies > settings.held_max * 3 / 2 {
            break;
        }
        keys.push(key);
    }
    rng.shuffle(&mut keys);
    keys
}

/// Failing messages for as long as healthy ones come: many times more than a consumer may hold, but never too many of them
/// in a row. Nothing else goes wrong, or they would be.
fn stream(rng: &mut fastrand::Rng, settings: &mut Settings) -> Vec<KeyPlan> {
    settings.held_max = settings.held_max.min(16);
    settings.pulse_ms = settings.pulse_ms.max(1_000);
    settings.consumers = 1;
    let (failing, each) = (rng.u64(2..=12), rng.u64(1..=4));
    let messages = (settings.held_max as u64 * 3).div_ceil(failing) as u32;
    let in_a_row = (settings.held_max as u64 / 4).max(1);
    let every_ms = (settings.pulse_ms * failing * each).div_ceil(in_a_row);
    let key = |first_ms| KeyPlan {
        behaviour: Behaviour::Fails,
        bad_every: 1,
        messages,
        first_ms,
        every_ms,
        keyed: true,
        twice: false,
    };
    (0..failing).map(|n| key(n * every_ms / failing)).collect()
}

/// The handler is down when many healthy keys come at once: it is no key's fault.
fn outage(rng: &mut fastrand::Rng, settings: Settings) -> Plan {
    let settings = Settings {
        mode: Mode::Commit,
        consumers: 1,
        tries_max: rng.u32(OUTAGE_TRIES_MIN..=8),
        held_max: settings.held_max.max(4 * settings.suspects_max),
        ..settings
    };
    let (at_ms, for_ms) = (rng.u64(500..3_000), rng.u64(1_000..10_000));
    let how = if rng.bool() { Down::Refuses } else { Down::Hangs };
    let key = || KeyPlan { first_ms: at_ms, ..healthy() };
    let keys = (0..2 * settings.suspects_max).map(|_| key()).collect();
    Plan { settings, keys, faults: vec![Fault::HandlerDown { at_ms, for_ms, how }] }
}

fn behaviour(rng: &mut fastrand::Rng, settings: &Settings) -> Behaviour {
    match rng.u32(0..12) {
        0..=3 => Behaviour::Fails,
        4 => Behaviour::Poison,
        5..=6 => Behaviour::FailsUntil(rng.u64(500..TROUBLE_MS)),
        7 => Behaviour::LaterUntil(rng.u64(500..TROUBLE_MS)),
        8 => Behaviour::Panics,
        // Work that the guard runs is bounded by nothing but itself.
        9 if settings.mode != Mode::ClaimFinish => Behaviour::Hangs,
        10 => Behaviour::Slow(settings.handle_timeout_ms / rng.u64(4..=20)),
        11 => Behaviour::MissingIdentity,
        _ => Behaviour::Fails,
    }
}

fn healthy() -> KeyPlan {
    let behaviour = Behaviour::Healthy;
    KeyPlan { behaviour, bad_every: 1, messages: 1, first_ms: 0, every_ms: 0, keyed: true, twice: false }
}

fn healthy_key(rng: &mut fastrand::Rng) -> KeyPlan {
    KeyPlan {
        messages: rng.u32(1..=12),
        first_ms: rng.u64(0..TROUBLE_MS / 2),
        every_ms: [0, 10, 300, 1_000][rng.usize(0..4)],
        keyed: rng.u32(0..4) > 0,
        twice: rng.u32(0..6) == 0,
        ..healthy()
    }
}

fn failing_key(rng: &mut fastrand::Rng, behaviour: Behaviour) -> KeyPlan {
    let now = rng.bool();
    KeyPlan {
        behaviour,
        bad_every: if rng.u32(0..4) == 0 { rng.u32(2..=4) } else { 1 },
        messages: rng.u32(1..=6),
        first_ms: if now { 0 } else { rng.u64(0..TROUBLE_MS / 2) },
        every_ms: if now { 0 } else { [10, 300, 1_000][rng.usize(0..3)] },
        keyed: rng.u32(0..6) > 0,
        twice: rng.u32(0..10) == 0,
    }
}

fn faults(rng: &mut fastrand::Rng, settings: &Settings) -> Vec<Fault> {
    let count = match rng.u32(0..3) {
        0 => 0,
        1 => rng.usize(1..=2),
        _ => rng.usize(3..=4),
    };
    (0..count).map(|_| fault(rng, settings)).collect()
}

fn fault(rng: &mut fastrand::Rng, settings: &Settings) -> Fault {
    let at_ms = rng.u64(0..TROUBLE_MS);
    let for_ms = [100, 1_000, 3_000, 8_000][rng.usize(0..4)];
    let consumer = rng.usize(0..settings.consumers);
    let back_ms = rng.u64(10..3_000);
    match rng.u32(0..12) {
        0 | 1 => {
            let how = match rng.u32(0..3) {
                0 => Down::Refuses,
                1 if settings.mode != Mode::ClaimFinish => Down::Hangs,
                _ => Down::SaysLater,
            };
            Fault::HandlerDown { at_ms, for_ms, how }
        }
        2 => Fault::SourceDown { at_ms, for_ms },
        3 => Fault::SettleLost { at_ms, for_ms, applied: rng.bool() },
        4 => Fault::LettersDown { at_ms, for_ms, hangs: rng.bool() },
        5 => Fault::CommitUnknown { at_ms, for_ms: for_ms.min(1_000) },
        6 | 7 => Fault::Rebalance { at_ms },
        8 => Fault::Crash { consumer, at_ms, back_ms },
        9 => Fault::Stall { consumer, at_ms, for_ms },
        10 => Fault::Stop { consumer, at_ms, back_ms },
        _ => Fault::RetryLetters { at_ms: at_ms + 5_000 },
    }
}
