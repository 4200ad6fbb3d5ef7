//! Smaller plans: fewer faults, fewer keys, fewer messages, plainer settings.

use super::plan::{Behaviour, BrokerKind, Mode, Plan, Settings};
use crate::minimise::shorter;

pub(super) fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    plans.extend(shorter(&plan.faults).into_iter().map(|faults| Plan { faults, ..plan.clone() }));
    plans.extend(shorter(&plan.keys).into_iter().map(|keys| Plan { keys, ..plan.clone() }));
    for at in 0..plan.keys.len() {
        let key = &plan.keys[at];
        let mut with = |change: &dyn Fn(&mut super::plan::KeyPlan)| {
            let mut plan = plan.clone();
            change(&mut plan.keys[at]);
            plans.push(plan);
        };
        if key.messages > 1 {
            with(&|key| key.messages /= 2);
            with(&|key| key.messages -= 1);
        }
        if key.twice {
            with(&|key| key.twice = false);
        }
        if key.bad_every > 1 {
            with(&|key| key.bad_every = 1);
        }
        if key.first_ms > 0 {
            with(&|key| key.first_ms = 0);
        }
        if key.every_ms > 0 {
            with(&|key| key.every_ms = 0);
        }
        if !matches!(key.behaviour, Behaviour::Healthy | Behaviour::Fails) {
            with(&|key| key.behaviour = Behaviour::Fails);
        }
    }
    plans.extend(plainer(&plan.settings).into_iter().map(|settings| Plan { settings, ..plan.clone() }));
    plans
}

fn plainer(settings: &Settings) -> Vec<Settings> {
    let mut all = Vec::new();
    let mut with = |differs: bool, change: &dyn Fn(&mut Settings)| {
        if differs {
            let mut settings = settings.clone();
            change(&mut settings);
            all.push(settings);
        }
    };
    with(settings.mode != Mode::Commit, &|settings| settings.mode = Mode::Commit);
    with(settings.consumers > 1, &|settings| settings.consumers = 1);
    with(settings.broker != BrokerKind::Queue, &|settings| settings.broker = BrokerKind::Queue);
    with(settings.partitions > 1, &|settings| settings.partitions = 1);
    with(settings.concurrency > 1, &|settings| settings.concurrency = 1);
    with(settings.batch_max > 1, &|settings| settings.batch_max = 1);
    with(settings.held_max > 8, &|settings| settings.held_max /= 2);
    with(settings.tries_max > 2, &|settings| settings.tries_max = 2);
    with(settings.suspects_max > 1, &|settings| settings.suspects_max /= 2);
    with(settings.pause_longest_ms > 500, &|settings| settings.pause_longest_ms = 500);
    with(settings.pause_first_ms != 50, &|settings| settings.pause_first_ms = 50);
    with(settings.handle_timeout_ms > 500, &|settings| settings.handle_timeout_ms = 500);
    with(settings.drain_ms != 500, &|settings| settings.drain_ms = 500);
    with(settings.letters_every_ms != 1_000, &|settings| settings.letters_every_ms = 1_000);
    with(settings.lease_ms != 3_000, &|settings| settings.lease_ms = 3_000);
    with(settings.handle_ms != 1, &|settings| settings.handle_ms = 1);
    with(settings.broker_ms != 0, &|settings| settings.broker_ms = 0);
    with(settings.pulse_ms != 1_000, &|settings| settings.pulse_ms = 1_000);
    all
}
