//! The relays as processes: started, killed, stalled and stopped as the plan says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::guard::Spawn;
use semel::relay::{Poison, Relay, RelayError, RelayOptions, RelayStopHandle};

use super::broker::Broker;
use super::outbox::Outbox;
use super::plan::Settings;
use crate::process::Process;
use crate::stage::Stage;
use crate::world::Violation;

type End = Arc<Mutex<Option<Result<(), RelayError>>>>;

struct Running {
    process: Process,
    stop: RelayStopHandle,
    end: End,
}

/// A relay: one process after the other.
struct Actor {
    running: Option<Running>,
    /// Not started before then.
    down_until_ms: u64,
}

/// All relays.
pub(super) struct Actors {
    stage: Stage,
    settings: Settings,
    outbox: Outbox,
    broker: Broker,
    actors: Vec<Actor>,
    started: u64,
}

impl Actors {
    pub(super) fn new(stage: &Stage, settings: &Settings, outbox: &Outbox, broker: &Broker) -> Self {
        let actors = (0..settings.relays).map(|_| Actor { running: None, down_until_ms: 0 }).collect();
        let (stage, settings) = (stage.clone(), settings.clone());
        Self { stage, settings, outbox: outbox.clone(), broker: broker.clone(), actors, started: 0 }
    }

    fn options(&self) -> RelayOptions {
        let settings = &self.settings;
        let failing_keys_max = if self.stage.has("never_reads_past") { 0 } else { settings.failing_keys_max };
        RelayOptions::default()
            .poison(if settings.parks_itself { Poison::ParksItself } else { Poison::ParksItsKey })
            .attempts_max(settings.attempts_max)
            .failing_keys_max(failing_keys_max)
            .backoff(
                Duration::from_millis(settings.backoff_first_ms),
                Duration::from_millis(settings.backoff_max_ms),
            )
            .poll_interval(Duration::from_millis(5), Duration::from_millis(settings.idle_ms))
            .keep_all()
    }

    /// Starts what is down and need not be, as a supervisor does. `Err`: a relay gave up by itself.
    pub(super) fn supervise(&mut self, now_ms: u64) -> Result<(), Violation> {
        for relay in 0..self.actors.len() {
            let ended = self.actors[relay]
                .running
                .as_ref()
                .and_then(|running| running.end.lock().unwrap_or_else(PoisonError::into_inner).take());
            if self.actors[relay].running.as_ref().is_some_and(|running| running.process.is_dead()) {
                self.actors[relay].running = None;
            }
            match ended {
                None => {}
                Some(Ok(())) => {
                    self.stage.count("relays stopped", 1);
                    self.actors[relay].running = None;
                }
                Some(Err(RelayError::Fenced(_))) => {
                    self.stage.trace(format_args!("relay {relay} was fenced by the sink and ends"));
                    self.stage.count("relays fenced by the sink", 1);
                    self.actors[relay].running = None;
                }
                Some(Err(error)) => {
                    return Err(Violation::new(
                        "a relay does not give up",
                        format!("relay {relay}: {error}"),
                    ));
                }
            }
            if self.actors[relay].running.is_none() && now_ms >= self.actors[relay].down_until_ms {
                self.start(relay);
            }
        }
        Ok(())
    }

    fn start(&mut self, relay: usize) {
        self.started += 1;
        let (process, end) = (Process::default(), End::default());
        let (source, sink) = (self.outbox.source(self.started), self.broker.sink(relay, &process));
        let real = Relay::new(source, sink, self.options());
        let stop = real.stop_handle();
        let (ended_as, exactly_once) = (end.clone(), self.settings.exactly_once);
        process.spawn(Box::pin(async move {
            let ended = if exactly_once { real.run_exactly_once().await } else { real.run().await };
            *ended_as.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended.map(drop));
        }));
        self.stage.trace(format_args!("relay {relay} starts"));
        self.actors[relay].running = Some(Running { process, stop, end });
    }

    pub(super) fn crash(&mut self, relay: usize, until_ms: u64) {
        let Some(actor) = self.actors.get_mut(relay) else { return };
        actor.down_until_ms = actor.down_until_ms.max(until_ms);
        if let Some(running) = actor.running.take() {
            running.process.kill();
            self.stage.trace(format_args!("relay {relay} is killed"));
            self.stage.count("crashes", 1);
        }
    }

    pub(super) fn stall(&self, relay: usize, stalled: bool) {
        let Some(running) = self.actors.get(relay).and_then(|actor| actor.running.as_ref()) else { return };
        if stalled {
            running.process.stall();
            self.stage.count("stalls", 1);
        } else {
            running.process.resume();
        }
        self.stage.trace(format_args!("relay {relay} {}", if stalled { "stalls" } else { "goes on" }));
    }

    pub(super) fn stop(&mut self, relay: usize, until_ms: u64) {
        let Some(actor) = self.actors.get_mut(relay) else { return };
        actor.down_until_ms = actor.down_until_ms.max(until_ms);
        if let Some(running) = &actor.running {
            running.stop.stop();
            self.stage.trace(format_args!("relay {relay} is asked to stop"));
        }
    }
}
