//! By when each event must be published: computed from the plan alone.

use super::broker::Strike;
use super::plan::{Fault, Plan};

/// The longest pause before a parked key is tried again, unless the first is longer.
const RETRY_LONGEST_MS: u64 = 60_000;

/// How long a batch with as many failing keys as `failing_keys_max` is waited for where nothing gets through; fewer are waited
/// for that much shorter.
const FAILING_KEYS_PATIENCE_MS: u64 = 1_000;

/// How long one with more of them is waited for: it looks like an outage.
const OUTAGE_PATIENCE_MS: u64 = 30_000;

/// The longest that one batch is waited for, the first time.
const PATIENCE_MAX_MS: u64 = 60_000;

/// What a relay and its outbox need besides calls and waits: statements, and the look for parked events that are due.
const TURNS_MS: u64 = 500;

/// How long what is healthy may wait while nothing else disturbs it, whatever fails beside it: the documented waits, and the
/// calls in front of it.
pub(super) fn healthy_within_ms(plan: &Plan) -> u64 {
    let settings = &plan.settings;
    let (events, failing) = (plan.appends.len() as u64, plan.failing_keys() as u64);
    let call_ms = settings.call_ms + 5;
    // Each failing key has its tries, with pauses that double: in the worst case one key after the other.
    let pause_ms = |n: u32| (settings.backoff_first_ms << n).min(settings.backoff_max_ms);
    let tries =
        u64::from(settings.attempts_max) * call_ms + (0..settings.attempts_max).map(pause_ms).sum::<u64>();
    let found = failing * tries + if settings.exactly_once { halved(plan) } else { read_past(plan) };
    // In front of it are at most all events, in as few batches as they fit into, and between two of them one of parked events.
    let batches = events.div_ceil(settings.batch_max as u64) + settings.partitions as u64;
    let in_front = 2 * call_ms * (batches + plan.topic_changes() as u64);
    // Relays that start one after the other hand partitions on at their heartbeats.
    let handed_on = if settings.relays > 1 { settings.lease_ms } else { 0 };
    let within = TURNS_MS + 2 * settings.idle_ms + handed_on + found + in_front;
    if settings.exactly_once {
        with_retries(plan, within, 2 * transaction_ms(plan))
    } else if settings.parks_itself {
        // Of each key one event is found to fail in a call.
        with_retries(plan, within, call_ms + settings.backoff_first_ms)
    } else {
        within
    }
}

/// Parked events that are due are tried again, each for `try_ms`, which takes time from the others: first soon, each time
/// later, then every minute. Where that alone would take all the time, it takes turns: between two batches there is one
/// of parked events.
fn with_retries(plan: &Plan, within: u64, try_ms: u64) -> u64 {
    let settings = &plan.settings;
    let (events, failing) = (plan.appends.len() as u64, plan.failing_keys() as u64);
    let longest_ms = settings.retry_ms.max(RETRY_LONGEST_MS);
    let again = plan.faults.iter().filter(|fault| matches!(fault, Fault::RetryAll { .. })).count() as u64;
    let first_ones = u64::from((RETRY_LONGEST_MS / settings.retry_ms).ilog2() + 2) * (1 + again);
    let begun = within + failing * first_ones * try_ms;
    let by_turns = begun + (events + settings.partitions as u64) * failing * try_ms;
    let all_ms = failing * try_ms;
    if all_ms >= longest_ms {
        return by_turns;
    }
    (begun * longest_ms / (longest_ms - all_ms)).min(by_turns)
}

/// A transaction that fails, the empty one that judges it, and the sink being taken over.
fn transaction_ms(plan: &Plan) -> u64 {
    3 * (plan.settings.call_ms + 5) + plan.settings.backoff_first_ms
}

