//! `semel saga`: sagas, and what a person decides about them.
//!
//! | module | what it decides |
//! |---|---|
//! | `args`, `values` | the command line |
//! | `ls` | a page of sagas as a table |
//! | `show` | one saga with its journal as a timeline |
//! | `open` | which steps have no result, read from the journal |
//! | `advice` | what can be done about a saga now, with the commands |
//! | `decide` | a decision about one saga |
//! | `bulk` | a decision about many, or only its plan |
//! | `approval` | yes or no to what a saga waits for |
//! | `export` | one saga with its journal, for tests |
//! | `view` | sagas, entries and signals as JSON and as lines |

mod advice;
mod approval;
mod args;
mod bulk;
mod decide;
mod export;
mod ls;
mod open;
mod show;
mod values;
mod view;

use semel::StoreTime;
use semel::saga::sql::SqlJournal;
use semel::saga::{
    AdminError, DecidedBy, Journal, Loaded, ProtectedJournal, SagaAdmin, SagaNumber, is_sealed,
};
use semel::store::protect::Protection;
use semel::store::{ErrorKind, StoreError};

pub(crate) use self::args::Saga;
use self::args::{BulkDecider, SagaCommand, Which};
use self::decide::Decision;
use crate::failure::Failed;

/// The sagas of one database.
struct Sagas {
    journal: ProtectedJournal<SqlJournal>,
    admin: SagaAdmin,
    /// What is recorded is sealed.
    seals: bool,
}

impl Sagas {
    async fn open(url: &str, protection: Protection, seals: bool) -> Result<Self, Failed> {
        let journal = ProtectedJournal::new(SqlJournal::open(url).await?, protection);
        Ok(Self { admin: SagaAdmin::new(journal.clone()), journal, seals })
    }

    /// Why nothing may be recorded with these keys: of this saga nothing is sealed, so its workers have no keys, and one
    /// sealed decision would stop them.
    async fn refuses_keys(&self, number: SagaNumber) -> Result<Option<String>, StoreError> {
        if !self.seals {
            return Ok(None);
        }
        // As it is stored: this is asked without the keys.
        let stored = self.journal.inner();
        let Some(record) = stored.look(number).await?.filter(|record| !is_sealed(&record.input)) else {
            return Ok(None);
        };
        // It may have begun before its journal was sealed.
        let loaded = stored.load(record.number).await?;
        Ok(loaded.is_some_and(|loaded| !loaded.is_sealed()).then(|| {
            format!(
                "saga {} is not sealed; its workers could not read a sealed decision; run it without --keys (or SEMEL_KEYS)",
                number.0
            )
        }))
    }

    /// The journal's clock: ages and deadlines are by it.
    async fn now(&self) -> Result<StoreTime, Failed> {
        Ok(self.journal.now().await?)
    }

    async fn load(&self, number: u64) -> Result<Option<Loaded>, Failed> {
        Ok(self.admin.load(SagaNumber(number)).await?)
    }
}

/// `seals`: the protection has keys.
pub(crate) async fn run(args: &Saga, protection: Protection, seals: bool, json: bool) -> Result<(), Failed> {
    let sagas = Sagas::open(args.command.url(), protection, seals).await?;
    match &args.command {
        SagaCommand::Ls(args) => ls::run(&sagas, args, json).await,
        SagaCommand::Show(args) => show::run(&sagas, args, json).await,
        SagaCommand::Retry(args) => decided(&sagas, Decision::Retry, &args.which, &args.decider, json).await,
        SagaCommand::Compensate(args) => {
            decided(&sagas, Decision::Compensate, &args.which, &args.decider, json).await
        }
        SagaCommand::Abandon(args) => {
            let decision = Decision::Abandon(args.retention);
            decided(&sagas, decision, &args.which, &args.decider, json).await
        }
        SagaCommand::Resolve(args) => decide::resolve(&sagas, args, json).await,
        SagaCommand::Cancel(args) => decide::cancel(&sagas, args, json).await,
        SagaCommand::Signal(args) => decide::signal(&sagas, args, json).await,
        SagaCommand::Approve(args) => approval::decide(&sagas, &args.which, true, json).await,
        SagaCommand::Reject(args) => approval::decide(&sagas, &args.which, false, json).await,
        SagaCommand::Export(args) => export::run(&sagas, args).await,
    }
}

/// A decision about one saga, or about all that the filters choose.
async fn decided(
    sagas: &Sagas,
    decision: Decision,
    which: &Which,
    by: &BulkDecider,
    json: bool,
) -> Result<(), Failed> {
    if which.plan {
        return bulk::plan(sagas, decision, which, json).await;
    }
    let (Some(who), Some(why)) = (&by.by, &by.why) else {
        return Err(Failed::usage("give --by and --why: who decides, and why"));
    };
    let by = DecidedBy::new(who, why);
    match which.number {
        Some(number) => decide::one(sagas, decision, which, number, &by, json).await,
        None if which.yes => bulk::apply(sagas, decision, which, &by, json).await,
        None => Err(Failed::usage(
            "with filters this is about many sagas; nothing was changed: look first with --plan, then add --yes",
        )),
    }
}

fn no_saga(number: u64) -> Failed {
    Failed::not_done(format!("there is no saga {number}; it may have expired: `semel saga ls` lists them"))
}

/// The saga cannot be opened: another key of the same name, or somebody changed it. Others can.
fn is_tampered(error: &AdminError) -> bool {
    matches!(error, AdminError::Journal(error) if error.kind() == ErrorKind::Corrupt)
}

impl From<AdminError> for Failed {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Journal(error) => error.into(),
            AdminError::NotJson(_)
            | AdminError::SignalName
            | AdminError::TooLarge { .. }
            | AdminError::Sealed { .. } => Self::Usage(error.to_string()),
            other => Self::NotDone(other.to_string()),
        }
    }
}
