//! The work of a simulated call: it takes its time, has its effect or not, and ends in every way there is.

use std::time::Duration;

use semel::{Attempt, Effect, Execution, Outcome, WorkResult};
use tokio::sync::oneshot;

use super::ledger::{Downstream, Ledger, RunEnd};
use super::plan::{End, Work};
use crate::process::Process;
use crate::stage::Stage;

/// Larger than any store of this world takes where it has a bound.
const LARGE_BYTES: usize = 2_000;

/// Who runs it, and for which key.
pub(super) struct Worker {
    pub(super) ledger: Ledger,
    pub(super) stage: Stage,
    pub(super) process: Process,
    pub(super) key: usize,
    pub(super) effect: Effect,
}

/// The run is written down as dropped unless it ends before.
struct Running {
    ledger: Ledger,
    run: usize,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.run_ends(self.run, RunEnd::Dropped);
        }
    }
}

impl Worker {
    pub(super) async fn run(self, work: Work, attempt: Attempt) -> Execution {
        let epoch = attempt.epoch.map(|epoch| epoch.0);
        let run = self.ledger.run_begins(self.key, epoch, &self.process);
        let mut running = Running { ledger: self.ledger.clone(), run, ended: false };
        pause(work.before_ms).await;
        let answer = match work.end {
            End::Completed | End::FailedFinal => self.send(work, &attempt).await.ok(),
            End::Broken { sent: true } | End::Panic { sent: true } | End::Hold { sent: true } => {
                drop(self.send(work, &attempt));
                None
            }
            End::NotApplied | End::Broken { .. } | End::Panic { .. } | End::Hold { .. } => None,
        };
        pause(work.after_ms).await;
        running.ended = true;
        self.ledger.run_ends(run, RunEnd::Returned(work.end));
        let (result, body) = match (work.end, answer) {
            (_, Some(Ok(body))) => (WorkResult::Completed, body),
            (_, Some(Err(refusal))) => (WorkResult::FailedFinal, refusal),
            // Mistaken for "nothing happened": the request may have arrived.
            (End::Broken { .. }, _) if self.stage.has("broken call taken for not applied") => {
                (WorkResult::NotApplied, "connection reset".to_owned())
            }
            // Unwinds as a panic does, without a line on stderr for each of thousands.
            (End::Panic { .. }, _) => std::panic::resume_unwind(Box::new("on purpose")),
            (End::Hold { .. }, _) => (WorkResult::Hold, "a person shall look".to_owned()),
            (End::NotApplied, _) => (WorkResult::NotApplied, "nothing happened".to_owned()),
            _ => (WorkResult::Unknown, "connection reset".to_owned()),
        };
        let body = if work.large { large(&body) } else { body };
        Execution { result, outcome: Outcome::new(200, body) }
    }

    /// Sends the call downstream. It is on its way from here on, whatever becomes of the work or its process.
    fn send(&self, work: Work, attempt: &Attempt) -> oneshot::Receiver<Result<String, String>> {
        let name = if self.stage.has("downstream key differs by attempt") {
            format!("{}-{}", attempt.child("charge").as_str(), attempt.number)
        } else {
            attempt.child("charge").as_str().to_owned()
        };
        let call = Downstream {
            key: self.key,
            effect: self.effect,
            name,
            refuses: work.end == End::FailedFinal,
            guarded: attempt.epoch.is_some(),
        };
        let (answer, answered) = oneshot::channel();
        let ledger = self.ledger.clone();
        ledger.sent(self.key);
        tokio::spawn(async move {
            pause(work.wire_ms).await;
            let _ = answer.send(ledger.arrives(&call));
        });
        answered
    }
}

/// The same, and too large for a store that has a bound.
pub(super) fn large(body: &str) -> String {
    format!("{body:.<LARGE_BYTES$}")
}

async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
