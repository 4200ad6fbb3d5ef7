//! How a seed becomes a plan.

use fastrand::Rng;

use super::plan::{Append, Fault, How, Plan, Settings};

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Draws a plan.
pub(super) fn draw(rng: &mut Rng) -> Plan {
    match rng.u8(..32) {
        0 | 1 => return overtaken(rng),
        2 => return in_front(rng),
        3 => return fenced(rng),
        _ => {}
    }
    let settings = settings(rng);
    let appends = appends(rng);
    let mut plan = Plan { settings, appends, faults: Vec::new() };
    plan.faults = faults(rng, &plan);
    plan
}

fn settings(rng: &mut Rng) -> Settings {
    let backoff_first_ms = one_of(rng, &[5, 20, 100]);
    Settings {
        exactly_once: rng.u8(..100) < 35,
        relays: one_of(rng, &[1, 1, 1, 2, 3]),
        partitions: one_of(rng, &[1, 1, 2, 4]),
        batch_max: one_of(rng, &[1, 2, 5, 10, 20, 50, 400]),
        attempts_max: rng.u32(1..=4),
        failing_keys_max: one_of(rng, &[1, 2, 8, 8, 8, 20]),
        parks_itself: rng.u8(..100) < 15,
        backoff_first_ms,
        backoff_max_ms: one_of(rng, &[200, 1_000, 10_000]),
        idle_ms: one_of(rng, &[25, 100, 400]),
        lease_ms: one_of(rng, &[1_000, 5_000, 10_000]),
        retry_ms: one_of(rng, &[50, 1_000, 5_000]),
        call_ms: one_of(rng, &[0, 1, 5, 50, 300]),
    }
}

fn appends(rng: &mut Rng) -> Vec<Append> {
    let (keys, topics) = (one_of(rng, &[1, 3, 10, 30, 60]), rng.u8(1..=4));
    let (events, span_ms) = (rng.usize(1..=120), one_of(rng, &[0, 500, 5_000, 20_000]));
    // Events of one key mostly go to one topic; in some histories they change.
    let (changing, keyless, twins) = (rng.u8(..4) == 0, rng.u8(..3) == 0, rng.u8(..3) == 0);
    let mut at: Vec<u64> = (0..events).map(|_| rng.u64(0..=span_ms)).collect();
    at.sort_unstable();
    let mut appends: Vec<Append> = Vec::new();
    for at_ms in at {
        let key = rng.u8(..keys);
        let topic = if changing { rng.u8(..topics) } else { key % topics };
        let key = (!keyless || rng.u8(..4) > 0).then_some(key);
        let twin =
            twins && rng.u8(..6) == 0 && appends.last().is_some_and(|last| last.topic != topic && !last.twin);
        appends.push(Append { at_ms, key, topic, twin });
    }
    appends
}

/// A relay reads a batch with an event that is held behind a parked key, and says `done` so late that another has taken over,
/// freed the key, and is at the same batch.
fn overtaken(rng: &mut Rng) -> Plan {
    let settings = Settings {
        exactly_once: false,
        relays: 2,
        partitions: 1,
        batch_max: 2,
        attempts_max: 1,
        failing_keys_max: 8,
        lease_ms: 1_000,
        retry_ms: one_of(rng, &[1_000, 5_000]),
        ..settings(rng)
    };
    let append = |key| Append { at_ms: 0, key: Some(key), topic: 0, twin: false };
    let mut appends: Vec<Append> = [0, 1, 0, 2].into_iter().map(append).collect();
    appends.extend((0..rng.u8(..6)).map(append));
    let faults = vec![
        Fault::KeyFails { key: 0, at_ms: 0, for_ms: Some(rng.u64(100..5_000)), how: How::NotPublished },
        Fault::SinkSlow { at_ms: 0, for_ms: 60_000, by_ms: one_of(rng, &[1_000, 3_000, 8_000]) },
        Fault::LateDone { done: 2, by_ms: rng.u64(2_000..20_000) },
    ];
    Plan { settings, appends, faults }
}

/// Exactly once, a relay stands still in its transaction for so long that another takes over, and wakes up with its own open.
fn fenced(rng: &mut Rng) -> Plan {
    let settings = Settings {
        exactly_once: true,
        relays: 2,
        partitions: 1,
        batch_max: 2,
        lease_ms: 1_000,
        ..settings(rng)
    };
    let append = |n: u8| Append { at_ms: 500 * u64::from(n), key: Some(n % 3), topic: 0, twin: false };
    let appends = (0..20).map(append).collect();
    let faults = vec![Fault::StallInCall { call: rng.u64(1..=4), for_ms: rng.u64(3_000..8_000) }];
    Plan { settings, appends, faults }
}

