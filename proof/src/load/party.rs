//! One process's guard on the store, with the three operations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel::guard::{CurrentRuntime, Limits};
use semel::intent::fingerprint::Recipe;
use semel::observe::Metrics;
use semel::store::{AnyStore, Record};
use semel::{
    Effect, Execution, Found, Guard, Guarded, InFlight, Intent, Key, Operation, Outcome, Scope, WorkResult,
};

use super::answers::{Answers, What};
use super::{Downstream, Failed, Settings};

/// Work takes at most about this long, unless its process stands still.
const WORK_MS_MAX: u64 = 25;
/// How long a lookup waits before it believes "not found": longer than a busy machine lets a process stand still.
const SETTLE: Duration = Duration::from_secs(5);

/// What protects an intent of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing.
    Opaque,
    /// The downstream honours its key.
    Keyed,
    /// Nothing, but the downstream can be asked.
    Asked,
}

impl Kind {
    /// The kind of the `number`th intent.
    pub fn of(number: usize) -> Self {
        [Self::Opaque, Self::Keyed, Self::Asked][number % 3]
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Opaque => "pay.opaque",
            Self::Keyed => "pay.keyed",
            Self::Asked => "pay.asked",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// The key of the `number`th intent.
pub(super) fn key_of(number: usize) -> String {
    format!("{}-{number}", Kind::of(number).operation())
}

/// The `number`th intent.
pub fn intent_of(number: usize) -> Result<Intent, Failed> {
    let operation = Operation::new(Kind::of(number).operation())?;
    Ok(Intent::new(Scope::tenant("acme")?, operation, Key::new(key_of(number))?))
}

/// A guard on a store, and the downstream its operations charge. Cheap to clone.
#[derive(Clone)]
pub struct Party {
    pub(super) guard: Guard<AnyStore>,
    operations: [Guarded<AnyStore>; 3],
    downstream: Downstream,
    answers: Answers,
    pub(super) dir: PathBuf,
}

impl Party {
    /// A guard on `store`; ledger and answers are in `dir`.
    pub fn new(store: AnyStore, dir: &Path, settings: Settings) -> Result<Self, Failed> {
        let downstream = Downstream::open(dir)?;
        let mut limits = Limits::default();
        limits.store_timeout = settings.store_timeout;
        limits.finish_wait = settings.store_timeout;
        let guard = Guard::with(store, limits, Metrics::new(), CurrentRuntime);
        let operation = |kind: Kind| -> Result<Guarded<AnyStore>, Failed> {
            let operation = guard.operation(kind.operation())?.lease(settings.lease)?;
            let operation = operation.store_down(settings.store_down);
            Ok(match kind {
                Kind::Opaque => operation,
                Kind::Keyed => {
                    let wait = InFlight::Wait(Duration::from_millis(200));
                    operation.effect(Effect::Keyed)?.in_flight(wait)?
                }
                Kind::Asked => operation.lookup(lookup(downstream.clone()), SETTLE),
            })
        };
        let operations = [operation(Kind::Opaque)?, operation(Kind::Keyed)?, operation(Kind::Asked)?];
        let answers = Answers::open(dir)?;
        Ok(Self { guard, operations, downstream, answers, dir: dir.to_owned() })
    }

    /// The store it is on.
    pub fn store(&self) -> &AnyStore {
        self.guard.store()
    }

    /// One call for the `number`th intent. The answer it gets is recorded.
    pub async fn call(&self, number: usize) -> Result<What, Failed> {
        let (kind, key) = (Kind::of(number), key_of(number));
        let (downstream, name) = (self.downstream.clone(), key.clone());
        let pause = Duration::from_millis(fastrand::u64(0..WORK_MS_MAX));
        let work = move |_| async move {
            tokio::time::sleep(pause).await;
            let charge = tokio::task::spawn_blocking(move || downstream.charge(kind, &name));
            match charge.await {
                Ok(Ok(receipt)) => Execution::completed(Outcome::new(200, receipt)),
                other => Execution {
                    result: WorkResult::Unknown,
                    outcome: Outcome::new(500, format!("{other:?}")),
                },
            }
        };
        let fingerprint = Recipe::default().bytes(key.as_bytes());
        let asked = self.operations[kind.index()].run(intent_of(number)?, fingerprint, work).await;
        let what = match asked {
            Ok(answer) => {
                let receipt = receipt_of(&answer.outcome);
                match (answer.result, answer.replayed) {
                    (WorkResult::Completed, true) => What::Replayed(receipt),
                    (WorkResult::Completed, false) if answer.stored => What::Done(receipt),
                    (WorkResult::Completed, false) => What::Unstored(receipt),
                    (ended, _) => What::Wrong(format!("ended {ended:?}: {receipt}")),
                }
            }
            Err(error) => What::of(&error),
        };
        self.answers.note(&key, &what)?;
        Ok(what)
    }

    /// Takes no more calls; `true` when nothing was left undone.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.guard.drain(limit).await.is_clean()
    }
}

pub(super) fn receipt_of(outcome: &Outcome) -> String {
    let bytes = outcome.body_bytes().map(|body| body.to_vec()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn lookup(
    downstream: Downstream,
) -> impl Fn(Record) -> std::pin::Pin<Box<dyn Future<Output = Found> + Send>> {
    move |record| {
        let (downstream, key) = (downstream.clone(), record.intent.key().as_str().to_owned());
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || downstream.find(&key)).await {
                Ok(Ok(Some(receipt))) => Found::Applied(Outcome::new(200, receipt)),
                Ok(Ok(None)) => Found::NotApplied,
                _ => Found::Unknown,
            }
        })
    }
}
