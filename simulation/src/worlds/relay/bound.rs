//! By when each event must be published: computed from the plan alone.

use super::broker::Strike;
use super::plan::{Fault, Plan};

/// The longest pause before a parked key is tried again, unless the first is longer.
const RETRY_LONGEST_MS: u64 = 60_000;

/// How long a batch in which more than `suspects_max` keys fail, and nothing succeeds, is waited for the first time.
const OUTAGE_PATIENCE_MS: u64 = 30_000;

/// How long what is healthy may wait while nothing else disturbs it, whatever fails beside it.
pub(super) fn healthy_within_ms(plan: &Plan) -> u64 {
    let settings = &plan.settings;
    let (events, failing) = (plan.appends.len() as u64, plan.failing_keys() as u64);
    let call_ms = settings.call_ms + 5;
    // Pauses grow with each failure in a row. Where an event parks only itself, the next of its key fails right after it.
    let grown = if settings.parks_itself { u64::MAX } else { settings.pause_first_ms << settings.tries_max };
    let pause_ms = grown.min(settings.pause_longest_ms);
    // Failing keys are found out, in the worst case one batch after the other.
    let tries = u64::from(settings.tries_max) + 2;
    let blamed = failing * tries * (call_ms + pause_ms);
    // Where nothing in a batch succeeds, it is read past at `suspects_max` keys a second, later each time.
    let suspects_max = settings.suspects_max.max(1) as u64;
    // More than that look like an outage and are waited for half a minute at least.
    let outages = failing / (suspects_max + 1);
    let read_past =
        2 * 1_000 * failing * failing / suspects_max + OUTAGE_PATIENCE_MS * outages * (outages + 1);
    // A transaction that fails or is in doubt is halved until the event is found, with pauses that grow, and each try is
    // checked with an empty one. From one event to the next it takes a few.
    let halved = if settings.exactly_once {
        let longest_ms = (settings.pause_first_ms << 10).min(settings.pause_longest_ms);
        failing * 12 * (call_ms + settings.pause_first_ms) + 4 * longest_ms
    } else {
        0
    };
    // In front of it are at most all events, one batch each, and between two batches one of parked events.
    let batches = events.div_ceil(settings.batch_max as u64) + 2;
    let in_front = batches * (2 * call_ms + halved) + 2 * plan.topic_changes() as u64 * call_ms;
    5_000 + blamed + read_past + in_front + 2 * settings.idle_ms
}

/// When something disturbs everything: nothing is asked of these times. With what it takes to get going again.
fn disturbances(plan: &Plan, strikes: &[Strike]) -> Vec<(u64, u64)> {
    let settings = &plan.settings;
    // Healthy keys may have been parked meanwhile, and are tried again after a pause that may have grown to the longest.
    let parked_ms = settings.retry_ms.max(RETRY_LONGEST_MS);
    let taken_over = 3 * settings.lease_ms + 2 * settings.pause_longest_ms + 2_000;
    let spans = plan.faults.iter().filter_map(|fault| match fault {
        Fault::SinkDown { at_ms, for_ms, .. }
        | Fault::SinkFlaky { at_ms, for_ms, .. }
        | Fault::SinkSlow { at_ms, for_ms, .. }
        | Fault::OutboxDown { at_ms, for_ms }
        | Fault::OutboxSilent { at_ms, for_ms } => {
            Some((*at_ms, at_ms + for_ms + parked_ms + taken_over + 10_000))
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
        Fault::CrashInCall { .. } | Fault::StallInCall { .. } => None,
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
            // It may be parked then, and its next try has been put off.
            from = from.max(end) + retry_ms.max(RETRY_LONGEST_MS);
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
