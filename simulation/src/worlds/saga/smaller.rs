//! Smaller plans, the boldest cuts first.

use super::plan::Plan;
use crate::minimise::shorter;

pub(super) fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    plans.extend(shorter(&plan.faults).into_iter().map(|faults| Plan { faults, ..plan.clone() }));
    // Sagas keep their places: a saga that begins never is one less.
    for (n, saga) in plan.sagas.iter().enumerate() {
        if plan.sagas.len() > 1 {
            let mut smaller = plan.clone();
            smaller.sagas.remove(n);
            plans.push(smaller);
        }
        let mut with = |change: &dyn Fn(&mut super::plan::SagaPlan)| {
            let mut smaller = plan.clone();
            change(&mut smaller.sagas[n]);
            plans.push(smaller);
        };
        if saga.cancel_ms.is_some() {
            with(&|saga| saga.cancel_ms = None);
        }
        if saga.signal_ms.is_some() {
            with(&|saga| saga.signal_ms = None);
        }
        if saga.deadline_ms.is_some() {
            with(&|saga| saga.deadline_ms = None);
        }
        if saga.pause.is_some() {
            with(&|saga| saga.pause = None);
        }
        if saga.parallel {
            with(&|saga| saga.parallel = false);
        }
        if saga.pivot.is_some() {
            with(&|saga| {
                saga.pivot = None;
                saga.after.clear();
            });
        }
        for before in shorter(&saga.before) {
            with(&|saga| {
                saga.parallel &= before.len() >= 2;
                saga.before.clone_from(&before);
            });
        }
        for after in shorter(&saga.after) {
            with(&|saga| saga.after.clone_from(&after));
        }
        for step in 0..saga.before.len() {
            for does in shorter(&saga.before[step].does) {
                with(&|saga| saga.before[step].does.clone_from(&does));
            }
            for undoes in shorter(&saga.before[step].undoes) {
                with(&|saga| saga.before[step].undoes.clone_from(&undoes));
            }
        }
        if let Some(pivot) = &saga.pivot {
            for does in shorter(&pivot.does) {
                with(&|saga| {
                    if let Some(pivot) = &mut saga.pivot {
                        pivot.does.clone_from(&does);
                    }
                });
            }
        }
    }
    if plan.settings.workers > 1 && plan.faults.iter().all(|fault| fault.worker + 1 < plan.settings.workers) {
        let mut smaller = plan.clone();
        smaller.settings.workers -= 1;
        plans.push(smaller);
    }
    plans
}
