//! `semel saga retry`, `compensate`, `abandon`, `resolve`, `cancel` and `signal`, about one saga.

use bytes::Bytes;
use semel::Retention;
use semel::saga::{
    AdminError, AdminResult, DecidedBy, Loaded, ResolvedAs, SIGNALS_MAX, SagaAdmin, SagaNumber, Signalled,
    Status, StepId,
};
use serde::Serialize;

use super::args::{Cancel, Resolve, Signal, Which};
use super::open::open_steps;
use super::values::StepName;
use super::{Sagas, no_saga};
use crate::confirm::confirmed;
use crate::failure::Failed;
use crate::stdout;

/// What is decided about a saga as a whole.
#[derive(Clone, Copy)]
pub(super) enum Decision {
    Retry,
    Compensate,
    Abandon(Retention),
}

impl Decision {
    pub(super) async fn apply(
        self,
        admin: &SagaAdmin,
        number: SagaNumber,
        seen: u64,
        by: &DecidedBy,
    ) -> Result<AdminResult, AdminError> {
        match self {
            Self::Retry => admin.retry(number, seen, by).await,
            Self::Compensate => admin.compensate(number, seen, by).await,
            Self::Abandon(retention) => admin.abandon(number, seen, retention, by).await,
        }
    }

    /// What a saga is then.
    pub(super) fn done(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Compensate => "undone",
            Self::Abandon(_) => "abandoned",
        }
    }

    fn means(self) -> &'static str {
        match self {
            Self::Retry => "goes on: the next free worker takes it",
            Self::Compensate => "is undone: the next free worker begins",
            Self::Abandon(_) => "is abandoned: nothing was undone, and nothing goes on",
        }
    }

    /// Why it cannot be decided in this state.
    pub(super) fn refusal(self, status: Status) -> String {
        match (status, self) {
            (Status::Parked, Self::Compensate) => {
                "it is being undone already; `semel saga retry` has the undoing go on".to_owned()
            }
            (status, _) => not_parked(status, self.done()),
        }
    }
}

fn not_parked(status: Status, what: &str) -> String {
    match status {
        status if status.is_ended() => {
            format!("it is {} already; nothing is left to decide", status.as_str())
        }
        status => format!(
            "it is {}, and only a parked saga can be {what}; `semel saga cancel` asks for one to be undone",
            status.as_str()
        ),
    }
}

/// What a decision prints with `--json`. Names here are an interface: add, never rename.
#[derive(Serialize)]
struct DecidedView {
    number: u64,
    result: &'static str,
    status: &'static str,
    epoch: u64,
}

pub(super) async fn one(
    sagas: &Sagas,
    decision: Decision,
    which: &Which,
    number: u64,
    by: &DecidedBy,
    json: bool,
) -> Result<(), Failed> {
    let loaded = seen(sagas, number, which.epoch).await?;
    if matches!(decision, Decision::Abandon(_)) && loaded.record.row.status == Status::Parked {
        let what = format!("saga {number} would end as it is: nothing is undone, and nothing goes on");
        confirmed(which.yes, &what)?;
    }
    let (number, epoch) = (loaded.record.number, loaded.record.row.epoch);
    let result = decision.apply(&sagas.admin, number, epoch, by).await?;
    recorded(result, number, |status| decision.refusal(status))?;
    report(sagas, number, result, &format!("saga {} {}", number.0, decision.means()), json).await
}

pub(super) async fn resolve(sagas: &Sagas, args: &Resolve, json: bool) -> Result<(), Failed> {
    let found = match &args.applied {
        Some(result) if args.undo && result.trim() != "null" => {
            return Err(Failed::usage("an undo has no result: use --applied without JSON"));
        }
        Some(result) => ResolvedAs::Applied(Bytes::from(result.clone())),
        None => ResolvedAs::NotApplied,
    };
    let loaded = seen(sagas, args.number, args.epoch).await?;
    let step = step_of(&loaded, &args.step, args.undo)?;
    let (number, epoch) = (loaded.record.number, loaded.record.row.epoch);
    let result = sagas.admin.resolve(number, epoch, &step, args.undo, found, &decider(args)).await?;
    recorded(result, number, |status| not_parked(status, "resolved"))?;
    let of = if args.undo { "the undo of " } else { "" };
    let how = if args.not_applied { "did not happen" } else { "happened" };
    let said =
        format!("recorded that {of}{step} {how}; saga {} goes on: the next free worker takes it", number.0);
    report(sagas, number, result, &said, json).await
}

fn decider(args: &Resolve) -> DecidedBy {
    DecidedBy::new(&args.decider.by, &args.decider.why)
}

