//! The laws, and the bounds they state. The bounds are computed from the plan.

use std::time::Duration;

use super::broker::Broker;
use super::draw::TROUBLE_MS;
use super::ledger::{Entry, Ledger, PULSE};
use super::plan::{Behaviour, BrokerKind, Down, Fault, KeyPlan, Mode, Plan};
use crate::world::Violation;

/// Each message has its effect once.
pub(super) const ONCE: &str = "each effect happens once";
/// Messages of one key have their effects in order.
pub(super) const ORDER: &str = "messages of a key keep their order";
/// The source is not acked too early.
pub(super) const DONE_AFTER_EFFECT: &str = "done only after the effect or the dead letter";
/// Nothing is forgotten.
pub(super) const ENDS: &str = "every message is handled or a dead letter in the end";
/// Healthy keys go on while others fail.
pub(super) const HEALTHY: &str = "healthy keys go on";
/// Nothing becomes a dead letter that did not deserve it.
pub(super) const DESERVED: &str = "only what failed often enough becomes a dead letter";
/// An outage is not the fault of messages.
pub(super) const OUTAGE: &str = "an outage makes no dead letters";
/// Handled or given up, not both.
pub(super) const BOTH: &str = "a message is not both handled and a dead letter";
/// A stop ends within its bound.
pub(super) const STOP_ENDS: &str = "a stop ends";
/// A consumer runs until it is stopped.
pub(super) const RUNS: &str = "a consumer runs until it is stopped";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The bounds of a plan.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// How long a healthy message may take where nothing but keys fails.
    healthy: Duration,
    /// When more than keys fails, with the time it takes to get over it.
    disturbed: Vec<(Duration, Duration)>,
    /// By then everything has ended.
    pub(super) end: Duration,
}

impl Bounds {
    pub(super) fn of(plan: &Plan) -> Self {
        let healthy = healthy(plan);
        let disturbed = disturbed(plan);
        let last = disturbed.last().map_or(Duration::ZERO, |(_, end)| *end);
        let quiet = plan.quiet_from().max(last);
        let retried = plan.faults.iter().filter(|fault| matches!(fault, Fault::RetryLetters { .. })).count();
        // What a process knew of failures is gone when it dies.
        let again = 2 + retried as u32 + disturbed.len() as u32;
        Self { healthy, disturbed, end: quiet + (healthy + giving_up(plan)) * again }
    }

    /// By when a healthy message has to be handled that was published then.
    pub(super) fn deadline(&self, published: Duration) -> Duration {
        self.disturbed.iter().fold(published + self.healthy, |deadline, (begin, end)| {
            if *begin < deadline && *end > published { deadline.max(*end + self.healthy) } else { deadline }
        })
    }
}

/// Halvings of a batch until one message is alone, and the first try.
fn halvings(plan: &Plan) -> u32 {
    let settings = &plan.settings;
    let batch = if settings.mode == Mode::Commit { settings.batch_max.min(settings.held_max * 2) } else { 1 };
    batch.next_power_of_two().ilog2() + 2
}

/// Messages whose calls may take as long as a call may take.
fn hanging(plan: &Plan) -> u32 {
    let is_long = |key: &&KeyPlan| matches!(key.behaviour, Behaviour::Hangs | Behaviour::Slow(_));
    plan.keys.iter().filter(is_long).map(|key| key.bad() as u32 * (1 + u32::from(key.twice))).sum()
}

fn copies(plan: &Plan) -> u32 {
    plan.keys.iter().map(|key| key.messages * (1 + u32::from(key.twice))).sum()
}

/// Some seconds, the work itself, and for each call that takes too long the time to find out whose fault it is.
fn healthy(plan: &Plan) -> Duration {
    let settings = &plan.settings;
    let timeout = ms(settings.handle_timeout_ms);
    let work = ms(settings.handle_ms + 4 * settings.broker_ms + 5) * copies(plan) * halvings(plan);
    let rest = ms(settings.pause_longest_ms + settings.lease_ms) * 2;
    // A message on which the handler hangs is found by halves, and then has its tries alone.
    let calls = hanging(plan) * (halvings(plan) + settings.tries_max) + 1;
    Duration::from_secs(10) + rest + work + timeout * calls
}

