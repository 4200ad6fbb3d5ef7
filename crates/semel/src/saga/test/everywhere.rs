//! Which histories are played.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fault::{CallFault, CallOp, Fault, Faults, WriteFault};
use super::play::{JudgeOf, LeftOf, Setup};
use super::report::{HistoryEnd, HistoryReport, HistoryViolation, SagaRule};
use super::watch::{CallSeen, Left};
use super::ways::{Base, Learns, Next, Ways};
use super::world::World;
use crate::intent::fingerprint::Recipe;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::scope::Scope;
use crate::saga::definition::{AnyDefinition, Definition};
use crate::saga::entry::StepId;
use crate::saga::journal::Signal;
use crate::saga::step::encode;

/// Most histories that one saga is played in, unless [`Everywhere::histories_max`] says otherwise.
pub const HISTORIES_MAX: usize = 2_000;

const WITHIN: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The seed of every history: backoffs are spread by chance, and a history is the same each time.
const SEED: u64 = 1;

/// Plays a saga everywhere it may be disturbed: first undisturbed, then once for each point. `app` makes the application
/// of one history, with fakes of its participants.
///
/// | at | what is done |
/// |---|---|
/// | each write of the journal | the worker dies before it, or after it, and another one takes over; the saga is cancelled; no worker runs it until its deadline is over |
/// | each call of a step or an undo | the worker dies before it, or after it; the request or the answer is lost; it is refused; it had no effect; with a key: delivered twice |
/// | each lookup after a lost request or answer | the worker dies before it, or after it; its answer is lost |
/// | each call with a key | its result is unknown, and the next attempt is refused, so that the undo gets `None`; the request may arrive when all is over |
///
/// Steps that are called only after another one was refused are disturbed on that way, and so is each undo once.
///
/// All this is on a journal in memory and in virtual time: nothing waits, and each run is the same. After each history
/// the [rules](super::SagaRule) are judged. Say with [`leaves`](Everywhere::leaves) what a saga leaves behind, and more of
/// them can be: whether a keyed step ignores its key, whether an undo undoes twice, whether all or nothing is left.
///
#[cfg_attr(feature = "macros", doc = "```")]
#[cfg_attr(not(feature = "macros"), doc = "```ignore")]
/// use semel::saga::test::everywhere;
/// use semel::saga::{At, Saga, SagaResult, StepResult};
/// use std::collections::{BTreeMap, BTreeSet};
/// use std::sync::Mutex;
///
/// #[derive(Default)]
/// struct Stock { holds: Mutex<BTreeMap<String, u32>>, gone: Mutex<BTreeSet<String>> }
///
/// #[semel::step(keyed, undo = release)]
/// async fn hold(at: At<'_, Stock>, amount: &u32) -> StepResult<u32> {
///     let key = at.key().as_str();
///     if at.app.gone.lock().unwrap().contains(key) {
///         return Err(semel::saga::StepError::refused("released before it came"));
///     }
///     at.app.holds.lock().unwrap().insert(key.to_owned(), *amount); // twice with one key is one hold
///     Ok(*amount)
/// }
/// async fn release(at: At<'_, Stock>, _: &u32, _perhaps: Option<u32>) -> StepResult<()> {
///     let key = at.forward_key().as_str();
///     at.app.gone.lock().unwrap().insert(key.to_owned());
///     at.app.holds.lock().unwrap().remove(key);
///     Ok(())
/// }
/// #[semel::step(opaque)]
/// async fn charge(_: At<'_, Stock>, cents: &u32) -> StepResult<u32> { Ok(*cents) }
///
/// #[semel::saga]
/// async fn order(s: Saga<Stock>, amount: u32) -> SagaResult<u32> {
///     s.run(hold, amount).await?;
///     let (paid, _) = s.pivot(charge, amount * 100).await?;
///     Ok(paid)
/// }
///
/// let report = everywhere(order, 3, Stock::default)
///     .leaves(|stock| stock.holds.lock().unwrap().values().copied().collect::<Vec<_>>())
///     .assert();
/// assert!(report.histories > 30 && report.undone > 5, "{report}");
/// ```
pub fn everywhere<App, In, Out>(
    saga: impl Into<Definition<App, In, Out>>,
    input: In,
    app: impl Fn() -> App + Send + Sync + 'static,
) -> Everywhere<App>
where
    App: Send + Sync + 'static,
    In: Serialize + DeserializeOwned + Send + 'static,
    Out: Serialize + DeserializeOwned + Send + 'static,
{
    let definition = saga.into();
    let setup = setup(definition, &input, Box::new(app));
    Everywhere { setup, histories_max: HISTORIES_MAX, only: None }
}

