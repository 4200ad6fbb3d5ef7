//! The world of the relay: the real relay, in both modes, between a simulated outbox and a simulated sink.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | what a seed decides, as data |
//! | `draw` | how a seed becomes a plan, and a plan a smaller one |
//! | `tables`, `outbox` | the outbox: partitions with leases and epochs, parked keys; the pure half of parking is real |
//! | `broker` | the sink, with a position beside the events where asked for |
//! | `actors` | relays that are killed, stalled, stopped and started |
//! | `bound` | by when each event must be published |
//! | `laws` | what must hold |

use std::time::Duration;

use semel::outbox::Event;
use tokio::time::Instant;

use crate::stage::Stage;
use crate::world::{Violation, World};

use self::actors::Actors;
use self::broker::Broker;
use self::outbox::Outbox;
use self::plan::{Append, Fault};
use self::tables::Tables;

mod actors;
mod bound;
mod broker;
mod draw;
mod laws;
mod outbox;
mod plan;
mod tables;

pub use plan::Plan;

/// How often it is looked whether all is done.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The world of the relay.
#[derive(Debug)]
pub struct RelayWorld;

enum Action {
    Append(usize),
    Crash { relay: usize, until_ms: u64 },
    Stall { relay: usize },
    GoesOn { relay: usize },
    Stop { relay: usize, until_ms: u64 },
    LeaseEnds { partition: usize },
    RetryAll,
}

fn actions(plan: &Plan) -> Vec<(u64, Action)> {
    let mut actions: Vec<(u64, Action)> =
        plan.appends.iter().enumerate().map(|(at, append)| (append.at_ms, Action::Append(at))).collect();
    for fault in &plan.faults {
        match fault {
            Fault::Crash { relay, at_ms, down_ms } => {
                actions.push((*at_ms, Action::Crash { relay: *relay, until_ms: at_ms + down_ms }));
            }
            Fault::Stall { relay, at_ms, for_ms } => {
                actions.push((*at_ms, Action::Stall { relay: *relay }));
                actions.push((at_ms + for_ms, Action::GoesOn { relay: *relay }));
            }
            Fault::Stop { relay, at_ms, down_ms } => {
                actions.push((*at_ms, Action::Stop { relay: *relay, until_ms: at_ms + down_ms }));
            }
            Fault::LeaseEnds { partition, at_ms } => {
                actions.push((*at_ms, Action::LeaseEnds { partition: *partition }));
            }
            Fault::RetryAll { at_ms } => actions.push((*at_ms, Action::RetryAll)),
            _ => {}
        }
    }
    actions.sort_by_key(|(at_ms, _)| *at_ms);
    actions
}

/// An event of the plan. Its payload is its number, its id too unless it is a twin.
fn event(number: usize, append: &Append) -> Result<Event, Violation> {
    let event =
        Event::new(&format!("t{}", append.topic), "made", number.to_string()).and_then(|event| match append
            .key
        {
            Some(key) => event.key(&format!("k{key}")),
            None => Ok(event),
        });
    let event = event.map_err(|error| Violation::new("the plan makes sense", error.to_string()))?;
    Ok(event.with_id(plan::id(number, append.twin)))
}

impl World for RelayWorld {
    const NAME: &'static str = "relay";
    const BUGS: &'static [&'static str] = &[
        "overtakes_parked_keys",
        "retries_the_last_first",
        "sink_goes_on_in_a_failed_key",
        "doubt_is_a_confirm",
        "parks_no_key",
        "batch_not_written_down",
        "done_is_not_fenced",
        "old_transactions_commit",
        "position_forgets_what_is_left_out",
        "leases_never_end",
        "retries_without_a_pause",
        "never_reads_past",
    ];
    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[
        ("histories exactly once", 200),
        ("histories at least once", 400),
        ("events published", 20_000),
        ("events repeated", 500),
        ("events refused", 100),
        ("events parked", 2_000),
        ("keys parked", 1_000),
        ("parked events published", 1_000),
        ("batches of parked events", 1_000),
        ("calls confirmed in part", 500),
        ("events in doubt", 200),
        ("events published without a confirm", 200),
        ("events whose destination was away", 1_000),
        ("transactions", 1_000),
        ("transactions fenced", 3),
        ("positions compared", 500),
        ("batches given again to compare", 50),
        ("crashes", 300),
        ("stalls", 100),
        ("crashes in a call", 100),
        ("stalls in a call", 100),
        ("takeovers", 200),
        ("relays stopped", 50),
        ("late dones", 50),
        ("late dones that were fenced", 10),
        ("relays fenced by the sink", 2),
        ("calls that were fenced", 100),
        ("retries of all that is parked", 200),
        ("statements that failed", 500),
        ("statements without an answer", 100),
    ];
    type Plan = Plan;

    fn draw(rng: &mut fastrand::Rng) -> Plan {
        draw::draw(rng)
    }

    async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
        let begin = Instant::now();
        let now_ms = || u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let tables = Tables::new(stage, &plan.settings);
        let outbox = Outbox::new(stage, tables, &plan.faults, plan.settings.lease_ms);
        let broker = Broker::new(stage, plan);
        let mut actors = Actors::new(stage, &plan.settings, &outbox, &broker);
        let mut struck = 0;
        let mut deadlines = bound::deadlines(plan, &[]);
        let mut actions = actions(plan).into_iter().peekable();
        stage.count(
            if plan.settings.exactly_once { "histories exactly once" } else { "histories at least once" },
            1,
        );
        loop {
            actors.supervise(now_ms())?;
            while let Some((_, action)) = actions.next_if(|(at_ms, _)| *at_ms <= now_ms()) {
                match action {
                    Action::Append(number) => outbox.tables().append(event(number, &plan.appends[number])?),
                    Action::Crash { relay, until_ms } => actors.crash(relay, until_ms),
                    Action::Stall { relay } => actors.stall(relay, true),
                    Action::GoesOn { relay } => actors.stall(relay, false),
                    Action::Stop { relay, until_ms } => actors.stop(relay, until_ms),
                    Action::LeaseEnds { partition } => {
                        stage.trace(format_args!("the lease of partition {partition} ends"));
                        outbox.tables().end_lease(partition);
                    }
                    Action::RetryAll => {
                        stage.trace("all that is parked is tried again");
                        stage.count("retries of all that is parked", 1);
                        outbox.tables().retry_all();
                    }
                }
            }
            let first = broker.first();
            let strikes = [broker.strikes(), outbox.strikes()].concat();
            if strikes.len() > struck {
                struck = strikes.len();
                deadlines = bound::deadlines(plan, &strikes);
            }
            let in_time = laws::in_time(plan, &first, &deadlines, now_ms());
            let due = |event: &usize| deadlines[*event].is_some();
            let all = (0..plan.appends.len()).filter(due).all(|event| first.contains_key(&event));
            if in_time.is_err() || (actions.peek().is_none() && all) {
                let got = broker.got();
                laws::once(plan, &got)?;
                laws::in_order(plan, &got)?;
                laws::nothing_lost(plan, &got, &outbox.tables())?;
                in_time?;
                return laws::not_blamed_while_down(plan, &outbox.tables());
            }
            let mut wake = Instant::now() + LOOK_EVERY;
            if let Some((at_ms, _)) = actions.peek() {
                wake = wake.min(begin + Duration::from_millis(*at_ms));
            }
            tokio::time::sleep_until(wake).await;
        }
    }

    fn smaller(plan: &Plan) -> Vec<Plan> {
        draw::smaller(plan)
    }
}