/// How long the failing messages of a key take to be given up, one after the other.
fn giving_up(plan: &Plan) -> Duration {
    let settings = &plan.settings;
    let mut pause = settings.pause_first_ms;
    let mut each = 0;
    // Something is handled between two failures: by the same consumer, so the pulses of the others do not help.
    let pulse_ms = settings.pulse_ms * settings.consumers.max(settings.partitions) as u64;
    for _ in 0..=settings.tries_max {
        each += pause + pulse_ms + settings.handle_ms + 10;
        pause = (pause * 2).min(settings.pause_longest_ms);
    }
    let copies = |key: &KeyPlan| key.bad() * (1 + u64::from(key.twice));
    let longest = plan.keys.iter().map(copies).max().unwrap_or_default();
    // What is handled counts against a hanging message only between two of its attempts. Half the time is spent waiting
    // for something to fall there.
    let between = pulse_ms.div_ceil(settings.pause_longest_ms.max(1)) as u32;
    let attempt = ms(settings.handle_timeout_ms + settings.pause_longest_ms);
    let hangs = attempt * hanging(plan) * halvings(plan).max(2 * between) * settings.tries_max;
    ms(each * longest + settings.letters_every_ms) + hangs
}

/// From when to when more than a key fails. Getting over it takes leases, pauses, and calls that end.
fn disturbed(plan: &Plan) -> Vec<(Duration, Duration)> {
    let settings = &plan.settings;
    let over = ms(settings.lease_ms + 2 * settings.pause_longest_ms + settings.drain_ms)
        + ms(settings.handle_timeout_ms) * (halvings(plan) + 1);
    let lasts = |fault: &Fault| (ms(fault.at_ms()), ms(fault.at_ms() + fault.for_ms()) + over);
    let mut windows: Vec<_> = plan.faults.iter().map(lasts).collect();
    windows.sort();
    windows
}

/// How long a stop may take.
pub(super) fn stop_bound(plan: &Plan) -> Duration {
    let settings = &plan.settings;
    // Calls, dead letters, calls that were broken off, and the source.
    ms(settings.drain_ms * 2 + settings.handle_timeout_ms * 2) + Duration::from_secs(5)
}

/// Whether failing keys may hold more than they should.
fn may_be_crowded(plan: &Plan) -> bool {
    let settings = &plan.settings;
    let down_ms = plan.faults.iter().map(|fault| fault.for_ms()).max().unwrap_or_default();
    // What a consumer had received that is gone comes again when its lease is over; of a log, all since the oldest message
    // that is open.
    let moves =
        |fault: &Fault| matches!(fault, Fault::Crash { .. } | Fault::Stop { .. } | Fault::Rebalance { .. });
    let back_ms = match plan.settings.broker {
        _ if !plan.faults.iter().any(moves) => 0,
        BrokerKind::Queue => settings.lease_ms,
        BrokerKind::Log => TROUBLE_MS,
    };
    // Others wait behind calls that hang.
    let hanging =
        plan.keys.iter().filter(|key| matches!(key.behaviour, Behaviour::Hangs | Behaviour::Slow(_)));
    let hanging_ms = hanging.map(|key| key.messages as u64).sum::<u64>() * settings.handle_timeout_ms;
    let pulses = (down_ms + back_ms + hanging_ms + settings.pause_longest_ms) / settings.pulse_ms;
    copies(plan) as usize + pulses as usize > settings.held_max
}

/// Failures after which a message of a failing key may be given up.
fn tries_needed(plan: &Plan) -> u32 {
    if may_be_crowded(plan) { 1 } else { plan.settings.tries_max }
}

/// Whether a message deserved to become a dead letter.
pub(super) fn dead_letter_is_deserved(ledger: &Ledger, message: usize, failures: u32) {
    let plan = &ledger.plan;
    let (behaviour, retried, key) = {
        let state = ledger.state();
        let entry = &state.messages[message];
        (entry.behaviour, entry.letter_retried, entry.key)
    };
    // Of a failing key that holds too much, a message may be given up that fails for the first time, as an outage begins;
    // of any key, where the handler works for a moment between two outages.
    let fails = plan.keys.get(key).is_some_and(|key| key.behaviour != Behaviour::Healthy);
    let is_excused = may_be_crowded(plan) && (fails || works_for_a_moment(plan));
    if plan.settings.mode == Mode::AtMostOnce || retried {
        // What failed after its mark is given up at once.
        return;
    }
    let disturbing =
        plan.faults.iter().filter(|fault| matches!(fault, Fault::HandlerDown { .. } | Fault::Stall { .. }));
    let disturbing = disturbing.count() as u32;
    match behaviour {
        Behaviour::MissingIdentity | Behaviour::Poison => {}
        Behaviour::Healthy | Behaviour::Slow(_) | Behaviour::LaterUntil(_) => {
            let few_may_be_blamed = plan.faults.iter().any(|fault| is_outage(fault) && !of_many(plan, fault));
            if !few_may_be_blamed && !is_excused && disturbing < plan.settings.tries_max {
                let what = format!("{} became a dead letter", ledger.name(message));
                ledger.break_law(OUTAGE, what);
            }
        }
        _ if failures < tries_needed(plan) => {
            let what = format!(
                "{} became a dead letter after {failures} failures of {}",
                ledger.name(message),
                plan.settings.tries_max
            );
            ledger.break_law(DESERVED, what);
        }
        _ => {}
    }
}