/// How long batches are waited for in which nothing gets through, one after the other, the n-th in a row n times as long.
/// Most batches in a row are those with one key each; most of the longer waits are those with just more than `failing_keys_max`.
fn read_past(plan: &Plan) -> u64 {
    let settings = &plan.settings;
    if let Some(batches) = plan.batches_known() {
        let (mut in_a_row, mut waits, mut waited) = (0, 0, 0);
        for batch in batches {
            if batch.healthy {
                in_a_row = 0;
            }
            // An event that was not even sent is not to blame, whatever is confirmed.
            if !batch.healthy || plan.leaves_untried() {
                in_a_row += batch.rounds as u64;
                waits += in_a_row * patience_ms(batch.failing as u64, settings.failing_keys_max as u64);
                waited += batch.rounds as u64;
            }
        }
        return (waits + waits.min(waited * settings.backoff_max_ms)) * waits_anew(plan);
    }
    let failing = plan.failing_keys() as u64;
    // As above: whatever is confirmed between them.
    let in_a_row = if plan.leaves_untried() { failing } else { plan.failing_in_a_row() as u64 };
    let failing_keys_max = settings.failing_keys_max.max(1) as u64;
    let outages =
        if settings.batch_max as u64 > failing_keys_max { in_a_row / (failing_keys_max + 1) } else { 0 };
    let sum = |n: u64| n * (n + 1) / 2;
    let waits =
        FAILING_KEYS_PATIENCE_MS * sum(in_a_row) / failing_keys_max + OUTAGE_PATIENCE_MS * sum(outages);
    // A wait ends with the pause that is under way. Pauses double, so that is at most as long as the wait.
    let waits = waits + waits.min(in_a_row * settings.backoff_max_ms);
    failing.div_ceil(in_a_row.max(1)) * waits * waits_anew(plan)
}

/// How often a batch may be waited for. One confirm is enough to blame all that were tried since; only events that were
/// not even sent, or a key's later event on another topic, start the wait anew with each key that recovers.
fn waits_anew(plan: &Plan) -> u64 {
    if !plan.leaves_untried() && plan.topic_changes() == 0 {
        return 1;
    }
    let mut ends: Vec<u64> = (0..plan.appends.len()).filter_map(|event| plan.ends_failing(event)).collect();
    ends.retain(|end| *end != u64::MAX);
    ends.sort_unstable();
    ends.dedup();
    1 + ends.len() as u64
}

/// How long the first batch with so many failing keys is waited for while nothing gets through.
fn patience_ms(failing: u64, failing_keys_max: u64) -> u64 {
    let few_ms = FAILING_KEYS_PATIENCE_MS * failing / failing_keys_max.max(1);
    if failing <= failing_keys_max { few_ms } else { few_ms.clamp(OUTAGE_PATIENCE_MS, PATIENCE_MAX_MS) }
}

/// A transaction that fails or is in doubt is halved until the event is found. Each try is checked with an empty one, and
/// where it is in doubt the sink is taken over again.
fn halved(plan: &Plan) -> u64 {
    let settings = &plan.settings;
    let most = settings.batch_max.min(plan.appends.len());
    let halvings = u64::from(most.next_power_of_two().ilog2()) + u64::from(settings.attempts_max);
    plan.failing_keys() as u64 * halvings * transaction_ms(plan)
}

/// How long a key that was parked for so long may wait for its next try: pauses double from the first to the longest.
fn next_try_ms(plan: &Plan, parked_ms: u64) -> u64 {
    let first_ms = plan.settings.retry_ms;
    (2 * (parked_ms + first_ms)).min(first_ms.max(RETRY_LONGEST_MS))
}

