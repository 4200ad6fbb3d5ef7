//! Plays a plan: publishes, lets faults happen, and watches the laws.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::broker::Broker;
use super::laws::{self, Bounds};
use super::ledger::{Ledger, PULSE};
use super::letters::Letters;
use super::plan::{Fault, Plan};
use super::process::Fleet;
use crate::stage::Stage;
use crate::world::Violation;

/// How often the laws are watched.
const WATCH: Duration = Duration::from_secs(1);

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Start(usize),
    Fault(usize),
}

pub(super) async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
    let ledger = Arc::new(Ledger::new(plan, stage));
    let broker = Broker::new(&ledger);
    let letters = Letters::new(&ledger);
    let mut fleet = Fleet::new(&ledger, &broker, &letters);
    (0..fleet.len()).for_each(|consumer| fleet.start(consumer));
    let pulsing = Arc::new(AtomicBool::new(true));
    let publisher = tokio::spawn(publish(Arc::clone(&ledger), Arc::clone(&broker)));
    let pulse = tokio::spawn(pulse(Arc::clone(&ledger), Arc::clone(&broker), Arc::clone(&pulsing)));
    let watched = watch(&ledger, &broker, &letters, &mut fleet, &pulsing).await;
    publisher.abort();
    pulse.abort();
    watched?;
    for consumer in 0..fleet.len() {
        fleet.stop(consumer).await;
    }
    laws::judge(&ledger, &broker)
}

async fn publish(ledger: Arc<Ledger>, broker: Arc<Broker>) {
    let mut all = Vec::new();
    for (key, plan) in ledger.plan.keys.iter().enumerate() {
        for n in 0..plan.messages {
            all.push((plan.first_ms + plan.every_ms * u64::from(n), n, key, plan.twice));
        }
    }
    // What is published at one moment comes by turns of the keys.
    all.sort();
    for (at_ms, n, key, twice) in all {
        sleep_until(&ledger.stage, at_ms).await;
        let message = ledger.published(key, n);
        ledger.stage.count("messages", 1);
        broker.publish(message, key);
        if twice {
            ledger.stage.count("messages published twice", 1);
            broker.publish(message, key);
        }
    }
}

/// A healthy message now and then, until nothing else is open.
async fn pulse(ledger: Arc<Ledger>, broker: Arc<Broker>, pulsing: Arc<AtomicBool>) {
    for n in 0.. {
        tokio::time::sleep(Duration::from_millis(ledger.plan.settings.pulse_ms)).await;
        if !pulsing.load(Ordering::Relaxed) {
            return;
        }
        let message = ledger.published(PULSE, n);
        ledger.stage.count("messages", 1);
        broker.publish(message, PULSE);
    }
}

async fn sleep_until(stage: &Stage, at_ms: u64) {
    tokio::time::sleep(Duration::from_millis(at_ms).saturating_sub(stage.elapsed())).await;
}

/// Lets the faults happen, each at its time.
async fn disturb(ledger: &Ledger, broker: &Broker, letters: &Letters, fleet: &mut Fleet) {
    let mut steps: Vec<(u64, Step)> = Vec::new();
    for (n, fault) in ledger.plan.faults.iter().enumerate() {
        steps.push((fault.at_ms(), Step::Fault(n)));
        if let Fault::Crash { consumer, at_ms, back_ms } | Fault::Stop { consumer, at_ms, back_ms } = fault {
            steps.push((at_ms + back_ms, Step::Start(consumer % fleet.len())));
        }
    }
    steps.sort();
    let stage = &ledger.stage;
    for (at_ms, step) in steps {
        sleep_until(stage, at_ms).await;
        let fault = match step {
            Step::Start(consumer) => {
                fleet.start_if_down(consumer);
                continue;
            }
            Step::Fault(n) => ledger.plan.faults[n],
        };
        let consumers = fleet.len();
        match fault {
            Fault::Crash { consumer, .. } => fleet.crash(consumer % consumers),
            Fault::Stall { consumer, for_ms, .. } => {
                fleet.stall(consumer % consumers, Duration::from_millis(for_ms));
            }
            Fault::Stop { consumer, .. } => fleet.stop(consumer % consumers).await,
            Fault::Rebalance { .. } => {
                stage.trace("the broker rebalances");
                stage.count("rebalances", 1);
                broker.rebalance();
            }
            Fault::RetryLetters { .. } => letters.retry_all(),
            other => stage.trace(format_args!("begins: {other:?}")),
        }
    }
    (0..fleet.len()).for_each(|consumer| fleet.start_if_down(consumer));
}

/// Watches the laws until everything has ended.
async fn watch(
    ledger: &Ledger,
    broker: &Broker,
    letters: &Letters,
    fleet: &mut Fleet,
    pulsing: &AtomicBool,
) -> Result<(), Violation> {
    let bounds = Bounds::of(&ledger.plan);
    let quiet = ledger.plan.quiet_from();
    let mut watch = Watch { bounds, seen: 0, open: Vec::new() };
    let mut disturbing = Box::pin(disturb(ledger, broker, letters, fleet));
    let mut disturbed = false;
    while !disturbed {
        tokio::select! {
            biased;
            () = &mut disturbing => disturbed = true,
            () = tokio::time::sleep(WATCH) => watch.look(ledger)?,
        }
    }
    drop(disturbing);
    loop {
        tokio::time::sleep(WATCH).await;
        watch.look(ledger)?;
        if let Some(consumer) = fleet.broke() {
            return Err(Violation::new(laws::RUNS, format!("consumer {consumer} has ended by itself")));
        }
        if ledger.now() < quiet || letters.wanted() {
            continue;
        }
        if watch.open.is_empty() && broker.is_empty() {
            return Ok(());
        }
        let only_pulses = watch.open.iter().all(|message| ledger.state().messages[*message].key == PULSE);
        if only_pulses && broker.has_only_pulses() {
            pulsing.store(false, Ordering::Relaxed);
        }
    }
}

/// The messages whose end is waited for.
struct Watch {
    bounds: Bounds,
    /// Messages that were looked at before.
    seen: usize,
    open: Vec<usize>,
}

impl Watch {
    fn look(&mut self, ledger: &Ledger) -> Result<(), Violation> {
        let now = ledger.now();
        let state = ledger.state();
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        self.open.extend(self.seen..state.messages.len());
        self.seen = state.messages.len();
        self.open.retain(|message| {
            let entry = &state.messages[*message];
            !(entry.done && laws::is_decided(&ledger.plan, entry))
        });
        for message in &self.open {
            let entry = &state.messages[*message];
            let deadline = self.bounds.deadline(entry.published);
            let is_late = now > deadline && !laws::is_decided(&ledger.plan, entry);
            if is_late && laws::is_of_a_healthy_key(&ledger.plan, entry) {
                let (key, n) = (entry.key as isize, entry.n);
                let bound = deadline - entry.published;
                let what = format!(
                    "message {n} of the healthy key {key} (-1 is the pulse) is not handled {:.0} s after it was published",
                    bound.as_secs_f64()
                );
                return Err(Violation::new(laws::HEALTHY, what));
            }
        }
        if now > self.bounds.end {
            let first = self.open.first().map(|message| &state.messages[*message]);
            let what = format!("after {:.0} s: {first:?}", now.as_secs_f64());
            return Err(Violation::new(laws::ENDS, what));
        }
        Ok(())
    }
}