/// Many keys of a destination that is away stand in front of an event of another.
fn in_front(rng: &mut Rng) -> Plan {
    let settings = Settings { exactly_once: false, relays: 1, partitions: 1, ..settings(rng) };
    let append = |key, topic| Append { at_ms: 0, key: Some(key), topic, twin: false };
    let mut appends: Vec<Append> = (0..rng.u8(1..=50)).map(|key| append(key, 0)).collect();
    appends.push(append(59, 1));
    let how = one_of(rng, &[How::NotPublished, How::InDoubt]);
    Plan { settings, appends, faults: vec![Fault::TopicFails { topic: 0, at_ms: 0, for_ms: None, how }] }
}

fn how(rng: &mut Rng) -> How {
    use How::*;
    one_of(
        rng,
        &[NotPublished, NotPublished, NotPublished, InDoubt, InDoubt, Unconfirmed, OneDestination, NotTried],
    )
}

fn faults(rng: &mut Rng, plan: &Plan) -> Vec<Fault> {
    let mut faults = Vec::new();
    let end_ms = plan.appends.last().map_or(0, |last| last.at_ms) + 5_000;
    let at = |rng: &mut Rng| if rng.u8(..4) == 0 { 0 } else { rng.u64(0..=end_ms) };
    let long = |rng: &mut Rng| one_of(rng, &[100, 1_000, 5_000, 20_000, 60_000]);
    let ends = |rng: &mut Rng| if rng.bool() { None } else { Some(long(rng)) };
    // Each kind is in some histories and not in others.
    if rng.u8(..100) < 45 {
        let (count, one, from) = (one_of(rng, &[1, 3, 9, 12, 50]), how(rng), at(rng));
        let same = rng.bool();
        let keys: Vec<u8> = (0..60).collect();
        for key in rng.choose_multiple(&keys, count) {
            let (at_ms, how) = if same { (from, one) } else { (at(rng), how(rng)) };
            faults.push(Fault::KeyFails { key: *key, at_ms, for_ms: ends(rng), how });
        }
    }
    if rng.u8(..100) < 35 {
        faults.push(Fault::TopicFails {
            topic: rng.u8(..4),
            at_ms: at(rng),
            for_ms: ends(rng),
            how: how(rng),
        });
    }
    if rng.u8(..100) < 30 {
        for _ in 0..rng.usize(1..=4) {
            faults.push(Fault::Refused { event: rng.usize(..plan.appends.len()) });
        }
    }
    if rng.u8(..100) < 30 {
        faults.push(Fault::SinkDown { at_ms: at(rng), for_ms: long(rng), how: how(rng) });
    }
    if rng.u8(..100) < 20 {
        faults.push(Fault::SinkFlaky {
            at_ms: at(rng),
            for_ms: long(rng),
            percent: one_of(rng, &[5, 30, 80]),
        });
    }
    if rng.u8(..100) < 15 {
        let by_ms = one_of(rng, &[100, 1_000, 8_000]);
        faults.push(Fault::SinkSlow { at_ms: at(rng), for_ms: long(rng), by_ms });
    }
    if rng.u8(..100) < 20 {
        faults.push(Fault::OutboxDown { at_ms: at(rng), for_ms: long(rng) });
    }
    if rng.u8(..100) < 20 {
        faults.push(Fault::OutboxSilent { at_ms: at(rng), for_ms: one_of(rng, &[10, 100, 1_000, 5_000]) });
    }
    let relays = plan.settings.relays;
    if rng.u8(..100) < 40 {
        for _ in 0..rng.usize(1..=3) {
            let down_ms = one_of(rng, &[10, 500, 20_000]);
            faults.push(Fault::Crash { relay: rng.usize(..relays), at_ms: at(rng), down_ms });
        }
    }
    if rng.u8(..100) < 25 {
        let for_ms = one_of(rng, &[500, 6_000, 20_000]);
        faults.push(Fault::Stall { relay: rng.usize(..relays), at_ms: at(rng), for_ms });
    }
    if rng.u8(..100) < 20 {
        for _ in 0..rng.usize(1..=2) {
            faults.push(Fault::CrashInCall { call: rng.u64(1..=30), written: rng.bool() });
        }
    }
    if rng.u8(..100) < 20 {
        for _ in 0..rng.usize(1..=2) {
            let for_ms = one_of(rng, &[500, 6_000, 20_000]);
            faults.push(Fault::StallInCall { call: rng.u64(1..=30), for_ms });
        }
    }
    if rng.u8(..100) < 20 {
        for _ in 0..rng.usize(1..=2) {
            let by_ms = one_of(rng, &[500, 6_000, 20_000]);
            faults.push(Fault::LateDone { done: rng.u64(1..=20), by_ms });
        }
    }
    if rng.u8(..100) < 20 {
        let down_ms = one_of(rng, &[0, 500, 5_000]);
        faults.push(Fault::Stop { relay: rng.usize(..relays), at_ms: at(rng), down_ms });
    }
    if rng.u8(..100) < 20 {
        for _ in 0..rng.usize(1..=3) {
            faults
                .push(Fault::LeaseEnds { partition: rng.usize(..plan.settings.partitions), at_ms: at(rng) });
        }
    }
    if rng.u8(..100) < 30 {
        for _ in 0..rng.usize(1..=2) {
            faults.push(Fault::RetryAll { at_ms: at(rng) + rng.u64(0..20_000) });
        }
    }
    faults
}

