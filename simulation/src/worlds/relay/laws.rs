//! What must hold, judged by what the broker has got and what the tables still have.

use std::collections::{BTreeMap, BTreeSet};

use super::broker::Got;
use super::plan::{Fault, Plan};
use super::tables::{Tables, number};
use crate::world::Violation;

/// Healthy work goes on.
pub(super) const LIVENESS: &str = "what is healthy is published within the bound";

fn describe(plan: &Plan, event: usize) -> String {
    let append = &plan.appends[event];
    let key = append.key.map_or_else(|| "no key".to_owned(), |key| format!("key k{key}"));
    format!("event {event} ({key}, topic t{}), appended at {} ms", append.topic, append.at_ms)
}

/// Whatever had to be published by now is. `first`: when the broker got each event first.
pub(super) fn in_time(
    plan: &Plan,
    first: &BTreeMap<usize, u64>,
    deadlines: &[Option<u64>],
    now_ms: u64,
) -> Result<(), Violation> {
    for (event, deadline) in deadlines.iter().enumerate() {
        let Some(deadline) = deadline else { continue };
        let at = first.get(&event).copied();
        if at.unwrap_or(now_ms) > *deadline {
            let when = at
                .map_or_else(|| "is not published yet".to_owned(), |at| format!("was published at {at} ms"));
            let what = format!("{} {when}; it had to be by {deadline} ms", describe(plan, event));
            return Err(Violation::new(LIVENESS, what));
        }
    }
    Ok(())
}

/// No event gets to the broker before one that comes before it in its key.
pub(super) fn in_order(plan: &Plan, got: &[Got]) -> Result<(), Violation> {
    // Then a parked event is overtaken: that is what was asked for.
    if plan.settings.parks_itself {
        return Ok(());
    }
    let mut last: BTreeMap<u8, usize> = BTreeMap::new();
    let before: Vec<Option<usize>> =
        plan.appends.iter().enumerate().map(|(event, append)| last.insert(append.key?, event)).collect();
    let mut seen = BTreeSet::new();
    for one in got {
        if let Some(before) = before[one.event].filter(|before| !seen.contains(before)) {
            let what = format!("{} came before event {before} of the same key", describe(plan, one.event));
            return Err(Violation::new("order within a key", what));
        }
        seen.insert(one.event);
    }
    Ok(())
}

/// Readers of committed data see each event once.
pub(super) fn once(plan: &Plan, got: &[Got]) -> Result<(), Violation> {
    if !plan.settings.exactly_once {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    match got.iter().find(|one| !seen.insert(one.event)) {
        None => Ok(()),
        Some(twice) => {
            Err(Violation::new("exactly once", format!("{} is there twice", describe(plan, twice.event))))
        }
    }
}

/// Each event is published, or still to be published, or parked with its key.
pub(super) fn nothing_lost(plan: &Plan, got: &[Got], tables: &Tables) -> Result<(), Violation> {
    let published: BTreeSet<usize> = got.iter().map(|one| one.event).collect();
    let parked: BTreeMap<i64, &String> = tables.parked.values().map(|row| (row.seq, &row.key)).collect();
    for (partition, seqs) in tables.by_partition.iter().enumerate() {
        for seq in seqs {
            let event = number(&tables.rows[seq].event);
            match parked.get(seq) {
                Some(key) if !tables.parked_keys.contains_key(*key) => {
                    let what = format!("{} is parked and its key is not", describe(plan, event));
                    return Err(Violation::new("nothing is lost", what));
                }
                None if !published.contains(&event) && *seq <= tables.cursors[partition].after => {
                    let what = format!(
                        "{} is neither published nor parked, and the cursor is past it",
                        describe(plan, event)
                    );
                    return Err(Violation::new("nothing is lost", what));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// While the sink takes nothing from anybody, healthy keys are not blamed for it. Some are set aside to read past them:
/// `failing_keys_max` a second and relay.
pub(super) fn not_blamed_while_down(plan: &Plan, tables: &Tables) -> Result<(), Violation> {
    let settings = &plan.settings;
    let failing: BTreeSet<String> = (0..plan.appends.len())
        .filter(|event| plan.fails_by_itself(*event))
        .map(|event| plan.appends[event].key.map_or_else(String::new, |key| format!("k{key}")))
        .collect();
    for fault in &plan.faults {
        let Fault::SinkDown { at_ms, for_ms, how } = fault else { continue };
        // What was confirmed in part when it went down may be blamed, and one destination cannot be probed.
        if *how == super::plan::How::OneDestination {
            continue;
        }
        let pause_ms = (settings.backoff_first_ms << settings.attempts_max).min(settings.backoff_max_ms);
        let from = at_ms + (u64::from(settings.attempts_max) + 2) * (settings.call_ms + pause_ms + 5);
        let during = |at: u64| at > from && at < at_ms + for_ms;
        let blamed = tables
            .parked_at
            .iter()
            .filter(|(at, key)| during(*at) && key.starts_with('k') && !failing.contains(key));
        let (blamed, down_s) = (blamed.count() as u64, for_ms.div_ceil(1_000));
        let most = if settings.exactly_once {
            0
        } else {
            settings.relays as u64 * settings.failing_keys_max as u64 * down_s
        };
        if blamed > most {
            let what = format!(
                "{blamed} healthy keys were parked while the sink was down from {at_ms} ms for {for_ms} ms; at most {most} may be"
            );
            return Err(Violation::new("no event is blamed for a sink that is down", what));
        }
    }
    Ok(())
}