pub(super) async fn cancel(sagas: &Sagas, args: &Cancel, json: bool) -> Result<(), Failed> {
    let record = seen(sagas, args.number, None).await?.record;
    let (number, row) = (record.number, record.row);
    let by = DecidedBy::new(&args.decider.by, &args.decider.why);
    // Asked first, because a refused cancellation leaves its note behind.
    let result = match row.undo {
        Some(_) if !row.cancelled => AdminResult::Refused(row.status),
        _ => sagas.admin.cancel(number, &by).await?,
    };
    recorded(result, number, |status| match status {
        status if status.is_ended() => format!("it is {} already", status.as_str()),
        _ => "it is being undone already".to_owned(),
    })?;
    let said = match result {
        AdminResult::Already => format!("saga {} was cancelled before", number.0),
        _ => format!("saga {} is cancelled: it is undone unless its pivot happens first", number.0),
    };
    report(sagas, number, result, &said, json).await
}

pub(super) async fn signal(sagas: &Sagas, args: &Signal, json: bool) -> Result<(), Failed> {
    let loaded = seen(sagas, args.number, None).await?;
    let number = loaded.record.number;
    let body = Bytes::from(args.body.clone());
    let signal = semel::saga::Signal { id: args.id.clone(), name: args.name.clone(), body };
    let result = sagas.admin.signal(number, signal).await?;
    signalled(sagas, number, result, &format!("saga {} has the signal", number.0), json).await
}

/// What became of a signal, or of an approval.
pub(super) async fn signalled(
    sagas: &Sagas,
    number: SagaNumber,
    result: Signalled,
    recorded: &str,
    json: bool,
) -> Result<(), Failed> {
    let n = number.0;
    let (result, said) = match result {
        Signalled::Recorded => (AdminResult::Recorded, recorded.to_owned()),
        Signalled::Already => {
            (AdminResult::Already, format!("saga {n} had a signal with this id before; nothing was changed"))
        }
        Signalled::TooLate => {
            return Err(Failed::not_done(format!("saga {n} has ended, and takes no signals any more")));
        }
        Signalled::TooMany => {
            return Err(Failed::not_done(format!("saga {n} has {SIGNALS_MAX} signals, and takes no more")));
        }
    };
    report(sagas, number, result, &said, json).await
}

/// The saga, if it is as the caller saw it, and if something may be recorded of it with these keys.
pub(super) async fn seen(sagas: &Sagas, number: u64, epoch: Option<u64>) -> Result<Loaded, Failed> {
    let Some(loaded) = sagas.load(number).await? else { return Err(no_saga(number)) };
    if let Some(why) = sagas.refuses_keys(loaded.record.number).await? {
        return Err(Failed::Usage(why));
    }
    let row = &loaded.record.row;
    match epoch {
        Some(epoch) if epoch != row.epoch => Err(Failed::not_done(format!(
            "saga {number} has changed since epoch {epoch}: it is {} now, at epoch {}; check it with `semel saga show` \
             before you decide",
            row.status.as_str(),
            row.epoch
        ))),
        _ => Ok(loaded),
    }
}

/// A name alone is the one use of the step that is open.
fn step_of(loaded: &Loaded, step: &StepName, undo: bool) -> Result<StepId, Failed> {
    let name = step.name.clone();
    if let Some(nth) = step.nth {
        return Ok(StepId { name, nth });
    }
    let open = open_steps(&loaded.entries, loaded.record.row.undo.is_some());
    let mut fits = open.into_iter().filter(|open| open.step.name == name && open.is_undo() == undo);
    match (fits.next(), fits.next()) {
        (Some(one), Some(two)) => Err(Failed::usage(format!(
            "{name} is open more than once: say which, {} or {}",
            one.step, two.step
        ))),
        (Some(one), None) => Ok(one.step),
        _ => Ok(StepId { name, nth: 0 }),
    }
}

fn recorded(
    result: AdminResult,
    number: SagaNumber,
    refusal: impl FnOnce(Status) -> String,
) -> Result<(), Failed> {
    match result {
        AdminResult::Recorded | AdminResult::Already => Ok(()),
        AdminResult::Refused(status) => {
            Err(Failed::not_done(format!("saga {}: refused: {}", number.0, refusal(status))))
        }
        AdminResult::Stale => Err(Failed::not_done(format!(
            "saga {} has changed meanwhile; check it with `semel saga show` before you decide",
            number.0
        ))),
    }
}

/// As it is now: a worker may have gone on with it already.
async fn report(
    sagas: &Sagas,
    number: SagaNumber,
    result: AdminResult,
    said: &str,
    json: bool,
) -> Result<(), Failed> {
    if !json {
        return stdout::text(&format!("{said}\n"));
    }
    let Some(loaded) = sagas.load(number.0).await? else {
        eprintln!("the decision was recorded, and the saga has expired since");
        return Ok(());
    };
    let row = loaded.record.row;
    let result = if result == AdminResult::Already { "already" } else { "recorded" };
    stdout::json(&DecidedView { number: number.0, result, status: row.status.as_str(), epoch: row.epoch })
}