fn setup<App, In, Out>(
    definition: Definition<App, In, Out>,
    input: &In,
    app: Box<dyn Fn() -> App + Send + Sync>,
) -> Result<Setup<App>, String>
where
    App: Send + Sync + 'static,
    In: Serialize + DeserializeOwned + Send + 'static,
    Out: Serialize + DeserializeOwned + Send + 'static,
{
    definition.check().map_err(|error| error.to_string())?;
    let operation = Operation::new(definition.name()).map_err(|error| error.to_string())?;
    let scope = Scope::tenant("everywhere").map_err(|error| error.to_string())?;
    let key = Key::new("history-0001").map_err(|error| error.to_string())?;
    Ok(Setup {
        intent: Intent::new(scope, operation, key),
        fingerprint: Recipe::default().value(input).map_err(|error| error.to_string())?,
        input: encode(input)?,
        definition: Arc::new(definition),
        app,
        leaves: None,
        judge: None,
        signals: Vec::new(),
        within: WITHIN,
        undisturbed: HistoryEnd::Completed,
        #[cfg(feature = "sqlite")]
        tables: None,
    })
}

/// A saga that is played everywhere; made by [`everywhere`].
#[must_use = "call `assert` or `run`"]
pub struct Everywhere<App> {
    /// Or what is wrong with the definition.
    setup: Result<Setup<App>, String>,
    histories_max: usize,
    only: Option<String>,
}

impl<App> fmt::Debug for Everywhere<App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Everywhere").field("histories_max", &self.histories_max).finish_non_exhaustive()
    }
}