fn is_outage(fault: &Fault) -> bool {
    matches!(fault, Fault::HandlerDown { how: Down::Refuses | Down::Hangs, .. })
}

/// Whether an outage begins while what was handled before it still shows that the handler works.
fn works_for_a_moment(plan: &Plan) -> bool {
    let ends: Vec<u64> =
        plan.faults.iter().filter(|one| is_outage(one)).map(|one| one.at_ms() + one.for_ms()).collect();
    let soon = |at_ms: u64| ends.iter().any(|end| (*end..end + SHOWS_MS).contains(&at_ms));
    plan.faults.iter().any(|one| is_outage(one) && soon(one.at_ms()))
}

/// How long what was handled shows that the handler works.
const SHOWS_MS: u64 = 1_000;

/// Tries from which on the first keys of an outage are not given up before so many have failed that it is taken for one.
pub(super) const OUTAGE_TRIES_MIN: u32 = 6;

/// Whether so many keys fail in an outage that none is blamed: that is one, or twice as many as it takes at its beginning.
fn of_many(plan: &Plan, fault: &Fault) -> bool {
    let settings = &plan.settings;
    let begun = |key: &&KeyPlan| key.first_ms == fault.at_ms() && key.keyed;
    let many = plan.keys.iter().filter(begun).count() >= 2 * settings.suspects_max;
    settings.suspects_max == 1 || (many && settings.consumers == 1 && settings.tries_max >= OUTAGE_TRIES_MIN)
}

/// Whether the key of a message is a healthy one.
pub(super) fn is_of_a_healthy_key(plan: &Plan, entry: &Entry) -> bool {
    entry.key == PULSE || plan.keys[entry.key].behaviour == Behaviour::Healthy
}

/// Whether its fate is decided: its effect happened, it is a dead letter, or its mode says that it may be lost.
pub(super) fn is_decided(plan: &Plan, entry: &Entry) -> bool {
    // A process that ends between the mark and the dead letter takes the failure with it.
    let ends = plan.faults.iter().any(|fault| matches!(fault, Fault::Crash { .. } | Fault::Stop { .. }));
    let forgotten = entry.broken_off > 0 || (ends && entry.failures > 0 && entry.deliveries > 1);
    let lost = plan.settings.mode == Mode::AtMostOnce && entry.marked.is_some() && forgotten;
    !entry.effects.is_empty() || entry.dead_letter.is_some() || lost
}

/// Whether a consumer stood still for longer than a call may take, and an effect happened when it went on: the time of the
/// call is over before its end can be noticed.
fn stalled_in_a_call(plan: &Plan, effect: Duration) -> bool {
    let settings = &plan.settings;
    plan.faults.iter().any(|fault| {
        let goes_on = ms(fault.at_ms() + fault.for_ms());
        let is_long = matches!(fault, Fault::Stall { .. }) && fault.for_ms() >= settings.handle_timeout_ms;
        is_long && (goes_on..goes_on + ms(settings.handle_ms + 1)).contains(&effect)
    })
}

/// The laws that are judged when everything has ended.
pub(super) fn judge(ledger: &Ledger, broker: &Broker) -> Result<(), Violation> {
    let state = ledger.state();
    if let Some(broken) = &state.broken {
        return Err(broken.clone());
    }
    for (message, entry) in state.messages.iter().enumerate() {
        let is_over = entry.done && is_decided(&ledger.plan, entry);
        let name = || format!("key {} message {} ({message})", entry.key, entry.n);
        if !is_over {
            return Err(Violation::new(ENDS, format!("{}: {entry:?}", name())));
        }
        // Delivered again after a crash, it may be handled although it was given up before. In doubt, it may be given up
        // although it was handled: the letter finds the mark.
        if !entry.effects.is_empty()
            && entry.dead_letter.is_some()
            && !entry.letter_retried
            && entry.deliveries < 2
            && !entry.in_doubt
            && !entry.effects.iter().any(|at| stalled_in_a_call(&ledger.plan, *at))
        {
            return Err(Violation::new(BOTH, format!("{}: {entry:?}", name())));
        }
    }
    if !broker.is_empty() {
        return Err(Violation::new(ENDS, "the broker still has messages"));
    }
    Ok(())
}