/// When something disturbs everything: nothing is asked of these times. With what it takes to get going again.
fn disturbances(plan: &Plan, strikes: &[Strike]) -> Vec<(u64, u64)> {
    let settings = &plan.settings;
    let taken_over = 3 * settings.lease_ms + 2 * settings.backoff_max_ms + 2_000;
    let spans = plan.faults.iter().filter_map(|fault| match fault {
        Fault::SinkDown { at_ms, for_ms, .. }
        | Fault::SinkFlaky { at_ms, for_ms, .. }
        | Fault::OutboxDown { at_ms, for_ms }
        | Fault::OutboxSilent { at_ms, for_ms } => {
            // Healthy keys may have been parked meanwhile.
            Some((*at_ms, at_ms + for_ms + next_try_ms(plan, *for_ms) + taken_over))
        }
        // A call that begins at its last moment takes so much longer.
        Fault::SinkSlow { at_ms, for_ms, by_ms } => {
            let for_ms = for_ms + by_ms;
            Some((*at_ms, at_ms + for_ms + next_try_ms(plan, for_ms) + taken_over))
        }
        Fault::Crash { at_ms, down_ms, .. } | Fault::Stop { at_ms, down_ms, .. } => {
            Some((*at_ms, at_ms + down_ms + taken_over))
        }
        Fault::Stall { at_ms, for_ms, .. } => Some((*at_ms, at_ms + for_ms + taken_over)),
        Fault::LeaseEnds { at_ms, .. } => Some((*at_ms, at_ms + taken_over)),
        Fault::KeyFails { .. }
        | Fault::TopicFails { .. }
        | Fault::Refused { .. }
        | Fault::RetryAll { .. } => None,
        // When that happens is known when it has.
        Fault::CrashInCall { .. } | Fault::StallInCall { .. } | Fault::LateDone { .. } => None,
    });
    let struck = strikes.iter().map(|strike| (strike.at_ms, strike.at_ms + strike.for_ms + taken_over));
    let mut spans: Vec<(u64, u64)> = spans.chain(struck).collect();
    spans.sort_unstable();
    spans
}

/// By when each event must be published. `None`: it fails for ever, or waits behind one that does.
pub(super) fn deadlines(plan: &Plan, strikes: &[Strike]) -> Vec<Option<u64>> {
    let (within, spans) = (healthy_within_ms(plan), disturbances(plan, strikes));
    let retry_ms = plan.settings.retry_ms;
    let stalls =
        plan.faults.iter().map(|fault| if let Fault::Stall { for_ms, .. } = fault { *for_ms } else { 0 });
    let recorded_late_ms = stalls.chain(strikes.iter().map(|strike| strike.for_ms)).sum::<u64>();
    let deadline = |event: usize| {
        let append = &plan.appends[event];
        let before =
            (0..event).filter(|other| append.key.is_some() && plan.appends[*other].key == append.key);
        let mut ends: Vec<u64> = plan.ends_failing(event).into_iter().collect();
        if !plan.settings.parks_itself {
            ends.extend(before.filter_map(|other| plan.ends_failing(other)));
        }
        let mut from = append.at_ms;
        if let Some(end) = ends.into_iter().max() {
            if end == u64::MAX {
                return None;
            }
            // It may be parked then, and its next try has been put off: counted from when its last failure was recorded.
            from = from.max(end) + retry_ms.max(RETRY_LONGEST_MS) + recorded_late_ms;
        }
        Some(after(from, within, &spans))
    };
    (0..plan.appends.len()).map(deadline).collect()
}

/// The moment at which so much time has passed since `from` outside of these spans.
fn after(from: u64, mut left: u64, spans: &[(u64, u64)]) -> u64 {
    let mut now = from;
    for (begin, end) in spans {
        if *end <= now {
            continue;
        }
        let free = begin.saturating_sub(now);
        if free >= left {
            break;
        }
        left -= free;
        now = *end;
    }
    now + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_during_a_disturbance() {
        assert_eq!(after(0, 10, &[]), 10);
        assert_eq!(after(0, 10, &[(20, 30)]), 10);
        assert_eq!(after(0, 10, &[(5, 30)]), 35);
        assert_eq!(after(6, 10, &[(5, 30), (10, 40)]), 50);
        assert_eq!(after(35, 10, &[(5, 30)]), 45);
    }
}
