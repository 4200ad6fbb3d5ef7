//! A caller of the guarded operation, as clients are: impatient at times, and persistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use semel::store::sqlite::SqliteStore;
use semel::{Failure, Guard, GuardError, Guarded, Key, OnceError, Scope};
use tokio::task::JoinSet;

use super::ledger::Ledger;
use super::plan::{IntentNo, Luck, Send};
use crate::args::Bug;
use crate::failure::Failed;

pub(super) const OPERATION: &str = "demo.charge";
pub(super) const TENANT: &str = "demo";
/// Short, so that what a killed process leaves behind is known to be in doubt soon.
pub(super) const LEASE: Duration = Duration::from_secs(1);
/// Tries of one send, and the longest pause between two: together far beyond a lease.
const TRIES_MAX: u32 = 60;
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long a stuck call takes: nobody is there any more when it ends.
const STUCK: Duration = Duration::from_secs(60);

/// What a send came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The work ran for this send.
    Ran,
    /// The answer of an earlier run.
    Replayed,
    /// Nobody knows; the caller is told so.
    Held,
    /// Something that must not happen here.
    Wrong(String),
}

/// A send's way there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    pub(super) ending: Ending,
    /// Refusals because somebody else was at it.
    pub(super) in_flight: u32,
    /// Times the caller hung up.
    pub(super) dropped: u32,
}

/// Makes a worker worth killing: one call gets stuck on its way there, the next one on its way back, so that a kill
/// finds both kinds of doubt.
pub(super) struct Stall {
    /// The effect that gets stuck on its way back, counted from 1; the one before it never arrives.
    pub(super) at: u32,
    pub(super) begun: AtomicU32,
    /// Told when the effect has happened and its answer is stuck.
    pub(super) stuck: fn(),
}

/// Sends to a guard. Cheap to clone.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) guarded: Guarded<SqliteStore>,
    pub(super) ledger: Ledger,
    pub(super) seed: u64,
    pub(super) bug: Option<Bug>,
    pub(super) stall: Option<Arc<Stall>>,
}

pub(super) fn guarded(store: SqliteStore) -> Result<Guarded<SqliteStore>, Failed> {
    let guarded =
        Guard::new(store).operation(OPERATION).map_err(|error| Failed::not_done(error.to_string()))?;
    guarded.lease(LEASE).map_err(|error| Failed::not_done(error.to_string()))
}

pub(super) fn receipt(intent: IntentNo) -> String {
    format!("receipt for {intent}")
}

/// The work: a call to the world outside, which takes a while to get there and back.
pub(super) async fn charge(ledger: Ledger, intent: IntentNo, luck: Luck) -> std::io::Result<()> {
    tokio::time::sleep(luck.there).await;
    ledger.append(intent).await?;
    tokio::time::sleep(luck.back).await;
    Ok(())
}

impl Stall {
    /// Does not return for the two calls that get stuck.
    async fn stuck(&self, ledger: &Ledger, intent: IntentNo) -> std::io::Result<()> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if number + 1 == self.at {
            tokio::time::sleep(STUCK).await;
        } else if number == self.at {
            ledger.append(intent).await?;
            (self.stuck)();
            tokio::time::sleep(STUCK).await;
        }
        Ok(())
    }
}

impl Client {
    /// Sends until there is an answer.
    pub(super) async fn send(&self, send: Send) -> Told {
        let luck = Luck::of(self.seed, send);
        let mut told = Told { ending: Ending::Held, in_flight: 0, dropped: 0 };
        let mut pause = Duration::from_millis(10);
        if self.bug == Some(Bug::Twice) && send.number.is_multiple_of(50) {
            let _ = self.ledger.append(send.intent).await;
        }
        for _ in 0..TRIES_MAX {
            let call = Box::pin(self.call(send));
            let result = match luck.hangs_up.filter(|_| told.dropped == 0) {
                None => call.await,
                Some(patience) => match tokio::time::timeout(patience, call).await {
                    Ok(result) => result,
                    Err(_) => {
                        told.dropped += 1;
                        continue;
                    }
                },
            };
            told.ending = match result {
                Ok(ending) => ending,
                Err(OnceError::Guard(GuardError::Uncertain { .. })) => Ending::Held,
                Err(OnceError::Guard(
                    error @ (GuardError::InFlight { .. }
                    | GuardError::StoreUnavailable(_)
                    | GuardError::Busy { .. }),
                )) => {
                    told.in_flight += u32::from(matches!(error, GuardError::InFlight { .. }));
                    told.ending = Ending::Wrong(format!("gave up: {error}"));
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                Err(error) => Ending::Wrong(error.to_string()),
            };
            return told;
        }
        told
    }

    async fn call(&self, send: Send) -> Result<Ending, OnceError> {
        let intent = send.intent;
        let (scope, key) = match (Scope::tenant(TENANT), Key::new(intent.to_string())) {
            (Ok(scope), Ok(key)) => (scope, key),
            _ => return Ok(Ending::Wrong("the demo's own names are not allowed".to_owned())),
        };
        let (ledger, luck) = (self.ledger.clone(), Luck::of(self.seed, send));
        let loses = self.bug == Some(Bug::Lost) && intent.0 % 10 == 3;
        let stall = self.stall.clone();
        let work = move |_| async move {
            if let Some(stall) = stall {
                stall.stuck(&ledger, intent).await?;
            }
            if !loses {
                charge(ledger, intent, luck).await?;
            }
            Ok::<_, Failure>(receipt(intent))
        };
        let reply = self.guarded.once(&scope, &key, &("EUR", intent.0), work).await?;
        Ok(match (reply.value == receipt(intent), reply.replayed) {
            (false, _) => Ending::Wrong(format!("{intent} was answered with {:?}", reply.value)),
            (true, true) => Ending::Replayed,
            (true, false) => Ending::Ran,
        })
    }
}

/// Has `tasks` tasks do `what` for each send, and tells each result to `tell`.
pub(super) async fn from_tasks<T, F, Fut>(
    sends: Vec<Send>,
    tasks: u32,
    what: F,
    mut tell: impl FnMut(Send, T),
) where
    T: std::marker::Send + 'static,
    F: Fn(Send) -> Fut + Clone + std::marker::Send + 'static,
    Fut: Future<Output = T> + std::marker::Send,
{
    let (sends, next) = (Arc::new(sends), Arc::new(AtomicUsize::new(0)));
    let (told, mut hear) = tokio::sync::mpsc::channel(tasks as usize);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (sends, next, told, what) = (Arc::clone(&sends), Arc::clone(&next), told.clone(), what.clone());
        running.spawn(async move {
            while let Some(send) = sends.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = what(*send).await;
                if told.send((*send, result)).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(told);
    while let Some((send, result)) = hear.recv().await {
        tell(send, result);
    }
}
