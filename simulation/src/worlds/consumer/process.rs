//! Consumer processes: started, stalled, crashed, stopped in order.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use semel::inbox::consumer::{Consumer, ConsumerOptions, ConsumerStats, ConsumerStopHandle, Mechanism};
use semel::source::SourceError;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::broker::Broker;
use super::handler::{AnyHandler, Shared};
use super::laws;
use super::ledger::Ledger;
use super::letters::Letters;
use crate::process::Process;

/// Closed while a process stands still.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<Option<Instant>>>);

impl Gate {
    fn until(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).filter(|until| *until > Instant::now())
    }

    fn close(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Waits until the process runs.
    pub(super) async fn open(&self) {
        while let Some(until) = self.until() {
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A future that is not polled while its process stands still.
struct Gated<F> {
    gate: Gate,
    inner: Pin<Box<F>>,
    rest: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(until) = self.gate.until() {
            let mut rest = Box::pin(tokio::time::sleep_until(until));
            if rest.as_mut().poll(context).is_pending() {
                self.rest = Some(rest);
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(context)
    }
}

/// All consumers, and what they share.
pub(super) struct Fleet {
    ledger: Arc<Ledger>,
    broker: Arc<Broker>,
    letters: Letters,
    shared: Shared,
    running: Vec<Option<Running>>,
}

struct Running {
    gate: Gate,
    process: Process,
    stop: ConsumerStopHandle,
    task: JoinHandle<Result<ConsumerStats, SourceError>>,
}

impl Fleet {
    pub(super) fn new(ledger: &Arc<Ledger>, broker: &Arc<Broker>, letters: &Letters) -> Self {
        let running = ledger.plan.settings.consumers.max(1);
        Self {
            ledger: Arc::clone(ledger),
            broker: Arc::clone(broker),
            letters: letters.clone(),
            shared: Shared::new(ledger),
            running: (0..running).map(|_| None).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn start(&mut self, consumer: usize) {
        let (gate, process) = (Gate::default(), Process::default());
        self.ledger.stage.trace(format_args!("consumer {consumer} starts"));
        let handler = AnyHandler::new(&self.shared, consumer, &gate, &process);
        let source = self.broker.join(consumer, &gate);
        let consumer_of =
            Consumer::new("sim", source, handler, options(&self.ledger)).dead_letters(self.letters.at(&gate));
        let stop = consumer_of.stop_handle();
        let run = Gated { gate: gate.clone(), inner: Box::pin(consumer_of.run()), rest: None };
        let task = tokio::spawn(run);
        self.running[consumer] = Some(Running { gate, process, stop, task });
    }

    pub(super) fn start_if_down(&mut self, consumer: usize) {
        if self.running[consumer].is_none() {
            self.start(consumer);
        }
    }

    /// As SIGKILL.
    pub(super) fn crash(&mut self, consumer: usize) {
        if let Some(running) = self.running[consumer].take() {
            self.ledger.stage.trace(format_args!("consumer {consumer} crashes"));
            self.ledger.stage.count("crashes", 1);
            running.process.kill();
            running.task.abort();
        }
    }

    /// As SIGSTOP for a while.
    pub(super) fn stall(&self, consumer: usize, rest: Duration) {
        if let Some(running) = &self.running[consumer] {
            self.ledger.stage.trace(format_args!("consumer {consumer} stands still for {rest:?}"));
            self.ledger.stage.count("stalls", 1);
            running.gate.close(Instant::now() + rest);
        }
    }

    /// Stops a consumer in order, and waits for its end within a bound.
    pub(super) async fn stop(&mut self, consumer: usize) {
        let Some(running) = self.running[consumer].take() else { return };
        self.ledger.stage.trace(format_args!("consumer {consumer} is stopped"));
        self.ledger.stage.count("stops", 1);
        running.gate.open().await;
        running.stop.stop();
        let limit = laws::stop_bound(&self.ledger.plan);
        match tokio::time::timeout(limit, running.task).await {
            Ok(Ok(Ok(_))) => self.ledger.stage.trace(format_args!("consumer {consumer} has ended")),
            // A source that is down while it stops may say so.
            Ok(Ok(Err(error))) => self.ledger.stage.trace(format_args!("consumer {consumer} ended: {error}")),
            Ok(Err(broken)) => {
                let what = format!("consumer {consumer} broke: {broken}");
                self.ledger.break_law(laws::STOP_ENDS, what);
            }
            Err(_) => {
                let what = format!("consumer {consumer} has not ended {limit:?} after its stop");
                self.ledger.break_law(laws::STOP_ENDS, what);
            }
        }
        running.process.kill();
    }

    /// Whether one ended although it was not asked to.
    pub(super) fn broke(&self) -> Option<usize> {
        self.running.iter().position(|running| running.as_ref().is_some_and(|one| one.task.is_finished()))
    }
}

/// Bugs that are planted by leaving out what keeps healthy keys going.
const LEFT_OUT: [(&str, Mechanism); 4] = [
    ("blames by number only", Mechanism::BlameByTime),
    ("does not read past failing keys", Mechanism::ReadingPast),
    ("lets failing keys hold everything", Mechanism::GivingUpSooner),
    ("tries failing keys among the others", Mechanism::RetriesApart),
];

fn options(ledger: &Ledger) -> ConsumerOptions {
    let (settings, ms) = (&ledger.plan.settings, Duration::from_millis);
    let options = ConsumerOptions::default();
    let planted = LEFT_OUT.iter().find(|(bug, _)| ledger.stage.has(bug));
    let options = planted.map_or(options.clone(), |(_, mechanism)| options.leaving_out(*mechanism));
    options
        .batch_max(settings.batch_max)
        .in_flight_max(settings.held_max)
        .attempts_max(settings.tries_max)
        .outage_keys_min(settings.suspects_max)
        .concurrency(settings.concurrency)
        .backoff(ms(settings.pause_first_ms), ms(settings.pause_longest_ms))
        .handle_timeout(ms(settings.handle_timeout_ms))
        .drain_timeout(ms(settings.drain_ms))
        .dead_letter_poll_interval(ms(settings.letters_every_ms))
}