/// Smaller plans, the boldest cuts first.
pub(super) fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for faults in crate::minimise::shorter(&plan.faults) {
        plans.push(Plan { faults, ..plan.clone() });
    }
    plans.extend(fewer_appends(plan));
    let mut with = |change: &dyn Fn(&mut Settings)| {
        let mut plainer = plan.clone();
        change(&mut plainer.settings);
        if format!("{:?}", plainer.settings) != format!("{:?}", plan.settings) {
            plans.push(plainer);
        }
    };
    with(&|settings| settings.relays = 1);
    with(&|settings| settings.partitions = 1);
    with(&|settings| settings.exactly_once = false);
    with(&|settings| settings.parks_itself = false);
    with(&|settings| settings.batch_max = 400);
    with(&|settings| settings.attempts_max = 3);
    with(&|settings| settings.failing_keys_max = 8);
    with(&|settings| settings.call_ms = 1);
    with(&|settings| settings.lease_ms = 10_000);
    with(&|settings| settings.retry_ms = 1_000);
    with(&|settings| (settings.backoff_first_ms, settings.backoff_max_ms) = (20, 10_000));
    with(&|settings| settings.idle_ms = 25);
    plans.extend(plainer_faults(plan));
    plans.extend(plainer_appends(plan));
    plans
}

/// Without some of the events. What a fault says of an event by its number has to follow.
fn fewer_appends(plan: &Plan) -> Vec<Plan> {
    let numbers: Vec<usize> = (0..plan.appends.len()).collect();
    let kept = crate::minimise::shorter(&numbers).into_iter().filter(|kept| !kept.is_empty());
    let fewer = kept.map(|kept| {
        let place = |event: usize| kept.iter().position(|other| *other == event);
        let mut appends: Vec<Append> = kept.iter().map(|event| plan.appends[*event].clone()).collect();
        for at in 0..appends.len() {
            let before = kept[at].checked_sub(1).filter(|_| appends[at].twin);
            appends[at].twin = before.is_some_and(|before| at > 0 && kept[at - 1] == before);
        }
        let faults = plan.faults.iter().filter_map(|fault| match fault {
            Fault::Refused { event } => place(*event).map(|event| Fault::Refused { event }),
            other => Some(other.clone()),
        });
        Plan { settings: plan.settings.clone(), appends, faults: faults.collect() }
    });
    fewer.collect()
}

fn plainer_faults(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (at, fault) in plan.faults.iter().enumerate() {
        let plainer = match fault.clone() {
            Fault::KeyFails { key, for_ms, how, at_ms } if at_ms > 0 || how != How::NotPublished => {
                Fault::KeyFails { key, at_ms: 0, for_ms, how: How::NotPublished }
            }
            Fault::TopicFails { topic, for_ms, how, at_ms } if at_ms > 0 || how != How::NotPublished => {
                Fault::TopicFails { topic, at_ms: 0, for_ms, how: How::NotPublished }
            }
            Fault::SinkDown { at_ms, for_ms, how } if how != How::NotPublished => {
                Fault::SinkDown { at_ms, for_ms, how: How::NotPublished }
            }
            _ => continue,
        };
        let mut faults = plan.faults.clone();
        faults[at] = plainer;
        plans.push(Plan { faults, ..plan.clone() });
    }
    plans
}

fn plainer_appends(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let changes: [fn(&mut Append); 3] =
        [|append| append.at_ms = 0, |append| append.twin = false, |append| append.topic = 0];
    for change in changes {
        let mut plainer = plan.clone();
        plainer.appends.iter_mut().for_each(change);
        // Twins are on different topics.
        let twin = |pair: &[Append]| pair[1].twin && pair[0].topic == pair[1].topic;
        if plainer.appends.windows(2).any(twin) {
            continue;
        }
        if format!("{:?}", plainer.appends) != format!("{:?}", plan.appends) {
            plans.push(plainer);
        }
    }
    plans
}
