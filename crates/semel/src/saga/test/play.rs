//! Plays one history: workers, takeovers, the end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::fault::{Fault, Faults, WriteFault};
use super::process::Process;
use super::report::{HistoryEnd, SagaRule};
use super::watch::{Left, Look, Watch};
use super::watched_journal::WatchedJournal;
use super::watched_step::{NUMBER, WatchedSaga};
use super::world::World;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::Intent;
use crate::intent::policy::{StoreTime, millis};
use crate::saga::definition::AnyDefinition;
use crate::saga::engine::Engine;
use crate::saga::journal::{Journal, Loaded, NewSaga, SagaNumber, Signal};
use crate::saga::memory::MemoryJournal;
use crate::saga::options::SagaOptions;
use crate::saga::state::{ParkReason, Status};

/// When histories begin, by the journal's clock: some day in 2023.
const BEGIN: StoreTime = StoreTime(1_700_000_000_000);
/// A worker's lease. What is dead is taken over after it.
const LEASE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(30);

pub(super) type LeftOf<App> = Box<dyn Fn(&World<'_, App>) -> Box<dyn Left> + Send + Sync>;
pub(super) type JudgeOf<App> = Box<dyn Fn(&World<'_, App>, &HistoryEnd) -> Result<(), String> + Send + Sync>;

/// What all histories of a saga have in common.
pub(super) struct Setup<App> {
    pub(super) definition: Arc<dyn AnyDefinition<App>>,
    pub(super) intent: Intent,
    pub(super) fingerprint: Fingerprint,
    pub(super) input: Bytes,
    pub(super) app: Box<dyn Fn() -> App + Send + Sync>,
    pub(super) leaves: Option<LeftOf<App>>,
    pub(super) judge: Option<JudgeOf<App>>,
    pub(super) signals: Vec<Signal>,
    pub(super) within: Duration,
    /// How it ends if nothing disturbs it.
    pub(super) undisturbed: HistoryEnd,
    #[cfg(feature = "sqlite")]
    pub(super) tables: Option<super::atomic_rows::Tables>,
}

/// One history.
pub(super) struct Played<App> {
    pub(super) faults: Faults,
    /// `None`: it has not ended in time.
    pub(super) end: Option<HistoryEnd>,
    pub(super) loaded: Option<Loaded>,
    pub(super) watch: Arc<Watch>,
    pub(super) left_before: Option<Box<dyn Left>>,
    pub(super) app: Arc<App>,
    journal: MemoryJournal,
    #[cfg(feature = "sqlite")]
    rows: Option<super::atomic_rows::AtomicRows>,
}

impl<App> Played<App> {
    pub(super) fn world(&self) -> World<'_, App> {
        World {
            app: &self.app,
            journal: &self.journal,
            #[cfg(feature = "sqlite")]
            rows: self.rows.as_ref(),
        }
    }
}

impl<App: Send + Sync + 'static> Setup<App> {
    pub(super) async fn play(self: &Arc<Self>, faults: Faults) -> Played<App> {
        let begin = Instant::now();
        let clock = move || BEGIN.plus_ms(u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX));
        let journal = MemoryJournal::with_clock(clock);
        let app = Arc::new((self.app)());
        #[cfg(feature = "sqlite")]
        let (rows, broken) = match &self.tables {
            None => (None, None),
            Some(tables) => match super::atomic_rows::AtomicRows::new(tables) {
                Ok(rows) => (Some(rows), None),
                Err(error) => (None, Some(format!("the tables of the test: {error}"))),
            },
        };
        let mut played = Played {
            faults: faults.clone(),
            end: None,
            loaded: None,
            watch: Watch::new(faults.clone(), Box::new(|| None)),
            left_before: None,
            app: Arc::clone(&app),
            journal: journal.clone(),
            #[cfg(feature = "sqlite")]
            rows: rows.clone(),
        };
        let look: Look = {
            let (setup, app, journal) = (Arc::clone(self), Arc::clone(&app), journal.clone());
            #[cfg(feature = "sqlite")]
            let rows = rows.clone();
            Box::new(move || {
                let world = World {
                    app: &*app,
                    journal: &journal,
                    #[cfg(feature = "sqlite")]
                    rows: rows.as_ref(),
                };
                setup.leaves.as_ref().map(|leaves| leaves(&world))
            })
        };
        let watch = Watch::new(faults, look);
        played.watch = Arc::clone(&watch);
        played.left_before = watch.left();
        #[cfg(feature = "sqlite")]
        if let Some(broken) = broken {
            watch.broke(SagaRule::AtomicStepCommits, broken);
            return played;
        }
        self.run_workers(&mut played, begin).await;
        played.loaded = journal.load(SagaNumber(NUMBER)).await.ok().flatten();
        played
    }

    async fn run_workers(self: &Arc<Self>, played: &mut Played<App>, begin: Instant) {
        let (watch, journal) = (Arc::clone(&played.watch), played.journal.clone());
        let new = NewSaga {
            intent: self.intent.clone(),
            fingerprint: self.fingerprint,
            name: self.definition.name().to_owned(),
            version: self.definition.version(),
            input: self.input.clone(),
            deadline_ms: self.definition.deadline().map(millis),
            worker: None,
        };
        if let Err(error) = journal.start(new).await {
            return watch.broke(SagaRule::StepsAreDeclared, format!("the saga cannot start: {error}"));
        }
        for signal in &self.signals {
            let sent = journal.signal(SagaNumber(NUMBER), signal.clone()).await;
            watch.say(format!("signal {}: {sent:?}", signal.name));
        }
        self.start_worker(played);
        let until = begin + self.within;
        loop {
            let row = match journal.look(SagaNumber(NUMBER)).await {
                Ok(Some(record)) => record.row,
                _ => break,
            };
            let parked = row.status == Status::Parked && row.due_at.is_none();
            played.end = match row.status {
                Status::Completed => Some(HistoryEnd::Completed),
                Status::Undone => Some(HistoryEnd::Undone),
                _ if parked => Some(HistoryEnd::Parked(row.reason.unwrap_or(ParkReason::UnknownResult))),
                _ => None,
            };
            if played.end.is_some() {
                break;
            }
            tokio::select! {
                biased;
                () = watch.killed.notified() => {
                    let deadline = row.deadline.filter(|_| away_until_deadline(&played.faults));
                    if let Some(deadline) = deadline {
                        let after = Duration::from_millis(deadline.plus_ms(1_000).0.saturating_sub(BEGIN.0));
                        tokio::time::sleep_until((begin + after).min(until)).await;
                    }
                    watch.say("another worker");
                    self.start_worker(played);
                }
                () = watch.moved.notified() => {}
                () = tokio::time::sleep_until(until) => break,
            }
        }
        for (id, arrives) in watch.take_late() {
            watch.say(format!("  {id}: the late request arrives"));
            let _ = tokio::time::timeout(LEASE, arrives()).await;
        }
        watch.stop();
    }

    fn start_worker(self: &Arc<Self>, played: &Played<App>) {
        let process = Process::default();
        played.watch.runs(process.clone());
        let journal = WatchedJournal {
            inner: played.journal.clone(),
            watch: Arc::clone(&played.watch),
            #[cfg(feature = "sqlite")]
            rows: played.rows.clone(),
        };
        let watched = WatchedSaga::new(Arc::clone(&self.definition), &played.watch);
        let steps = self.definition.steps();
        let longest = steps.iter().map(|step| step.spec().timeout).max().unwrap_or_default();
        let mut options = SagaOptions::default();
        options.lease = LEASE.max((longest + options.lease_margin) * 2);
        options.poll_interval = POLL;
        let definition: Arc<dyn AnyDefinition<App>> = Arc::new(watched);
        let definitions = [(self.definition.name().to_owned(), definition)].into();
        let app = Arc::clone(&played.app);
        let engine = Engine::new(Arc::new(journal), app, definitions, options, Arc::new(process), None);
        Arc::new(engine).start();
    }
}

fn away_until_deadline(faults: &Faults) -> bool {
    let is = |fault: &Fault| matches!(fault, Fault::AtWrite { what: WriteFault::Deadline, .. });
    faults.0.iter().any(is)
}
