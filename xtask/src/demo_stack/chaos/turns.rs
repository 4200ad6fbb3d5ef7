//! Which part is killed when, and that the rest goes on.

use std::time::{Duration, Instant};

use testkit::services::Service;

use super::load::Load;
use super::servers::Servers;
use super::{interrupted, seen};
use crate::demo_stack::Patience;
use crate::demo_stack::parts::Part;
use crate::demo_stack::stack::Stack;

/// This many orders are answered, and this many notified of, before the next part is killed.
const PROGRESS: usize = 5;
/// Nothing takes this long to recover, on a machine that works.
const PROGRESS_SECONDS_MAX: u64 = 90;
const POINT: Duration = Duration::from_secs(60);
/// How long everything runs before a kill, and how long the victim is dead: a little different each time.
const PAUSES_MS: [u64; 5] = [250, 700, 400, 900, 550];

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    Part(Part),
    Server(Service),
}

/// In this order. Those whose death is the hardest to survive come first, so that a short run includes them.
const VICTIMS: [Victim; 7] = [
    Victim::Part(Part::Consumer),
    Victim::Part(Part::Relay),
    Victim::Part(Part::Payments),
    Victim::Part(Part::Gateway),
    Victim::Server(Service::Kafka),
    Victim::Server(Service::Postgres),
    Victim::Server(Service::Redis),
];

impl Victim {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Part(part) => part.name(),
            Self::Server(service) => service.name(),
        }
    }

    /// The crash point at which a death costs most: something has happened, and its recipient does not know yet.
    /// Named as in `semel::crash`.
    fn point(self) -> Option<&'static str> {
        match self {
            Self::Part(Part::Consumer) => Some("before_ack"),
            Self::Part(Part::Relay) => Some("after_publish"),
            _ => None,
        }
    }
}

/// The kills so far.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: usize,
    killed: Vec<&'static str>,
}

impl Turns {
    /// Kills the next one, starts it again, and waits until the whole chain has recovered.
    pub(super) fn take(
        &mut self,
        stack: &mut Stack,
        servers: &mut Servers,
        load: &Load,
    ) -> Result<(), String> {
        if interrupted() {
            return Err("interrupted".to_owned());
        }
        let victim = VICTIMS[self.taken % VICTIMS.len()];
        self.taken += 1;
        if let Victim::Server(service) = victim
            && !servers.has(service)
        {
            return Ok(());
        }
        let begin = Instant::now();
        self.pause();
        match victim {
            Victim::Part(part) => {
                stack.kill(part)?;
                self.note(victim);
                self.pause();
                if let Some(point) = victim.point() {
                    stack.run(part, Some(point))?;
                    stack.kill_at_point(part, POINT)?;
                    self.note(victim);
                }
                stack.run(part, None)?;
            }
            Victim::Server(service) => {
                servers.kill(service)?;
                self.note(victim);
                self.pause();
                servers.start(service)?;
            }
        }
        let (answered, notified) = progress(stack, load, victim)?;
        let at = victim.point().map_or_else(String::new, |point| format!(", twice, once at {point}"));
        eprintln!(
            "  {:<13} killed{at}; recovered after {:.1} s: {answered} orders answered, {notified} notifications",
            victim.name(),
            begin.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn note(&mut self, victim: Victim) {
        self.killed.push(victim.name());
    }

    fn pause(&self) {
        let ms = PAUSES_MS[(self.taken + self.killed.len()) % PAUSES_MS.len()];
        std::thread::sleep(Duration::from_millis(ms));
    }

    /// How often each was killed, in the order of the turns.
    pub(super) fn killed(&self) -> Vec<(&'static str, usize)> {
        let times = |name| self.killed.iter().filter(|killed| **killed == name).count();
        VICTIMS.iter().map(|victim| (victim.name(), times(victim.name()))).collect()
    }
}

/// Waits until clients are answered and customers are notified again.
fn progress(stack: &Stack, load: &Load, victim: Victim) -> Result<(usize, usize), String> {
    let (answered, notified) = (load.answered(), seen::notifications(stack).unwrap_or(0));
    let patience = Patience::new(PROGRESS_SECONDS_MAX);
    loop {
        load.check()?;
        let now = (load.answered(), seen::notifications(stack).unwrap_or(0));
        if now.0 >= answered + PROGRESS && now.1 >= notified + PROGRESS {
            return Ok(now);
        }
        let what = format!(
            "the chain did not recover after {} was killed; {} orders answered, {} notifications",
            victim.name(),
            now.0,
            now.1
        );
        patience.check(&what)?;
        std::thread::sleep(Duration::from_millis(100));
    }
}