impl<App: Send + Sync + 'static> Everywhere<App> {
    fn with(mut self, set: impl FnOnce(&mut Setup<App>)) -> Self {
        if let Ok(setup) = &mut self.setup {
            set(setup);
        }
        self
    }

    /// What is left in the world: holds, charges, rows. Nothing of it may be left by a saga that is undone, and each that
    /// completes leaves the same. It is asked for often: count, and do not change anything.
    pub fn leaves<L: PartialEq + fmt::Debug + Send + Sync + 'static>(
        self,
        leaves: impl Fn(&World<'_, App>) -> L + Send + Sync + 'static,
    ) -> Self {
        let leaves: LeftOf<App> = Box::new(move |world| Box::new(leaves(world)) as Box<dyn Left>);
        self.with(|setup| setup.leaves = Some(leaves))
    }

    /// Your own judge, after each history: an error, or a panic, is a violation.
    pub fn judge(
        self,
        judge: impl Fn(&World<'_, App>, &HistoryEnd) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let judge: JudgeOf<App> = Box::new(judge);
        self.with(|setup| setup.judge = Some(judge))
    }

    /// Sends this signal when the saga begins; it is kept until the saga waits for it. Without it the wait runs out.
    pub fn signal<T: Serialize>(mut self, name: &str, body: &T) -> Self {
        let body = match encode(body) {
            Ok(body) => body,
            Err(error) => {
                self.setup = Err(format!("the signal {name} cannot be encoded: {error}"));
                return self;
            }
        };
        let name = name.to_owned();
        self.with(|setup| {
            let id = format!("signal-{}", setup.signals.len());
            setup.signals.push(Signal { id, name, body });
        })
    }

    /// The tables of atomic steps, in a SQLite database in memory, one for each history.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(
        self,
        tables: impl Fn(&rusqlite::Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.with(|setup| setup.tables = Some(Arc::new(tables)))
    }

    /// The virtual time in which a saga has to end, or to be parked; 30 days by default.
    pub fn within(self, within: Duration) -> Self {
        self.with(|setup| setup.within = within)
    }

    /// How the saga ends when nothing disturbs it: completed, unless you say otherwise.
    pub fn undisturbed(self, end: HistoryEnd) -> Self {
        self.with(|setup| setup.undisturbed = end)
    }

    /// At most so many histories; the report says how many were left out.
    pub fn histories_max(mut self, histories_max: usize) -> Self {
        self.histories_max = histories_max.max(1);
        self
    }

    /// Only the history of this name, as a violation prints it.
    pub fn only(mut self, history: impl Into<String>) -> Self {
        self.only = Some(history.into());
        self
    }

    /// Plays all histories.
    ///
    /// # Panics
    ///
    /// When a rule is broken: with the history, what was done, and the journal.
    pub fn assert(self) -> HistoryReport {
        match self.run() {
            Ok(report) => report,
            Err(violation) => panic!("{violation}"),
        }
    }

    /// Plays all histories, until a rule is broken.
    pub fn run(self) -> Result<HistoryReport, Box<HistoryViolation>> {
        let Self { setup, histories_max, only } = self;
        let setup = setup.map_err(|what| violation(SagaRule::StepsAreDeclared, what))?;
        let has_deadline = setup.definition.deadline().is_some();
        let mut run = Run {
            setup: Arc::new(setup),
            histories_max,
            only,
            report: HistoryReport::default(),
            completed: None,
            has_deadline,
            planned: HashSet::new(),
            ways: Ways::default(),
        };
        // The caller may be in a runtime already.
        let played = std::thread::scope(|scope| scope.spawn(|| run.all()).join());
        match played {
            Ok(result) => result.map(|()| run.report),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn violation(rule: SagaRule, what: String) -> Box<HistoryViolation> {
    Box::new(HistoryViolation { rule, what, history: String::new(), done: Vec::new(), journal: Vec::new() })
}

struct Run<App> {
    setup: Arc<Setup<App>>,
    histories_max: usize,
    only: Option<String>,
    report: HistoryReport,
    /// What is left when nothing disturbs the saga.
    completed: Option<Box<dyn Left>>,
    has_deadline: bool,
    /// Those that were played, left out, or are not asked for.
    planned: HashSet<Faults>,
    ways: Ways,
}

impl<App: Send + Sync + 'static> Run<App> {
    fn all(&mut self) -> Result<(), Box<HistoryViolation>> {
        let (_, base) = self.one(Faults::default(), true)?;
        (self.report.calls, self.report.writes) = (base.calls.len(), base.writes as usize);
        self.ways.disturbs(&base);
        self.each(self.at_all(&base))?;
        while let Some(next) = self.ways.next() {
            let faults = match &next {
                Next::Undos(base, new) => self.at_undos(base, new),
                Next::Lookups(base, step) => at_lookups(base, step),
                Next::Steps(base, new) => self.at_steps(base, new),
            };
            self.each(faults)?;
        }
        match &self.only {
            Some(only) if self.report.histories == 0 => {
                let what = format!("{only:?} is no history of this saga; its code may have changed");
                Err(violation(SagaRule::HistoryExists, what))
            }
            _ => Ok(()),
        }
    }

    fn each(&mut self, all: Vec<Faults>) -> Result<(), Box<HistoryViolation>> {
        for faults in all {
            if !self.planned.insert(faults.clone()) {
                continue;
            }
            // What is on the way is learnt also when only one history is asked for.
            let learns = Learns::of(&faults).filter(|_| self.planned.len() < self.histories_max);
            let played = self.one_of(faults, learns.is_some())?;
            if let (Some((end, base)), Some(learns)) = (played, learns) {
                self.ways.learn(learns, end, base);
            }
        }
        Ok(())
    }

    /// One history, if there is room for it and it is asked for.
    fn one_of(
        &mut self,
        faults: Faults,
        learns: bool,
    ) -> Result<Option<(Option<HistoryEnd>, Base)>, Box<HistoryViolation>> {
        let wanted = self.only.as_ref().is_none_or(|only| *only == faults.to_string());
        if wanted && self.report.histories >= self.histories_max {
            self.report.left_out += 1;
            return Ok(None);
        }
        if !wanted && !learns {
            return Ok(None);
        }
        self.one(faults, wanted).map(Some)
    }

    fn one(
        &mut self,
        faults: Faults,
        judged: bool,
    ) -> Result<(Option<HistoryEnd>, Base), Box<HistoryViolation>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.map_err(|error| violation(SagaRule::Ends, format!("no runtime: {error}")))?;
        fastrand::seed(SEED);
        let is_first = faults.0.is_empty();
        let only_learnt = is_first && self.only.as_ref().is_some_and(|only| *only != faults.to_string());
        runtime.block_on(async {
            let played = self.setup.play(faults).await;
            let base = Base::new(&played);
            if is_first && played.end == Some(HistoryEnd::Completed) {
                self.completed = played.watch.left();
            }
            if judged && !only_learnt {
                let end = self.setup.judge(&played, self.completed.as_deref())?;
                self.report.count(end);
                self.report.not_reached += usize::from(!played.watch.all_happened());
            }
            Ok((played.end, base))
        })
    }

    /// All that can be done to a history. Calls first: what is found there says most about the mistake.
    fn at_all(&self, base: &Base) -> Vec<Faults> {
        let mut all: Vec<_> = base.calls.iter().flat_map(|call| at_call(base, call)).collect();
        all.extend(self.at_writes(base, 0));
        all
    }

    /// At the undos of these steps, and at the writes from the first of them on.
    fn at_undos(&self, base: &Base, new: &HashSet<StepId>) -> Vec<Faults> {
        let undos = || base.of(CallOp::Undo).filter(|call| new.contains(&call.id.step));
        let mut all: Vec<_> = undos().flat_map(|call| at_call(base, call)).collect();
        let from = undos().next().map_or(base.writes, |call| call.writes.saturating_sub(1));
        all.extend(self.at_writes(base, from));
        all
    }

    /// At the calls of these steps, and at the writes from the first of them on. What comes after is refused, so that they
    /// are undone.
    fn at_steps(&self, base: &Base, new: &HashSet<StepId>) -> Vec<Faults> {
        let is_new = |call: &&CallSeen| new.contains(&call.id.step);
        let mut all: Vec<_> =
            base.of(CallOp::Run).filter(is_new).flat_map(|call| at_call(base, call)).collect();
        let from_first = base.of(CallOp::Run).skip_while(|call| !is_new(call));
        let known_after = from_first.filter(|call| !is_new(call));
        all.extend(known_after.map(|call| base.and_at(call, CallFault::Refused)));
        let from = base.of(CallOp::Run).find(is_new);
        let from = from.map_or(base.writes, |call| call.writes.saturating_sub(1));
        all.extend(self.at_writes(base, from));
        all
    }

    fn at_writes(&self, base: &Base, from: u32) -> Vec<Faults> {
        let possible = |what: &WriteFault| *what != WriteFault::Deadline || self.has_deadline;
        let of_write =
            |n| WriteFault::ALL.into_iter().filter(possible).map(move |what| Fault::AtWrite { n, what });
        (from + 1..=base.writes).flat_map(of_write).map(|fault| base.faults.and(fault)).collect()
    }
}

fn at_call(base: &Base, call: &CallSeen) -> Vec<Faults> {
    of_call(call).into_iter().map(|what| base.and_at(call, what)).collect()
}

fn at_lookups(base: &Base, step: &StepId) -> Vec<Faults> {
    let of_step = base.of(CallOp::LookUp).filter(|call| call.id.step == *step);
    of_step.flat_map(|call| at_call(base, call)).collect()
}

fn of_call(call: &CallSeen) -> Vec<CallFault> {
    if call.atomic {
        return vec![CallFault::Refused, CallFault::NotApplied];
    }
    if call.id.op == CallOp::LookUp {
        return vec![CallFault::CrashBefore, CallFault::CrashAfter, CallFault::AnswerLost];
    }
    let keyed = CallFault::OF_A_KEY.into_iter().filter(|fault| {
        let of_run = call.id.op == CallOp::Run || !fault.then_refused();
        call.keyed && of_run
    });
    keyed.chain(CallFault::OF_ANY).collect()
}
